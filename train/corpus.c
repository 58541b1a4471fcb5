/* corpus.c - see corpus.h. */
#define _GNU_SOURCE
#include "train/corpus.h"

#include <dirent.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"
#include "eval/tasks/quality.h"
#include "eval/texts/promptset.h"
#include "eval/texts/records.h"

enum {
    HOLD_OUT = 10,       /* one document with a code of so many */
    MOST_FILE = 4 << 20, /* bytes; what is larger is data, not text */
    MOST_FILES = 1 << 20,
    MOST_DEPTH = 32, /* most nested folders */
    PIECES = 2,      /* sequences of one file */
    LEAST_LINES = 20,
    LEAST_TOKENS = 8,   /* least tokens of a sequence */
    ANSWER = 16,        /* tokens after a needle's question */
    OTHER_SEEDS = 1000, /* between an evaluation's seeds and ours */
};

static const char *const prompt_sets[] = {"code", "chat", "edit", "json", "prose"};

uint64_t kk_corpus_seed(uint64_t seed) { return seed + OTHER_SEEDS; }
uint64_t kk_corpus_held_seed(uint64_t seed) { return seed + 2 * OTHER_SEEDS; }

const char *kk_text_kind_name(kk_text_kind k) {
    static const char *const names[] = {"file", "prompt", "needle", "random"};
    return names[k];
}

/* ---- a list of sequences ----------------------------------------------------------------- */

typedef struct {
    const kk_corpus_opts *opts;
    kk_corpus *out;
    const kk_tokenizer *tok;
    kk_twister random;
} builder;

void kk_corpus_free(kk_corpus *c) {
    for (size_t i = 0; i < c->n; i++) kk_free(c->texts[i].ids);
    kk_free(c->texts);
    *c = (kk_corpus){.n = 0};
}

int32_t kk_corpus_longest(const kk_corpus *c) {
    int32_t most = 0;
    for (size_t i = 0; i < c->n; i++) most = c->texts[i].n > most ? c->texts[i].n : most;
    return most;
}

/* Takes ownership of the ids, also when it fails for want of memory. */
static kk_status add(builder *b, int32_t *ids, int32_t n, kk_text_kind kind, bool held,
                     kk_err *err) {
    kk_corpus *c = b->out;
    if (!kk_grow((void **)&c->texts, &c->cap, c->n + 1, sizeof *c->texts)) {
        kk_free(ids);
        return kk_fail(err, KK_ENOMEM, "no memory for texts");
    }
    c->texts[c->n++] = (kk_text){ids, n, kind, held};
    c->tokens[held] += n;
    if (b->opts->on_text && !b->opts->on_text(b->opts->user, c->tokens[0] + c->tokens[1]))
        return kk_fail(err, KK_ESTOPPED, "stopped while reading texts");
    return KK_OK;
}

static bool enough(const builder *b) {
    return b->opts->tokens > 0 && b->out->tokens[0] >= b->opts->tokens;
}

/* ---- files ------------------------------------------------------------------------------- */

typedef struct {
    char **path;
    size_t n, cap;
    kk_corpus_skipped *skipped;
} file_list;

static void free_list(file_list *l) {
    for (size_t i = 0; i < l->n; i++) kk_free(l->path[i]);
    kk_free(l->path);
}

/* How a name ends: ".py"; "": it has no dot in it. */
static const char *end_of(const char *name) {
    const char *slash = strrchr(name, '/'), *dot = strrchr(slash ? slash : name, '.');
    return dot ? dot : "";
}

static bool is_records(const char *name) { return strcmp(end_of(name), ".jsonl") == 0; }

static bool is_text(const char *name) {
    static const char *const ends[] = {".py",  ".txt", ".md",   ".c",    ".h",
                                       ".rst", ".js",  ".json", ".jsonl"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(end_of(name), ends[i]) == 0) return true;
    return false;
}

static void skip_kind(kk_corpus_skipped *s, const char *name) {
    enum { ENDS = sizeof s->ends / sizeof *s->ends };
    char end[sizeof s->ends->end];
    int32_t i = 0;
    snprintf(end, sizeof end, "%s", end_of(name));
    s->other++;
    while (i < s->n_ends && strcmp(s->ends[i].end, end) != 0) i++;
    if (i == ENDS) return;
    if (i == s->n_ends) {
        memcpy(s->ends[i].end, end, sizeof end);
        s->n_ends++;
    }
    s->ends[i].files++;
}

__attribute__((format(printf, 3, 4))) static void say(char *out, size_t cap, const char *fmt, ...) {
    const size_t at = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + at, cap - at, fmt, args);
    va_end(args);
}

void kk_corpus_skipped_text(const kk_corpus_skipped *s, char *out, size_t cap) {
    const struct {
        int64_t n;
        const char *one, *many;
    } rest[] = {{s->large, "file over 4 MiB", "files over 4 MiB"},
                {s->small, "file of a few bytes", "files of a few bytes"},
                {s->links, "symbolic link", "symbolic links"},
                {s->hidden, "hidden file or folder", "hidden files or folders"},
                {s->special, "entry that is no file", "entries that are no files"},
                {s->deep, "folder that is nested too deep", "folders that are nested too deep"},
                {s->lines, "line without \"text\" or \"messages\"",
                 "lines without \"text\" or \"messages\""}};
    out[0] = 0;
    if (s->other)
        say(out, cap, "%lld file%s of other kinds (", (long long)s->other,
            s->other == 1 ? "" : "s");
    for (int32_t i = 0; i < s->n_ends; i++)
        say(out, cap, "%s%s %lld", i ? ", " : "", s->ends[i].end[0] ? s->ends[i].end : "no ending",
            (long long)s->ends[i].files);
    if (s->other) say(out, cap, ")");
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i].n)
            say(out, cap, "%s%lld %s", out[0] ? ", " : "", (long long)rest[i].n,
                rest[i].n == 1 ? rest[i].one : rest[i].many);
}

static kk_status list_file(file_list *l, char *path, kk_err *err) {
    if (l->n < MOST_FILES && kk_grow((void **)&l->path, &l->cap, l->n + 1, sizeof *l->path)) {
        l->path[l->n++] = path;
        return KK_OK;
    }
    kk_free(path);
    return kk_fail(err, KK_ENOMEM, "too many files to train on");
}

static kk_status list_path(file_list *l, const char *path, int depth, kk_err *err);

static kk_status list_entry(file_list *l, const char *folder, const char *name, int depth,
                            kk_err *err) {
    char *path = kk_path_join(folder, name);
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    struct stat s;
    const bool there = lstat(path, &s) == 0;
    if (there && S_ISREG(s.st_mode) && is_text(name)) return list_file(l, path, err);
    kk_status st = KK_OK;
    if (there && S_ISDIR(s.st_mode) && depth < MOST_DEPTH)
        st = list_path(l, path, depth + 1, err);
    else if (there && S_ISDIR(s.st_mode))
        l->skipped->deep++;
    else if (there && S_ISREG(s.st_mode))
        skip_kind(l->skipped, name);
    else if (there && S_ISLNK(s.st_mode))
        l->skipped->links++;
    else
        l->skipped->special++;
    kk_free(path);
    return st;
}

/* Folders give their texts, links left out; a file that was named is text whatever its name. */
static kk_status list_path(file_list *l, const char *path, int depth, kk_err *err) {
    if (!kk_dir_exists(path)) {
        if (!kk_file_exists(path))
            return kk_fail(err, KK_EIO, "there is no file or folder '%.150s' to train on", path);
        char *copy = kk_strndup(path, strlen(path));
        return copy ? list_file(l, copy, err) : kk_fail(err, KK_ENOMEM, "no memory for a path");
    }
    struct dirent **entry;
    const int n = scandir(path, &entry, NULL, alphasort);
    if (n < 0) return kk_fail(err, KK_EIO, "the folder '%.150s' cannot be read", path);
    kk_status st = KK_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        if (st == KK_OK && name[0] != '.') st = list_entry(l, path, name, depth, err);
        if (name[0] == '.' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            l->skipped->hidden++;
        free(entry[i]);
    }
    free(entry);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, because folders come in no order, then mixed by the seed. */
static void shuffle(builder *b, file_list *l) {
    if (!l->n) return;
    qsort(l->path, l->n, sizeof *l->path, by_name);
    for (size_t i = l->n; i > 1; i--) {
        const size_t j = (size_t)kk_twister_between(&b->random, 0, (int32_t)i - 1);
        char *path = l->path[i - 1];
        l->path[i - 1] = l->path[j];
        l->path[j] = path;
    }
}

/* ids [first, first + n) as a text of its own, begun as the file was. */
static kk_status add_piece(builder *b, const int32_t *ids, size_t first, size_t n, bool held,
                           kk_err *err) {
    int32_t *copy = kk_calloc(n, sizeof *copy);
    if (!copy) return kk_fail(err, KK_ENOMEM, "no memory for %zu tokens", n);
    memcpy(copy, ids + first, n * sizeof *copy);
    copy[0] = ids[0];
    return add(b, copy, (int32_t)n, KK_TEXT_FILE, held, err);
}

/* Some pieces of a text of n tokens; takes the ids over. */
static kk_status add_pieces(builder *b, int32_t *ids, size_t n, bool held, kk_err *err) {
    const size_t most = (size_t)b->opts->length;
    kk_status st = KK_OK;
    for (int i = 0; st == KK_OK && i < PIECES && n >= LEAST_TOKENS; i++) {
        const size_t take = n < most ? n : most;
        const size_t first = (size_t)kk_twister_between(&b->random, 0, (int32_t)(n - take));
        st = add_piece(b, ids, first, take, held, err);
        if (n < 2 * most) break; /* pieces would be much the same */
    }
    kk_free(ids);
    return st;
}

/* ---- lines of .jsonl --------------------------------------------------------------------- */

static kk_status add_record(builder *b, const char *line, size_t len, kk_err *err) {
    kk_record r;
    int32_t *ids = NULL;
    size_t n = 0;
    KK_TRY(kk_record_read(&r, line, len, err));
    b->out->skipped.lines += r.kind == KK_RECORD_OTHER;
    if (r.kind == KK_RECORD_OTHER) return KK_OK;
    const bool held = kk_quality_held_out(r.text, r.len);
    const kk_status st = kk_record_encode(&r, b->tok, &ids, &n, err);
    kk_record_release(&r);
    return st == KK_OK ? add_pieces(b, ids, n, held, err) : st;
}

/* Front to back, until there is enough: a file of any size. */
static kk_status add_lines(builder *b, kk_span all, const char *path, kk_err *err) {
    const char *at = (const char *)all.base, *end = at + all.size;
    for (int64_t number = 1; at < end && !enough(b); number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        kk_err why = {0};
        if (!stop) stop = end;
        const kk_status st = stop > at ? add_record(b, at, (size_t)(stop - at), &why) : KK_OK;
        if (st != KK_OK)
            return kk_fail(err, st, "line %lld of '%.100s': %.100s", (long long)number, path,
                           why.msg);
        at = stop + 1;
    }
    return KK_OK;
}

static kk_status add_records(builder *b, const char *path, kk_err *err) {
    kk_map map;
    KK_TRY(kk_map_open(&map, path, err));
    const kk_status st = add_lines(b, map.span, path, err);
    kk_map_close(&map);
    return st;
}

/* ---- whole files ------------------------------------------------------------------------- */

static kk_status add_file(builder *b, const char *path, kk_err *err) {
    char *text;
    int32_t *ids = NULL;
    size_t len, n;
    struct stat s;
    if (is_records(path)) return add_records(b, path, err);
    if (stat(path, &s) != 0) return KK_OK;
    b->out->skipped.large += s.st_size > MOST_FILE;
    b->out->skipped.small += s.st_size < LEAST_TOKENS;
    if (s.st_size > MOST_FILE || s.st_size < LEAST_TOKENS) return KK_OK;
    KK_TRY(kk_file_read(path, MOST_FILE, &text, &len, err));
    /* By what it says: the same wherever it lies, and copies of it go with it. */
    const bool held = kk_quality_held_out(text, len);
    const kk_status st = kk_encode(b->tok, text, len, KK_ENCODE_BOS, &ids, &n, err);
    kk_free(text);
    return st == KK_OK ? add_pieces(b, ids, n, held, err) : st;
}

/* Texts were asked for by name: to train on our own documents alone is not what was meant. */
static kk_status say_nothing_left(const builder *b, kk_err *err) {
    char skipped[200];
    kk_corpus_skipped_text(&b->out->skipped, skipped, sizeof skipped);
    return kk_fail(err, KK_EINVAL, "there is no text to train on in '%.60s'%s%s%.150s",
                   b->opts->paths[0], b->opts->n_paths > 1 ? " and the others" : "",
                   skipped[0] ? "; passed over: " : "", skipped);
}

static kk_status add_files(builder *b, kk_err *err) {
    file_list list = {.skipped = &b->out->skipped};
    kk_status st = KK_OK;
    for (size_t i = 0; i < b->opts->n_paths && st == KK_OK; i++)
        st = list_path(&list, b->opts->paths[i], 0, err);
    if (st == KK_OK) shuffle(b, &list);
    for (size_t i = 0; i < list.n && st == KK_OK && !enough(b); i++)
        st = add_file(b, list.path[i], err);
    free_list(&list);
    if (st == KK_OK && b->out->n == 0) return say_nothing_left(b, err);
    return st;
}

/* ---- what the model says ----------------------------------------------------------------- */

typedef struct {
    int32_t *ids;
    int32_t n;
} spoken;

static bool on_token(void *user, int32_t id) {
    spoken *s = user;
    s->ids[s->n++] = id;
    return true;
}

/* The prompt and up to `most` tokens more, as a text. */
static kk_status add_spoken(builder *b, const int32_t *prompt, size_t n, int32_t most,
                            const kk_sampling *how, kk_text_kind kind, bool held, kk_err *err) {
    const kk_generate_opts opts = {.max_tokens = most, .sampling = *how};
    const kk_session_opts session_opts = {.ctx = (int32_t)n + most};
    spoken s = {kk_calloc(n + (size_t)most, sizeof *s.ids), (int32_t)n};
    kk_session *session = NULL;
    kk_result result;
    if (!s.ids) return kk_fail(err, KK_ENOMEM, "no memory for %zu tokens", n);
    memcpy(s.ids, prompt, n * sizeof *prompt);
    kk_status st = kk_session_new(&session, b->opts->engine, &session_opts, err);
    if (st == KK_OK) st = kk_session_append(session, prompt, n, NULL, NULL, err);
    if (st == KK_OK && most > 0) st = kk_generate(session, &opts, on_token, &s, &result, err);
    kk_session_free(session);
    if (st == KK_OK) return add(b, s.ids, s.n, kind, held, err);
    kk_free(s.ids);
    return st;
}

static kk_status add_prompts(builder *b, const char *name, int round, kk_err *err) {
    kk_promptset set;
    KK_TRY(kk_promptset_named(&set, b->opts->prompts, name, b->tok, KK_PROMPTSET_MOST, err));
    kk_status st = KK_OK;
    for (size_t i = 0; i < set.n && st == KK_OK && !enough(b); i++) {
        const kk_prompt *p = &set.prompts[i];
        const size_t most = (size_t)b->opts->length, n = p->n < most ? p->n : most;
        const kk_sampling how = {.temp = round == 0 ? 0.7f : 1.0f,
                                 .seed = b->opts->seed + OTHER_SEEDS +
                                         (uint64_t)round * KK_PROMPTSET_MOST + i};
        st = add_spoken(b, p->ids, n, b->opts->predict, &how, KK_TEXT_PROMPT,
                        kk_quality_held_out(p->ids, p->n * sizeof *p->ids), err);
    }
    kk_promptset_free(&set);
    return st;
}

/* Round after round over all sets, each with other seeds, until there is enough. */
static kk_status add_all_prompts(builder *b, kk_err *err) {
    enum { ROUNDS = 64 };
    for (int round = 0; round < (b->opts->tokens > 0 ? ROUNDS : 1) && !enough(b); round++)
        for (size_t i = 0; i < sizeof prompt_sets / sizeof *prompt_sets; i++)
            KK_TRY(add_prompts(b, prompt_sets[i], round, err));
    return KK_OK;
}

/* ---- needles ----------------------------------------------------------------------------- */

kk_haystack kk_corpus_needle(kk_twister *t, int32_t most_lines) {
    static const char *const words[] = {"CEDAR", "LOTUS",  "SIGMA", "OMEGA", "WILLOW", "ASPEN",
                                        "TULIP", "LAMBDA", "FERN",  "PHI",   "HAZEL",  "RHO"};
    enum { WORDS = sizeof words / sizeof *words };
    kk_haystack h = kk_haystack_draw(t, LEAST_LINES, most_lines);
    const char *number = strrchr(h.code, '-');
    char code[sizeof h.code];
    snprintf(code, sizeof code, "%.8s%.8s", words[kk_twister_between(t, 0, WORDS - 1)], number);
    memcpy(h.code, code, sizeof code);
    return h;
}

static kk_status encode_needle(const builder *b, const kk_haystack *doc, int32_t **ids, size_t *n,
                               kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_haystack_text(doc, &text, &len, err));
    json_t *o = json_pack("{s:[{s:s, s:s%}], s:b}", "messages", "role", "user", "content", text,
                          len, "add_generation_prompt", 1);
    char *json = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    kk_free(text);
    const kk_status st = json ? kk_chat_encode(b->tok, json, strlen(json), ids, n, err)
                              : kk_fail(err, KK_ENOMEM, "no memory for a document");
    free(json);
    return st;
}

static kk_status add_needles(builder *b, kk_err *err) {
    const kk_sampling greedy = {0};
    kk_twister t;
    kk_twister_seed(&t, kk_corpus_seed(b->opts->seed));
    for (int32_t i = 0; i < b->opts->needles; i++) {
        const kk_haystack doc = kk_corpus_needle(&t, b->opts->most_lines);
        int32_t *ids;
        size_t n;
        KK_TRY(encode_needle(b, &doc, &ids, &n, err));
        const bool held = i % HOLD_OUT == HOLD_OUT - 1;
        const kk_status st = add_spoken(b, ids, n, ANSWER, &greedy, KK_TEXT_NEEDLE, held, err);
        kk_free(ids);
        KK_TRY(st);
    }
    return KK_OK;
}

/* ---- random ids -------------------------------------------------------------------------- */

/* The second sequence is held out, and one of ten. */
static kk_status add_random(builder *b, kk_err *err) {
    const int32_t n = b->opts->length;
    kk_twister random[2]; /* trained on, held out */
    kk_model_info model;
    kk_engine_info(b->opts->engine, &model);
    if (b->opts->tokens < 1)
        return kk_fail(err, KK_EINVAL, "there is no end of random ids: say how many tokens");
    kk_twister_seed(&random[0], kk_corpus_seed(b->opts->seed));
    kk_twister_seed(&random[1], kk_corpus_held_seed(b->opts->seed));
    for (int32_t i = 0; i < 2 || !enough(b); i++) {
        const bool held = i % HOLD_OUT == 1;
        int32_t *ids = kk_calloc((size_t)n, sizeof *ids);
        if (!ids) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", n);
        for (int32_t k = 0; k < n; k++)
            ids[k] = kk_twister_between(&random[held], 0, model.vocab - 1);
        KK_TRY(add(b, ids, n, KK_TEXT_RANDOM, held, err));
    }
    return KK_OK;
}

/* ---- all of it --------------------------------------------------------------------------- */

static kk_status build(builder *b, kk_err *err) {
    const kk_corpus_opts *o = b->opts;
    if (o->random) return add_random(b, err);
    b->tok = kk_engine_tokenizer(o->engine);
    if (!b->tok) return kk_fail(err, KK_EINVAL, "this model has no tokenizer to read texts with");
    kk_twister_seed(&b->random, kk_corpus_seed(o->seed));
    if (o->n_paths)
        KK_TRY(add_files(b, err));
    else if (o->prompts)
        KK_TRY(add_all_prompts(b, err));
    KK_TRY(add_needles(b, err));
    if (b->out->tokens[0]) return KK_OK;
    return kk_fail(err, KK_EINVAL, "there is no text to train on");
}

kk_status kk_corpus_new(kk_corpus *out, const kk_corpus_opts *opts, kk_err *err) {
    *out = (kk_corpus){.n = 0};
    builder b = {.opts = opts, .out = out};
    const kk_status st = build(&b, err);
    if (st != KK_OK) kk_corpus_free(out);
    return st;
}
