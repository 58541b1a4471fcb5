/* memory_test.c - the bytes an engine reports are the bytes the process gained.
 *
 * The kernel's own count of anonymous memory is held against the allocator's, with the shipped
 * pair, a drafter and sessions in every format; weights lie in mapped files and are held against
 * what is resident of those.  What sessions took is given back when they close. */
#define _GNU_SOURCE
#include "support/rounds.h"
#include "support/skips.h"
#include "support/slow.h"
#include "support/tiny.h"

#include <stdio.h>

#define TINY KK_MODELS "/tiny"

enum { PROMPT = 1024, VOCAB = 4096 };

/* ---- what the kernel says ------------------------------------------------------------------ */

/* Bytes of one kind, of all mappings whose line names this file; NULL: of the whole process. */
static int64_t kernel_bytes(const char *field, const char *file) {
    FILE *f = fopen(file ? "/proc/self/smaps" : "/proc/self/smaps_rollup", "r");
    char line[512];
    int64_t sum = 0;
    bool here = file == NULL;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        long long kib;
        char name[64];
        if (file && strchr(line, '-') && strchr(line, ' ') > strchr(line, '-'))
            here = strstr(line, file) != NULL;
        if (here && sscanf(line, "%60[^:]: %lld kB", name, &kib) == 2 && strcmp(name, field) == 0)
            sum += kib * 1024;
    }
    fclose(f);
    return sum;
}

static int64_t anonymous(void) { return kernel_bytes("Anonymous", NULL); }

/* ---- what the engine says ------------------------------------------------------------------ */

/* Everything that is not a mapped file. */
static int64_t counted(const kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES], sum = -e->mapped - e->mapped_drafter;
    kk_engine_memory(e, bytes);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) sum += bytes[c];
    return sum;
}

static int64_t kv(const kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(e, bytes);
    return bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_DRAFTER];
}

/* ---- use ----------------------------------------------------------------------------------- */

static kk_engine *open_pair(void) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .model = TINY "/verifier", .drafter = TINY "/drafter", .threads = 2, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

/* A prompt of whole pages and some drafted rounds, so that what was taken was written, too. */
static kk_session *use(kk_engine *e, kk_kv_format format, kk_spec spec) {
    kk_session *s = NULL;
    const kk_session_opts opts = {
        .ctx = PROMPT + 256, .kv_format = format, .spec = spec, .draft_fixed = true};
    const kk_generate_opts how = {.max_tokens = 127, .ignore_eos = true, .sampling = {.temp = 1}};
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 131 + 7) % VOCAB;
    assert_ok(kk_session_new(&s, e, &opts, why));
    tiny_append(s, prompt, PROMPT);
    assert_ok(kk_generate(s, &how, NULL, NULL, NULL, why));
    return s;
}

static void assert_near(const char *what, int64_t kernel, int64_t ours) {
    print_message("%s: %.2f MB gained, %.2f MB counted\n", what, (double)kernel / 1e6,
                  (double)ours / 1e6);
    const int64_t spare = ours / 20 + 512 * 1024; /* bookkeeping, stacks, half-filled pages */
    assert_true(kernel <= ours + spare && kernel >= ours - spare);
}

/* ---- tests --------------------------------------------------------------------------------- */

static int64_t drafter_bytes(const char *type, bool *own_head) {
    kk_engine *e = NULL;
    int64_t bytes[KK_MEM_CATEGORIES];
    const kk_engine_opts opts = {.model = TINY "/verifier",
                                 .drafter = TINY "/drafter",
                                 .draft_type = type,
                                 .threads = 2,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    kk_engine_memory(e, bytes);
    *own_head = kk_drafter_head(e->drafter) != NULL;
    kk_engine_close(e);
    return bytes[KK_MEM_WEIGHTS_DRAFTER];
}

/* The packed copy of the verifier's head is the drafter's, and counted there. */
static void a_packed_head_is_counted(void **state) {
    (void)state;
    bool packed, filed;
    const int64_t q8 = drafter_bytes("q8_0", &packed), file = drafter_bytes("file", &filed);
    const int64_t values = 4327808 - 2432, hidden = 256; /* of its matrices: less its vectors */
    assert_true(packed && !filed);
    assert_int_equal(q8 - (VOCAB * hidden + values) / 32 * 34, file - 2 * values);
}

/* The counters are those of the caches and pages themselves, by category. */
static void categories_add_up(void **state) {
    (void)state;
    kk_engine *e = open_pair();
    int64_t before[KK_MEM_CATEGORIES], with[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    kk_session_free(use(e, KK_KV_BF16, KK_SPEC_DFLASH)); /* workspace grows to what it needs */
    kk_engine_memory(e, before);
    assert_true(e->mapped > 0 && before[KK_MEM_WEIGHTS_VERIFIER] >= e->mapped);
    assert_true(before[KK_MEM_WEIGHTS_DRAFTER] > 0 && before[KK_MEM_WORKSPACE] > 0);
    assert_int_equal(kv(e), 0);
    kk_session *s[] = {use(e, KK_KV_F32, KK_SPEC_DFLASH), use(e, KK_KV_Q4, KK_SPEC_DFLASH),
                       use(e, KK_KV_Q8, KK_SPEC_NGRAM), use(e, KK_KV_BF16, KK_SPEC_NONE)};
    int64_t sliding = 0, full = 0, drafter = 0;
    for (int i = 0; i < 4; i++) {
        sliding += kk_cache_bytes(s[i]->cache, KK_SLIDING);
        full += kk_cache_bytes(s[i]->cache, KK_FULL);
        if (!drafter_cache(s[i])) continue;
        drafter += kk_cache_bytes(drafter_cache(s[i]), KK_SLIDING) +
                   kk_cache_bytes(drafter_cache(s[i]), KK_FULL);
    }
    kk_engine_memory(e, with);
    assert_int_equal(with[KK_MEM_KV_SLIDING], sliding);
    assert_int_equal(with[KK_MEM_KV_FULL], full);
    assert_int_equal(with[KK_MEM_KV_DRAFTER], drafter);
    assert_true(with[KK_MEM_WORKSPACE] > before[KK_MEM_WORKSPACE]);
    for (int i = 0; i < 4; i++) kk_session_free(s[i]);
    kk_engine_memory(e, after);
    assert_memory_equal(before, after, sizeof before);
    kk_engine_close(e);
}

/* Forks and checkpoints share pages, and are counted once. */
static void shared_pages_count_once(void **state) {
    (void)state;
    kk_engine *e = open_pair();
    kk_session *s = use(e, KK_KV_BF16, KK_SPEC_DFLASH), *fork = NULL;
    assert_ok(kk_drafting_flush(&s->drafting, why));
    const int64_t alone = kv(e);
    assert_ok(kk_session_checkpoint(s, why));
    assert_ok(kk_session_fork(&fork, s, why));
    assert_int_equal(kv(e), alone);
    kk_session_free(s);
    assert_int_equal(kv(e), alone);
    kk_session_free(fork);
    assert_int_equal(kv(e), 0);
    kk_engine_close(e);
}

/* The kernel counts what a sanitizer needs for itself, too: not looked at there. */
static void gains_are_real(void **state) {
    (void)state;
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8, KK_KV_Q4};
    if (slow()) skip_test("the kernel counts what instruments take, too");
    kk_engine *e = open_pair();
    kk_session_free(use(e, KK_KV_BF16, KK_SPEC_DFLASH)); /* all workspace has been touched */
    kk_engine_close(e);
    const int64_t nothing = anonymous();
    e = open_pair();
    kk_session *first = use(e, KK_KV_BF16, KK_SPEC_DFLASH);
    assert_near("engine and a session", anonymous() - nothing, counted(e));
    for (int f = 0; f < 4; f++) {
        const int64_t ours = counted(e), kernel = anonymous();
        kk_session *more[3];
        for (int i = 0; i < 3; i++)
            more[i] = use(e, formats[f], i ? KK_SPEC_DFLASH : KK_SPEC_NGRAM);
        assert_near("three sessions more", anonymous() - kernel, counted(e) - ours);
        for (int i = 0; i < 3; i++) kk_session_free(more[i]);
        assert_int_equal(counted(e), ours);
    }
    assert_near("weights of the verifier", kernel_bytes("Rss", "verifier/model.safetensors"),
                e->mapped);
    kk_session_free(first);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_head_is_counted),
        cmocka_unit_test(categories_add_up),
        cmocka_unit_test(shared_pages_count_once),
        cmocka_unit_test(gains_are_real),
    };
    return ended(cmocka_run_group_tests(tests, NULL, NULL));
}
