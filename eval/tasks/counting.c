/* counting.c - see counting.h. */
#include "eval/tasks/counting.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"
#include "eval/texts/promptset.h"
#include "format/counts.h"

enum { MOST_BYTES = 256 << 20 /* of a file of text */ };

static const char *const sets[] = {"code.jsonl", "chat.jsonl", "edit.jsonl", "json.jsonl",
                                   "prose.jsonl"};

typedef struct {
    const kk_counting_opts *opts;
    kk_counting_result *out;
    int64_t *by_id; /* [vocab] */
    bool outside;   /* an id came up that the vocabulary does not have */
} counting;

static bool count_one(void *user, int32_t id) {
    counting *c = user;
    if (id < 0 || id >= c->opts->vocab) {
        c->outside = true;
        return false;
    }
    c->by_id[id]++;
    c->out->tokens++;
    return true;
}

static bool count_said(void *user, int32_t id) {
    counting *c = user;
    if (!count_one(c, id)) return false;
    c->out->said++;
    const kk_counting_opts *o = c->opts;
    return !o->progress || o->progress(o->user, c->out->tokens, 0);
}

static kk_status count_ids(counting *c, const int32_t *ids, size_t n, kk_err *err) {
    const kk_counting_opts *o = c->opts;
    for (size_t i = 0; i < n; i++)
        if (!count_one(c, ids[i]))
            return kk_fail(err, KK_EINVAL, "the tokenizer gave id %d: the model has %d ids", ids[i],
                           o->vocab);
    c->out->texts++;
    if (o->progress && !o->progress(o->user, c->out->tokens, 0))
        return kk_fail(err, KK_ESTOPPED, "stopped while counting");
    return KK_OK;
}

/* What the model says to a prompt. */
static kk_status count_answer(counting *c, const kk_prompt *p, kk_err *err) {
    const kk_counting_opts *o = c->opts;
    const kk_session_opts how = {.ctx = (int32_t)p->n + o->predict + 1};
    const kk_generate_opts say = {.max_tokens = o->predict};
    kk_session *s;
    kk_result r;
    KK_TRY(kk_session_new(&s, o->engine, &how, err));
    kk_status st = kk_session_append(s, p->ids, p->n, NULL, NULL, err);
    if (st == KK_OK) st = kk_generate(s, &say, count_said, c, &r, err);
    if (st == KK_OK && r.stop == KK_STOP_CALLBACK)
        st = kk_fail(err, KK_ESTOPPED, "stopped while counting");
    kk_session_free(s);
    return st;
}

static kk_status count_prompts(counting *c, const char *path, kk_err *err) {
    kk_promptset set;
    KK_TRY(kk_promptset_read(&set, path, c->opts->tok, KK_PROMPTSET_MOST, err));
    kk_status st = KK_OK;
    for (size_t i = 0; i < set.n && st == KK_OK; i++) {
        st = count_ids(c, set.prompts[i].ids, set.prompts[i].n, err);
        if (st == KK_OK && c->opts->predict) st = count_answer(c, &set.prompts[i], err);
    }
    kk_promptset_free(&set);
    return st;
}

static kk_status count_text(counting *c, const char *path, kk_err *err) {
    char *text;
    int32_t *ids;
    size_t len, n;
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    kk_status st = kk_encode(c->opts->tok, text, len, KK_ENCODE_BOS, &ids, &n, err);
    kk_free(text);
    if (st != KK_OK) return st;
    st = count_ids(c, ids, n, err);
    kk_free(ids);
    return st;
}

static kk_status count_file(counting *c, const char *path, kk_err *err) {
    const char *dot = strrchr(path, '.');
    const bool records = dot && strcmp(dot, ".jsonl") == 0;
    return records ? count_prompts(c, path, err) : count_text(c, path, err);
}

static kk_status count_sets(counting *c, kk_err *err) {
    const char *folder = c->opts->prompts;
    if (!folder) return kk_fail(err, KK_EINVAL, "there are no texts to count");
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char *path = kk_path_join(folder, sets[i]);
        if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
        const kk_status st = count_prompts(c, path, err);
        kk_free(path);
        if (st != KK_OK) return st;
    }
    return KK_OK;
}

/* Sizes double up to the ids that there are. */
static void measure(const kk_counts *counts, kk_counting_result *out) {
    static const int32_t sizes[KK_COUNTING_SIZES] = {1024, 4096, 8192, 16384, 32768, 65536};
    out->ids = counts->n;
    for (int i = 0; i < KK_COUNTING_SIZES; i++) {
        out->size[i].ids = sizes[i];
        out->size[i].share = kk_counts_share(counts, sizes[i]);
    }
}

kk_status kk_counting_run(const kk_counting_opts *opts, kk_writer *to, kk_counting_result *out,
                          kk_err *err) {
    kk_counts counts;
    counting c = {.opts = opts, .out = out};
    *out = (kk_counting_result){0};
    if (opts->predict > 0 && !opts->engine)
        return kk_fail(err, KK_EINVAL, "what a model says is counted by an engine");
    c.by_id = kk_calloc((size_t)opts->vocab, sizeof *c.by_id);
    if (!c.by_id) return kk_fail(err, KK_ENOMEM, "no memory for %d counts", opts->vocab);
    kk_status st = opts->n_paths ? KK_OK : count_sets(&c, err);
    for (size_t i = 0; i < opts->n_paths && st == KK_OK; i++)
        st = count_file(&c, opts->paths[i], err);
    if (st == KK_OK) st = kk_counts_make(&counts, c.by_id, opts->vocab, err);
    kk_free(c.by_id);
    if (st != KK_OK) return st;
    measure(&counts, out);
    st = kk_counts_write(&counts, to, err);
    kk_counts_free(&counts);
    return st;
}
