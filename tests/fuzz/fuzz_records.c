/* fuzz_records.c - any bytes as a line of .jsonl: a text, a conversation, neither, or refused with
 * a sentence. */
#include <stdlib.h>
#include <string.h>

#include "eval/texts/records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_record r;
    kk_err err = {0};
    const kk_status st = kk_record_read(&r, (const char *)data, size, &err);
    need(st == KK_OK || (err.msg[0] && !r.text));
    need((r.text != NULL) == (r.kind != KK_RECORD_OTHER));
    if (r.kind == KK_RECORD_CHAT) {
        char *text;
        size_t len;
        if (kk_chat_render(r.text, r.len, &text, &len, &err) == KK_OK) kk_free(text);
    }
    kk_record_release(&r);
    return 0;
}
