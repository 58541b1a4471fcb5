/* quality_texts.c - the texts that caches are compared on, and which they were in a report; see
 * quality.h. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"
#include "eval/reports/report.h"
#include "eval/tasks/quality.h"
#include "eval/texts/promptset.h"

enum {
    HOLD_OUT = 10,        /* one text of so many */
    MOST_BYTES = 16 << 20 /* of a file */
};

/* FNV-1a, with the high bits mixed in: the low ones of short names differ too little. */
bool kk_quality_held_out(const void *name, size_t len) {
    const unsigned char *at = name;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < len; i++) h = (h ^ at[i]) * 1099511628211u;
    h ^= h >> 29;
    return h * 0x9e3779b97f4a7c15u >> 32 < (uint64_t)UINT32_MAX / HOLD_OUT;
}

void kk_quality_free(kk_quality_texts *t) {
    for (size_t i = 0; i < t->n; i++) kk_free(t->texts[i].ids);
    kk_free(t->texts);
    *t = (kk_quality_texts){.n = 0};
}

/* ---- a list of texts ---------------------------------------------------------------------- */

typedef struct {
    const kk_quality_source *from;
    kk_quality_texts *out;
} list;

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_in(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Copies the ids.  The last position has no token after it, and counts for nothing. */
static kk_status add(list *l, const char *name, const int32_t *ids, size_t n, kk_err *err) {
    kk_quality_texts *t = l->out;
    const size_t most = (size_t)l->from->most, take = n < most ? n : most;
    int32_t *copy = kk_calloc(take, sizeof *copy);
    if (!copy || !kk_grow((void **)&t->texts, &t->cap, t->n + 1, sizeof *t->texts)) {
        kk_free(copy);
        return kk_fail(err, KK_ENOMEM, "no memory for a text of %zu tokens", take);
    }
    memcpy(copy, ids, take * sizeof *copy);
    kk_quality_text *text = &t->texts[t->n++];
    *text = (kk_quality_text){.ids = copy, .n = (int32_t)take};
    snprintf(text->name, sizeof text->name, "%.79s", name);
    t->rows += (int32_t)take - 1 - l->from->from;
    return KK_OK;
}

static bool long_enough(const list *l, size_t n) {
    const size_t most = (size_t)l->from->most, take = n < most ? n : most;
    return take >= (size_t)l->from->from + 2;
}

static kk_status add_prompts(list *l, const char *path, bool all, kk_err *err) {
    kk_promptset set;
    KK_TRY(kk_promptset_read(&set, path, l->from->tok, KK_PROMPTSET_MOST, err));
    kk_status st = KK_OK;
    for (size_t i = 0; i < set.n && st == KK_OK; i++) {
        const kk_prompt *p = &set.prompts[i];
        char name[80];
        if (!all && !kk_quality_held_out(p->ids, p->n * sizeof *p->ids)) continue;
        snprintf(name, sizeof name, "%.50s %zu", set.name, i);
        if (long_enough(l, p->n))
            st = add(l, name, p->ids, p->n, err);
        else
            l->out->too_short++;
    }
    kk_promptset_free(&set);
    return st;
}

static kk_status add_text(list *l, const char *path, const char *text, size_t len, kk_err *err) {
    int32_t *ids;
    size_t n;
    if (strspn(text, " \t\r\n") == len)
        return kk_fail(err, KK_EINVAL, "the text '%.150s' is empty", path);
    KK_TRY(kk_encode(l->from->tok, text, len, KK_ENCODE_BOS, &ids, &n, err));
    const kk_status st =
        long_enough(l, n)
            ? add(l, last_part(path), ids, n, err)
            : kk_fail(err, KK_EINVAL,
                      "the text '%.150s' has %zu tokens, and to the first %d all rows are kept: "
                      "nothing would be compared",
                      path, n, l->from->from);
    kk_free(ids);
    return st;
}

static kk_status add_file(list *l, const char *path, kk_err *err) {
    char *text;
    size_t len;
    if (ends_in(path, ".jsonl")) return add_prompts(l, path, true, err);
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    const kk_status st = add_text(l, path, text, len, err);
    kk_free(text);
    return st;
}

/* ---- a folder of prompts ------------------------------------------------------------------ */

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Files that say so are held out as a whole; of sets of prompts, what training leaves. */
static kk_status add_entry(list *l, const char *name, kk_err *err) {
    const bool whole = strstr(name, "heldout") != NULL;
    if (!whole && !ends_in(name, ".jsonl")) return KK_OK;
    char *path = kk_path_join(l->from->prompts, name);
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    const kk_status st = whole ? add_file(l, path, err) : add_prompts(l, path, false, err);
    kk_free(path);
    return st;
}

static kk_status list_names(const char *folder, char ***names, size_t *n, kk_err *err) {
    size_t cap = 0;
    DIR *d = opendir(folder);
    if (!d) return kk_fail(err, KK_EIO, "the folder '%.150s' cannot be read", folder);
    kk_status st = KK_OK;
    /* cppcheck-suppress readdirCalled ; the stream is this function's alone */
    for (const struct dirent *e; st == KK_OK && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *name = kk_strndup(e->d_name, strlen(e->d_name));
        if (name && kk_grow((void **)names, &cap, *n + 1, sizeof **names)) {
            (*names)[(*n)++] = name;
        } else {
            kk_free(name);
            st = kk_fail(err, KK_ENOMEM, "no memory for names");
        }
    }
    closedir(d);
    return st;
}

static kk_status add_folder(list *l, kk_err *err) {
    char **names = NULL;
    size_t n = 0;
    if (!l->from->prompts)
        return kk_fail(err, KK_EINVAL, "there are no shipped prompts to compare on: --text");
    kk_status st = list_names(l->from->prompts, &names, &n, err);
    if (n) qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && st == KK_OK; i++) st = add_entry(l, names[i], err);
    for (size_t i = 0; i < n; i++) kk_free(names[i]);
    kk_free(names);
    return st;
}

static kk_status read_all(list *l, kk_err *err) {
    if (l->from->n_paths == 0) KK_TRY(add_folder(l, err));
    for (size_t i = 0; i < l->from->n_paths; i++) KK_TRY(add_file(l, l->from->paths[i], err));
    if (l->out->rows >= KK_QUALITY_LEAST_ROWS) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   "the texts have %lld positions after the first %d to compare, and %d are the "
                   "least: --text names longer ones",
                   (long long)l->out->rows, l->from->from, KK_QUALITY_LEAST_ROWS);
}

/* Drops the texts that are not drawn. */
static kk_status keep_drawn(kk_quality_texts *t, const kk_quality_source *from, kk_err *err) {
    const size_t total = t->n;
    bool *drawn = kk_calloc(total, sizeof *drawn);
    if (!drawn) return kk_fail(err, KK_ENOMEM, "no memory for a draw of %zu texts", total);
    const kk_status st = kk_subset_draw(drawn, total, &from->subset, err);
    size_t kept = 0;
    for (size_t i = 0; i < total && st == KK_OK; i++) {
        if (drawn[i]) {
            t->texts[kept++] = t->texts[i];
            continue;
        }
        t->rows -= t->texts[i].n - 1 - from->from;
        kk_free(t->texts[i].ids);
    }
    if (st == KK_OK) t->n = kept;
    kk_free(drawn);
    return st;
}

kk_status kk_quality_read(kk_quality_texts *out, const kk_quality_source *from, kk_err *err) {
    *out = (kk_quality_texts){.n = 0};
    list l = {.from = from, .out = out};
    kk_status st = read_all(&l, err);
    if (st == KK_OK && from->subset.n) st = keep_drawn(out, from, err);
    if (st != KK_OK) kk_quality_free(out);
    return st;
}

/* ---- in reports --------------------------------------------------------------------------- */

static json_t *named(const char *arm, json_t *rest) {
    return kk_report_join(arm ? json_pack("{s:s}", "arm", arm) : json_object(), rest);
}

json_t *kk_quality_json(const char *arm, const kk_quality_row *r) {
    return named(arm,
                 json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:i, s:i}", "text", r->text, "rows",
                           r->rows, "mean_kl", kk_report_real(r->mean_kl), "worst_kl",
                           kk_report_real(r->worst_kl), "loss_exact", kk_report_real(r->loss_exact),
                           "loss_arm", kk_report_real(r->loss_arm), "same_prefix", r->same_prefix,
                           "same_of", r->same_of));
}

json_t *kk_quality_sum_json(const char *arm, const kk_quality_sum *s) {
    return named(arm, json_pack("{s:o, s:o, s:o}", "mean_kl", kk_report_real(s->mean_kl),
                                "worst_kl", kk_report_real(s->worst_kl), "loss_change",
                                kk_report_real(s->loss_change)));
}

static void add_file_json(json_t *to, const char *path) {
    json_t *file = kk_report_file(path);
    if (file) json_array_append_new(to, file);
}

json_t *kk_quality_files_json(const kk_quality_source *from) {
    json_t *files = json_array();
    char **names = NULL;
    size_t n = 0;
    for (size_t i = 0; i < from->n_paths; i++) add_file_json(files, from->paths[i]);
    if (from->n_paths || !from->prompts) return files;
    (void)list_names(from->prompts, &names, &n, NULL);
    if (n) qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        char *path = ends_in(names[i], ".jsonl") || strstr(names[i], "heldout")
                         ? kk_path_join(from->prompts, names[i])
                         : NULL;
        if (path) add_file_json(files, path);
        kk_free(path);
        kk_free(names[i]);
    }
    kk_free(names);
    return files;
}

json_t *kk_quality_texts_json(const kk_quality_texts *t, const kk_quality_source *from) {
    const char *what = from->n_paths ? "files" : "held out of the shipped prompts";
    return json_pack("{s:s, s:i, s:i, s:i, s:I, s:i}", "source", what, "texts", (int)t->n,
                     "too_short", t->too_short, "from", from->from, "rows", (json_int_t)t->rows,
                     "most_tokens", from->most);
}
