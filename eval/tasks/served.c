/* served.c - prompts of `make load` and what is said to them; see served.h. */
#include "eval/tasks/served.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

enum {
    MOST_BYTES = 64 << 20,   /* of a file of prompts */
    BYTES_OF_A_TOKEN = 16,   /* more than text has */
    LEAST_PART = 8,          /* tokens of a request of mixed length, at least */
    LEAST_ANSWER = 8,        /* likewise of its answer */
    MORE_OF_AN_ANSWER = 120, /* and so many more, less one */
};

/* ---- prompts ------------------------------------------------------------------------------- */

static void random_ids(kk_served *p, int32_t vocab, uint64_t seed) {
    uint64_t state = 0x9e3779b97f4a7c15u * (seed + 77);
    for (size_t i = 0; i < p->n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        p->ids[i] = (int32_t)((state >> 33) % (uint64_t)vocab);
    }
}

/* The "text" of each line of a file that has one: a list. */
static kk_status read_texts(const char *path, json_t **out, kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    *out = json_array();
    for (const char *at = text, *end = text + len, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        json_t *o = json_loadb(at, (size_t)(stop - at), 0, NULL);
        json_t *said = json_object_get(o, "text");
        if (json_is_string(said)) json_array_append(*out, said);
        json_decref(o);
    }
    kk_free(text);
    if (json_array_size(*out)) return KK_OK;
    json_decref(*out);
    *out = NULL;
    return kk_fail(err, KK_EFORMAT, "there are no texts in '%.200s'", path);
}

/* Texts from the first-th on, around the end of the list, until there are enough bytes. */
static kk_status join_texts(const json_t *texts, size_t first, size_t enough, char **out,
                            size_t *len, kk_err *err) {
    const size_t n = json_array_size(texts);
    size_t cap = 0;
    char *text = NULL;
    *len = 0;
    for (size_t i = first; *len < enough; i++) {
        const json_t *one = json_array_get(texts, i % n);
        const size_t more = json_string_length(one);
        if (!kk_grow((void **)&text, &cap, *len + more + 1, 1)) {
            kk_free(text);
            return kk_fail(err, KK_ENOMEM, "no memory for a prompt");
        }
        memcpy(text + *len, json_string_value(one), more);
        text[*len + more] = '\n';
        *len += more + 1;
    }
    *out = text;
    return KK_OK;
}

static kk_status encode_texts(kk_served *p, const kk_tokenizer *tok, const char *folder,
                              size_t number, kk_err *err) {
    static const char *const sets[] = {"code", "prose"};
    char path[4096], *text = NULL;
    json_t *texts;
    int32_t *ids;
    size_t len, n;
    snprintf(path, sizeof path, "%.4000s/%s.jsonl", folder, sets[number % 2]);
    KK_TRY(read_texts(path, &texts, err));
    kk_status st = join_texts(texts, number / 2, BYTES_OF_A_TOKEN * p->n, &text, &len, err);
    json_decref(texts);
    if (st != KK_OK) return st;
    st = kk_encode(tok, text, len, KK_ENCODE_BOS | KK_ENCODE_SPECIAL, &ids, &n, err);
    kk_free(text);
    if (st != KK_OK) return st;
    if (n < p->n) p->n = n;
    memcpy(p->ids, ids, p->n * sizeof *ids);
    kk_free(ids);
    return KK_OK;
}

kk_status kk_served_prompt(kk_served *out, kk_engine *e, const char *folder, uint64_t seed,
                           size_t number, size_t tokens, kk_err *err) {
    const kk_tokenizer *tok = kk_engine_tokenizer(e);
    kk_model_info info;
    kk_engine_info(e, &info);
    *out = (kk_served){.n = tokens, .ids = kk_calloc(tokens, sizeof *out->ids)};
    if (!out->ids) return kk_fail(err, KK_ENOMEM, "no memory for a prompt of %zu tokens", tokens);
    if (!tok || !folder) {
        random_ids(out, info.vocab, seed + number);
        return KK_OK;
    }
    const kk_status st = encode_texts(out, tok, folder, number, err);
    if (st != KK_OK) kk_served_free(out);
    return st;
}

void kk_served_free(kk_served *p) {
    kk_free(p->ids);
    kk_free(p->answer);
    *p = (kk_served){.n = 0};
}

/* ---- what the model says alone ------------------------------------------------------------- */

static void on_logprobs(void *user, const kk_logprobs *of) {
    kk_served *p = user;
    p->logprob_hash = kk_hash_bytes(p->logprob_hash, &of->chosen.logprob, sizeof(float));
}

static bool on_token(void *user, int32_t id) {
    kk_served *p = user;
    p->answer[p->n_answer++] = id;
    return true;
}

kk_status kk_served_answer(kk_served *p, kk_engine *e, int32_t predict, kk_err *err) {
    const kk_session_opts how = {.spec = KK_SPEC_NONE, .ctx = (int32_t)p->n + predict + 1};
    const kk_generate_opts opts = {
        .max_tokens = predict, .ignore_eos = true, .n_logprobs = 1, .on_logprobs = on_logprobs};
    kk_session *s = NULL;
    kk_result r;
    kk_free(p->answer);
    p->n_answer = 0;
    p->logprob_hash = KK_HASH_START;
    p->answer = kk_calloc((size_t)predict + 1, sizeof *p->answer);
    if (!p->answer) return kk_fail(err, KK_ENOMEM, "no memory for an answer");
    kk_status st = kk_session_new(&s, e, &how, err);
    if (st == KK_OK) st = kk_session_append(s, p->ids, p->n, NULL, NULL, err);
    if (st == KK_OK) st = kk_generate(s, &opts, on_token, p, &r, err);
    kk_session_free(s);
    return st;
}

/* ---- requests of mixed lengths ------------------------------------------------------------- */

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

kk_served_request kk_served_draw(uint64_t *state, const size_t *lengths, size_t n_ctx,
                                 size_t streams) {
    kk_served_request r;
    r.ctx = draw(state) % n_ctx;
    r.stream = draw(state) % streams;
    const size_t n = lengths[r.ctx * streams + r.stream];
    r.from = draw(state) % (n / 2);
    r.n = LEAST_PART + draw(state) % (n - r.from - LEAST_PART);
    r.predict = LEAST_ANSWER + (int32_t)(draw(state) % MORE_OF_AN_ANSWER);
    r.sampled = draw(state) % 2;
    r.streamed = draw(state) % 4 != 0;
    return r;
}
