/* fuzz_transcript.c - any tokens as the history of a session, read back as messages: these follow
 * each other within the history, and have parts of known kinds; arguments of calls are JSON.
 *
 * The first byte chooses: text whose marks become tokens, or pairs of bytes as ids. */
#define _GNU_SOURCE
#include <jansson.h>

#include "server/transcript.h"
#include "support/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void check_part(const json_t *part) {
    static const char *const kinds[] = {"text", "thought", "call", "response", "tool"};
    const char *kind = json_string_value(json_object_get(part, "kind"));
    bool known = false;
    for (size_t i = 0; kind && i < sizeof kinds / sizeof *kinds; i++)
        known |= strcmp(kind, kinds[i]) == 0;
    need(known && json_is_string(json_object_get(part, "text")));
    const json_t *arguments = json_object_get(part, "arguments");
    if (!arguments) return;
    json_t *map = json_loads(json_string_value(arguments), 0, NULL);
    need(json_is_object(map) && json_is_string(json_object_get(part, "name")));
    json_decref(map);
}

static void check_messages(const json_t *list, size_t n) {
    json_int_t end = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i), *parts = json_object_get(m, "parts");
        const json_int_t start = json_integer_value(json_object_get(m, "start"));
        need(start >= end && json_is_string(json_object_get(m, "role")) && json_is_array(parts));
        end = json_integer_value(json_object_get(m, "end"));
        need(end > start && end <= (json_int_t)n);
        for (size_t k = 0; k < json_array_size(parts); k++) check_part(json_array_get(parts, k));
    }
}

static int32_t *ids_of_pairs(const kk_tokenizer *tok, const uint8_t *data, size_t n) {
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    need(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (data[2 * i] | data[2 * i + 1] << 8) % kk_tokenizer_size(tok);
    return ids;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kk_tokenizer *tok;
    int32_t *ids;
    size_t n = 0;
    if (!tok) tok = data_tokenizer("tokenizer/tokenizer.json");
    if (size < 1) return 0;
    const int64_t live = kk_live_bytes();
    const bool text = data[0] & 1;
    if (text)
        need(kk_encode(tok, (const char *)data + 1, size - 1, KK_ENCODE_SPECIAL, &ids, &n, NULL) ==
             KK_OK);
    else
        ids = ids_of_pairs(tok, data + 1, n = (size - 1) / 2);
    json_t *list = transcript_json(tok, ids, n, NULL);
    need(list != NULL);
    check_messages(list, n);
    json_decref(list);
    if (text)
        kk_free(ids);
    else
        free(ids);
    need(kk_live_bytes() == live);
    return 0;
}
