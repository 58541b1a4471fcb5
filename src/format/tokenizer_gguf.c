/* tokenizer_gguf.c - reads the tokenizer that llama.cpp's converter puts into a GGUF file of
 * Gemma 4: the model name "gemma4", then tokens, their types and merges as arrays.
 *
 * The types are nearly what tokenizer.json says.  One thing is not: the converter lists some of
 * the chat format's marks as user-defined, so that llama.cpp prints them.  They are special
 * here all the same, because a user who types one must not thereby write a turn. */
#include <string.h>

#include "format/chat.h"
#include "format/tokenizer_parts.h"

static const char label[] = "the GGUF file's tokenizer";

static bool is_chat_mark(kk_span text) {
    for (int m = 0; m < KK_MARKS; m++) {
        const char *mark = kk_chat_mark_text((kk_chat_mark)m);
        if (strlen(mark) == text.size && memcmp(mark, text.base, text.size) == 0) return true;
    }
    return false;
}

static kk_status need_array(const kk_gguf *g, const char *key, kk_gguf_type elem,
                            const kk_gguf_kv **out, kk_err *err) {
    *out = kk_gguf_find(g, key);
    if (!*out) return kk_fail(err, KK_EFORMAT, "the GGUF file has no key %s", key);
    if ((*out)->type == KK_GGUF_ARRAY && (*out)->elem == elem) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "the GGUF key %s is not an array of %s", key,
                   elem == KK_GGUF_STRING ? "strings" : "32-bit integers");
}

static kk_status check_model(const kk_gguf *g, kk_err *err) {
    kk_span model;
    if (!kk_gguf_str(g, "tokenizer.ggml.model", &model))
        return kk_fail(err, KK_EFORMAT, "the GGUF file has no tokenizer");
    if (model.size == 6 && memcmp(model.base, "gemma4", 6) == 0) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "the GGUF file's tokenizer is of kind '%.*s', only gemma4 is supported",
                   model.size < 40 ? (int)model.size : 40, (const char *)model.base);
}

static kk_status read_token(kk_tokenizer *t, int64_t id, kk_span text, int64_t type, kk_err *err) {
    if (text.size == 0) return KK_OK; /* a hole in the vocabulary */
    const char *s = (const char *)text.base;
    const bool special = type == KK_GGUF_TOKEN_CONTROL || type == KK_GGUF_TOKEN_UNKNOWN ||
                         (type == KK_GGUF_TOKEN_USER && is_chat_mark(text));
    if (special) return kk_tokenizer_add(t, s, text.size, id, KK_ADDED_SPECIAL, false, label, err);
    if (type == KK_GGUF_TOKEN_USER)
        return kk_tokenizer_add(t, s, text.size, id, 0, false, label, err);
    return kk_vocab_add(&t->vocab, id, s, text.size, label, err);
}

static kk_status read_tokens(kk_tokenizer *t, const kk_gguf *g, kk_err *err) {
    const kk_gguf_kv *tokens, *types = kk_gguf_find(g, "tokenizer.ggml.token_type");
    KK_TRY(need_array(g, "tokenizer.ggml.tokens", KK_GGUF_STRING, &tokens, err));
    KK_TRY(need_array(g, "tokenizer.ggml.token_type", KK_GGUF_I32, &types, err));
    if (types->n != tokens->n)
        return kk_fail(err, KK_EFORMAT, "the GGUF file has %llu tokens but %llu token types",
                       (unsigned long long)tokens->n, (unsigned long long)types->n);
    size_t cursor = 0;
    kk_span text;
    for (int64_t id = 0; kk_gguf_array_next_str(tokens, &cursor, &text); id++) {
        int64_t type = 0;
        kk_gguf_array_int(types, (uint64_t)id, &type);
        KK_TRY(read_token(t, id, text, type, err));
    }
    return KK_OK;
}

static kk_status read_merges(kk_tokenizer *t, const kk_gguf *g, kk_err *err) {
    const kk_gguf_kv *merges;
    KK_TRY(need_array(g, "tokenizer.ggml.merges", KK_GGUF_STRING, &merges, err));
    size_t cursor = 0;
    kk_span text;
    while (kk_gguf_array_next_str(merges, &cursor, &text))
        KK_TRY(kk_tokenizer_add_merge_text(t, (const char *)text.base, text.size, label, err));
    return KK_OK;
}

/* The file names its <bos> by id, whatever its text is. */
static kk_status read_bos(kk_tokenizer *t, const kk_gguf *g, kk_err *err) {
    int64_t id;
    if (!kk_gguf_int(g, "tokenizer.ggml.bos_token_id", &id)) return KK_OK;
    if (id < 0 || id >= t->vocab.size)
        return kk_fail(err, KK_EFORMAT, "the GGUF file's <bos> is token %lld of %d", (long long)id,
                       t->vocab.size);
    t->bos = (int32_t)id;
    return KK_OK;
}

static kk_status read_all(kk_tokenizer *t, const kk_gguf *g, kk_err *err) {
    KK_TRY(check_model(g, err));
    KK_TRY(read_tokens(t, g, err));
    KK_TRY(read_merges(t, g, err));
    KK_TRY(read_bos(t, g, err));
    return kk_tokenizer_finish(t, label, err);
}

kk_status kk_tokenizer_from_gguf(kk_tokenizer **out, const kk_gguf *g, kk_err *err) {
    *out = NULL;
    kk_tokenizer *t = kk_tokenizer_new();
    if (!t) return kk_fail(err, KK_ENOMEM, "no memory for a tokenizer");
    const kk_status st = read_all(t, g, err);
    if (st != KK_OK) {
        kk_tokenizer_close(t);
        return st;
    }
    *out = t;
    return KK_OK;
}
