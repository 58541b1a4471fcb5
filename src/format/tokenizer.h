/* tokenizer.h - byte-fallback BPE of Gemma's kind, from tokenizer.json or from GGUF keys.
 *
 * The public calls are in kakeya.h; this is what format/ and engine/ also need. */
#ifndef KK_FORMAT_TOKENIZER_H
#define KK_FORMAT_TOKENIZER_H

#include "core/error.h"
#include "format/gguf.h"

kk_status kk_tokenizer_from_json(kk_tokenizer **out, const char *json, size_t len,
                                 const char *label, kk_err *err);
kk_status kk_tokenizer_from_gguf(kk_tokenizer **out, const kk_gguf *g, kk_err *err);
/* The text of a token as stored (not NUL-terminated; empty where no token has the id), and
 * whether it is special; for the GGUF writer. */
const char *kk_tokenizer_piece(const kk_tokenizer *tok, int32_t id, size_t *len, bool *special);
/* What a GGUF file calls the token in tokenizer.ggml.token_type. */
enum {
    KK_GGUF_TOKEN_NORMAL = 1,
    KK_GGUF_TOKEN_UNKNOWN = 2,
    KK_GGUF_TOKEN_CONTROL = 3,
    KK_GGUF_TOKEN_USER = 4,
    KK_GGUF_TOKEN_UNUSED = 5,
    KK_GGUF_TOKEN_BYTE = 6
};
int32_t kk_tokenizer_gguf_type(const kk_tokenizer *tok, int32_t id);
size_t kk_tokenizer_merges(const kk_tokenizer *tok);
/* Merge i, strongest first: the ids of its two sides. */
void kk_tokenizer_merge(const kk_tokenizer *tok, size_t i, int32_t *left, int32_t *right);

/* Streaming decode: push tokens one at a time, get the bytes so far but never half a character.
 * The start of one is held back until it is complete, or until a byte shows that it never will
 * be, and then passed on as it is: the pieces together are what kk_decode gives. */
typedef struct kk_decoder kk_decoder;
kk_status kk_decoder_new(kk_decoder **out, const kk_tokenizer *tok, bool show_special, kk_err *err);
void kk_decoder_free(kk_decoder *d);
/* *text is borrowed until the next call on d; it may be empty (len 0). */
kk_status kk_decoder_push(kk_decoder *d, int32_t id, const char **text, size_t *len, kk_err *err);
kk_status kk_decoder_finish(kk_decoder *d, const char **text, size_t *len, kk_err *err);

#endif
