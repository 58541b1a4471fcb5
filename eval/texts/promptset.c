/* promptset.c - reads, makes and encodes prompts; see promptset.h. */
#include "eval/texts/promptset.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "eval/texts/haystack.h"

enum {
    MOST_BYTES = 64 << 20, /* of a file */
    DEFAULT_NEW = 128,
    NEEDLE_NEW = 32,
};

/* Takes the prompt over, also when it fails for want of memory. */
static kk_status add(kk_promptset *s, kk_prompt p, kk_err *err) {
    kk_status st = KK_OK;
    if (!s->prompts) s->prompts = kk_calloc(KK_PROMPTSET_MOST, sizeof *s->prompts);
    if (!s->prompts)
        st = kk_fail(err, KK_ENOMEM, "no memory for prompts");
    else if (s->n == KK_PROMPTSET_MOST)
        st = kk_fail(err, KK_EINVAL, "'%s' has more than %d prompts", s->name, KK_PROMPTSET_MOST);
    if (st == KK_OK)
        s->prompts[s->n++] = p;
    else
        kk_free(p.ids);
    return st;
}

void kk_promptset_free(kk_promptset *s) {
    for (size_t i = 0; i < s->n; i++) kk_free(s->prompts[i].ids);
    kk_free(s->prompts);
    *s = (kk_promptset){.n = 0};
}

int32_t kk_prompt_predict(const kk_prompt *p, int32_t predict) {
    const int32_t most = p->most ? p->most : predict ? predict : DEFAULT_NEW;
    return predict && predict < most ? predict : most;
}

int32_t kk_promptset_longest(const kk_promptset *s, int32_t predict) {
    int32_t most = 0;
    for (size_t i = 0; i < s->n; i++) {
        const int32_t n = (int32_t)s->prompts[i].n + kk_prompt_predict(&s->prompts[i], predict);
        if (n > most) most = n;
    }
    return most;
}

/* ---- one line of a file ------------------------------------------------------------------ */

static kk_status encode_ids(const json_t *list, kk_prompt *out, kk_err *err) {
    const size_t n = json_array_size(list);
    out->ids = kk_calloc(n + 1, sizeof *out->ids);
    if (!out->ids) return kk_fail(err, KK_ENOMEM, "no memory for %zu ids", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t x = json_is_integer(id) ? json_integer_value(id) : -1;
        if (x < 0 || x > INT32_MAX) return kk_fail(err, KK_EFORMAT, "\"ids\" has more than ids");
        out->ids[i] = (int32_t)x;
    }
    out->n = n;
    return KK_OK;
}

/* The object itself is the conversation, but for what only we read. */
static kk_status encode_messages(json_t *o, const kk_tokenizer *tok, kk_prompt *out, kk_err *err) {
    json_object_set_new(o, "add_generation_prompt", json_true());
    char *text = json_dumps(o, JSON_COMPACT);
    if (!text) return kk_fail(err, KK_ENOMEM, "no memory for a conversation");
    const kk_status st = kk_chat_encode(tok, text, strlen(text), &out->ids, &out->n, err);
    free(text);
    return st;
}

static kk_status encode(json_t *o, const kk_tokenizer *tok, kk_prompt *out, kk_err *err) {
    const json_t *text = json_object_get(o, "text"), *ids = json_object_get(o, "ids");
    if (!text) text = json_object_get(o, "prompt");
    if (json_is_array(ids)) return encode_ids(ids, out, err);
    if (!tok)
        return kk_fail(err, KK_EINVAL, "this model has no tokenizer: prompts must be \"ids\"");
    if (json_object_get(o, "messages")) return encode_messages(o, tok, out, err);
    if (json_is_string(text))
        return kk_encode(tok, json_string_value(text), json_string_length(text), KK_ENCODE_BOS,
                         &out->ids, &out->n, err);
    return kk_fail(err, KK_EFORMAT,
                   "no \"text\", \"prompt\", \"messages\" or \"ids\" to make a prompt of");
}

static kk_status read_object(json_t *o, const kk_tokenizer *tok, kk_prompt *out, kk_err *err) {
    const json_t *most = json_object_get(o, "new");
    if (most && (!json_is_integer(most) || json_integer_value(most) < 1 ||
                 json_integer_value(most) > 1 << 20))
        return kk_fail(err, KK_EFORMAT, "\"new\" is not a number of tokens");
    out->most = most ? (int32_t)json_integer_value(most) : 0;
    KK_TRY(encode(o, tok, out, err));
    return out->n ? KK_OK : kk_fail(err, KK_EFORMAT, "the prompt is empty");
}

static kk_status read_line(const char *line, size_t len, const kk_tokenizer *tok, kk_prompt *out,
                           kk_err *err) {
    json_error_t why;
    json_t *o = json_loadb(line, len, 0, &why);
    kk_status st = json_is_object(o)
                       ? read_object(o, tok, out, err)
                       : kk_fail(err, KK_EFORMAT, "no JSON object: %.80s", o ? "" : why.text);
    json_decref(o);
    if (st != KK_OK) {
        kk_free(out->ids);
        out->ids = NULL;
    }
    return st;
}

/* ---- files ------------------------------------------------------------------------------- */

static void name_by_path(kk_promptset *s, const char *path) {
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    const size_t len = strlen(last), end = strlen(".jsonl");
    const bool named = len > end && strcmp(last + len - end, ".jsonl") == 0;
    snprintf(s->name, sizeof s->name, "%.*s", (int)(named ? len - end : len), last);
}

static bool blank(const char *line, size_t len) {
    while (len && strchr(" \t\r", *line)) line++, len--;
    return len == 0;
}

static kk_status read_lines(kk_promptset *s, const char *text, size_t len, const char *path,
                            const kk_tokenizer *tok, size_t most, kk_err *err) {
    int number = 0;
    for (const char *at = text, *end = text + len; at < end && s->n < most;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t line = (size_t)((stop ? stop : end) - at);
        kk_prompt p = {0};
        kk_err why;
        number++;
        if (!blank(at, line)) {
            const kk_status st = read_line(at, line, tok, &p, &why);
            p.text = kk_hash_bytes(KK_HASH_START, at, line);
            if (st != KK_OK)
                return kk_fail(err, st, "line %d of '%.100s': %.100s", number, path, why.msg);
            KK_TRY(add(s, p, err));
        }
        at += line + 1;
    }
    return s->n ? KK_OK : kk_fail(err, KK_EFORMAT, "there is no prompt in '%.150s'", path);
}

kk_status kk_promptset_read(kk_promptset *out, const char *path, const kk_tokenizer *tok,
                            size_t most, kk_err *err) {
    char *text;
    size_t len;
    *out = (kk_promptset){.n = 0};
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    name_by_path(out, path);
    const kk_status st = read_lines(out, text, len, path, tok, most, err);
    kk_free(text);
    if (st != KK_OK) kk_promptset_free(out);
    return st;
}

/* ---- made prompts ------------------------------------------------------------------------ */

static kk_status needle(const kk_haystack *doc, const kk_tokenizer *tok, kk_prompt *out,
                        kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_haystack_text(doc, &text, &len, err));
    out->text = kk_hash_bytes(KK_HASH_START, text, len);
    json_t *o = json_pack("{s:[{s:s, s:s%}]}", "messages", "role", "user", "content", text, len);
    kk_free(text);
    const kk_status st =
        o ? encode_messages(o, tok, out, err) : kk_fail(err, KK_ENOMEM, "no memory for a document");
    json_decref(o);
    out->most = NEEDLE_NEW;
    return st;
}

kk_status kk_promptset_needles(kk_promptset *out, const kk_tokenizer *tok, size_t n, kk_err *err) {
    kk_twister t;
    int32_t low, high;
    *out = (kk_promptset){.name = "needle"};
    if (!tok) return kk_fail(err, KK_EINVAL, "this model has no tokenizer to read needles with");
    kk_twister_seed(&t, KK_PROMPTSET_NEEDLE_SEED);
    kk_haystack_rung(KK_PROMPTSET_NEEDLE_LINES, &low, &high);
    kk_status st = KK_OK;
    for (size_t i = 0; i < n && st == KK_OK; i++) {
        const kk_haystack doc = kk_haystack_draw(&t, low, high);
        kk_prompt p = {0};
        st = needle(&doc, tok, &p, err);
        if (st == KK_OK) st = add(out, p, err);
    }
    if (st != KK_OK) kk_promptset_free(out);
    return st;
}

kk_status kk_promptset_named(kk_promptset *out, const char *folder, const char *name,
                             const kk_tokenizer *tok, size_t most, kk_err *err) {
    char path[4096];
    *out = (kk_promptset){.n = 0};
    if (strcmp(name, "needle") == 0) return kk_promptset_needles(out, tok, most, err);
    if (!folder) return kk_fail(err, KK_EIO, "the prompt sets of this program are not beside it");
    if (snprintf(path, sizeof path, "%s/%s.jsonl", folder, name) >= (int)sizeof path)
        return kk_fail(err, KK_EINVAL, "the name of the prompt set is too long");
    return kk_promptset_read(out, path, tok, most, err);
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

kk_status kk_promptset_random(kk_promptset *out, int32_t vocab, size_t n, int32_t len,
                              uint64_t seed, kk_err *err) {
    uint64_t state = 0x9e3779b97f4a7c15u * (seed + 1);
    *out = (kk_promptset){.name = "random"};
    kk_status st = KK_OK;
    for (size_t i = 0; i < n && st == KK_OK; i++) {
        kk_prompt p = {.ids = kk_calloc((size_t)len, sizeof *p.ids), .n = (size_t)len};
        if (!p.ids) st = kk_fail(err, KK_ENOMEM, "no memory for %d tokens", len);
        for (int32_t j = 0; p.ids && j < len; j++)
            p.ids[j] = (int32_t)(draw(&state) % (uint64_t)vocab);
        if (p.ids) p.text = kk_prompt_hash(&p);
        if (st == KK_OK) st = add(out, p, err);
    }
    if (st != KK_OK) kk_promptset_free(out);
    return st;
}

uint64_t kk_prompt_hash(const kk_prompt *p) {
    return kk_hash_bytes(KK_HASH_START, p->ids, p->n * sizeof *p->ids);
}
