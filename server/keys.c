/* keys.c - see keys.h. */
#define _GNU_SOURCE
#include "server/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/server.h"

enum { MOST_KEYS = 4096, LONGEST_LINE = 4096 };

/* The key of a line, without the blanks around it; NULL: it has none. */
static char *key_of(char *line) {
    line += strspn(line, " \t\r\n");
    size_t n = strlen(line);
    while (n > 0 && strchr(" \t\r\n", line[n - 1])) line[--n] = '\0';
    return n > 0 && line[0] != '#' ? line : NULL;
}

static void forget(key_list *k) {
    if (k->key) explicit_bzero(k->key, k->n * sizeof *k->key);
    free(k->key);
    *k = (key_list){NULL, 0};
}

static kk_status add(key_list *k, const char *key, int line, kk_err *err) {
    const size_t n = strlen(key);
    if (n >= KEYS_LONGEST)
        return server_fail(err, KK_EINVAL, "the key in line %d is longer than %d bytes", line,
                           KEYS_LONGEST - 1);
    if (k->n >= MOST_KEYS) return server_fail(err, KK_EINVAL, "more than %d keys", MOST_KEYS);
    void *more = realloc(k->key, (k->n + 1) * sizeof *k->key);
    if (!more) return server_fail(err, KK_ENOMEM, "no memory for keys");
    k->key = more;
    memset(k->key[k->n], 0, sizeof *k->key);
    memcpy(k->key[k->n++], key, n);
    return KK_OK;
}

static kk_status read_list(key_list *k, const char *path, kk_err *err) {
    FILE *f = fopen(path, "re");
    if (!f)
        return server_fail(err, KK_EIO, "cannot open the key file '%s': %s", path, strerror(errno));
    char line[LONGEST_LINE];
    kk_status st = KK_OK;
    for (int i = 1; st == KK_OK && fgets(line, sizeof line, f); i++) {
        if (!strchr(line, '\n') && !feof(f)) {
            st = server_fail(err, KK_EINVAL,
                             "line %d of '%.180s' is no line of text of less than "
                             "%d bytes",
                             i, path, LONGEST_LINE);
            break;
        }
        const char *key = key_of(line);
        if (key) st = add(k, key, i, err);
    }
    if (st == KK_OK && ferror(f)) st = server_fail(err, KK_EIO, "cannot read '%s'", path);
    if (st == KK_OK && k->n == 0)
        st = server_fail(err, KK_EINVAL, "the key file '%s' has no key in it", path);
    explicit_bzero(line, sizeof line);
    fclose(f);
    return st;
}

void keys_init(keys *k) {
    k->list = (key_list){NULL, 0};
    pthread_mutex_init(&k->lock, NULL);
}

kk_status keys_read(keys *k, const char *path, kk_err *err) {
    key_list fresh = {NULL, 0};
    const kk_status st = read_list(&fresh, path, err);
    if (st == KK_OK) {
        pthread_mutex_lock(&k->lock);
        const key_list before = k->list;
        k->list = fresh;
        fresh = before;
        pthread_mutex_unlock(&k->lock);
    }
    forget(&fresh);
    return st;
}

void keys_close(keys *k) {
    forget(&k->list);
    pthread_mutex_destroy(&k->lock);
}

static bool accepted(const key_list *k, const char *authorization) {
    static const char scheme[] = "Bearer ";
    char given[KEYS_LONGEST] = {0};
    if (k->n == 0) return true;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return false;
    const char *key = authorization + sizeof scheme - 1;
    const size_t n = strlen(key);
    if (n >= sizeof given) return false;
    memcpy(given, key, n);
    /* Every byte of every key is compared, whatever came before. */
    unsigned any = 0;
    for (size_t i = 0; i < k->n; i++) {
        unsigned differ = 0;
        for (size_t b = 0; b < sizeof given; b++)
            differ |= (unsigned char)(k->key[i][b] ^ given[b]);
        any |= (differ - 1u) >> 31; /* 1 where differ is 0 */
    }
    return any != 0 && n > 0;
}

bool keys_accept(keys *k, const char *authorization) {
    pthread_mutex_lock(&k->lock);
    const bool passes = accepted(&k->list, authorization);
    pthread_mutex_unlock(&k->lock);
    return passes;
}
