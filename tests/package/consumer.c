/* consumer.c - a program of someone else's, built against an installed copy. */
#include <kakeya.h>

#include <stdio.h>
#include <string.h>

int main(void) {
    if (strncmp(kk_version(), KK_VERSION, strlen(KK_VERSION)) != 0) {
        fprintf(stderr, "library %s, header %s\n", kk_version(), KK_VERSION);
        return 1;
    }
    kk_err err;
    kk_engine *engine;
    const kk_engine_opts opts = {.model = "no such model"};
    if (kk_engine_open(&engine, &opts, &err) == KK_OK || engine || err.msg[0] == '\0') {
        fprintf(stderr, "a missing model was not refused\n");
        return 1;
    }
    printf("kakeya %s: %s\n", kk_version(), err.msg);
    return 0;
}
