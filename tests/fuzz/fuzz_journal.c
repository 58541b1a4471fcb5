/* fuzz_journal.c - any bytes as a journal: refused, or read as far as its records are good. */
#include <stdlib.h>
#include <string.h>

#include "server/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void check(const uint8_t *data, size_t size) {
    journal j;
    kk_err err = {0};
    if (journal_parse(&j, data, size, &err) == KK_OK) {
        need(j.good <= size && strlen(j.head.id) < JOURNAL_ID && j.n_turns >= 0);
        need(j.head.meta_len <= JOURNAL_META && j.meta[j.head.meta_len] == '\0');
        for (size_t i = 0; i < j.len; i++) need(j.tokens[i] >= 0);
        for (int32_t i = 0; i < j.n_turns; i++)
            need(j.turns[i] >= 0 && (size_t)j.turns[i] <= j.len);
    } else {
        need(err.msg[0] != '\0');
    }
    journal_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    return 0;
}
