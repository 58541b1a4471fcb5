/* tokenizer_json.c - reads a tokenizer.json of Hugging Face's tokenizers library.
 *
 * The file describes a pipeline.  Ours is fixed (spaces become U+2581, the text is one word, BPE
 * with byte fallback), so every part that would make another one is refused by name rather than
 * ignored: a tokenizer that is nearly right gives a model that is nearly right.
 *
 * The file is read in one pass.  Merges and added tokens need the vocabulary; where they come
 * before it, their place is remembered and read afterwards. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/jsonpull.h"
#include "format/tokenizer_parts.h"

typedef struct {
    kk_tokenizer *t;
    kk_jsonpull p;
    kk_jsonpull merges, added; /* readers that stand where these start, to be used later */
    bool merges_wait, added_wait;
    bool has_model, has_vocab, has_merges, has_added;
    bool marks_spaces; /* a normalizer that writes spaces as U+2581 */
    kk_err *err;
} reader;

static kk_status refuse(const reader *r, const char *what) {
    return kk_fail(r->err, KK_EFORMAT, "%s: %s", r->p.label, what);
}

/* Remembers the value that comes next and passes it. */
static kk_status postpone(reader *r, kk_jsonpull *place) {
    *place = r->p;
    place->scratch = NULL;
    place->scratch_cap = 0;
    return kk_jsonpull_skip(&r->p, r->err);
}

/* ---- vocabulary and merges -------------------------------------------------------------- */

static kk_status read_vocab(reader *r) {
    if (r->has_vocab) return refuse(r, "it has two vocabularies");
    r->has_vocab = true;
    KK_TRY(kk_jsonpull_enter(&r->p, KK_JSON_OBJECT, r->err));
    for (;;) {
        kk_json_str text;
        bool more;
        int64_t id;
        KK_TRY(kk_jsonpull_key(&r->p, &text, &more, r->err));
        if (!more) return KK_OK;
        KK_TRY(kk_jsonpull_int(&r->p, &id, r->err)); /* text stays: no string is read */
        KK_TRY(kk_vocab_add(&r->t->vocab, id, text.text, text.len, r->p.label, r->err));
    }
}

/* One side of a merge that is written as an array. */
static kk_status read_side(reader *r, kk_jsonpull *p, int32_t *id) {
    kk_json_str text;
    bool more;
    KK_TRY(kk_jsonpull_item(p, &more, r->err));
    if (!more) return kk_jsonpull_fail(p, "a merge has fewer than two sides", r->err);
    KK_TRY(kk_jsonpull_string(p, &text, r->err));
    *id = kk_vocab_find(&r->t->vocab, text.text, text.len);
    return KK_OK;
}

static kk_status read_merge(reader *r, kk_jsonpull *p) {
    if (kk_jsonpull_peek(p) == KK_JSON_STRING) {
        kk_json_str text;
        KK_TRY(kk_jsonpull_string(p, &text, r->err));
        return kk_tokenizer_add_merge_text(r->t, text.text, text.len, p->label, r->err);
    }
    int32_t left, right;
    bool more;
    KK_TRY(kk_jsonpull_enter(p, KK_JSON_ARRAY, r->err));
    KK_TRY(read_side(r, p, &left));
    KK_TRY(read_side(r, p, &right));
    KK_TRY(kk_jsonpull_item(p, &more, r->err));
    if (more) return kk_jsonpull_fail(p, "a merge has more than two sides", r->err);
    return kk_tokenizer_add_merge(r->t, left, right, r->err);
}

static kk_status read_merges(reader *r, kk_jsonpull *p) {
    KK_TRY(kk_jsonpull_enter(p, KK_JSON_ARRAY, r->err));
    for (;;) {
        bool more;
        KK_TRY(kk_jsonpull_item(p, &more, r->err));
        if (!more) return KK_OK;
        KK_TRY(read_merge(r, p));
    }
}

static kk_status take_merges(reader *r) {
    if (r->has_merges) return refuse(r, "it has two lists of merges");
    r->has_merges = true;
    if (r->has_vocab) return read_merges(r, &r->p);
    r->merges_wait = true;
    return postpone(r, &r->merges);
}

/* ---- the model -------------------------------------------------------------------------- */

/* A setting that may only have its usual value: null, false, nothing or zero. */
static kk_status read_unset(reader *r, const char *complaint) {
    static const char *const usual[] = {"null", "false", "\"\"", "0", "0.0"};
    kk_jsonpull_peek(&r->p); /* moves to the value */
    const char *start = r->p.pos;
    KK_TRY(kk_jsonpull_skip(&r->p, r->err));
    const kk_json_str value = {start, (size_t)(r->p.pos - start)};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (kk_json_is(value, usual[i])) return KK_OK;
    return refuse(r, complaint);
}

static kk_status read_model_type(reader *r) {
    kk_json_str type;
    KK_TRY(kk_jsonpull_string(&r->p, &type, r->err));
    if (kk_json_is(type, "BPE")) return KK_OK;
    return kk_fail(r->err, KK_EFORMAT, "%s: the model is of type '%.*s', only BPE is supported",
                   r->p.label, type.len < 40 ? (int)type.len : 40, type.text);
}

static kk_status read_byte_fallback(reader *r) {
    bool on;
    KK_TRY(kk_jsonpull_bool(&r->p, &on, r->err));
    return on ? KK_OK : refuse(r, "byte_fallback is off, which is not supported");
}

static kk_status read_model_field(reader *r, kk_json_str key) {
    if (kk_json_is(key, "type")) return read_model_type(r);
    if (kk_json_is(key, "vocab")) return read_vocab(r);
    if (kk_json_is(key, "merges")) return take_merges(r);
    if (kk_json_is(key, "byte_fallback")) return read_byte_fallback(r);
    if (kk_json_is(key, "dropout")) return read_unset(r, "dropout is not supported");
    if (kk_json_is(key, "ignore_merges")) return read_unset(r, "ignore_merges is not supported");
    if (kk_json_is(key, "continuing_subword_prefix") || kk_json_is(key, "end_of_word_suffix"))
        return read_unset(r, "marks at the borders of words are not supported");
    return kk_jsonpull_skip(&r->p, r->err); /* unk_token, fuse_unk: byte fallback leaves none */
}

static kk_status read_model(reader *r) {
    if (r->has_model) return refuse(r, "it has two models");
    r->has_model = true;
    KK_TRY(kk_jsonpull_enter(&r->p, KK_JSON_OBJECT, r->err));
    for (;;) {
        kk_json_str key;
        bool more;
        KK_TRY(kk_jsonpull_key(&r->p, &key, &more, r->err));
        if (!more) return KK_OK;
        KK_TRY(read_model_field(r, key));
    }
}

/* ---- added tokens ----------------------------------------------------------------------- */

typedef struct {
    char *text;
    size_t len;
    int64_t id;
    unsigned flags;
    bool normalised, single_word;
} added_token;

static kk_status read_flag(kk_jsonpull *p, unsigned flag, unsigned *flags, kk_err *err) {
    bool on;
    KK_TRY(kk_jsonpull_bool(p, &on, err));
    *flags = on ? *flags | flag : *flags & ~flag;
    return KK_OK;
}

static kk_status read_added_text(kk_jsonpull *p, added_token *a, kk_err *err) {
    kk_json_str text;
    KK_TRY(kk_jsonpull_string(p, &text, err));
    kk_free(a->text);
    a->text = kk_strndup(text.text, text.len);
    a->len = text.len;
    return a->text ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for an added token");
}

static kk_status read_added_fields(kk_jsonpull *p, added_token *a, kk_err *err) {
    KK_TRY(kk_jsonpull_enter(p, KK_JSON_OBJECT, err));
    for (;;) {
        kk_json_str key;
        bool more;
        KK_TRY(kk_jsonpull_key(p, &key, &more, err));
        if (!more) return KK_OK;
        if (kk_json_is(key, "id"))
            KK_TRY(kk_jsonpull_int(p, &a->id, err));
        else if (kk_json_is(key, "content"))
            KK_TRY(read_added_text(p, a, err));
        else if (kk_json_is(key, "special"))
            KK_TRY(read_flag(p, KK_ADDED_SPECIAL, &a->flags, err));
        else if (kk_json_is(key, "lstrip"))
            KK_TRY(read_flag(p, KK_ADDED_LSTRIP, &a->flags, err));
        else if (kk_json_is(key, "rstrip"))
            KK_TRY(read_flag(p, KK_ADDED_RSTRIP, &a->flags, err));
        else if (kk_json_is(key, "normalized"))
            KK_TRY(kk_jsonpull_bool(p, &a->normalised, err));
        else if (kk_json_is(key, "single_word"))
            KK_TRY(kk_jsonpull_bool(p, &a->single_word, err));
        else
            KK_TRY(kk_jsonpull_skip(p, err));
    }
}

static kk_status read_added_token(reader *r, kk_jsonpull *p) {
    added_token a = {.id = -1};
    kk_status st = read_added_fields(p, &a, r->err);
    if (st != KK_OK) goto done;
    if (!a.text || a.len == 0 || a.id < 0)
        st = kk_jsonpull_fail(p, "an added token has no content or no id", r->err);
    else if (a.single_word || (a.normalised && (a.flags & (KK_ADDED_LSTRIP | KK_ADDED_RSTRIP))))
        st = kk_jsonpull_fail(
            p, "an added token is single_word, or both normalized and stripped: not supported",
            r->err);
    else
        st = kk_tokenizer_add(r->t, a.text, a.len, a.id, a.flags, a.normalised, p->label, r->err);
done:
    kk_free(a.text);
    return st;
}

static kk_status read_added(reader *r, kk_jsonpull *p) {
    KK_TRY(kk_jsonpull_enter(p, KK_JSON_ARRAY, r->err));
    for (;;) {
        bool more;
        KK_TRY(kk_jsonpull_item(p, &more, r->err));
        if (!more) return KK_OK;
        KK_TRY(read_added_token(r, p));
    }
}

static kk_status take_added(reader *r) {
    if (r->has_added) return refuse(r, "it has two lists of added tokens");
    r->has_added = r->added_wait = true;
    return postpone(r, &r->added);
}

/* ---- the stages around the model -------------------------------------------------------- */

typedef enum { NORMALIZER, PRE_TOKENIZER, DECODER } stage_kind;
typedef enum { TEXT_NONE, TEXT_SPACE, TEXT_MARK, TEXT_OTHER } stage_text;

typedef struct {
    char type[32];
    stage_text pattern, content;
} stage;

static kk_status read_stage_text(reader *r, stage_text *out) {
    kk_json_str s;
    KK_TRY(kk_jsonpull_string(&r->p, &s, r->err));
    *out = kk_json_is(s, " ") ? TEXT_SPACE : kk_json_is(s, "\xe2\x96\x81") ? TEXT_MARK : TEXT_OTHER;
    return KK_OK;
}

/* {"String": ...}; a regular expression is something else. */
static kk_status read_pattern(reader *r, stage_text *out) {
    KK_TRY(kk_jsonpull_enter(&r->p, KK_JSON_OBJECT, r->err));
    for (;;) {
        kk_json_str key;
        bool more;
        KK_TRY(kk_jsonpull_key(&r->p, &key, &more, r->err));
        if (!more) return KK_OK;
        if (kk_json_is(key, "String")) {
            KK_TRY(read_stage_text(r, out));
        } else {
            *out = TEXT_OTHER;
            KK_TRY(kk_jsonpull_skip(&r->p, r->err));
        }
    }
}

static kk_status check_stage(reader *r, stage_kind kind, const stage *s) {
    static const char *const names[] = {"normalizer", "pre_tokenizer", "decoder"};
    const bool replace = strcmp(s->type, "Replace") == 0;
    bool ok = strcmp(s->type, "Sequence") == 0;
    switch (kind) {
    case NORMALIZER:
        if (replace && s->pattern == TEXT_SPACE && s->content == TEXT_MARK)
            ok = r->marks_spaces = true;
        break;
    case PRE_TOKENIZER: /* finds nothing: by now there are no spaces */
        ok |= strcmp(s->type, "Split") == 0 && s->pattern == TEXT_SPACE;
        break;
    case DECODER:
        ok |= replace && s->pattern == TEXT_MARK && s->content == TEXT_SPACE;
        ok |= strcmp(s->type, "ByteFallback") == 0 || strcmp(s->type, "Fuse") == 0;
        break;
    }
    if (ok) return KK_OK;
    return kk_fail(r->err, KK_EFORMAT, "%s: a %s of type '%s' with these settings is not supported",
                   r->p.label, names[kind], s->type);
}

static kk_status read_stage(reader *r, stage_kind kind);

static kk_status read_stage_list(reader *r, stage_kind kind) {
    KK_TRY(kk_jsonpull_enter(&r->p, KK_JSON_ARRAY, r->err));
    for (;;) {
        bool more;
        KK_TRY(kk_jsonpull_item(&r->p, &more, r->err));
        if (!more) return KK_OK;
        KK_TRY(read_stage(r, kind));
    }
}

static kk_status read_stage_field(reader *r, stage_kind kind, kk_json_str key, stage *s) {
    if (kk_json_is(key, "type")) {
        kk_json_str type;
        KK_TRY(kk_jsonpull_string(&r->p, &type, r->err));
        snprintf(s->type, sizeof s->type, "%.*s", type.len < 31 ? (int)type.len : 31, type.text);
        return KK_OK;
    }
    if (kk_json_is(key, "pattern")) return read_pattern(r, &s->pattern);
    if (kk_json_is(key, "content")) return read_stage_text(r, &s->content);
    if (kk_json_is(key, "normalizers") || kk_json_is(key, "pretokenizers") ||
        kk_json_is(key, "decoders"))
        return read_stage_list(r, kind);
    return kk_jsonpull_skip(&r->p, r->err);
}

/* One stage, or null. */
static kk_status read_stage(reader *r, stage_kind kind) {
    stage s = {0};
    bool null;
    KK_TRY(kk_jsonpull_null(&r->p, &null, r->err));
    if (null) return KK_OK;
    KK_TRY(kk_jsonpull_enter(&r->p, KK_JSON_OBJECT, r->err));
    for (;;) {
        kk_json_str key;
        bool more;
        KK_TRY(kk_jsonpull_key(&r->p, &key, &more, r->err));
        if (!more) return check_stage(r, kind, &s);
        KK_TRY(read_stage_field(r, kind, key, &s));
    }
}

/* ---- the file --------------------------------------------------------------------------- */

static kk_status read_field(reader *r, kk_json_str key) {
    if (kk_json_is(key, "model")) return read_model(r);
    if (kk_json_is(key, "added_tokens")) return take_added(r);
    if (kk_json_is(key, "normalizer")) return read_stage(r, NORMALIZER);
    if (kk_json_is(key, "pre_tokenizer")) return read_stage(r, PRE_TOKENIZER);
    if (kk_json_is(key, "decoder")) return read_stage(r, DECODER);
    return kk_jsonpull_skip(&r->p, r->err); /* <bos> is the caller's choice, not post_processor's */
}

static kk_status read_file(reader *r) {
    KK_TRY(kk_jsonpull_enter(&r->p, KK_JSON_OBJECT, r->err));
    for (;;) {
        kk_json_str key;
        bool more;
        KK_TRY(kk_jsonpull_key(&r->p, &key, &more, r->err));
        if (!more) break;
        KK_TRY(read_field(r, key));
    }
    KK_TRY(kk_jsonpull_end(&r->p, r->err));
    if (!r->has_vocab || !r->has_merges) return refuse(r, "it has no vocabulary or no merges");
    if (!r->marks_spaces) return refuse(r, "no normalizer writes spaces as U+2581");
    if (r->merges_wait) KK_TRY(read_merges(r, &r->merges));
    if (r->added_wait) KK_TRY(read_added(r, &r->added));
    return kk_tokenizer_finish(r->t, r->p.label, r->err);
}

kk_status kk_tokenizer_from_json(kk_tokenizer **out, const char *json, size_t len,
                                 const char *label, kk_err *err) {
    *out = NULL;
    reader r = {.t = kk_tokenizer_new(), .err = err};
    if (!r.t) return kk_fail(err, KK_ENOMEM, "no memory for a tokenizer");
    kk_jsonpull_open(&r.p, json, len, label);
    const kk_status st = read_file(&r);
    kk_jsonpull_close(&r.p);
    kk_jsonpull_close(&r.merges);
    kk_jsonpull_close(&r.added);
    if (st != KK_OK) {
        kk_tokenizer_close(r.t);
        return st;
    }
    *out = r.t;
    return KK_OK;
}
