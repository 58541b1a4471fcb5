/* snapshot_test.c - a session that was saved and loaded is the session that was saved.
 *
 * The reference is a session that never stopped: after a load, tokens, chained hashes of logits
 * and the bytes of the next save must be its own, at lengths before, at and after page borders and
 * window wraps, in every K/V format, with and without a drafter.  Files that are cut, flipped,
 * foreign or contradictory must be refused with a reason and leave the engine as it was.
 * ctest: threads */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "core/file.h"
#include "core/hash.h"
#include "engine/fingerprint.h"
#include "engine/saved.h"
#include "support/saved_session.h"

/* ---- going on --------------------------------------------------------------------------- */

static void a_loaded_session_goes_on(void **state) {
    kk_engine *e = tiny_engine("tiny:q4_0:7", 1, 37);
    for (int f = 0; f < KK_KV_FORMATS; f++)
        some_lengths(*state, e, (kk_session_opts){.kv_format = (kk_kv_format)f}, 0, f ? 5 : 1);
    some_lengths(*state, e, (kk_session_opts){.spec = KK_SPEC_NGRAM}, 2, 3);
    kk_engine_close(e);
    e = tiny_engine("tiny-ple:bf16:6", 1, 0);
    some_lengths(*state, e, (kk_session_opts){0}, 3, 2);
    kk_engine_close(e);
}

static void a_drafting_session_goes_on(void **state) {
    kk_engine *e = drafting_engine("tiny:f32:6");
    kk_session_opts how = {.spec = KK_SPEC_DFLASH};
    some_lengths(*state, e, how, 0, 2);
    how = (kk_session_opts){.spec = KK_SPEC_DFLASH, .draft_ctx = 70, .kv_format = KK_KV_F32};
    some_lengths(*state, e, how, 1, 3);
    how = (kk_session_opts){.spec = KK_SPEC_DFLASH, .draft_max = 3, .draft_fixed = true};
    some_lengths(*state, e, how, 2, 3);
    kk_engine_close(e);
}

/* In the middle of a generation, with drafts on: the tokens of one that never stopped. */
static void stopping_anywhere_changes_nothing(void **state) {
    kk_engine *e = drafting_engine("tiny:f32:6");
    char path[600];
    snprintf(path, sizeof path, "%s/stop.kks", ((scratch *)*state)->dir);
    for (int with = 0; with < 2; with++) {
        const kk_session_opts how = {.spec = with ? KK_SPEC_DFLASH : KK_SPEC_NONE};
        kk_session *whole = session_with(e, how);
        kk_generate_opts gen = some;
        tiny_append(whole, prompt, 90);
        gen.max_tokens = 60;
        assert_ok(kk_generate(whole, &gen, NULL, NULL, NULL, why));
        kk_session *s = session_with(e, how);
        tiny_append(s, prompt, 90);
        for (int32_t left = 60, n = 1; left > 0; left -= gen.max_tokens, n += 3) {
            gen.max_tokens = n < left ? n : left;
            assert_ok(kk_generate(s, &gen, NULL, NULL, NULL, why));
            assert_ok(kk_session_save(s, path, why));
            kk_session_free(s);
            s = load(e, path);
        }
        assert_int_equal(s->len, 150);
        assert_memory_equal(s->tokens, whole->tokens, 150 * sizeof *s->tokens);
        assert_true(generate(s) == generate(whole));
        kk_session_free(whole);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* However a state was reached, its file is the same; and a fork's pages are saved as its own. */
static void the_same_state_gives_the_same_file(void **state) {
    kk_engine *e = drafting_engine("tiny:bf16:6");
    for (int with = 0; with < 2; with++) {
        const kk_session_opts how = {.spec = with ? KK_SPEC_DFLASH : KK_SPEC_NONE};
        kk_session *plain = session_with(e, how), *pieces = session_with(e, how), *fork;
        tiny_append(plain, prompt, 150);
        for (int32_t i = 0; i < 150; i += 5) tiny_append(pieces, prompt + i, 5);
        assert_same_file(*state, plain, pieces);
        assert_ok(kk_session_fork(&fork, plain, why));
        tiny_append(plain, prompt, 33); /* the shared page is copied and written on */
        assert_same_file(*state, fork, pieces);
        tiny_append(fork, prompt + 60, 33);
        assert_ok(kk_session_rewind(fork, 150, NULL, why));
        assert_ok(kk_session_rewind(plain, 150, NULL, why));
        assert_same_file(*state, fork, plain);
        kk_session_free(plain);
        kk_session_free(pieces);
        kk_session_free(fork);
    }
    kk_engine_close(e);
}

/* An engine that has evaluated nothing yet goes on as the one that evaluated it all. */
static void a_fresh_engine_goes_on(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/fresh.kks", ((scratch *)*state)->dir);
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        kk_engine *e = drafting_engine("tiny:q8_0:6"), *fresh = drafting_engine("tiny:q8_0:6");
        kk_session *s = session_with(e, (kk_session_opts){.kv_format = (kk_kv_format)f});
        tiny_append(s, prompt, 205);
        assert_ok(kk_session_save(s, path, why));
        kk_session *again = load(fresh, path);
        assert_int_equal(again->spec, KK_SPEC_AUTO);
        assert_int_equal(again->drafting.n, 2);
        assert_true(generate(s) == generate(again));
        kk_session_free(s);
        kk_session_free(again);
        kk_engine_close(e);
        kk_engine_close(fresh);
    }
}

static void memory_is_what_the_rows_take(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/memory.kks", ((scratch *)*state)->dir);
    kk_engine *e = tiny_engine("tiny:f32:7", 1, 0);
    int64_t none[KK_MEM_CATEGORIES], one[KK_MEM_CATEGORIES], two[KK_MEM_CATEGORIES];
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 200); /* once before, because angles by position are kept */
    kk_session_free(s);
    kk_engine_memory(e, none);
    s = tiny_session(e, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 200);
    assert_ok(kk_session_save(s, path, why));
    kk_engine_memory(e, one);
    kk_session_free(s);
    s = load(e, path);
    kk_engine_memory(e, two);
    assert_memory_equal(one, two, sizeof one);
    kk_session_free(s);
    kk_engine_memory(e, two);
    assert_memory_equal(none, two, sizeof none);
    kk_engine_close(e);
}

/* ---- what a load may change ------------------------------------------------------------- */

static void settings_come_along(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/settings.kks", ((scratch *)*state)->dir);
    kk_engine *e = drafting_engine("tiny:f32:6");
    kk_session *s = session_with(
        e, (kk_session_opts){
               .spec = KK_SPEC_DFLASH, .draft_max = 3, .draft_fixed = true, .draft_ctx = 80});
    kk_sampling how;
    kk_saved_info info;
    kk_err err;
    tiny_append(s, prompt, 30);
    assert_false(kk_session_sampling(s, &how));
    generate(s);
    assert_ok(kk_session_save(s, path, why));
    kk_session_free(s);
    s = load(e, path);
    assert_true(kk_session_sampling(s, &how));
    assert_memory_equal(&how, &some.sampling, sizeof how);
    assert_int_equal(s->draft_max, 3);
    assert_int_equal(s->draft_ctx, 80);
    assert_true(s->draft_fixed);
    kk_session_free(s);
    assert_ok(kk_saved_inspect(path, &info, why));
    assert_int_equal(info.tokens, 42);
    assert_int_equal(info.ctx, CTX);
    assert_int_equal(info.spec, KK_SPEC_DFLASH);
    assert_int_equal(info.kv_format, KK_KV_BF16);
    assert_string_equal(info.device, "cpu");
    assert_string_equal(info.build, kk_version());
    assert_non_null(strstr(info.model, "f32"));
    assert_true(info.fingerprint == kk_engine_fingerprint(e));
    const kk_session_opts larger = {.ctx = 1000}, small = {.ctx = 41}, other = {.draft_ctx = 81};
    assert_ok(kk_session_load(&s, e, path, &larger, NULL, why));
    assert_int_equal(s->ctx, 1000);
    kk_session_free(s);
    assert_int_equal(kk_session_load(&s, e, path, &small, NULL, &err), KK_ECONTEXT);
    assert_non_null(strstr(err.msg, "42 tokens"));
    assert_null(s);
    assert_int_equal(kk_session_load(&s, e, path, &other, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "80 rows"));
    kk_engine_close(e);
}

static kk_spec spec_of(kk_engine *e, const char *path, kk_spec asked) {
    kk_session *s = NULL;
    kk_err err;
    const kk_session_opts opts = {.spec = asked};
    const kk_status st = kk_session_load(&s, e, path, &opts, NULL, &err);
    const kk_spec got = s ? kk_session_spec(s) : KK_SPEC_AUTO;
    if (s) generate(s);
    kk_session_free(s);
    if (st != KK_OK) assert_int_equal(st, KK_EINVAL);
    return got;
}

/* AUTO stands for "refused" in the answers. */
static void no_session_has_half_a_context(void **state) {
    char with[600], without[600], empty[600];
    snprintf(with, sizeof with, "%s/with.kks", ((scratch *)*state)->dir);
    snprintf(without, sizeof without, "%s/without.kks", ((scratch *)*state)->dir);
    snprintf(empty, sizeof empty, "%s/empty.kks", ((scratch *)*state)->dir);
    kk_engine *e = drafting_engine("tiny:f32:6"), *plain = tiny_engine("tiny:f32:6", 1, 0);
    assert_true(kk_engine_fingerprint(e) == kk_engine_fingerprint(plain));
    assert_true(kk_engine_drafter_fingerprint(plain) == 0);
    kk_session *s = session_with(e, (kk_session_opts){.spec = KK_SPEC_DFLASH});
    tiny_append(s, prompt, 70);
    assert_ok(kk_session_save(s, with, why));
    kk_session_free(s);
    s = session_with(e, (kk_session_opts){.spec = KK_SPEC_NONE});
    assert_ok(kk_session_save(s, empty, why));
    tiny_append(s, prompt, 70);
    assert_ok(kk_session_save(s, without, why));
    kk_session_free(s);
    assert_int_equal(spec_of(e, with, KK_SPEC_AUTO), KK_SPEC_DFLASH);
    assert_int_equal(spec_of(e, with, KK_SPEC_DFLASH), KK_SPEC_DFLASH);
    assert_int_equal(spec_of(e, with, KK_SPEC_NGRAM), KK_SPEC_NGRAM);
    assert_int_equal(spec_of(e, with, KK_SPEC_NONE), KK_SPEC_NONE);
    assert_int_equal(spec_of(plain, with, KK_SPEC_AUTO), KK_SPEC_NONE);
    assert_int_equal(spec_of(plain, with, KK_SPEC_NGRAM), KK_SPEC_NGRAM);
    assert_int_equal(spec_of(plain, with, KK_SPEC_DFLASH), KK_SPEC_AUTO);
    assert_int_equal(spec_of(e, without, KK_SPEC_AUTO), KK_SPEC_NONE);
    assert_int_equal(spec_of(e, without, KK_SPEC_DFLASH), KK_SPEC_AUTO);
    assert_int_equal(spec_of(e, without, KK_SPEC_NGRAM), KK_SPEC_NGRAM);
    const kk_session_opts dflash = {.spec = KK_SPEC_DFLASH};
    assert_ok(kk_session_load(&s, e, empty, &dflash, NULL, why)); /* no rows, whole context */
    tiny_append(s, prompt, 20);
    generate(s);
    kk_session_free(s);
    atomic_store(&e->drafter_fingerprint, 99); /* another precision of it, which drafts as well */
    assert_int_equal(spec_of(e, with, KK_SPEC_AUTO), KK_SPEC_DFLASH);
    e->proposers[KK_SPEC_DFLASH].identity = NULL; /* another drafter */
    assert_int_equal(spec_of(e, with, KK_SPEC_AUTO), KK_SPEC_NONE);
    assert_int_equal(spec_of(e, with, KK_SPEC_DFLASH), KK_SPEC_AUTO);
    kk_engine_close(plain);
    kk_engine_close(e);
}

/* ---- files that must not pass ----------------------------------------------------------- */

typedef struct {
    kk_engine *e;
    char path[600];
    uint8_t *good;
    size_t n;
    int64_t live;
    int64_t before[KK_MEM_CATEGORIES];
} victim;

static void victim_open(victim *v, scratch *w, int32_t tokens) {
    memset(v, 0, sizeof *v);
    v->e = drafting_engine("tiny:f32:2");
    snprintf(v->path, sizeof v->path, "%s/victim.kks", w->dir);
    kk_session *s = session_with(v->e, (kk_session_opts){.spec = KK_SPEC_DFLASH});
    tiny_append(s, prompt, tokens);
    if (tokens) generate(s);
    assert_ok(kk_session_save(s, v->path, why));
    kk_session_free(s);
    kk_session_free(load(v->e, v->path)); /* pools have grown by now */
    v->good = (uint8_t *)scratch_read(v->path, &v->n);
    v->live = kk_live_bytes();
    kk_engine_memory(v->e, v->before);
}

static void victim_close(victim *v) {
    scratch_write(v->path, v->good, v->n);
    kk_session_free(load(v->e, v->path));
    kk_engine_close(v->e);
    free(v->good);
}

/* The file as it is now. */
static void assert_refused_now(victim *v, const char *word) {
    kk_session *s = (kk_session *)v;
    kk_err err = {0};
    int64_t after[KK_MEM_CATEGORIES];
    const kk_status st = kk_session_load(&s, v->e, v->path, NULL, NULL, &err);
    if (st != KK_EFORMAT || !strstr(err.msg, word))
        fail_msg("status %d, '%s' without '%s'", st, err.msg, word);
    assert_non_null(strstr(err.msg, "victim.kks"));
    assert_null(s);
    assert_int_equal(kk_live_bytes(), v->live);
    kk_engine_memory(v->e, after);
    assert_memory_equal(v->before, after, sizeof after);
}

static void assert_refused(victim *v, const uint8_t *bytes, size_t n, const char *word) {
    scratch_write(v->path, bytes, n);
    assert_refused_now(v, word);
}

/* With some bits of one byte changed. */
static void assert_flip_refused(victim *v, size_t at, uint8_t bits, const char *word) {
    const int fd = open(v->path, O_WRONLY | O_CLOEXEC);
    const uint8_t flipped = v->good[at] ^ bits;
    assert_int_equal(pwrite(fd, &flipped, 1, (off_t)at), 1);
    assert_refused_now(v, word);
    assert_int_equal(pwrite(fd, &v->good[at], 1, (off_t)at), 1);
    close(fd);
}

static void cut_files_are_refused(void **state) {
    victim v;
    victim_open(&v, *state, 70);
    const size_t head = kk_le32(v.good + 12);
    for (size_t n = 0; n < head + 64; n++)
        assert_refused(&v, v.good, n, n < 24 ? "no saved session" : "was cut short");
    for (size_t n = head + 64; n < v.n; n += 9973) assert_refused(&v, v.good, n, "was cut short");
    assert_refused(&v, v.good, v.n - 1, "was cut short");
    uint8_t *longer = calloc(1, v.n + 1);
    memcpy(longer, v.good, v.n);
    assert_refused(&v, longer, v.n + 1, "instead of");
    free(longer);
    victim_close(&v);
}

static void flipped_bits_are_found(void **state) {
    victim v;
    victim_open(&v, *state, 70);
    const size_t head = kk_le32(v.good + 12);
    for (size_t bit = 0; bit < v.n * 8; bit += bit < head * 8 ? 1 : 9973)
        assert_flip_refused(&v, bit / 8, (uint8_t)(1 << bit % 8), "");
    for (size_t at = v.n - 8; at < v.n; at++)
        assert_flip_refused(&v, at, 0x10, "drafter's full K/V");
    assert_flip_refused(&v, head, 1, "tokens");
    const size_t first = head + 82 * 4 + 8; /* the last token is the anchor: no logits */
    assert_flip_refused(&v, first, 1, "lengths");
    assert_flip_refused(&v, first + 16, 1, "page tables");
    assert_flip_refused(&v, first + 16 + 2 + 8, 1, "sliding K/V");
    victim_close(&v);
}

static void seal(uint8_t *bytes, size_t head) {
    const uint64_t sum = kk_hash_bytes(KK_HASH_START, bytes, head - 8);
    memcpy(bytes + head - 8, &sum, sizeof sum);
}

/* A head that was altered with care, checksum and all: no number in it may be believed. */
static void sealed_lies_are_refused(void **state) {
    victim v;
    victim_open(&v, *state, 70);
    const size_t head = kk_le32(v.good + 12);
    static const uint32_t lies[] = {0, 1, 0x7fffffff, 0x80000000u, 0xffffffffu, 65};
    uint8_t *bad = malloc(v.n);
    int64_t refused = 0, loaded = 0;
    for (size_t at = 24; at + 4 <= head - 8; at += 4) {
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            kk_session *s;
            kk_err err = {0};
            memcpy(bad, v.good, v.n);
            memcpy(bad + at, &lies[i], 4);
            seal(bad, head);
            scratch_write(v.path, bad, v.n);
            const kk_status st = kk_session_load(&s, v.e, v.path, NULL, NULL, &err);
            /* Some numbers may be anything: a seed, the context, the build's name. */
            if (st == KK_OK)
                loaded++;
            else
                refused++;
            if (st != KK_OK && strlen(err.msg) < 20) fail_msg("at %zu: '%s'", at, err.msg);
            if (st == KK_OK) generate(s);
            kk_session_free(s);
            assert_int_equal(kk_live_bytes() >= v.live, true);
        }
    }
    assert_true(refused > loaded);
    free(bad);
    victim_close(&v);
}

/* The same rows, kept by another policy or reach, are not the same pages. */
static void other_cache_settings_are_refused(void **state) {
    victim v;
    victim_open(&v, *state, 70);
    uint8_t head[KK_SAVED_HEAD_MAX];
    kk_reader *r;
    kk_saved_head h;
    assert_ok(kk_reader_open(&r, v.path, why));
    assert_ok(kk_saved_read(&h, r, why));
    kk_reader_close(r);
    for (int i = 0; i < 4; i++) {
        kk_saved_head lie = h;
        if (i == 0) lie.verifier.kind[KK_SLIDING].bounds.window++;
        if (i == 1) lie.verifier.kind[KK_FULL].bounds.sink = 4;
        if (i == 2) memcpy(lie.verifier.kind[KK_FULL].policy, "bounded", 8);
        if (i == 3) { /* as many bytes, in other pages */
            lie.verifier.kind[KK_SLIDING].pages *= 2;
            lie.verifier.kind[KK_SLIDING].page_bytes /= 2;
        }
        const size_t n = kk_saved_encode(&lie, head);
        memcpy(v.good, head, n);
        assert_refused(&v, v.good, v.n, i == 3 ? "pages of" : "other cache settings");
    }
    memcpy(v.good, head, kk_saved_encode(&h, head));
    victim_close(&v);
}

static void a_lying_token_is_refused(void **state) {
    victim v;
    victim_open(&v, *state, 70);
    const size_t head = kk_le32(v.good + 12), tokens = (70 + 12) * 4;
    const int32_t beyond = TINY_VOCAB;
    memcpy(v.good + head + 8, &beyond, sizeof beyond);
    const uint64_t sum = kk_hash_bytes(KK_HASH_START, v.good + head, tokens);
    int32_t was = prompt[2];
    memcpy(v.good + head + tokens, &sum, sizeof sum);
    assert_refused(&v, v.good, v.n, "token 2 is 1024");
    memcpy(v.good + head + 8, &was, sizeof was);
    const uint64_t right = kk_hash_bytes(KK_HASH_START, v.good + head, tokens);
    memcpy(v.good + head + tokens, &right, sizeof right);
    victim_close(&v);
}

static void foreign_files_are_refused(void **state) {
    victim v;
    victim_open(&v, *state, 20);
    kk_saved_info info;
    kk_session *s;
    kk_err err;
    assert_refused(&v, (const uint8_t *)"GGUF and what follows it here", 29, "no saved session");
    const size_t head = kk_le32(v.good + 12);
    for (uint8_t format = 1; format <= 5; format += 4) {
        char says[60];
        v.good[8] = format;
        seal(v.good, head);
        snprintf(says, sizeof says, "of format %d, this build reads formats 2 to 4", format);
        assert_refused(&v, v.good, v.n, says);
        assert_int_equal(kk_saved_inspect(v.path, &info, &err), KK_EFORMAT);
    }
    v.good[8] = KK_SAVED_FORMAT;
    seal(v.good, head);
    scratch_write(v.path, v.good, v.n);
    static const char *const others[] = {"tiny:f32:3", "tiny-ple:f32:2"};
    for (size_t i = 0; i < 2; i++) {
        kk_engine *other = tiny_engine(others[i], 1, 0);
        assert_int_equal(kk_session_load(&s, other, v.path, NULL, NULL, &err), KK_EFORMAT);
        assert_non_null(strstr(err.msg, "another model"));
        assert_null(s);
        kk_engine_close(other);
    }
    assert_int_equal(kk_session_load(&s, v.e, "/no/such.kks", NULL, NULL, &err), KK_EIO);
    assert_int_equal(kk_saved_inspect("/no/such.kks", &info, &err), KK_EIO);
    assert_int_equal(kk_session_load(&s, v.e, "/dev/null", NULL, NULL, &err), KK_EIO);
    victim_close(&v);
}

/* Another build or another kind of device: it loads, and says that bits are not promised. */
static void another_origin_is_told(void **state) {
    victim v;
    victim_open(&v, *state, 20);
    const size_t head = kk_le32(v.good + 12), build = 24, device = 24 + 64;
    kk_session *s;
    bool exact;
    for (int i = 0; i < 2; i++) {
        const size_t at = i ? device : build;
        v.good[at] ^= 1;
        seal(v.good, head);
        scratch_write(v.path, v.good, v.n);
        exact = true;
        assert_ok(kk_session_load(&s, v.e, v.path, NULL, &exact, why));
        assert_false(exact);
        generate(s);
        kk_session_free(s);
        v.good[at] ^= 1;
        seal(v.good, head);
    }
    victim_close(&v);
}

/* ---- the disk --------------------------------------------------------------------------- */

static void a_full_disk_leaves_the_old_file(void **state) {
    scratch *w = *state;
    char path[600];
    snprintf(path, sizeof path, "%s/full.kks", w->dir);
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    kk_err err;
    tiny_append(s, prompt, 10);
    assert_ok(kk_session_save(s, path, why));
    const int entries = scratch_entries(w->dir);
    tiny_append(s, prompt, 200);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){.rlim_cur = 50000, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const kk_status st = kk_session_save(s, path, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, KK_EIO);
    assert_non_null(strstr(err.msg, strerror(EFBIG)));
    assert_int_equal(scratch_entries(w->dir), entries);
    kk_session *before = load(e, path);
    assert_int_equal(before->len, 10);
    kk_session_free(before);
    assert_int_equal(kk_session_save(s, "/no/such/folder/x.kks", &err), KK_EIO);
    assert_ok(kk_session_save(s, path, why)); /* and nothing was lost of the session */
    before = load(e, path);
    assert_true(generate(before) == generate(s));
    kk_session_free(before);
    kk_session_free(s);
    kk_engine_close(e);
}

/* A reader beside a writer sees the old file or the new one. */
static void readers_see_whole_files(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/busy.kks", ((scratch *)*state)->dir);
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 100);
    assert_ok(kk_session_save(s, path, why));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* saves two lengths in turn until it is killed, in the middle of one */
        kk_session *long_one;
        if (kk_session_fork(&long_one, s, NULL) != KK_OK) _exit(2);
        if (kk_session_append(long_one, prompt, 150, NULL, NULL, NULL) != KK_OK) _exit(3);
        for (int i = 0;; i++)
            if (kk_session_save(i % 2 ? s : long_one, path, NULL) != KK_OK) _exit(4);
    }
    int lengths_seen[2] = {0, 0};
    for (int i = 0; i < 300 || (i < 20000 && (!lengths_seen[0] || !lengths_seen[1])); i++) {
        kk_session *seen = load(e, path);
        assert_true(seen->len == 100 || seen->len == 250);
        lengths_seen[seen->len == 250]++;
        kk_session_free(seen);
    }
    int status;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    assert_true(lengths_seen[0] && lengths_seen[1]);
    kk_session_free(load(e, path));
    kk_session_free(s);
    kk_engine_close(e);
}

typedef struct {
    kk_session *fork;
    atomic_bool done;
    kk_status st;
} neighbour;

static void *write_on(void *user) {
    neighbour *n = user;
    while (n->st == KK_OK && !atomic_load(&n->done)) {
        n->st = kk_session_append(n->fork, prompt, 40, NULL, NULL, NULL);
        if (n->st == KK_OK) n->st = kk_session_rewind(n->fork, 100, NULL, NULL);
    }
    return NULL;
}

/* Pages are written to the file without a lock, also those that a fork is copying and dropping at
 * the same time. */
static void saving_beside_a_fork(void **state) {
    scratch *w = *state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16), *again;
    neighbour n = {.st = KK_OK};
    pthread_t thread;
    size_t size, was;
    tiny_append(s, prompt, 100);
    assert_ok(kk_session_save(s, scratch_path(w, "beside.kks"), why));
    char *first = scratch_read(w->path, &was);
    for (int i = 0; i < 8; i++) {
        assert_ok(kk_session_fork(&n.fork, s, why));
        atomic_store(&n.done, false);
        assert_int_equal(pthread_create(&thread, NULL, write_on, &n), 0);
        assert_ok(kk_session_save(s, scratch_path(w, "beside.kks"), why));
        assert_ok(kk_session_load(&again, e, w->path, NULL, NULL, why));
        kk_session_free(again);
        atomic_store(&n.done, true);
        pthread_join(thread, NULL);
        assert_int_equal(n.st, KK_OK);
        kk_session_free(n.fork);
        char *file = scratch_read(w->path, &size);
        assert_int_equal(size, was);
        assert_memory_equal(file, first, was);
        free(file);
    }
    free(first);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- fingerprints ----------------------------------------------------------------------- */

static void fingerprints_tell_models_apart(void **state) {
    (void)state;
    static const char *const specs[] = {"tiny:f32:2", "tiny:f32:3", "tiny:bf16:2", "tiny:q8_0:2",
                                        "tiny-ple:f32:2"};
    uint64_t seen[5];
    for (int i = 0; i < 5; i++) {
        kk_engine *a = tiny_engine(specs[i], 1, 0), *b = tiny_engine(specs[i], 2, 16);
        seen[i] = kk_engine_fingerprint(a);
        assert_true(seen[i] != 0 && seen[i] == kk_engine_fingerprint(a));
        assert_true(seen[i] == kk_engine_fingerprint(b));
        for (int j = 0; j < i; j++) assert_true(seen[i] != seen[j]);
        kk_engine_close(a);
        kk_engine_close(b);
    }
}

/* Every tensor counts, the first and the last byte of each. */
static void every_tensor_is_in_the_fingerprint(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:bf16:2", 1, 0);
    const uint64_t whole = kk_engine_fingerprint(e);
    for (size_t i = 0; i < kk_checkpoint_count(e->checkpoint); i++) {
        const kk_tensor *t = kk_checkpoint_at(e->checkpoint, i);
        for (int end = 0; end < 2; end++) {
            uint8_t *byte = (uint8_t *)(uintptr_t)(t->data.base + (end ? t->data.size - 1 : 0));
            *byte ^= 4;
            atomic_store(&e->fingerprint, 0);
            assert_true(kk_engine_fingerprint(e) != whole);
            *byte ^= 4;
        }
    }
    atomic_store(&e->fingerprint, 0);
    assert_true(kk_engine_fingerprint(e) == whole);
    kk_engine_close(e);
}

static void bytes_are_hashed_whole(void **state) {
    (void)state;
    uint8_t data[100];
    for (int i = 0; i < 100; i++) data[i] = (uint8_t)(i * 37);
    for (size_t n = 0; n < 100; n++) {
        const uint64_t h = kk_hash_bytes(1, data, n);
        assert_true(h != kk_hash_bytes(2, data, n));
        assert_true(h != kk_hash_bytes(1, data, n + 1));
        for (size_t bit = 0; bit < n * 8; bit++) {
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(h != kk_hash_bytes(1, data, n));
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loaded_session_goes_on),
        cmocka_unit_test(a_drafting_session_goes_on),
        cmocka_unit_test(stopping_anywhere_changes_nothing),
        cmocka_unit_test(the_same_state_gives_the_same_file),
        cmocka_unit_test(a_fresh_engine_goes_on),
        cmocka_unit_test(memory_is_what_the_rows_take),
        cmocka_unit_test(settings_come_along),
        cmocka_unit_test(no_session_has_half_a_context),
        cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(flipped_bits_are_found),
        cmocka_unit_test(sealed_lies_are_refused),
        cmocka_unit_test(other_cache_settings_are_refused),
        cmocka_unit_test(a_lying_token_is_refused),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(another_origin_is_told),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(readers_see_whole_files),
        cmocka_unit_test(saving_beside_a_fork),
        cmocka_unit_test(fingerprints_tell_models_apart),
        cmocka_unit_test(every_tensor_is_in_the_fingerprint),
        cmocka_unit_test(bytes_are_hashed_whole),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
