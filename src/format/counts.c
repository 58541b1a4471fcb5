/* counts.c - see counts.h. */
#include "format/counts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/writer.h"
#include "format/fields.h"
#include "format/jsontree.h"

enum { VERSION = 1, MOST_VOCAB = 1 << 20, MOST_BYTES = 32 << 20 };

void kk_counts_free(kk_counts *c) {
    kk_free(c->id);
    kk_free(c->count);
    *c = (kk_counts){0};
}

static kk_status take(kk_counts *c, int32_t vocab, int32_t n, kk_err *err) {
    *c = (kk_counts){.vocab = vocab, .n = n};
    c->id = kk_calloc((size_t)n, sizeof *c->id);
    c->count = kk_calloc((size_t)n, sizeof *c->count);
    if (c->id && c->count) return KK_OK;
    kk_counts_free(c);
    return kk_fail(err, KK_ENOMEM, "no memory for counts of %d ids", n);
}

double kk_counts_share(const kk_counts *c, int32_t n) {
    int64_t sum = 0;
    for (int32_t i = 0; i < n && i < c->n; i++) sum += c->count[i];
    return c->tokens > 0 ? (double)sum / (double)c->tokens : 0;
}

/* ---- counted ---------------------------------------------------------------------------- */

typedef struct {
    int64_t count;
    int32_t id;
} entry;

static int more_first(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

kk_status kk_counts_make(kk_counts *out, const int64_t *by_id, int32_t vocab, kk_err *err) {
    int32_t n = 0;
    *out = (kk_counts){0};
    if (vocab < 1 || vocab > MOST_VOCAB)
        return kk_fail(err, KK_EINVAL, "counts of a vocabulary of %d ids: 1 to %d", vocab,
                       MOST_VOCAB);
    entry *all = kk_calloc((size_t)vocab, sizeof *all);
    if (!all) return kk_fail(err, KK_ENOMEM, "no memory for counts of %d ids", vocab);
    for (int32_t i = 0; i < vocab; i++)
        if (by_id[i] > 0) all[n++] = (entry){by_id[i], i};
    qsort(all, (size_t)n, sizeof *all, more_first);
    const kk_status st = take(out, vocab, n, err);
    for (int32_t i = 0; st == KK_OK && i < n; i++) {
        out->id[i] = all[i].id;
        out->count[i] = all[i].count;
        out->tokens += all[i].count;
    }
    kk_free(all);
    return st;
}

/* ---- read ------------------------------------------------------------------------------- */

static kk_status whole(const json_t *list, size_t i, const char *label, const char *name,
                       int64_t low, int64_t high, int64_t *out, kk_err *err) {
    const json_t *v = json_array_get(list, i);
    if (!json_is_integer(v))
        return kk_fail(err, KK_EFORMAT, "%s: %s[%zu] is no integer", label, name, i);
    *out = (int64_t)json_integer_value(v);
    if (*out >= low && *out <= high) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s[%zu] is %" PRId64 ", not %" PRId64 " to %" PRId64,
                   label, name, i, *out, low, high);
}

/* seen: [vocab], zeroed. */
static kk_status read_entries(kk_counts *c, kk_fields f, bool *seen, kk_err *err) {
    const json_t *ids = kk_field(f, "ids"), *counts = kk_field(f, "counts");
    int64_t before = INT64_MAX;
    for (int32_t i = 0; i < c->n; i++) {
        int64_t id;
        KK_TRY(whole(ids, (size_t)i, f.label, "ids", 0, c->vocab - 1, &id, err));
        if (seen[id])
            return kk_fail(err, KK_EFORMAT, "%s: ids[%d] is %d a second time", f.label, i, (int)id);
        seen[id] = true;
        c->id[i] = (int32_t)id;
        /* What is left of `tokens` bounds it, so that no sum overflows. */
        const int64_t left = c->tokens < before ? c->tokens : before;
        KK_TRY(whole(counts, (size_t)i, f.label, "counts", 1, left, &c->count[i], err));
        before = c->count[i];
        c->tokens -= before;
    }
    if (c->tokens == 0) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: its counts sum to %" PRId64 " less than its tokens",
                   f.label, c->tokens);
}

static kk_status read_lists(kk_counts *c, kk_fields f, kk_err *err) {
    const json_t *ids = kk_field(f, "ids"), *counts = kk_field(f, "counts");
    const json_t *tokens = kk_field(f, "tokens");
    int32_t vocab;
    KK_TRY(kk_field_int(f, "vocab", KK_FIELD_REQUIRED, &vocab, err));
    KK_TRY(kk_in_range(f.label, "vocab", vocab, 1, MOST_VOCAB, err));
    if (!json_is_array(ids) || !json_is_array(counts) ||
        json_array_size(ids) != json_array_size(counts) || json_array_size(ids) > (size_t)vocab)
        return kk_fail(err, KK_EFORMAT, "%s: ids and counts are no lists of one length, up to %d",
                       f.label, vocab);
    if (!json_is_integer(tokens) || json_integer_value(tokens) < 0)
        return kk_fail(err, KK_EFORMAT, "%s: tokens is no count", f.label);
    bool *seen = kk_calloc((size_t)vocab, sizeof *seen);
    if (!seen) return kk_fail(err, KK_ENOMEM, "no memory for a vocabulary of %d", vocab);
    kk_status st = take(c, vocab, (int32_t)json_array_size(ids), err);
    if (st == KK_OK) {
        c->tokens = (int64_t)json_integer_value(tokens);
        st = read_entries(c, f, seen, err);
        c->tokens = (int64_t)json_integer_value(tokens);
    }
    kk_free(seen);
    return st;
}

kk_status kk_counts_parse(kk_counts *out, const char *json, size_t len, const char *label,
                          kk_err *err) {
    json_t *tree;
    int32_t version;
    *out = (kk_counts){0};
    KK_TRY(kk_json_tree(&tree, json, len, label, KK_EFORMAT, err));
    const kk_fields f = {label, tree};
    kk_status st = kk_field_int(f, "kakeya_counts", KK_FIELD_REQUIRED, &version, err);
    if (st == KK_OK) st = kk_in_range(label, "kakeya_counts", version, VERSION, VERSION, err);
    if (st == KK_OK) st = read_lists(out, f, err);
    if (st != KK_OK) kk_counts_free(out);
    json_decref(tree);
    return st;
}

kk_status kk_counts_read(kk_counts *out, const char *path, kk_err *err) {
    char *text, label[100];
    size_t len;
    *out = (kk_counts){0};
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    const size_t n = strlen(path), from = n < sizeof label ? 0 : n - sizeof label + 1;
    snprintf(label, sizeof label, "%s", path + from);
    const kk_status st = kk_counts_parse(out, text, len, label, err);
    kk_free(text);
    return st;
}

/* ---- written ---------------------------------------------------------------------------- */

static kk_status put_list(const kk_counts *c, bool ids, kk_writer *to, kk_err *err) {
    char text[32];
    for (int32_t i = 0; i < c->n; i++) {
        const int64_t v = ids ? c->id[i] : c->count[i];
        const char *before = i == 0 ? "" : i % 16 ? ", " : ",\n  ";
        const int n = snprintf(text, sizeof text, "%s%" PRId64, before, v);
        KK_TRY(kk_writer_put(to, text, (size_t)n, err));
    }
    return KK_OK;
}

kk_status kk_counts_write(const kk_counts *c, kk_writer *to, kk_err *err) {
    char text[160];
    int n =
        snprintf(text, sizeof text,
                 "{\"kakeya_counts\": %d, \"vocab\": %d, \"tokens\": %" PRId64 ",\n \"ids\": [\n  ",
                 VERSION, c->vocab, c->tokens);
    KK_TRY(kk_writer_put(to, text, (size_t)n, err));
    KK_TRY(put_list(c, true, to, err));
    n = snprintf(text, sizeof text, "],\n \"counts\": [\n  ");
    KK_TRY(kk_writer_put(to, text, (size_t)n, err));
    KK_TRY(put_list(c, false, to, err));
    KK_TRY(kk_writer_put(to, "]}\n", 3, err));
    return kk_writer_commit(to, err);
}
