/* snapshot_history_test.c - checkpoints in saved files, and files of the format before.
 *
 * A loaded session rewinds and forks as the one that was saved, for nothing at its checkpoints; K/V
 * that its states share lies in the file once, and in memory once.  Files that earlier builds wrote
 * (tests/data/saved) go on with the tokens and hashes that those builds gave. */
#define _GNU_SOURCE
#include "core/file.h"
#include "core/hash.h"
#include "engine/saved.h"
#include "support/saved_session.h"

enum { STEP = 30, STEPS = 8 };

static kk_engine *full_engine(const char *projection) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:f32:6",
                                 .drafter = "synthetic",
                                 .projection = projection,
                                 .threads = 1,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

/* A checkpoint after every step; every third step is generated, which leaves an anchor. */
static kk_session *with_history(kk_engine *e, kk_session_opts how) {
    kk_session *s = session_with(e, how);
    for (int32_t i = 0; i < STEPS; i++) {
        tiny_append(s, prompt + i, STEP);
        if (i % 3 == 2) generate(s);
        assert_ok(kk_session_checkpoint(s, why));
    }
    generate(s);
    return s;
}

static void assert_same_history(kk_session *a, kk_session *b) {
    int32_t x[STEPS], y[STEPS];
    assert_int_equal(kk_session_checkpoints(a, x, STEPS), STEPS);
    assert_int_equal(kk_session_checkpoints(b, y, STEPS), STEPS);
    assert_memory_equal(x, y, sizeof x);
    assert_same(a, b);
    for (int32_t i = STEPS - 1; i >= 0; i--) {
        int32_t cost = -1;
        kk_session *from = NULL;
        assert_ok(kk_session_fork_at(&from, b, x[i], &cost, why));
        assert_int_equal(cost, 0);
        assert_ok(kk_session_rewind(a, x[i], NULL, why));
        assert_int_equal(kk_session_settled(a), kk_session_settled(from));
        assert_true(generate(a) == generate(from));
        kk_session_free(from);
    }
}

static void bytes_by_category(kk_engine *e, int64_t out[KK_MEM_CATEGORIES]) {
    kk_engine_memory(e, out);
}

static void check_history(scratch *w, const char *projection, kk_session_opts how) {
    char path[600];
    kk_saved_info info;
    int64_t one[KK_MEM_CATEGORIES], two[KK_MEM_CATEGORIES];
    kk_engine *e = full_engine(projection), *fresh = full_engine(projection);
    kk_session *s = with_history(e, how);
    snprintf(path, sizeof path, "%s/history.kks", w->dir);
    assert_ok(kk_session_save(s, path, why));
    kk_session *again = load(fresh, path);
    assert_same_file(w, s, again);
    assert_ok(kk_saved_inspect(path, &info, why));
    assert_int_equal(info.format, 4);
    assert_int_equal(info.checkpoints, STEPS);
    bytes_by_category(e, one);
    bytes_by_category(fresh, two);
    for (int c = KK_MEM_KV_SLIDING; c <= KK_MEM_KV_LATENTS; c++)
        assert_int_equal(one[c], two[c]); /* what was shared is shared */
    assert_same_history(s, again);
    kk_session_free(s);
    kk_session_free(again);
    kk_engine_close(e);
    kk_engine_close(fresh);
}

static void checkpoints_come_along(void **state) {
    check_history(*state, NULL, (kk_session_opts){.spec = KK_SPEC_NONE});
    check_history(*state, NULL, (kk_session_opts){.spec = KK_SPEC_DFLASH});
    check_history(
        *state, NULL,
        (kk_session_opts){.spec = KK_SPEC_DFLASH, .draft_ctx = 70, .kv_format = KK_KV_F32});
    check_history(*state, NULL,
                  (kk_session_opts){.spec = KK_SPEC_NGRAM,
                                    .kv_sliding = KK_KEEP_WINDOW,
                                    .kv_full = KK_KEEP_WINDOW,
                                    .window = 40});
    check_history(*state, "synthetic:64",
                  (kk_session_opts){.spec = KK_SPEC_NONE,
                                    .kv_full = KK_KEEP_RESTORED,
                                    .kv_sliding = KK_KEEP_RESTORED,
                                    .window = 40});
}

/* Pages of the full layers, which all states share, are written once: a file with checkpoints is
 * smaller than the states apart. */
static void what_is_shared_is_written_once(void **state) {
    char path[600];
    int64_t apart = 0;
    kk_saved_info info;
    kk_engine *e = full_engine(NULL);
    kk_session *s = with_history(e, (kk_session_opts){.spec = KK_SPEC_DFLASH});
    int32_t lens[STEPS];
    snprintf(path, sizeof path, "%s/shared.kks", ((scratch *)*state)->dir);
    kk_session_checkpoints(s, lens, STEPS);
    for (int32_t i = 0; i < STEPS; i++) {
        kk_session *one = session_with(e, (kk_session_opts){.spec = KK_SPEC_DFLASH});
        tiny_append(one, s->tokens, lens[i]);
        assert_ok(kk_session_save(one, path, why));
        assert_ok(kk_saved_inspect(path, &info, why));
        apart += info.bytes;
        kk_session_free(one);
    }
    assert_ok(kk_session_save(s, path, why));
    assert_ok(kk_saved_inspect(path, &info, why));
    assert_true(info.bytes < apart * 4 / 5);
    kk_session_free(s);
    kk_engine_close(e);
}

/* Whoever drafts otherwise passes over what the drafter wrote, at every checkpoint. */
static void states_of_others_are_passed_over(void **state) {
    char path[600];
    kk_engine *e = full_engine(NULL), *plain = tiny_engine("tiny:f32:6", 1, 0);
    kk_session *s = with_history(e, (kk_session_opts){.spec = KK_SPEC_DFLASH}), *other = NULL;
    snprintf(path, sizeof path, "%s/other.kks", ((scratch *)*state)->dir);
    assert_ok(kk_session_save(s, path, why));
    const kk_session_opts none = {.spec = KK_SPEC_NONE}, few = {.checkpoint_bytes = -1};
    assert_ok(kk_session_load(&other, e, path, &none, NULL, why));
    assert_int_equal(kk_session_checkpoints(other, NULL, 0), STEPS);
    assert_true(generate(other) == generate(s));
    kk_session_free(other);
    assert_ok(kk_session_rewind(s, s->len - 12, NULL, why));
    assert_ok(kk_session_load(&other, plain, path, NULL, NULL, why));
    assert_int_equal(kk_session_spec(other), KK_SPEC_NONE);
    assert_true(generate(other) == generate(s));
    kk_session_free(other);
    assert_ok(kk_session_load(&other, e, path, &few, NULL, why));
    assert_int_equal(kk_session_checkpoints(other, NULL, 0), 0);
    kk_session_free(other);
    kk_session_free(s);
    kk_engine_close(e);
    kk_engine_close(plain);
}

/* Lengths that no state can have, with the right checksum: refused, and nothing is left. */
static void lying_states_are_refused(void **state) {
    char path[600];
    size_t n;
    kk_engine *e = tiny_engine("tiny:f32:6", 1, 0);
    kk_session *s = with_history(e, (kk_session_opts){.spec = KK_SPEC_NONE}), *out;
    kk_err err;
    snprintf(path, sizeof path, "%s/lies.kks", ((scratch *)*state)->dir);
    assert_ok(kk_session_save(s, path, why));
    const int32_t len = s->len;
    kk_session_free(s);
    uint8_t *bytes = (uint8_t *)scratch_read(path, &n);
    const size_t at = kk_saved_bytes(KK_SAVED_FORMAT) + (size_t)len * 4 + 8;
    static const int32_t lies[][2] = {{0, 1}, {-1, 1}, {30, 2}, {30, -1}, {1 << 30, 1}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
        memcpy(bytes + at, lies[i], 8);
        const uint64_t seal = kk_hash_bytes(KK_HASH_START + 256, bytes + at, 8);
        memcpy(bytes + at + 8, &seal, 8);
        scratch_write(path, bytes, n);
        kk_engine_memory(e, before);
        assert_int_equal(kk_session_load(&out, e, path, NULL, NULL, &err), KK_EFORMAT);
        assert_null(out);
        kk_engine_memory(e, after);
        assert_memory_equal(before, after, sizeof before);
    }
    free(bytes);
    kk_engine_close(e);
}

/* ---- files of earlier formats ------------------------------------------------------------ */

static void files_of_earlier_formats_go_on(void **state) {
    (void)state;
    static const struct {
        const char *name, *drafter, *projection;
        kk_spec spec;
        uint64_t hash;
        int32_t format;
    } files[] = {
        {"dflash", "synthetic", NULL, KK_SPEC_DFLASH, 0x30fe1423251a6b28u, 2},
        {"window", NULL, NULL, KK_SPEC_NONE, 0x03f17bfe3053b9deu, 2},
        {"restored", NULL, "synthetic:32", KK_SPEC_NONE, 0x53f0a721eb1dd64du, 2},
        {"dflash-3", "synthetic", NULL, KK_SPEC_DFLASH, 0x671f747b7112c820u, 3},
        {"window-3", NULL, NULL, KK_SPEC_NONE, 0xadb0ddc181d53c72u, 3},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[600];
        kk_engine *e;
        kk_session *s;
        kk_saved_info info;
        kk_result r;
        const kk_engine_opts opts = {.synthetic = "tiny:f32:2",
                                     .drafter = files[i].drafter,
                                     .projection = files[i].projection,
                                     .threads = 1,
                                     .no_pin = true};
        const kk_generate_opts how = {.max_tokens = 12, .ignore_eos = true};
        snprintf(path, sizeof path, KK_TEST_DATA "/saved/%s.kks", files[i].name);
        assert_ok(kk_engine_open(&e, &opts, why));
        assert_ok(kk_saved_inspect(path, &info, why));
        assert_int_equal(info.format, files[i].format);
        assert_true(info.identity == 0 && !info.other_weights);
        assert_int_equal(info.tokens, 52);
        assert_ok(kk_session_load(&s, e, path, NULL, NULL, why));
        assert_int_equal(kk_session_spec(s), files[i].spec);
        assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
        if (r.logits_hash != files[i].hash)
            fail_msg("%s: %016llx", files[i].name, (unsigned long long)r.logits_hash);
        kk_session_free(s);
        kk_engine_close(e);
    }
}

/* Says of a head of format 2 that true rows lie beside its latents, and seals it again. */
static bool say_diagnosed(uint8_t *bytes) {
    const size_t n = kk_saved_bytes(2);
    kk_saved_head head;
    for (size_t at = 24; at + 12 <= n; at += 4) {
        const uint32_t one = 1, zero = 0;
        if (memcmp(bytes + at, &zero, 4) != 0) continue;
        memcpy(bytes + at, &one, 4);
        if (kk_saved_decode(&head, 2, bytes) && head.keeps.mixes) {
            const uint64_t seal = kk_hash_bytes(KK_HASH_START, bytes, n - 8);
            memcpy(bytes + n - 8, &seal, 8);
            return true;
        }
        memcpy(bytes + at, &zero, 4);
    }
    return false;
}

static void diagnosed_files_of_format_2_are_refused(void **state) {
    char path[600];
    size_t n;
    kk_engine *e;
    kk_session *s;
    kk_err err;
    const kk_engine_opts opts = {
        .synthetic = "tiny:f32:2", .projection = "synthetic:32", .threads = 1, .no_pin = true};
    uint8_t *bytes = (uint8_t *)scratch_read(KK_TEST_DATA "/saved/restored.kks", &n);
    snprintf(path, sizeof path, "%s/diagnosed.kks", ((scratch *)*state)->dir);
    assert_true(say_diagnosed(bytes));
    scratch_write(path, bytes, n);
    free(bytes);
    assert_ok(kk_engine_open(&e, &opts, why));
    assert_int_equal(kk_session_load(&s, e, path, NULL, NULL, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "was saved under diagnosis"));
    assert_null(s);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_come_along),
        cmocka_unit_test(what_is_shared_is_written_once),
        cmocka_unit_test(states_of_others_are_passed_over),
        cmocka_unit_test(lying_states_are_refused),
        cmocka_unit_test(files_of_earlier_formats_go_on),
        cmocka_unit_test(diagnosed_files_of_format_2_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
