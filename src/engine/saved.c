/* saved.c - the head of a saved session's file, both ways; see saved.h.
 *
 * One function lists the fields and serves both directions, so that writing and reading cannot
 * disagree.  What is read is hostile until the checks at the end have passed, whatever its
 * checksum says. */
#include "engine/saved.h"

#include <assert.h>
#include <stdio.h>

#include "backend/sample.h"
#include "core/hash.h"
#include "engine/engine.h"

#define PATH_FMT "'%.120s'"

static const char magic[8] = {'K', 'K', 'S', 'A', 'V', 'E', 'D', '\n'};

enum { PREAMBLE = 24, SEAL = 8, FORMAT_AT = 8, HEAD_BYTES_AT = 12, FILE_BYTES_AT = 16 };
enum { MOST_POINTS = 1 << 16 };

/* ---- fields ----------------------------------------------------------------------------- */

typedef struct {
    uint8_t *at;
    int32_t format;
    bool writing, wrong;
} codec;

static void field(codec *c, void *value, size_t size) {
    if (c->writing)
        memcpy(c->at, value, size);
    else
        memcpy(value, c->at, size);
    c->at += size;
}

static void field32(codec *c, int32_t *v) { field(c, v, sizeof *v); }
static void field64(codec *c, int64_t *v) { field(c, v, sizeof *v); }

static void field_bool(codec *c, bool *v) {
    uint32_t word = *v;
    field(c, &word, sizeof word);
    c->wrong |= word > 1;
    *v = word == 1;
}

/* Printable, zero to its end: names may be shown as they are, and a head has one spelling. */
static void field_text(codec *c, char *text, size_t size) {
    if (c->writing) {
        char padded[64] = {0};
        assert(size <= sizeof padded);
        memcpy(padded, text, strlen(text));
        field(c, padded, size);
        return;
    }
    field(c, text, size);
    size_t n = 0;
    while (n < size && text[n]) n++;
    c->wrong |= n == size;
    for (size_t i = 0; i < size; i++)
        c->wrong |= i < n ? text[i] < ' ' || text[i] > '~' : text[i] != 0;
    text[size - 1] = '\0';
}

static void fields_sampling(codec *c, kk_sampling *s) {
    field(c, &s->temp, sizeof s->temp);
    field32(c, &s->top_k);
    field(c, &s->top_p, sizeof s->top_p);
    field(c, &s->min_p, sizeof s->min_p);
    field(c, &s->repeat_penalty, sizeof s->repeat_penalty);
    field(c, &s->presence_penalty, sizeof s->presence_penalty);
    field(c, &s->frequency_penalty, sizeof s->frequency_penalty);
    field32(c, &s->penalty_last_n);
    field(c, &s->seed, sizeof s->seed);
}

static void fields_cache(codec *c, kk_saved_cache *s) {
    field64(c, &s->rows);
    for (int k = 0; k < KK_KINDS; k++) {
        field_text(c, s->kind[k].policy, sizeof s->kind[k].policy);
        field32(c, &s->kind[k].bounds.window);
        field32(c, &s->kind[k].bounds.sink);
        field32(c, &s->kind[k].bounds.chunk);
        field64(c, &s->kind[k].pages);
        field64(c, &s->kind[k].page_bytes);
        field64(c, &s->kind[k].sink_bytes);
    }
}

static void fields_keeps(codec *c, kk_saved_keeps *k) {
    field32(c, &k->sink);
    field32(c, &k->window);
    field32(c, &k->chunk);
    field(c, &k->projection, sizeof k->projection);
    field32(c, &k->latents);
    field32(c, &k->rank);
    field32(c, &k->n_scales);
    if (c->format > 2) return;
    field_bool(c, &k->mixes);
    field(c, &k->mix, sizeof k->mix);
}

static void fields(codec *c, kk_saved_head *h) {
    field_text(c, h->build, sizeof h->build);
    field_text(c, h->device, sizeof h->device);
    field_text(c, h->model, sizeof h->model);
    field(c, &h->fingerprint, sizeof h->fingerprint);
    field(c, &h->drafter, sizeof h->drafter);
    field32(c, &h->kv_format);
    field32(c, &h->spec);
    field32(c, &h->ctx);
    field32(c, &h->len);
    field32(c, &h->vocab);
    field_bool(c, &h->settled);
    field32(c, &h->draft_max);
    field32(c, &h->draft_ctx);
    field_bool(c, &h->draft_fixed);
    field_bool(c, &h->sampled);
    fields_sampling(c, &h->sampling);
    for (int k = 0; k < KK_LAYER_KINDS; k++) field_text(c, h->policy[k], sizeof h->policy[k]);
    fields_keeps(c, &h->keeps);
    fields_cache(c, &h->verifier);
    if (c->format == 2) {
        fields_cache(c, &h->context);
        return;
    }
    field64(c, &h->checkpoint_bytes);
    field32(c, &h->n_points);
    field_text(c, h->proposer, sizeof h->proposer);
    if (c->format == 3) return;
    field(c, &h->source, sizeof h->source);
    field(c, &h->identity, sizeof h->identity);
    field(c, &h->drafter_identity, sizeof h->drafter_identity);
    field(c, &h->projection_data, sizeof h->projection_data);
    field_bool(c, &h->other_weights);
}

/* ---- sizes ------------------------------------------------------------------------------ */

/* One part more, with its checksum; false when the sum overflows. */
static bool add_part(uint64_t *sum, int64_t n, int64_t size) {
    uint64_t part;
    if (n < 0 || size < 0 || __builtin_mul_overflow((uint64_t)n, (uint64_t)size, &part))
        return false;
    if (part == 0) return true;
    return !__builtin_add_overflow(*sum, part, sum) && !__builtin_add_overflow(*sum, SEAL, sum);
}

static bool add_cache(uint64_t *sum, const kk_saved_cache *c) {
    bool fits = true;
    for (int k = 0; k < KK_KINDS; k++)
        fits = fits && add_part(sum, c->kind[k].pages, c->kind[k].page_bytes) &&
               add_part(sum, 1, c->kind[k].sink_bytes);
    return fits;
}

/* What the fields of a head of format 2 say. */
static bool file_bytes_2(const kk_saved_head *h, uint64_t head_bytes, uint64_t *sum) {
    *sum = head_bytes;
    return add_part(sum, h->len, sizeof(int32_t)) &&
           add_part(sum, h->settled ? h->vocab : 0, sizeof(float)) &&
           add_cache(sum, &h->verifier) && add_cache(sum, &h->context);
}

/* ---- both ways -------------------------------------------------------------------------- */

size_t kk_saved_encode(const kk_saved_head *h, uint8_t out[KK_SAVED_HEAD_MAX]) {
    kk_saved_head copy = *h;
    codec c = {.at = out + PREAMBLE, .format = KK_SAVED_FORMAT, .writing = true};
    fields(&c, &copy);
    const uint32_t format = KK_SAVED_FORMAT, bytes = (uint32_t)(c.at - out) + SEAL;
    const uint64_t all = bytes + (uint64_t)h->body_bytes;
    assert(bytes <= KK_SAVED_HEAD_MAX);
    memcpy(out, magic, sizeof magic);
    memcpy(out + FORMAT_AT, &format, sizeof format);
    memcpy(out + HEAD_BYTES_AT, &bytes, sizeof bytes);
    memcpy(out + FILE_BYTES_AT, &all, sizeof all);
    const uint64_t seal = kk_hash_bytes(KK_HASH_START, out, bytes - SEAL);
    memcpy(out + bytes - SEAL, &seal, SEAL);
    return bytes;
}

size_t kk_saved_bytes(int32_t format) {
    uint8_t unused[KK_SAVED_HEAD_MAX];
    kk_saved_head none = {0};
    codec c = {.at = unused, .format = format, .writing = true};
    fields(&c, &none);
    return PREAMBLE + (size_t)(c.at - unused) + SEAL;
}

static kk_status read_bytes(uint8_t *out, size_t *n, kk_reader *r, kk_err *err) {
    const char *path = kk_reader_path(r);
    const uint64_t size = kk_reader_size(r);
    if (size < PREAMBLE)
        return kk_fail(err, KK_EFORMAT, PATH_FMT " is no saved session: it has %llu bytes", path,
                       (unsigned long long)size);
    KK_TRY(kk_reader_get(r, out, PREAMBLE, err));
    if (memcmp(out, magic, sizeof magic) != 0)
        return kk_fail(err, KK_EFORMAT, PATH_FMT " is no saved session: it starts otherwise", path);
    const uint32_t format = kk_le32(out + FORMAT_AT);
    if (format < KK_SAVED_OLDEST || format > KK_SAVED_FORMAT)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT
                       " is a saved session of format %u, this build reads formats %d to %d",
                       path, format, KK_SAVED_OLDEST, KK_SAVED_FORMAT);
    *n = kk_saved_bytes((int32_t)format);
    if (kk_le32(out + HEAD_BYTES_AT) != *n)
        return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its head claims %u bytes of %zu",
                       path, kk_le32(out + HEAD_BYTES_AT), *n);
    if (size < *n)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " was cut short: it ends in its head, at byte "
                                "%llu",
                       path, (unsigned long long)size);
    KK_TRY(kk_reader_get(r, out + PREAMBLE, *n - PREAMBLE, err));
    if (kk_hash_bytes(KK_HASH_START, out, *n - SEAL) != kk_le64(out + *n - SEAL))
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " is damaged: its head does not match its "
                                "checksum",
                       path);
    return KK_OK;
}

static kk_status check_size(const kk_saved_head *h, const uint8_t *bytes, size_t n,
                            const kk_reader *r, kk_err *err) {
    const uint64_t said = kk_le64(bytes + FILE_BYTES_AT), is = kk_reader_size(r);
    uint64_t sum = said;
    if (said < n || (h->format == 2 && (!file_bytes_2(h, n, &sum) || sum != said)))
        return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its parts do not make %llu bytes",
                       kk_reader_path(r), (unsigned long long)said);
    if (is == said) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   is < said ? PATH_FMT " was cut short: %llu of %llu bytes are "
                                        "left"
                             : PATH_FMT " is damaged: it has %llu bytes instead of %llu",
                   kk_reader_path(r), (unsigned long long)is, (unsigned long long)said);
}

/* That a head has one spelling, and latents where something is rebuilt of them. */
static bool keeps_are_sound(const kk_saved_head *h) {
    const kk_saved_keeps *k = &h->keeps;
    bool all = true, restored = false;
    for (int i = 0; i < KK_LAYER_KINDS; i++) {
        kk_keep keep;
        if (!kk_saved_policy_named((kk_kind)i, h->policy[i], &keep))
            return true; /* refused by name, where it matters */
        all = all && keep == KK_KEEP_ALL;
        restored = restored || keep == KK_KEEP_RESTORED;
    }
    if (all && (k->sink || k->window || k->chunk)) return false;
    if (restored) return k->projection != 0 && k->rank > 0 && k->latents >= 0;
    return k->projection == 0 && !k->latents && !k->rank && !k->n_scales && !k->mixes &&
           kk_f32_bits(k->mix) == 0;
}

static bool points_are_sound(const kk_saved_head *h) {
    return h->n_points >= 0 && h->n_points <= MOST_POINTS && h->n_points <= h->len &&
           h->checkpoint_bytes >= -1 && h->checkpoint_bytes != 0 &&
           (h->drafter != 0) == (h->proposer[0] != 0);
}

/* Numbers that the rest relies on.  That they fit a model is checked where there is one. */
static bool sound(const kk_saved_head *h) {
    const int64_t len = h->len, rows = h->settled || len == 0 ? len : len - 1;
    return h->ctx >= 1 && h->len >= 0 && h->len <= h->ctx && h->vocab >= 1 &&
           !(h->settled && h->len == 0) && h->verifier.rows == rows && h->kv_format >= 0 &&
           h->spec >= KK_SPEC_AUTO && h->spec < KK_MOST_SPECS && h->fingerprint != 0 &&
           (h->format == 2 ? h->context.rows == (h->drafter ? rows : 0) : points_are_sound(h)) &&
           kk_sampling_check(&h->sampling, NULL) == KK_OK && keeps_are_sound(h);
}

bool kk_saved_decode(kk_saved_head *out, int32_t format, const uint8_t *bytes) {
    uint8_t copy[KK_SAVED_HEAD_MAX];
    codec c = {.at = copy, .format = format};
    memcpy(copy, bytes + PREAMBLE, kk_saved_bytes(format) - PREAMBLE - SEAL);
    *out = (kk_saved_head){.format = format};
    fields(&c, out);
    return !c.wrong && sound(out);
}

kk_status kk_saved_read(kk_saved_head *out, kk_reader *r, kk_err *err) {
    uint8_t bytes[KK_SAVED_HEAD_MAX];
    size_t n = 0;
    *out = (kk_saved_head){0};
    KK_TRY(read_bytes(bytes, &n, r, err));
    if (!kk_saved_decode(out, (int32_t)kk_le32(bytes + FORMAT_AT), bytes))
        return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its head contradicts itself",
                       kk_reader_path(r));
    out->body_bytes = (int64_t)(kk_reader_size(r) - n);
    return check_size(out, bytes, n, r, err);
}

void kk_saved_describe(kk_saved_cache *out, const kk_cache *c, int64_t rows) {
    const kk_cache_opts *how = kk_cache_how(c);
    *out = (kk_saved_cache){.rows = rows};
    for (int k = 0; k < KK_KINDS; k++) {
        out->kind[k].pages = kk_cache_pages_needed(c, (kk_kind)k, rows);
        out->kind[k].page_bytes = (int64_t)how->layout->page_bytes[k];
        if (out->kind[k].page_bytes == 0) continue; /* no layer of that kind, no policy */
        snprintf(out->kind[k].policy, sizeof out->kind[k].policy, "%s", how->policy[k]->name);
        out->kind[k].bounds = how->bounds[k];
        if (out->rows) out->kind[k].sink_bytes = (int64_t)kk_cache_sink_bytes(c, (kk_kind)k);
    }
}

const char *kk_saved_policy(kk_kind kind, kk_keep keep) {
    switch (keep) {
    case KK_KEEP_ALL: return kind == KK_SLIDING ? kk_kv_native.name : kk_kv_exact.name;
    case KK_KEEP_WINDOW: return kk_kv_window.name;
    case KK_KEEP_RESTORED: return kk_kv_restored.name;
    }
    return "?";
}

bool kk_saved_policy_named(kk_kind kind, const char *name, kk_keep *out) {
    for (*out = KK_KEEP_ALL; *out <= KK_KEEP_RESTORED; ++*out)
        if (strcmp(name, kk_saved_policy(kind, *out)) == 0) return true;
    *out = KK_KEEP_ALL;
    return false;
}

kk_status kk_saved_inspect(const char *path, kk_saved_info *out, kk_err *err) {
    kk_reader *r;
    kk_saved_head h;
    *out = (kk_saved_info){0};
    KK_TRY(kk_reader_open(&r, path, err));
    const kk_status st = kk_saved_read(&h, r, err);
    if (st == KK_OK) {
        *out = (kk_saved_info){.fingerprint = h.fingerprint,
                               .kv_format = (kk_kv_format)h.kv_format,
                               .spec = (kk_spec)h.spec,
                               .tokens = h.len,
                               .ctx = h.ctx,
                               .bytes = (int64_t)kk_reader_size(r),
                               .sink = h.keeps.sink,
                               .window = h.keeps.window,
                               .chunk = h.keeps.chunk,
                               .projection = h.keeps.projection,
                               .format = h.format,
                               .checkpoints = h.n_points,
                               .identity = h.identity,
                               .other_weights = h.other_weights};
        memcpy(out->kv_sliding, h.policy[KK_SLIDING], sizeof out->kv_sliding);
        memcpy(out->kv_full, h.policy[KK_FULL], sizeof out->kv_full);
        memcpy(out->model, h.model, sizeof h.model);
        memcpy(out->device, h.device, sizeof h.device);
        memcpy(out->build, h.build, sizeof h.build);
    }
    kk_reader_close(r);
    return st;
}
