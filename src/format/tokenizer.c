/* tokenizer.c - encodes text with the tables of a tokenizer, and owns their life.
 *
 * A text is cut at added tokens; what lies between is one run in which spaces stand for U+2581.
 * The reference treats such a run as a single word.  Here it is cut further, between any two
 * characters that no merge can ever bring into one token: the parts cannot affect each
 * other, so the ids are the same, and the merge loop works on a dozen symbols instead of a
 * million.  Of ordinary text that is a cut at every space. */
#include "format/tokenizer.h"

#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "format/tokenizer_parts.h"

enum { SPACE_MARK = 0x2581, LAST_CHARACTER = 0x10ffff };

/* ---- life ------------------------------------------------------------------------------- */

kk_tokenizer *kk_tokenizer_new(void) {
    kk_tokenizer *t = kk_zalloc(sizeof *t);
    if (!t) return NULL;
    t->normalised.fold = true;
    t->bos = -1;
    return t;
}

void kk_tokenizer_close(kk_tokenizer *t) {
    if (!t) return;
    kk_vocab_free(&t->vocab);
    kk_bpe_free(&t->bpe);
    kk_added_free(&t->raw);
    kk_added_free(&t->normalised);
    kk_free(t->kinds);
    kk_free(t);
}

static kk_status open_gguf(kk_tokenizer **out, kk_span file, const char *path, kk_err *err) {
    kk_gguf g;
    KK_TRY(kk_gguf_parse(&g, file, path, err));
    const kk_status st = kk_tokenizer_from_gguf(out, &g, err);
    kk_gguf_free(&g);
    return st;
}

static kk_status open_file(kk_tokenizer **out, const char *path, kk_err *err) {
    kk_map map;
    KK_TRY(kk_map_open(&map, path, err));
    const kk_span s = map.span;
    const kk_status st = s.size >= 4 && memcmp(s.base, "GGUF", 4) == 0
                             ? open_gguf(out, s, path, err)
                             : kk_tokenizer_from_json(out, (const char *)s.base, s.size, path, err);
    kk_map_close(&map);
    return st;
}

kk_status kk_tokenizer_open(kk_tokenizer **out, const char *path, kk_err *err) {
    *out = NULL;
    if (!path) return kk_fail(err, KK_EINVAL, "no path to a tokenizer was given");
    if (!kk_dir_exists(path)) return open_file(out, path, err);
    char *file = kk_path_join(path, "tokenizer.json");
    if (!file) return kk_fail(err, KK_ENOMEM, "no memory for the path of a tokenizer");
    const kk_status st = open_file(out, file, err);
    kk_free(file);
    return st;
}

/* ---- building --------------------------------------------------------------------------- */

kk_status kk_tokenizer_add(kk_tokenizer *t, const char *text, size_t len, int64_t id,
                           unsigned flags, bool normalised, const char *label, kk_err *err) {
    const int32_t known = kk_vocab_find(&t->vocab, text, len);
    if (known < 0)
        KK_TRY(kk_vocab_add(&t->vocab, id, text, len, label, err));
    else if (known != id)
        return kk_fail(err, KK_EFORMAT,
                       "%s: the added token '%.*s' has the id %lld, but %d in the vocabulary",
                       label, len < 60 ? (int)len : 60, text, (long long)id, known);
    return kk_added_add(normalised ? &t->normalised : &t->raw, text, len, (int32_t)id, flags, err);
}

kk_status kk_tokenizer_add_merge(kk_tokenizer *t, int32_t left, int32_t right, kk_err *err) {
    if (left < 0 || right < 0) return KK_OK;
    const int32_t result = kk_vocab_find_joined(&t->vocab, left, right);
    return result < 0 ? KK_OK : kk_bpe_add(&t->bpe, (kk_merge){left, right, result}, err);
}

kk_status kk_tokenizer_add_merge_text(kk_tokenizer *t, const char *text, size_t len,
                                      const char *label, kk_err *err) {
    /* a token may start with a space, never hold one elsewhere */
    const char *space = len > 1 ? memchr(text + 1, ' ', len - 1) : NULL;
    if (!space)
        return kk_fail(err, KK_EFORMAT, "%s: the merge '%.*s' has no space between its sides",
                       label, len < 60 ? (int)len : 60, text);
    const size_t left = (size_t)(space - text);
    return kk_tokenizer_add_merge(t, kk_vocab_find(&t->vocab, text, left),
                                  kk_vocab_find(&t->vocab, space + 1, len - left - 1), err);
}

int kk_byte_of_text(const char *text, size_t len) {
    static const char hex[] = "0123456789abcdefABCDEF";
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        const char *digit = text[i] ? strchr(hex, text[i]) : NULL;
        if (!digit) return -1;
        const int d = (int)(digit - hex);
        value = value * 16 + (d < 16 ? d : d - 6);
    }
    return value;
}

/* What each id is, and how long the longest text. */
static void sort_kinds(kk_tokenizer *t) {
    for (int32_t id = 0; id < t->vocab.size; id++) {
        size_t len;
        const char *text = kk_vocab_text(&t->vocab, id, &len);
        if (len > t->longest) t->longest = len;
        if (kk_byte_of_text(text, len) >= 0) t->kinds[id] = KK_TOKEN_BYTE;
    }
    const kk_added *const sets[] = {&t->normalised, &t->raw};
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < sets[s]->n; i++) {
            const kk_added_token *a = &sets[s]->tokens[i];
            if (t->kinds[a->id] == KK_TOKEN_BYTE) continue; /* every byte needs its token */
            t->kinds[a->id] = a->flags & KK_ADDED_SPECIAL ? KK_TOKEN_SPECIAL : KK_TOKEN_ADDED;
        }
}

/* A token that plain text may become. */
static int32_t find_plain(const kk_tokenizer *t, const char *text, size_t len) {
    const int32_t id = kk_vocab_find(&t->vocab, text, len);
    return id >= 0 && t->kinds[id] != KK_TOKEN_SPECIAL ? id : -1;
}

static kk_status find_bytes(kk_tokenizer *t, const char *label, kk_err *err) {
    static const char hex[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; b++) {
        const char text[] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
        t->byte_ids[b] = find_plain(t, text, sizeof text);
        if (t->byte_ids[b] < 0)
            return kk_fail(err, KK_EFORMAT,
                           "%s: there is no token <0x%02X>, so not every text could be encoded",
                           label, (unsigned)b);
    }
    for (int c = 0; c < 128; c++) {
        const char one = (char)c;
        t->ascii_ids[c] = c == ' ' ? find_plain(t, "\xe2\x96\x81", 3) : find_plain(t, &one, 1);
    }
    if (t->ascii_ids[' '] < 0)
        return kk_fail(err, KK_EFORMAT, "%s: there is no token for U+2581, the space", label);
    return KK_OK;
}

/* ---- which characters join -------------------------------------------------------------- */

static size_t class_of(uint32_t cp) {
    return cp < 128 ? cp : 128 + (cp * 0x9e3779b1u >> 16) % (KK_CHAR_CLASSES - 128);
}

static size_t class_of_first(const char *text, size_t len) {
    uint32_t cp = 0;
    kk_utf8_next(text, len, &cp);
    return class_of(cp);
}

static size_t class_of_last(const char *text, size_t len) {
    size_t at = len - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
    return class_of_first(text + at, len - at);
}

/* A character of a text can only be joined to the next one by a merge whose left side ends with
 * the first and whose right side starts with the second.  That holds as long as symbols are
 * characters; where a merge takes a byte token, no cut is safe and every pair counts as joined. */
static void find_joins(kk_tokenizer *t) {
    for (size_t i = 0; i < t->bpe.n; i++) {
        size_t left_len, right_len;
        const char *left = kk_vocab_text(&t->vocab, t->bpe.merges[i].left, &left_len);
        const char *right = kk_vocab_text(&t->vocab, t->bpe.merges[i].right, &right_len);
        if (kk_byte_of_text(left, left_len) >= 0 || kk_byte_of_text(right, right_len) >= 0) {
            memset(t->joins, 0xff, sizeof t->joins);
            return;
        }
        const size_t right_class = class_of_first(right, right_len);
        t->joins[class_of_last(left, left_len)][right_class / 64] |= 1ull << right_class % 64;
    }
}

static bool joins(const kk_tokenizer *t, size_t left, size_t right) {
    return t->joins[left][right / 64] >> right % 64 & 1;
}

/* Plain text must never become a special token: a merge that makes or takes one is dropped. */
static void drop_special_merges(kk_tokenizer *t) {
    size_t kept = 0;
    for (size_t i = 0; i < t->bpe.n; i++) {
        const kk_merge m = t->bpe.merges[i];
        if (t->kinds[m.left] != KK_TOKEN_SPECIAL && t->kinds[m.right] != KK_TOKEN_SPECIAL &&
            t->kinds[m.result] != KK_TOKEN_SPECIAL)
            t->bpe.merges[kept++] = m;
    }
    t->bpe.n = kept;
}

kk_status kk_tokenizer_finish(kk_tokenizer *t, const char *label, kk_err *err) {
    t->kinds = kk_zalloc((size_t)t->vocab.size);
    if (!t->kinds) return kk_fail(err, KK_ENOMEM, "no memory for the vocabulary of %s", label);
    kk_added_finish(&t->raw);
    kk_added_finish(&t->normalised);
    sort_kinds(t);
    KK_TRY(find_bytes(t, label, err));
    drop_special_merges(t);
    KK_TRY(kk_bpe_finish(&t->bpe, err));
    find_joins(t);
    if (t->bos < 0) t->bos = kk_tokenizer_special(t, "<bos>");
    return KK_OK;
}

/* ---- asking ----------------------------------------------------------------------------- */

int32_t kk_tokenizer_size(const kk_tokenizer *t) { return t->vocab.size; }

const kk_added_token *kk_tokenizer_special_token(const kk_tokenizer *t, const char *text) {
    const kk_added_token *a = kk_added_by_text(&t->raw, text, strlen(text));
    if (!a) a = kk_added_by_text(&t->normalised, text, strlen(text));
    return a && (a->flags & KK_ADDED_SPECIAL) ? a : NULL;
}

int32_t kk_tokenizer_special(const kk_tokenizer *t, const char *text) {
    const kk_added_token *a = kk_tokenizer_special_token(t, text);
    return a ? a->id : -1;
}

const char *kk_tokenizer_piece(const kk_tokenizer *t, int32_t id, size_t *len, bool *special) {
    *special = t->kinds[id] == KK_TOKEN_SPECIAL;
    return kk_vocab_text(&t->vocab, id, len);
}

int32_t kk_tokenizer_gguf_type(const kk_tokenizer *t, int32_t id) {
    if (t->vocab.pieces[id].len == 0) return KK_GGUF_TOKEN_UNUSED;
    switch ((kk_token_kind)t->kinds[id]) {
    case KK_TOKEN_BYTE: return KK_GGUF_TOKEN_BYTE;
    case KK_TOKEN_SPECIAL: return KK_GGUF_TOKEN_CONTROL;
    case KK_TOKEN_ADDED: return KK_GGUF_TOKEN_USER;
    case KK_TOKEN_PLAIN: break;
    }
    return KK_GGUF_TOKEN_NORMAL;
}

size_t kk_tokenizer_merges(const kk_tokenizer *t) { return t->bpe.n; }

void kk_tokenizer_merge(const kk_tokenizer *t, size_t i, int32_t *left, int32_t *right) {
    *left = t->bpe.merges[i].left;
    *right = t->bpe.merges[i].right;
}

/* ---- encoding --------------------------------------------------------------------------- */

typedef struct {
    const kk_tokenizer *t;
    kk_ids *out;
    kk_bpe_scratch scratch;
    kk_err *err;
} encoder;

kk_status kk_ids_put(kk_ids *out, int32_t id, kk_err *err) {
    if (!kk_grow((void **)&out->ids, &out->cap, out->n + 1, sizeof *out->ids))
        return kk_fail(err, KK_ENOMEM, "no memory for %zu tokens", out->n + 1);
    out->ids[out->n++] = id;
    return KK_OK;
}

static kk_status put_id(encoder *e, int32_t id) { return kk_ids_put(e->out, id, e->err); }

/* The first symbols of one character, or of one byte that is none (cp is then past Unicode). */
static kk_status put_char(encoder *e, const char *s, size_t len, uint32_t cp) {
    const int32_t id = cp < 128               ? e->t->ascii_ids[cp]
                       : cp <= LAST_CHARACTER ? find_plain(e->t, s, len)
                                              : -1;
    if (id >= 0) return put_id(e, id);
    for (size_t i = 0; i < len; i++) KK_TRY(put_id(e, e->t->byte_ids[(unsigned char)s[i]]));
    return KK_OK;
}

/* Merges the ids from start on, which are one word. */
static kk_status merge_word(encoder *e, size_t start) {
    size_t n = e->out->n - start;
    if (n < 2) return KK_OK;
    KK_TRY(kk_bpe_merge(&e->t->bpe, &e->scratch, e->out->ids + start, &n, e->err));
    e->out->n = start + n;
    return KK_OK;
}

/* Text without added tokens. */
static kk_status encode_run(encoder *e, const char *text, size_t len) {
    size_t word = e->out->n; /* where the ids of the current word start */
    size_t before = 0;
    for (size_t at = 0; at < len;) {
        uint32_t cp;
        size_t step = kk_utf8_next(text + at, len - at, &cp);
        if (step == 0) {
            step = 1;
            cp = LAST_CHARACTER + 1;
        }
        const size_t class = class_of(cp == ' ' ? SPACE_MARK : cp);
        if (at > 0 && !joins(e->t, before, class)) {
            KK_TRY(merge_word(e, word));
            word = e->out->n;
        }
        KK_TRY(put_char(e, text + at, step, cp));
        before = class;
        at += step;
    }
    return merge_word(e, word);
}

/* Cuts text at the tokens of one set; what is between goes to the next stage. */
static kk_status encode_cut(encoder *e, const kk_added *set, const char *text, size_t len,
                            bool special) {
    kk_added_match m;
    size_t at = 0;
    for (bool found = true; found && at < len;) {
        found = kk_added_find(set, text, len, at, special, &m);
        const size_t end = found ? m.start : len;
        KK_TRY(set == &e->t->raw ? encode_cut(e, &e->t->normalised, text + at, end - at, special)
                                 : encode_run(e, text + at, end - at));
        if (!found) break;
        KK_TRY(put_id(e, m.token->id));
        at = m.end;
    }
    return KK_OK;
}

kk_status kk_tokenizer_encode(const kk_tokenizer *t, const char *text, size_t len, bool special,
                              kk_ids *out, kk_err *err) {
    encoder e = {.t = t, .out = out, .err = err};
    const kk_status st = encode_cut(&e, &t->raw, text, len, special);
    kk_bpe_scratch_free(&e.scratch);
    return st;
}

/* Puts <bos> first, unless it is there. */
static kk_status need_bos(const kk_tokenizer *t, kk_ids *out, kk_err *err) {
    if (t->bos < 0) return kk_fail(err, KK_EINVAL, "the tokenizer has no <bos> token");
    if (out->n && out->ids[0] == t->bos) return KK_OK;
    KK_TRY(kk_ids_put(out, t->bos, err));
    memmove(out->ids + 1, out->ids, (out->n - 1) * sizeof *out->ids);
    out->ids[0] = t->bos;
    return KK_OK;
}

/* No text is longer than the token that it becomes: a space is stored as three bytes. */
size_t kk_encode_least(const kk_tokenizer *t, size_t len) {
    return t->longest ? (len + t->longest - 1) / t->longest : len;
}

kk_status kk_encode(const kk_tokenizer *t, const char *text, size_t len, unsigned flags,
                    int32_t **ids, size_t *n, kk_err *err) {
    kk_ids out = {0};
    *ids = NULL;
    *n = 0;
    kk_status st = kk_tokenizer_encode(t, text, len, flags & KK_ENCODE_SPECIAL, &out, err);
    if (st == KK_OK && (flags & KK_ENCODE_BOS)) st = need_bos(t, &out, err);
    if (st == KK_OK && !out.ids && !(out.ids = kk_malloc(sizeof *out.ids)))
        st = kk_fail(err, KK_ENOMEM, "no memory for an empty list of tokens");
    if (st != KK_OK) {
        kk_free(out.ids);
        return st;
    }
    *ids = out.ids;
    *n = out.n;
    return KK_OK;
}
