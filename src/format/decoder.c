/* decoder.c - ids back to bytes, whole and as a stream.
 *
 * A token is written as its text with U+2581 as a space, a byte token as its byte.  Nothing is
 * judged: bytes that are no UTF-8 come out as they went in.  (Hugging Face's decoder agrees on
 * every text that is UTF-8, and puts U+FFFD for bytes that are not.)  The stream only holds back
 * the start of a character until the rest has come, or until it is plain that it never will. */
#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "format/tokenizer_parts.h"

struct kk_decoder {
    const kk_tokenizer *tok;
    bool show_special;
    size_t len, given; /* bytes in text, and those of them the caller has had */
    char text[];       /* large enough for the longest token after an unfinished character */
};

static kk_status check_id(const kk_tokenizer *t, int32_t id, kk_err *err) {
    if (id >= 0 && id < t->vocab.size) return KK_OK;
    return kk_fail(err, KK_EINVAL, "the token %d is not in a vocabulary of %d", id, t->vocab.size);
}

/* Writes what a token decodes to, at most its own length, and returns how much it was. */
static size_t write_token(const kk_tokenizer *t, int32_t id, bool show_special, char *out) {
    size_t len, n = 0;
    const char *text = kk_vocab_text(&t->vocab, id, &len);
    if (t->kinds[id] == KK_TOKEN_SPECIAL && !show_special) return 0;
    if (t->kinds[id] == KK_TOKEN_BYTE) {
        *out = (char)kk_byte_of_text(text, len);
        return 1;
    }
    for (size_t i = 0; i < len; n++) {
        const bool mark = len - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        out[n] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return n;
}

kk_status kk_decode(const kk_tokenizer *t, const int32_t *ids, size_t n, bool show_special,
                    char **text, size_t *len, kk_err *err) {
    size_t capacity = 1;
    *text = NULL;
    *len = 0;
    for (size_t i = 0; i < n; i++) {
        KK_TRY(check_id(t, ids[i], err));
        if (!kk_add(capacity, t->vocab.pieces[ids[i]].len, &capacity))
            return kk_fail(err, KK_ENOMEM, "no memory to decode %zu tokens", n);
    }
    char *out = kk_malloc(capacity);
    if (!out) return kk_fail(err, KK_ENOMEM, "no memory to decode %zu tokens", n);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) at += write_token(t, ids[i], show_special, out + at);
    out[at] = '\0';
    *text = out;
    *len = at;
    return KK_OK;
}

kk_status kk_decoder_new(kk_decoder **out, const kk_tokenizer *tok, bool show_special,
                         kk_err *err) {
    *out = NULL;
    kk_decoder *d = kk_zalloc(sizeof *d + tok->longest + 4);
    if (!d) return kk_fail(err, KK_ENOMEM, "no memory for a decoder");
    d->tok = tok;
    d->show_special = show_special;
    *out = d;
    return KK_OK;
}

void kk_decoder_free(kk_decoder *d) { kk_free(d); }

/* Forgets what the caller has had. */
static void drop_given(kk_decoder *d) {
    d->len -= d->given;
    memmove(d->text, d->text + d->given, d->len);
    d->given = 0;
}

kk_status kk_decoder_push(kk_decoder *d, int32_t id, const char **text, size_t *len, kk_err *err) {
    *text = "";
    *len = 0;
    KK_TRY(check_id(d->tok, id, err));
    drop_given(d);
    d->len += write_token(d->tok, id, d->show_special, d->text + d->len);
    d->given = d->len - kk_utf8_unfinished(d->text, d->len);
    *text = d->text;
    *len = d->given;
    return KK_OK;
}

kk_status kk_decoder_finish(kk_decoder *d, const char **text, size_t *len, kk_err *err) {
    (void)err; /* nothing here can fail; the signature allows for decoders that can */
    drop_given(d);
    d->given = d->len;
    *text = d->text;
    *len = d->len;
    return KK_OK;
}
