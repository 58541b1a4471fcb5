/* snapshot.c - writes a session to a file and makes one of a file; see saved.h for the format.
 *
 * Saving copies nothing but a cache's last page and its sink: pages go to the file from where they
 * lie.  That needs no lock, because a page that others share is written by nobody.  Pages of a
 * device are copied to the host one by one, under the lock, since they queue for it.  Loading reads
 * pages into a new session's own, checks each part against its checksum, and hands the session out
 * only when all of it was read: until then a failure leaves nothing behind. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "decode/hash.h"
#include "engine/fingerprint.h"
#include "engine/saved.h"
#include "engine/session.h"

#define PATH_FMT "'%.120s'"

/* Parts of a file, in order; a checksum starts from its part's number.  A cache has two for each
 * kind, its pages and its sink. */
enum {
    TOKENS,
    LOGITS,
    VERIFIER,
    CONTEXT = VERIFIER + 2 * KK_KINDS,
    PARTS = CONTEXT + 2 * KK_KINDS
};

static const char *part_name(int p) {
    static const char *const names[PARTS] = {
        "tokens",
        "logits",
        "sliding K/V",
        "first rows of sliding K/V",
        "full K/V",
        "first rows of full K/V",
        "latents",
        "first rows of latents",
        "drafter's sliding K/V",
        "first rows of the drafter's sliding K/V",
        "drafter's full K/V",
        "first rows of the drafter's full K/V",
        "drafter's latents",
        "first rows of the drafter's latents",
    };
    return names[p];
}

static uint64_t seal_of(int p) { return KK_HASH_START + (uint64_t)p; }

/* ---- save ------------------------------------------------------------------------------- */

static kk_status put(kk_writer *w, uint64_t *seal, const void *data, size_t n, kk_err *err) {
    *seal = kk_hash_bytes(*seal, data, n);
    return kk_writer_put(w, data, n, err);
}

static kk_status put_part(kk_writer *w, int p, const void *data, size_t n, kk_err *err) {
    uint64_t seal = seal_of(p);
    if (n == 0) return KK_OK;
    KK_TRY(put(w, &seal, data, n, err));
    return kk_writer_put(w, &seal, sizeof seal, err);
}

/* Where a page can be looked at: where it lies, or its copy in near. */
static kk_status page_near(kk_session *s, const kk_cache *c, kk_kind kind, const uint8_t *page,
                           uint8_t *near, const uint8_t **out, kk_err *err) {
    const kk_pool *pool = kk_cache_how(c)->pool[kind];
    *out = page;
    if (!kk_pool_is_remote(pool)) return KK_OK;
    *out = near;
    kk_engine_lock(s->engine);
    const kk_status st =
        kk_pool_read(pool, near, page, kk_cache_how(c)->layout->page_bytes[kind], err);
    kk_engine_unlock(s->engine);
    return st;
}

/* Rooms for one page: what is written down, and what came from a device. */
typedef struct {
    uint8_t *clean, *near;
} rooms;

static kk_status put_pages(kk_writer *w, int p, kk_session *s, const kk_cache *c, kk_kind kind,
                           rooms room, kk_err *err) {
    const kk_kv_layout *layout = kk_cache_how(c)->layout;
    const int64_t n = kk_cache_page_count(c, kind);
    uint64_t seal = seal_of(p);
    if (n == 0) return KK_OK;
    for (int64_t i = 0; i < n; i++) {
        const kk_cache_page page = kk_cache_page_at(c, kind, i);
        const uint8_t *data;
        KK_TRY(page_near(s, c, kind, page.data, room.near, &data, err));
        if (page.rows < KK_PAGE_ROWS) {
            kk_kv_page_copy(layout, kind, room.clean, data, page.rows);
            data = room.clean;
        }
        KK_TRY(put(w, &seal, data, layout->page_bytes[kind], err));
    }
    return kk_writer_put(w, &seal, sizeof seal, err);
}

static kk_status put_sink(kk_writer *w, int p, const kk_cache *c, kk_kind kind, uint8_t *scratch,
                          kk_err *err) {
    const kk_cache_opts *how = kk_cache_how(c);
    const int64_t len = kk_cache_len(c);
    const int32_t sink = how->bounds[kind].sink;
    const uint8_t *rows = kk_cache_sink(c, kind);
    if (!rows || len == 0) return KK_OK;
    kk_kv_sink_copy(how->layout, kind, sink, scratch, rows, len < sink ? (int32_t)len : sink);
    return put_part(w, p, scratch, kk_cache_sink_bytes(c, kind), err);
}

static kk_status put_cache(kk_writer *w, int p, kk_session *s, const kk_cache *c, rooms room,
                           kk_err *err) {
    for (int k = 0; k < KK_KINDS; k++) {
        KK_TRY(put_pages(w, p + 2 * k, s, c, (kk_kind)k, room, err));
        KK_TRY(put_sink(w, p + 2 * k + 1, c, (kk_kind)k, room.clean, err));
    }
    return KK_OK;
}

static void name_origin(kk_saved_head *h, const kk_engine *e) {
    kk_model_info model;
    kk_device_info device;
    kk_engine_info(e, &model);
    kk_engine_device(e, &device);
    snprintf(h->model, sizeof h->model, "%.40s %s", model.name, model.weight_type);
    snprintf(h->device, sizeof h->device, "%s", device.device);
    snprintf(h->build, sizeof h->build, "%s", kk_version());
}

/* Latents made of what the drafter sees are its own as well. */
static uint64_t projection_of(kk_engine *e) {
    uint64_t h = kk_engine_projection_fingerprint(e);
    if (!h || kk_projection_config_of(e->projection)->source != KK_SOURCE_CONTEXT) return h;
    const uint64_t drafter = kk_engine_drafter_fingerprint(e);
    h = kk_hash_bytes(h, &drafter, sizeof drafter);
    return h ? h : 1;
}

static void fill_keeps(kk_saved_head *h, kk_session *s) {
    const kk_session_keeps *k = &s->keeps;
    for (int i = 0; i < KK_LAYER_KINDS; i++)
        snprintf(h->policy[i], sizeof h->policy[i], "%s", kk_saved_policy((kk_kind)i, k->kind[i]));
    h->keeps = (kk_saved_keeps){.sink = k->sink, .window = k->window, .chunk = k->chunk};
    if (s->layout->latents.rank == 0) return;
    h->keeps.projection = projection_of(s->engine);
    h->keeps.latents = (int32_t)k->latents;
    h->keeps.rank = s->layout->latents.rank;
    h->keeps.n_scales = s->layout->latents.n_scales;
    h->keeps.mixes = k->mixes;
    h->keeps.mix = k->mix;
}

static void fill_head(kk_saved_head *h, kk_session *s) {
    kk_engine *e = s->engine;
    *h = (kk_saved_head){.fingerprint = kk_engine_fingerprint(e),
                         .kv_format = (int32_t)s->format,
                         .spec = (int32_t)s->spec,
                         .ctx = s->ctx,
                         .len = s->len,
                         .vocab = e->rounds.vocab,
                         .settled = kk_session_settled(s),
                         .draft_max = s->draft_max,
                         .draft_ctx = s->draft_ctx,
                         .draft_fixed = s->draft_fixed,
                         .sampled = s->sampled,
                         .sampling = s->sampling};
    name_origin(h, e);
    fill_keeps(h, s);
    kk_saved_describe(&h->verifier, s->cache);
    if (!s->context) return;
    h->drafter = kk_engine_drafter_fingerprint(e);
    kk_saved_describe(&h->context, kk_context_cache(s->context));
}

static kk_status put_all(kk_writer *w, kk_session *s, rooms room, kk_err *err) {
    uint8_t head[KK_SAVED_HEAD_MAX];
    kk_saved_head h;
    fill_head(&h, s);
    const size_t n = kk_saved_encode(&h, head);
    KK_TRY(kk_writer_put(w, head, n, err));
    KK_TRY(put_part(w, TOKENS, s->tokens, (size_t)h.len * sizeof *s->tokens, err));
    if (h.settled) KK_TRY(put_part(w, LOGITS, s->logits, (size_t)h.vocab * sizeof *s->logits, err));
    KK_TRY(put_cache(w, VERIFIER, s, s->cache, room, err));
    return s->context ? put_cache(w, CONTEXT, s, kk_context_cache(s->context), room, err) : KK_OK;
}

static size_t largest_page(const kk_session *s) {
    size_t most = 1;
    for (int k = 0; k < KK_KINDS; k++) {
        if (s->layout->page_bytes[k] > most) most = s->layout->page_bytes[k];
        if (!s->context) continue;
        const kk_kv_layout *layout = kk_cache_how(kk_context_cache(s->context))->layout;
        if (layout->page_bytes[k] > most) most = layout->page_bytes[k];
    }
    return most;
}

/* Rows that wait to enter the drafter's context enter it now: a file has no place for them. */
static kk_status settle_context(kk_session *s, kk_err *err) {
    if (!s->context) return KK_OK;
    kk_engine_lock(s->engine);
    const kk_status st = kk_context_flush(s->context, err);
    kk_engine_unlock(s->engine);
    return st;
}

kk_status kk_session_save(kk_session *s, const char *path, kk_err *err) {
    kk_writer *w;
    KK_TRY(settle_context(s, err));
    const size_t page = largest_page(s);
    uint8_t *scratch = kk_malloc(2 * page);
    if (!scratch) return kk_fail(err, KK_ENOMEM, "no memory to save a session");
    kk_status st = kk_writer_open(&w, path, err);
    if (st == KK_OK) {
        st = put_all(w, s, (rooms){scratch, scratch + page}, err);
        if (st == KK_OK)
            st = kk_writer_commit(w, err);
        else
            kk_writer_abort(w);
    }
    kk_free(scratch);
    return st;
}

/* ---- load: parts ------------------------------------------------------------------------ */

static kk_status check_seal(kk_reader *r, int p, uint64_t seal, kk_err *err) {
    uint64_t said;
    KK_TRY(kk_reader_get(r, &said, sizeof said, err));
    if (said == seal) return KK_OK;
    return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its %s do not match their checksum",
                   kk_reader_path(r), part_name(p));
}

static kk_status get(kk_reader *r, uint64_t *seal, void *to, size_t n, kk_err *err) {
    KK_TRY(kk_reader_get(r, to, n, err));
    *seal = kk_hash_bytes(*seal, to, n);
    return KK_OK;
}

static kk_status get_part(kk_reader *r, int p, void *to, size_t n, kk_err *err) {
    uint64_t seal = seal_of(p);
    if (n == 0) return KK_OK;
    KK_TRY(get(r, &seal, to, n, err));
    return check_seal(r, p, seal, err);
}

/* Pages of a device come through near; others are read where they are to lie. */
static kk_status get_page(kk_reader *r, uint64_t *seal, kk_session *s, const kk_cache *c,
                          kk_kind kind, uint8_t *page, uint8_t *near, kk_err *err) {
    const size_t bytes = kk_cache_how(c)->layout->page_bytes[kind];
    const kk_pool *pool = kk_cache_how(c)->pool[kind];
    if (!kk_pool_is_remote(pool)) return get(r, seal, page, bytes, err);
    KK_TRY(get(r, seal, near, bytes, err));
    kk_engine_lock(s->engine);
    const kk_status st = kk_pool_write(pool, page, near, bytes, err);
    kk_engine_unlock(s->engine);
    return st;
}

static kk_status get_pages(kk_reader *r, int p, kk_session *s, kk_cache *c, kk_kind kind,
                           kk_err *err) {
    const int64_t n = kk_cache_page_count(c, kind);
    uint64_t seal = seal_of(p);
    if (n == 0) return KK_OK;
    const bool remote = kk_pool_is_remote(kk_cache_how(c)->pool[kind]);
    uint8_t *near = remote ? kk_malloc(kk_cache_how(c)->layout->page_bytes[kind]) : NULL;
    if (remote && !near) return kk_fail(err, KK_ENOMEM, "no memory to load a session");
    kk_status st = KK_OK;
    for (int64_t i = 0; st == KK_OK && i < n; i++)
        st = get_page(r, &seal, s, c, kind, kk_cache_page_at(c, kind, i).data, near, err);
    kk_free(near);
    return st == KK_OK ? check_seal(r, p, seal, err) : st;
}

/* The rows that the head promises must be those that this cache keeps of as many. */
static kk_status check_cache(const kk_saved_cache *said, const kk_cache *c, const kk_reader *r,
                             kk_err *err) {
    kk_saved_cache is;
    kk_saved_describe(&is, c);
    for (int k = 0; k < KK_KINDS; k++) {
        const kk_kv_bounds *a = &said->kind[k].bounds, *b = &is.kind[k].bounds;
        if (strcmp(said->kind[k].policy, is.kind[k].policy) != 0 || a->window != b->window ||
            a->sink != b->sink || a->chunk != b->chunk)
            return kk_fail(err, KK_EFORMAT,
                           PATH_FMT " was saved with other cache settings: '%s', window %d, sink "
                                    "%d, chunk %d, and not '%s', %d, %d, %d",
                           kk_reader_path(r), said->kind[k].policy, a->window, a->sink, a->chunk,
                           is.kind[k].policy, b->window, b->sink, b->chunk);
        if (said->kind[k].pages != is.kind[k].pages ||
            said->kind[k].page_bytes != is.kind[k].page_bytes ||
            said->kind[k].sink_bytes != is.kind[k].sink_bytes)
            return kk_fail(err, KK_EFORMAT,
                           PATH_FMT " holds %lld K/V pages of %lld bytes and a sink of %lld, where "
                                    "%lld, %lld and %lld are needed",
                           kk_reader_path(r), (long long)said->kind[k].pages,
                           (long long)said->kind[k].page_bytes, (long long)said->kind[k].sink_bytes,
                           (long long)is.kind[k].pages, (long long)is.kind[k].page_bytes,
                           (long long)is.kind[k].sink_bytes);
    }
    return KK_OK;
}

static kk_status get_cache(kk_reader *r, int p, const kk_saved_cache *said, kk_session *s,
                           kk_cache *c, kk_err *err) {
    kk_engine_lock(s->engine);
    const kk_status st = kk_cache_fill(c, said->rows, err);
    kk_engine_unlock(s->engine);
    if (st != KK_OK) return st;
    KK_TRY(check_cache(said, c, r, err));
    for (int k = 0; k < KK_KINDS; k++) {
        KK_TRY(get_pages(r, p + 2 * k, s, c, (kk_kind)k, err));
        KK_TRY(get_part(r, p + 2 * k + 1, kk_cache_sink_fill(c, (kk_kind)k),
                        (size_t)said->kind[k].sink_bytes, err));
    }
    return KK_OK;
}

static kk_status check_latents(const kk_saved_keeps *k, const kk_session *s, const kk_reader *r,
                               kk_err *err) {
    const kk_kv_latents *is = &s->layout->latents;
    if (k->rank == is->rank && k->n_scales == is->n_scales) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   PATH_FMT " has latents of %d values and %d scales, where this projection makes "
                            "%d and %d",
                   kk_reader_path(r), k->rank, k->n_scales, is->rank, is->n_scales);
}

static kk_status check_tokens(const kk_session *s, const kk_reader *r, kk_err *err) {
    for (int32_t i = 0; i < s->len; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->engine->rounds.vocab)
            return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its token %d is %d of %d",
                           kk_reader_path(r), i, s->tokens[i], s->engine->rounds.vocab);
    return KK_OK;
}

static kk_status get_all(kk_reader *r, const kk_saved_head *h, kk_session *s, kk_err *err) {
    s->len = h->len;
    s->sampled = h->sampled;
    s->sampling = h->sampling;
    KK_TRY(get_part(r, TOKENS, s->tokens, (size_t)h->len * sizeof *s->tokens, err));
    KK_TRY(check_tokens(s, r, err));
    if (h->settled)
        KK_TRY(get_part(r, LOGITS, s->logits, (size_t)h->vocab * sizeof *s->logits, err));
    KK_TRY(check_latents(&h->keeps, s, r, err));
    KK_TRY(get_cache(r, VERIFIER, &h->verifier, s, s->cache, err));
    if (!s->context || h->context.rows == 0) return KK_OK;
    return get_cache(r, CONTEXT, &h->context, s, kk_context_cache(s->context), err);
}

/* ---- load: the session ------------------------------------------------------------------ */

static kk_status check_model(kk_engine *e, const kk_saved_head *h, const char *path, kk_err *err) {
    kk_model_info info;
    kk_engine_info(e, &info);
    if (h->fingerprint != kk_engine_fingerprint(e) || h->vocab != e->rounds.vocab)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " was saved with another model, %.40s (%016llx): this one is "
                                "%.24s %s (%016llx)",
                       path, h->model, (unsigned long long)h->fingerprint, info.name,
                       info.weight_type, (unsigned long long)kk_engine_fingerprint(e));
    if (h->kv_format >= KK_KV_FORMATS)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " has K/V rows in a format, number %d, that this build does not "
                                "know",
                       path, h->kv_format);
    return KK_OK;
}

static const char *layers_name(kk_kind kind) { return kind == KK_SLIDING ? "sliding" : "full"; }

/* What is rebuilt is rebuilt by the projection that made its latents, or not at all. */
static kk_status check_projection(kk_engine *e, const kk_saved_head *h, const char *path,
                                  kk_err *err) {
    const kk_saved_keeps *k = &h->keeps;
    if (!k->projection) return KK_OK;
    if (!e->projection)
        return kk_fail(err, KK_EINVAL,
                       PATH_FMT " keeps rows that are restored by a projection (%016llx), and none "
                                "is loaded: -mp",
                       path, (unsigned long long)k->projection);
    if (k->projection != projection_of(e))
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " was saved with another projection (%016llx): this one is %016llx",
                       path, (unsigned long long)k->projection,
                       (unsigned long long)projection_of(e));
    if (k->latents >= KK_KV_FORMATS)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT
                       " has latents in a format, number %d, that this build does not know",
                       path, k->latents);
    return KK_OK;
}

/* The way a kind of layers keeps rows is the saved one; 0 asks for nothing. */
static kk_status choose_policy(const kk_saved_head *h, kk_kind kind, const char *path,
                               kk_keep asked, kk_keep *out, kk_err *err) {
    if (!kk_saved_policy_named(kind, h->policy[kind], out))
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " has %s layers that keep rows as '%s', which this build does not "
                                "know",
                       path, layers_name(kind), h->policy[kind]);
    if (asked == KK_KEEP_ALL || asked == *out) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   PATH_FMT " was saved with %s layers that keep rows as '%s': that cannot become "
                            "'%s'",
                   path, layers_name(kind), h->policy[kind], kk_saved_policy(kind, asked));
}

/* As options have them: 0 asks for nothing, -1 for none. */
static kk_status choose_rows(const char *what, const char *path, int32_t saved, int32_t asked,
                             int32_t *out, kk_err *err) {
    *out = saved ? saved : -1;
    if (asked == 0 || asked == *out) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   PATH_FMT " was saved with a %s of %d rows: that cannot become %d", path, what,
                   saved, asked == -1 ? 0 : asked);
}

static kk_status choose_latents(const kk_saved_keeps *k, const char *path, const kk_session_opts *o,
                                kk_session_opts *out, kk_err *err) {
    out->latents = (kk_kv_format)k->latents;
    out->mixes = k->mixes;
    out->mix = k->mix;
    if (o->latents != KK_KV_BF16 && o->latents != out->latents)
        return kk_fail(err, KK_EINVAL, PATH_FMT " was saved with latents in another format", path);
    if (o->mixes && (!k->mixes || kk_f32_bits(o->mix) != kk_f32_bits(k->mix)))
        return kk_fail(err, KK_EINVAL, PATH_FMT " was saved without true rows to mix by %g", path,
                       (double)o->mix);
    return KK_OK;
}

static kk_status choose_keeps(const kk_saved_head *h, const char *path, const kk_session_opts *o,
                              kk_session_opts *out, kk_err *err) {
    const kk_saved_keeps *k = &h->keeps;
    KK_TRY(choose_policy(h, KK_SLIDING, path, o->kv_sliding, &out->kv_sliding, err));
    KK_TRY(choose_policy(h, KK_FULL, path, o->kv_full, &out->kv_full, err));
    if (out->kv_sliding == KK_KEEP_ALL && out->kv_full == KK_KEEP_ALL) return KK_OK;
    KK_TRY(choose_rows("sink", path, k->sink, o->sink, &out->sink, err));
    KK_TRY(choose_rows("window", path, k->window, o->window, &out->window, err));
    KK_TRY(choose_rows("chunk", path, k->chunk, o->chunk, &out->chunk, err));
    return k->projection ? choose_latents(k, path, o, out, err) : KK_OK;
}

/* Whether the file brings a context that this engine's drafter can go on from. */
static bool has_context(kk_engine *e, const kk_saved_head *h) {
    return e->dflash && (h->drafter == kk_engine_drafter_fingerprint(e) || h->verifier.rows == 0);
}

/* Left to itself, a session goes on as it was, and without drafts where the drafter's context is
 * missing; one is not made up from half a timeline. */
static kk_status choose_spec(kk_engine *e, const kk_saved_head *h, const char *path,
                             const kk_session_opts *o, kk_spec *out, kk_err *err) {
    *out = o->spec != KK_SPEC_AUTO ? o->spec : (kk_spec)h->spec;
    if (*out != KK_SPEC_DFLASH || has_context(e, h)) return KK_OK;
    if (o->spec == KK_SPEC_AUTO) {
        *out = KK_SPEC_NONE;
        return KK_OK;
    }
    if (!e->dflash) return KK_OK; /* refused, with the reason, when the session is made */
    return kk_fail(err, KK_EINVAL,
                   h->drafter ? PATH_FMT " was saved with another drafter: load it without one, or "
                                         "evaluate its tokens again"
                              : PATH_FMT " was saved without a drafter: load it without one, or "
                                         "evaluate its tokens again",
                   path);
}

static kk_status choose_opts(kk_engine *e, const kk_saved_head *h, const char *path,
                             const kk_session_opts *asked, kk_session_opts *out, kk_err *err) {
    static const kk_session_opts standard = {0};
    const kk_session_opts *o = asked ? asked : &standard;
    kk_spec spec;
    KK_TRY(choose_spec(e, h, path, o, &spec, err));
    const bool same = spec == (kk_spec)h->spec;
    *out = (kk_session_opts){.ctx = o->ctx ? o->ctx : h->ctx,
                             .kv_format = (kk_kv_format)h->kv_format,
                             .spec = spec,
                             .draft_max = o->draft_max || !same ? o->draft_max : h->draft_max,
                             .draft_fixed = o->draft_max || !same ? o->draft_fixed : h->draft_fixed,
                             .draft_ctx = same ? h->draft_ctx : o->draft_ctx};
    KK_TRY(choose_keeps(h, path, o, out, err));
    if (out->ctx > 0 && out->ctx < h->len)
        return kk_fail(err, KK_ECONTEXT, PATH_FMT " has %d tokens, a context of %d is too small",
                       path, h->len, out->ctx);
    if (spec == KK_SPEC_DFLASH && o->draft_ctx && o->draft_ctx != out->draft_ctx)
        return kk_fail(err, KK_EINVAL,
                       PATH_FMT " was saved with a drafter that looks back over %d rows (0: all), "
                                "which cannot become %d",
                       path, h->draft_ctx, o->draft_ctx);
    return KK_OK;
}

static kk_status load_from(kk_session **out, kk_engine *e, kk_reader *r, const kk_saved_head *h,
                           const kk_session_opts *opts, kk_err *err) {
    const char *path = kk_reader_path(r);
    kk_session_opts how;
    kk_session *s;
    KK_TRY(check_model(e, h, path, err));
    KK_TRY(check_projection(e, h, path, err));
    KK_TRY(choose_opts(e, h, path, opts, &how, err));
    KK_TRY(kk_session_new(&s, e, &how, err));
    const kk_status st = get_all(r, h, s, err);
    if (st != KK_OK) {
        kk_session_free(s);
        return st;
    }
    *out = s;
    return KK_OK;
}

kk_status kk_session_load(kk_session **out, kk_engine *e, const char *path,
                          const kk_session_opts *opts, bool *exact, kk_err *err) {
    kk_reader *r;
    kk_saved_head h, here = {0};
    *out = NULL;
    if (exact) *exact = false;
    KK_TRY(kk_reader_open(&r, path, err));
    kk_status st = kk_saved_read(&h, r, err);
    if (st == KK_OK) st = load_from(out, e, r, &h, opts, err);
    kk_reader_close(r);
    if (st != KK_OK || !exact) return st;
    name_origin(&here, e);
    *exact = strcmp(h.device, here.device) == 0 && strcmp(h.build, here.build) == 0;
    return KK_OK;
}
