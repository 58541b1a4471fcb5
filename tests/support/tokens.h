/* tokens.h - the tokenizers and vectors of tests/data, for the tests of text. */
#ifndef KK_TESTS_TOKENS_H
#define KK_TESTS_TOKENS_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "format/tokenizer.h"
#include "support/scratch.h"

static inline char *data_read(const char *name, size_t *len) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", KK_TEST_DATA, name);
    char *text = scratch_read(path, len);
    if (!text) {
        fprintf(stderr, "%s is missing\n", path);
        abort();
    }
    return text;
}

static inline kk_tokenizer *data_tokenizer(const char *name) {
    size_t len;
    kk_err err;
    kk_tokenizer *tok;
    char *json = data_read(name, &len);
    if (kk_tokenizer_from_json(&tok, json, len, name, &err) != KK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    free(json);
    return tok;
}

/* Walks the lines of a file: each as a JSON object, released by the caller; NULL at the end. */
static inline json_t *next_line(char **at) {
    if (!**at) return NULL;
    char *end = strchr(*at, '\n');
    const size_t len = end ? (size_t)(end - *at) : strlen(*at);
    json_t *line = json_loadb(*at, len, JSON_ALLOW_NUL, NULL);
    if (!line) abort();
    *at += len + (end != NULL);
    return line;
}

/* A generator of its own, so that a failure can be repeated. */
static inline uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline uint32_t random_below(uint64_t *state, uint32_t n) { return next_random(state) % n; }

#endif
