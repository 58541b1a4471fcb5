/* fuzz_tokenizer_text.c - any bytes as text for two tokenizers, one of Gemma's kind and one whose
 * added tokens use every flag.  The first byte chooses.  Bytes come back, streams add up, plain
 * text holds no special token. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "support/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void check_plain(const kk_tokenizer *tok, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t len;
        bool special;
        kk_tokenizer_piece(tok, ids[i], &len, &special);
        need(!special);
    }
}

static void check_stream(const kk_tokenizer *tok, const int32_t *ids, size_t n, bool show) {
    kk_decoder *d;
    char *whole;
    const char *piece;
    size_t n_whole, len, at = 0;
    need(kk_decode(tok, ids, n, show, &whole, &n_whole, NULL) == KK_OK);
    const bool valid = kk_utf8_valid(whole, n_whole);
    need(kk_decoder_new(&d, tok, show, NULL) == KK_OK);
    for (size_t i = 0; i <= n; i++) {
        need((i < n ? kk_decoder_push(d, ids[i], &piece, &len, NULL)
                    : kk_decoder_finish(d, &piece, &len, NULL)) == KK_OK);
        need(len <= n_whole - at && memcmp(piece, whole + at, len) == 0);
        need(!valid || kk_utf8_valid(piece, len));
        at += len;
    }
    need(at == n_whole);
    kk_decoder_free(d);
    kk_free(whole);
}

/* The text comes back, U+2581 as a space. */
static void check_back(const kk_tokenizer *tok, const char *text, size_t len, const int32_t *ids,
                       size_t n) {
    char *back;
    size_t n_back, at = 0;
    need(kk_decode(tok, ids, n, true, &back, &n_back, NULL) == KK_OK);
    for (size_t i = 0; i < len; at++) {
        const bool mark = len - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        need(at < n_back && back[at] == (mark ? ' ' : text[i]));
        i += mark ? 3 : 1;
    }
    need(at == n_back);
    kk_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kk_tokenizer *toks[2];
    if (!toks[0]) {
        toks[0] = data_tokenizer("tokenizer/tokenizer.json");
        toks[1] = data_tokenizer("tokenizer/added.json");
    }
    if (size == 0) return 0;
    const bool strips = data[0] & 1; /* that one's tokens swallow white space */
    const unsigned flags = data[0] >> 1 & 3;
    const kk_tokenizer *tok = toks[strips];
    const char *text = (const char *)data + 1;
    const size_t len = size - 1;
    int32_t *ids;
    size_t n;
    need(kk_encode(tok, text, len, flags, &ids, &n, NULL) == KK_OK);
    if (flags & KK_ENCODE_BOS) need(n > 0 && ids[0] == 2);
    if (!flags) check_plain(tok, ids, n);
    if (!strips && !(flags & KK_ENCODE_BOS)) check_back(tok, text, len, ids, n);
    check_stream(tok, ids, n, true);
    check_stream(tok, ids, n, false);
    kk_free(ids);
    return 0;
}
