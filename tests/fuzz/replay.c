/* replay.c - runs one fuzzer over every file of its corpus, without libFuzzer.
 *
 * Linked with a fuzz_NAME.c it becomes an ordinary test: what fuzzing once found stays fixed, on
 * every compiler.  Each input is copied into a block of its exact size, so that a sanitizer sees
 * a read past its end.  An empty or missing folder is a failure: a test that ran nothing has
 * shown nothing. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int complain(const char *path) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return -1;
}

/* 1: replayed, 0: not a plain file, -1: could not be read. */
static int replay(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return complain(path);
    if (!S_ISREG(st.st_mode)) return 0;
    FILE *file = fopen(path, "rb");
    if (!file) return complain(path);

    const size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size ? size : 1);
    const int whole = data && fread(data, 1, size, file) == size;
    fclose(file);
    if (whole) LLVMFuzzerTestOneInput(data, size);
    free(data);
    return whole ? 1 : complain(path);
}

static int replay_folder(const char *folder) {
    struct dirent **entries;
    const int n = scandir(folder, &entries, NULL, alphasort);
    if (n < 0) return complain(folder);
    int done = 0;
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        free(entries[i]);
        const int one = done < 0 ? -1 : replay(path);
        done = one < 0 ? -1 : done + one;
    }
    free(entries);
    return done;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        const int done = replay_folder(argv[i]);
        if (done < 0) return 1;
        printf("%s: %d inputs replayed\n", argv[i], done);
        if (done == 0) return 1;
    }
    return 0;
}
