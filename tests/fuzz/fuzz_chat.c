/* fuzz_chat.c - any bytes as a conversation: refused with a sentence, or a text whose ids spell
 * it again, in which only the format's own marks are special tokens. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "support/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

/* ids spell text, U+2581 as a space. */
static void check_spelling(const kk_tokenizer *tok, const int32_t *ids, size_t n, const char *text,
                           size_t len) {
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
    static kk_tokenizer *tok;
    if (!tok) tok = data_tokenizer("tokenizer/tokenizer.json");
    char *text;
    int32_t *ids;
    size_t len, n;
    kk_err err = {0};
    const int64_t live = kk_live_bytes();
    const kk_status st = kk_chat_render((const char *)data, size, &text, &len, &err);
    need(kk_chat_encode(tok, (const char *)data, size, &ids, &n, NULL) == st);
    need((st == KK_OK) == (text != NULL) && (st == KK_OK) == (ids != NULL));
    if (st == KK_OK) {
        need(strlen("<bos>") < len && memcmp(text, "<bos>", 5) == 0 && ids[0] == 2);
        check_spelling(tok, ids, n, text, len);
    } else {
        need(st == KK_EINVAL && err.code == st && err.msg[0]);
    }
    kk_free(text);
    kk_free(ids);
    need(kk_live_bytes() == live);
    return 0;
}
