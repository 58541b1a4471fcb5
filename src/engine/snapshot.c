/* snapshot.c - writes a session to a file and makes one of a file; see saved.h for the format.
 *
 * What is saved puts itself down: the tokens and logits here, the cache's rows and the state of a
 * proposer through sections, which this file seals.  Loading reads into a new session, checks each
 * part against its checksum, and hands the session out only when all of it was read: until then a
 * failure leaves nothing behind. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "core/writer.h"
#include "engine/fingerprint.h"
#include "engine/saved.h"
#include "engine/session.h"

#define PATH_FMT "'%.120s'"

/* ---- sections --------------------------------------------------------------------------- */

enum { SEAL = 8 };

/* Parts are numbered, those that are empty too, and a checksum starts from its part's number.  Each
 * state has numbers of its own, and so has what its proposer writes, which may be skipped. */
enum { STATE_PARTS = 256, PROPOSER_PART = 128 };

static uint64_t seal_of(int part) { return KK_HASH_START + (uint64_t)part; }
static int part_of_state(int32_t i) { return STATE_PARTS * (i + 1); }

/* A section of the file that is being written; w NULL: it is only measured. */
typedef struct {
    kk_section_out as;
    kk_engine *engine;
    kk_writer *w;
    int part;
    uint64_t seal;
    bool any; /* bytes in the part so far */
    uint64_t bytes;
} file_out;

static kk_status put(kk_section_out *to, const void *data, size_t n, kk_err *err) {
    file_out *f = (file_out *)to;
    f->any |= n > 0;
    f->bytes += n;
    if (!f->w) return KK_OK;
    f->seal = kk_hash_bytes(f->seal, data, n);
    return kk_writer_put(f->w, data, n, err);
}

static kk_status end_written(kk_section_out *to, kk_err *err) {
    file_out *f = (file_out *)to;
    const uint64_t seal = f->seal;
    const bool any = f->any;
    f->seal = seal_of(++f->part);
    f->any = false;
    if (!any) return KK_OK;
    f->bytes += SEAL;
    return f->w ? kk_writer_put(f->w, &seal, SEAL, err) : KK_OK;
}

static void hold(kk_engine *e, bool held) { held ? kk_engine_lock(e) : kk_engine_unlock(e); }
static void hold_out(kk_section_out *to, bool held) { hold(((file_out *)to)->engine, held); }

static void begin_part(file_out *f, int part) {
    f->part = part;
    f->seal = seal_of(part);
}

static file_out section_out(kk_engine *e, kk_writer *w) {
    return (file_out){
        .as = {.measures = !w, .put = put, .end_part = end_written, .hold_device = hold_out},
        .engine = e,
        .w = w,
        .seal = seal_of(0)};
}

/* A section of the file that is being read. */
typedef struct {
    kk_section_in as;
    kk_engine *engine;
    kk_reader *r;
    int part;
    uint64_t seal;
    bool any;
    uint64_t bytes;
} file_in;

static kk_status get(kk_section_in *from, void *to, size_t n, kk_err *err) {
    file_in *f = (file_in *)from;
    KK_TRY(kk_reader_get(f->r, to, n, err));
    f->any |= n > 0;
    f->bytes += n;
    f->seal = kk_hash_bytes(f->seal, to, n);
    return KK_OK;
}

static kk_status end_read(kk_section_in *from, const char *what, kk_err *err) {
    file_in *f = (file_in *)from;
    const uint64_t seal = f->seal;
    const bool any = f->any;
    uint64_t said;
    f->seal = seal_of(++f->part);
    f->any = false;
    if (!any) return KK_OK;
    f->bytes += SEAL;
    KK_TRY(kk_reader_get(f->r, &said, SEAL, err));
    if (said == seal) return KK_OK;
    return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its %s do not match their checksum",
                   kk_reader_path(f->r), what);
}

static void hold_in(kk_section_in *from, bool held) { hold(((file_in *)from)->engine, held); }

static void expect_part(file_in *f, int part) {
    f->part = part;
    f->seal = seal_of(part);
}

static file_in section_in(kk_engine *e, kk_reader *r, int32_t format) {
    return (file_in){
        .as = {.format = format, .get = get, .end_part = end_read, .hold_device = hold_in},
        .engine = e,
        .r = r,
        .seal = seal_of(0)};
}

/* ---- save ------------------------------------------------------------------------------- */

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
static uint64_t with_drafter(kk_engine *e, uint64_t h, uint64_t drafter) {
    if (!h || kk_projection_config_of(e->projection)->source != KK_SOURCE_CONTEXT) return h;
    h = kk_hash_bytes(h, &drafter, sizeof drafter);
    return h ? h : 1;
}

static uint64_t projection_of(kk_engine *e) {
    return with_drafter(e, kk_engine_projection_fingerprint(e), kk_engine_drafter_fingerprint(e));
}

/* The same in whatever precision it is kept in memory; 0: not known. */
static uint64_t projection_data_of(kk_engine *e) {
    const uint64_t data = e->projection ? kk_projection_config_of(e->projection)->data : 0;
    return with_drafter(e, data, kk_engine_drafter_identity(e));
}

static void fill_keeps(kk_saved_head *h, kk_session *s) {
    const kk_session_keeps *k = &s->keeps;
    for (int i = 0; i < KK_LAYER_KINDS; i++)
        snprintf(h->policy[i], sizeof h->policy[i], "%s", kk_saved_policy((kk_kind)i, k->kind[i]));
    h->keeps = (kk_saved_keeps){.sink = k->sink, .window = k->window, .chunk = k->chunk};
    if (s->layout->latents.rank == 0) return;
    h->keeps.projection = projection_of(s->engine);
    h->projection_data = projection_data_of(s->engine);
    h->keeps.latents = (int32_t)k->latents;
    h->keeps.rank = s->layout->latents.rank;
    h->keeps.n_scales = s->layout->latents.n_scales;
}

static const kk_proposer_entry *entry_of(kk_engine *e, const kk_proposer *p) {
    for (int spec = 0; spec < KK_MOST_SPECS; spec++)
        if (e->proposers[spec].proposer == p) return &e->proposers[spec];
    return NULL;
}

static void fill_head(kk_saved_head *h, kk_session *s) {
    kk_engine *e = s->engine;
    const kk_lineage model = kk_engine_lineage(e);
    *h = (kk_saved_head){.fingerprint = model.weights,
                         .source = model.source,
                         .identity = model.identity,
                         .other_weights = s->other_weights,
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
                         .sampling = s->sampling,
                         .checkpoint_bytes = s->checkpoint_bytes,
                         .n_points = s->n_points};
    name_origin(h, e);
    fill_keeps(h, s);
    kk_saved_describe(&h->verifier, s->cache, kk_cache_len(s->cache));
    const int member = kk_drafting_saved(&s->drafting);
    if (member < 0) return;
    const kk_proposer *p = s->drafting.member[member].proposer;
    h->drafter = kk_engine_proposer_fingerprint(e, entry_of(e, p));
    h->drafter_identity = kk_engine_proposer_identity(e, entry_of(e, p));
    snprintf(h->proposer, sizeof h->proposer, "%s", p->name);
}

/* What is written of a session at one of its lengths. */
typedef struct {
    int32_t len;
    const float *logits; /* NULL: the last token is the anchor */
    const kk_session_marks *marks;
} frozen_state;

/* What the proposer writes, behind its size, so that a reader may pass over it. */
static kk_status put_proposer(file_out *out, kk_session *s, int32_t i, const frozen_state *now,
                              const frozen_state *before, kk_err *err) {
    const int k = kk_drafting_saved(&s->drafting);
    if (k < 0 || kk_mark_len(now->marks->cache) == 0) return KK_OK;
    const kk_drafting_member *m = &s->drafting.member[k];
    const void *mark = now->marks->drafting.of[k].mark;
    const void *older = before ? before->marks->drafting.of[k].mark : NULL;
    file_out measure = section_out(s->engine, NULL);
    KK_TRY(m->proposer->save(m->self, mark, older, &measure.as, err));
    KK_TRY(put(&out->as, &measure.bytes, sizeof measure.bytes, err));
    KK_TRY(end_written(&out->as, err));
    begin_part(out, part_of_state(i) + PROPOSER_PART);
    return m->proposer->save(m->self, mark, older, &out->as, err);
}

static kk_status put_state(file_out *out, kk_session *s, int32_t i, const frozen_state *now,
                           const frozen_state *before, kk_err *err) {
    kk_section_out *to = &out->as;
    const int32_t said[] = {now->len, now->logits != NULL};
    begin_part(out, part_of_state(i));
    KK_TRY(put(to, said, sizeof said, err));
    KK_TRY(end_written(to, err));
    if (now->logits)
        KK_TRY(put(to, now->logits, (size_t)s->engine->rounds.vocab * sizeof(float), err));
    KK_TRY(end_written(to, err));
    KK_TRY(
        kk_mark_save(s->cache, now->marks->cache, before ? before->marks->cache : NULL, to, err));
    return put_proposer(out, s, i, now, before, err);
}

/* live: the session as it is. */
static kk_status put_body(file_out *out, kk_session *s, const kk_session_marks *live, kk_err *err) {
    frozen_state before = {0};
    KK_TRY(put(&out->as, s->tokens, (size_t)s->len * sizeof *s->tokens, err));
    KK_TRY(end_written(&out->as, err));
    for (int32_t i = 0; i <= s->n_points; i++) {
        const kk_point *p = i < s->n_points ? s->points[i] : NULL;
        const float *logits = kk_session_settled(s) ? s->logits : NULL;
        const frozen_state now = {.len = p ? p->len : s->len,
                                  .logits = p ? p->logits : logits,
                                  .marks = p ? &p->marks : live};
        KK_TRY(put_state(out, s, i, &now, i ? &before : NULL, err));
        before = now;
    }
    return KK_OK;
}

static kk_status put_all(kk_writer *w, kk_session *s, const kk_session_marks *live, kk_err *err) {
    uint8_t head[KK_SAVED_HEAD_MAX];
    kk_saved_head h;
    file_out measure = section_out(s->engine, NULL), out = section_out(s->engine, w);
    fill_head(&h, s);
    KK_TRY(put_body(&measure, s, live, err));
    h.body_bytes = (int64_t)measure.bytes;
    KK_TRY(kk_writer_put(w, head, kk_saved_encode(&h, head), err));
    return put_body(&out, s, live, err);
}

kk_status kk_session_save_to(kk_session *s, kk_writer *to, kk_err *err) {
    kk_session_marks live;
    if (s->diagnosis)
        return kk_fail(err, KK_EINVAL,
                       "a session under diagnosis cannot be saved: no file holds its true rows");
    KK_TRY(kk_session_mark(s, &live, err));
    kk_status st = put_all(to, s, &live, err);
    if (st == KK_OK) st = kk_writer_commit(to, err);
    kk_session_unmark(s, &live);
    return st;
}

/* A session holds what was said in it, so that nobody else reads a new file. */
kk_status kk_session_save(kk_session *s, const char *path, kk_err *err) {
    const kk_writer_opts opts = {.replace = true, .owner_only = true};
    kk_writer *w;
    KK_TRY(kk_writer_open(&w, path, &opts, err));
    const kk_status st = kk_session_save_to(s, w, err);
    kk_writer_close(w);
    return st;
}

/* ---- load: parts ------------------------------------------------------------------------ */

/* The rows that the head promises must be those that this cache keeps of as many. */
static kk_status check_cache(const kk_saved_cache *said, const kk_cache *c, const kk_reader *r,
                             kk_err *err) {
    kk_saved_cache is;
    kk_saved_describe(&is, c, said->rows);
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

/* The state of the proposer that this session drafts with, in a file of format 2, where a cache's
 * was described in the head. */
static kk_status get_proposer_2(file_in *in, const kk_saved_head *h, kk_session *s, kk_err *err) {
    const int k = kk_drafting_saved(&s->drafting);
    if (k < 0 || h->context.rows == 0) return KK_OK;
    const kk_drafting_member *m = &s->drafting.member[k];
    if (!m->proposer->cache)
        return kk_fail(err, KK_EFORMAT, PATH_FMT " has the state of dflash, not of '%s'",
                       kk_reader_path(in->r), m->proposer->name);
    KK_TRY(check_cache(&h->context, m->proposer->cache(m->self), in->r, err));
    return m->proposer->load(m->self, h->context.rows, &in->as, err);
}

static kk_status skip(file_in *in, uint64_t bytes, kk_err *err) {
    uint8_t unused[4096];
    while (bytes > 0) {
        const size_t n = bytes < sizeof unused ? (size_t)bytes : sizeof unused;
        KK_TRY(kk_reader_get(in->r, unused, n, err));
        in->bytes += n;
        bytes -= n;
    }
    return KK_OK;
}

static kk_status get_proposer(file_in *in, const kk_saved_head *h, kk_session *s, int32_t i,
                              int64_t rows, kk_err *err) {
    const int k = kk_drafting_saved(&s->drafting);
    uint64_t bytes;
    if (!h->proposer[0] || rows == 0) return KK_OK;
    KK_TRY(get(&in->as, &bytes, sizeof bytes, err));
    KK_TRY(end_read(&in->as, "sizes", err));
    if (k < 0) return skip(in, bytes, err);
    const uint64_t from = in->bytes;
    const kk_drafting_member *m = &s->drafting.member[k];
    expect_part(in, part_of_state(i) + PROPOSER_PART);
    KK_TRY(m->proposer->load(m->self, rows, &in->as, err));
    if (in->bytes - from == bytes) return KK_OK;
    return kk_fail(err, KK_EFORMAT, PATH_FMT " has %llu bytes of %s's state, where it read %llu",
                   kk_reader_path(in->r), (unsigned long long)bytes, m->proposer->name,
                   (unsigned long long)(in->bytes - from));
}

/* How many tokens a state has, and whether the last of them is settled. */
static kk_status get_length(file_in *in, const kk_saved_head *h, const kk_session *s, int32_t i,
                            int32_t said[2], kk_err *err) {
    const bool last = i == h->n_points;
    KK_TRY(get(&in->as, said, 2 * sizeof *said, err));
    KK_TRY(end_read(&in->as, "lengths", err));
    const bool on = last ? said[0] == h->len && said[1] == h->settled
                         : said[0] > s->len && said[0] <= h->len && said[1] >= 0 && said[1] <= 1;
    if (on) return KK_OK;
    return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: state %d of %d has %d of %d tokens",
                   kk_reader_path(in->r), i, h->n_points, said[0], h->len);
}

static kk_status get_state(file_in *in, const kk_saved_head *h, kk_session *s, int32_t i,
                           kk_err *err) {
    int32_t said[2];
    expect_part(in, part_of_state(i));
    KK_TRY(get_length(in, h, s, i, said, err));
    const int64_t rows = said[1] || said[0] == 0 ? said[0] : said[0] - 1;
    if (said[1]) KK_TRY(get(&in->as, s->logits, (size_t)h->vocab * sizeof *s->logits, err));
    KK_TRY(end_read(&in->as, "logits", err));
    KK_TRY(kk_cache_load(s->cache, rows, "", &in->as, err));
    KK_TRY(get_proposer(in, h, s, i, rows, err));
    s->len = said[0];
    return i < h->n_points ? kk_session_checkpoint(s, err) : KK_OK;
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

static kk_status check_tokens(const kk_session *s, int32_t len, const kk_reader *r, kk_err *err) {
    for (int32_t i = 0; i < len; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->engine->rounds.vocab)
            return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its token %d is %d of %d",
                           kk_reader_path(r), i, s->tokens[i], s->engine->rounds.vocab);
    return KK_OK;
}

static kk_status get_body_2(file_in *in, const kk_saved_head *h, kk_session *s, kk_err *err) {
    s->len = h->len;
    if (h->settled) KK_TRY(get(&in->as, s->logits, (size_t)h->vocab * sizeof *s->logits, err));
    KK_TRY(end_read(&in->as, "logits", err));
    KK_TRY(kk_cache_load(s->cache, h->verifier.rows, "", &in->as, err));
    return get_proposer_2(in, h, s, err);
}

static kk_status get_body(file_in *in, const kk_saved_head *h, kk_session *s, kk_err *err) {
    for (int32_t i = 0; i <= h->n_points; i++) KK_TRY(get_state(in, h, s, i, err));
    if (in->bytes == (uint64_t)h->body_bytes) return KK_OK;
    return kk_fail(err, KK_EFORMAT, PATH_FMT " is damaged: its states make %llu of %lld bytes",
                   kk_reader_path(in->r), (unsigned long long)in->bytes, (long long)h->body_bytes);
}

static kk_status get_all(kk_reader *r, const kk_saved_head *h, kk_session *s, kk_err *err) {
    file_in in = section_in(s->engine, r, h->format);
    s->sampled = h->sampled;
    s->sampling = h->sampling;
    KK_TRY(get(&in.as, s->tokens, (size_t)h->len * sizeof *s->tokens, err));
    KK_TRY(end_read(&in.as, "tokens", err));
    KK_TRY(check_tokens(s, h->len, r, err));
    KK_TRY(check_latents(&h->keeps, s, r, err));
    KK_TRY(check_cache(&h->verifier, s->cache, r, err));
    return h->format == 2 ? get_body_2(&in, h, s, err) : get_body(&in, h, s, err);
}

/* ---- load: the session ------------------------------------------------------------------ */

static kk_kin kin_of(kk_engine *e, const kk_saved_head *h) {
    const kk_lineage made = {h->fingerprint, h->source, h->identity}, here = kk_engine_lineage(e);
    return kk_lineage_compare(&made, &here);
}

static kk_status check_model(kk_engine *e, const kk_saved_head *h, const char *path, kk_err *err) {
    kk_model_info info;
    kk_engine_info(e, &info);
    if (kin_of(e, h) == KK_KIN_NONE || h->vocab != e->rounds.vocab)
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
                                "is loaded: set `projection`",
                       path, (unsigned long long)k->projection);
    if (k->projection != projection_of(e) &&
        !(h->projection_data && h->projection_data == projection_data_of(e)))
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " was saved with another projection (%016llx): this one is %016llx",
                       path, (unsigned long long)k->projection,
                       (unsigned long long)projection_of(e));
    if (k->latents >= KK_KV_FORMATS)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT
                       " has latents in a format, number %d, that this build does not know",
                       path, k->latents);
    if (k->mixes)
        return kk_fail(err, KK_EFORMAT,
                       PATH_FMT " was saved under diagnosis, with true rows beside its latents: "
                                "evaluate its tokens again",
                       path);
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
    if (o->latents != KK_KV_BF16 && o->latents != out->latents)
        return kk_fail(err, KK_EINVAL, PATH_FMT " was saved with latents in another format", path);
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

/* Whether the file brings what this engine's proposer can go on from. */
static bool has_state(kk_engine *e, const kk_saved_head *h, const kk_proposer_entry *entry) {
    return !entry->proposer->load || h->verifier.rows == 0 ||
           h->drafter == kk_engine_proposer_fingerprint(e, entry) ||
           (h->drafter_identity && h->drafter_identity == kk_engine_proposer_identity(e, entry));
}

/* Left to itself, a session goes on as it was, and without drafts where the proposer's state is
 * missing; one is not made up from half a timeline. */
static kk_status choose_spec(kk_engine *e, const kk_saved_head *h, const char *path,
                             const kk_session_opts *o, kk_spec *out, kk_err *err) {
    *out = o->spec != KK_SPEC_AUTO ? o->spec : (kk_spec)h->spec;
    const kk_proposer_entry *entry = kk_engine_proposer(e, kk_session_first_spec(*out));
    if (*out == KK_SPEC_NONE || (entry && has_state(e, h, entry))) return KK_OK;
    if (o->spec == KK_SPEC_AUTO) {
        *out = KK_SPEC_NONE;
        return KK_OK;
    }
    if (!entry) return KK_OK; /* refused, with the reason, when the session is made */
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
                             .draft_ctx = same ? h->draft_ctx : o->draft_ctx,
                             .checkpoint_bytes =
                                 o->checkpoint_bytes ? o->checkpoint_bytes : h->checkpoint_bytes};
    KK_TRY(choose_keeps(h, path, o, out, err));
    if (out->ctx > 0 && out->ctx < h->len)
        return kk_fail(err, KK_ECONTEXT, PATH_FMT " has %d tokens, a context of %d is too small",
                       path, h->len, out->ctx);
    const kk_proposer_entry *entry = kk_engine_proposer(e, kk_session_first_spec(spec));
    if (entry && entry->proposer->load && o->draft_ctx && o->draft_ctx != out->draft_ctx)
        return kk_fail(err, KK_EINVAL,
                       PATH_FMT " was saved with a drafter that looks back over %d rows (0: all), "
                                "which cannot become %d",
                       path, h->draft_ctx, o->draft_ctx);
    return KK_OK;
}

/* Whether the rows are those that this engine would have made of the tokens. */
static bool made_here(kk_engine *e, const kk_saved_head *h) {
    return kin_of(e, h) == KK_KIN_SAME &&
           (!h->keeps.projection || h->keeps.projection == projection_of(e));
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
    s->other_weights = h->other_weights || !made_here(e, h);
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
    kk_reader_expect(r);
    kk_status st = kk_saved_read(&h, r, err);
    if (st == KK_OK) st = load_from(out, e, r, &h, opts, err);
    kk_reader_close(r);
    if (st != KK_OK || !exact) return st;
    name_origin(&here, e);
    *exact =
        made_here(e, &h) && strcmp(h.device, here.device) == 0 && strcmp(h.build, here.build) == 0;
    return KK_OK;
}
