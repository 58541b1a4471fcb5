/* fuzz_tokenizer_json.c - any bytes as a tokenizer.json: refused with a sentence, or a tokenizer
 * that encodes and decodes.  Nothing may stay behind. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "format/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const kk_tokenizer *tok) {
    static const char text[] = "ab a<bos>\n\n\xf0\x9f\xa6\x99\xff  <|x> zzz\xe2\x96\x81 b";
    const size_t len = sizeof text - 1;
    for (unsigned flags = 0; flags <= KK_ENCODE_SPECIAL; flags += KK_ENCODE_SPECIAL) {
        int32_t *ids;
        char *back;
        size_t n, n_back;
        if (kk_encode(tok, text, len, flags, &ids, &n, NULL) != KK_OK) abort();
        if (kk_decode(tok, ids, n, true, &back, &n_back, NULL) != KK_OK) abort();
        if (n_back > len) abort(); /* stripped white space and U+2581 make it shorter */
        kk_free(back);
        kk_free(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_tokenizer *tok;
    kk_err err = {0};
    const int64_t live = kk_live_bytes();
    const kk_status st = kk_tokenizer_from_json(&tok, (const char *)data, size, "input", &err);
    if ((st == KK_OK) != (tok != NULL)) abort();
    if (st != KK_OK && (err.code != st || !err.msg[0])) abort();
    if (tok) use(tok);
    kk_tokenizer_close(tok);
    if (kk_live_bytes() != live) abort();
    return 0;
}
