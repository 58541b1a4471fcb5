/* layer_test.c - layers and the head as operations of a device: offered once each, taken or not,
 * never where somebody looks into them, with the bits of the small operations.
 *
 * The device is the CPU with a `layer` and a `head` of its own, which multiply by one matrix at a
 * time where the default hands over those that share their rows; it may leave some layers. */
#include "backend/cpu/device.h"
#include "support/tiny.h"

static struct {
    int32_t leaves; /* every so many layers it does not take one; 0: takes all */
    bool fails;
    int64_t layers, heads, offered;
} own;

static kk_backend one_by_one, device;

static kk_status linear_one_by_one(kk_dev *dev, const kk_linear_args *a, kk_err *err) {
    for (int32_t i = 0; i < a->n; i++) {
        const kk_linear_args one = {{a->out[i]}, {a->w[i]}, 1, a->x, a->n_rows};
        KK_TRY(kk_cpu_backend.linear(dev, &one, err));
    }
    return KK_OK;
}

static kk_status own_layer(kk_dev *dev, const kk_layer_args *a, bool *taken, kk_err *err) {
    assert_null(a->observer);
    assert_false(*taken);
    if (own.fails) return kk_fail(err, KK_EDEVICE, "this device lost a layer");
    if (own.leaves && own.offered++ % own.leaves == 0) return KK_OK;
    own.layers++;
    *taken = true;
    return kk_layer_by_ops(&one_by_one, dev, a, err);
}

static kk_status own_head(kk_dev *dev, const kk_head_args *a, bool *taken, kk_err *err) {
    assert_false(*taken);
    if (own.leaves) return KK_OK;
    own.heads++;
    *taken = true;
    return kk_head_by_ops(&one_by_one, dev, a, err);
}

static kk_engine *own_engine(const char *spec, int32_t leaves) {
    const kk_engine_opts opts = {.synthetic = spec, .threads = 2, .no_pin = true, .device = "own"};
    kk_engine *e = NULL;
    one_by_one = device = kk_cpu_backend;
    one_by_one.linear = linear_one_by_one;
    device.layer = own_layer;
    device.head = own_head;
    device.name = "own";
    kk_backend_add(&device);
    memset(&own, 0, sizeof own);
    own.leaves = leaves;
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

/* A prompt in two pieces, then some tokens. */
static uint64_t speak(kk_engine *e) {
    enum { PROMPT = 150 };
    int32_t prompt[PROMPT];
    const kk_generate_opts how = {.max_tokens = 20, .ignore_eos = true};
    kk_result r;
    kk_session *s = tiny_session(e, 0, KK_KV_BF16);
    tiny_prompt(prompt, PROMPT, 3);
    tiny_append(s, prompt, 90);
    tiny_append(s, prompt + 90, PROMPT - 90);
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    kk_session_free(s);
    return r.logits_hash;
}

static const char *const specs[] = {"tiny:f32", "tiny:q4_0", "tiny-ple:bf16", "tiny-ple:q8_0"};
enum { SPECS = sizeof specs / sizeof *specs };

/* A device that has neither operation: everything is made of small ones, and counted so. */
static void small_operations_are_the_default(void **state) {
    (void)state;
    kk_engine *e = tiny_engine(specs[0], 2, 0);
    kk_fused f;
    kk_engine_fused(e, &f);
    assert_true(f.layers_by_ops == 0 && f.heads_by_ops == 0);
    speak(e);
    kk_engine_fused(e, &f);
    assert_true(f.layers_fused == 0 && f.heads_fused == 0);
    assert_true(f.heads_by_ops > 20);
    assert_int_equal(f.layers_by_ops % kk_engine_config(e)->n_layer, 0);
    kk_engine_close(e);
}

static void a_device_takes_layers_whole(void **state) {
    (void)state;
    for (int i = 0; i < SPECS; i++) {
        kk_engine *plain = tiny_engine(specs[i], 2, 0), *e = own_engine(specs[i], 0);
        kk_fused f, p;
        assert_true(speak(e) == speak(plain));
        kk_engine_fused(e, &f);
        kk_engine_fused(plain, &p);
        assert_true(f.layers_by_ops == 0 && f.heads_by_ops == 0);
        assert_true(f.layers_fused == p.layers_by_ops && f.heads_fused == p.heads_by_ops);
        assert_true(f.layers_fused == own.layers && f.heads_fused == own.heads && own.heads > 20);
        kk_engine_close(e);
        kk_engine_close(plain);
    }
}

static void a_device_leaves_some_layers(void **state) {
    (void)state;
    for (int i = 0; i < SPECS; i++) {
        kk_engine *plain = tiny_engine(specs[i], 2, 0), *e = own_engine(specs[i], 3);
        kk_fused f;
        assert_true(speak(e) == speak(plain));
        kk_engine_fused(e, &f);
        assert_true(f.layers_fused > 0 && f.layers_by_ops > 0);
        assert_true(f.layers_fused == own.layers && f.heads_fused == 0 && f.heads_by_ops > 20);
        assert_int_equal(f.layers_fused + f.layers_by_ops, own.offered);
        kk_engine_close(e);
        kk_engine_close(plain);
    }
}

static kk_status see(void *user, int32_t layer, kk_layer_part part, const kk_buf *rows,
                     int32_t n_rows, int32_t width, kk_err *err) {
    (void)layer;
    (void)part;
    (void)rows;
    (void)err;
    *(int64_t *)user += (int64_t)n_rows * width > 0;
    return KK_OK;
}

/* Parts of a layer are there to be seen in small operations alone: the device is not asked. */
static void watched_layers_are_not_offered(void **state) {
    (void)state;
    kk_engine *e = own_engine(specs[0], 0);
    kk_session *s = tiny_session(e, 0, KK_KV_BF16);
    int32_t prompt[40];
    int64_t parts = 0;
    kk_fused f;
    tiny_prompt(prompt, 40, 5);
    const kk_gemma4_watch watch = {see, &parts};
    const kk_gemma4_group g = {.cache = s->cache,
                               .layout = kk_cache_how(s->cache)->layout,
                               .tokens = prompt,
                               .n_rows = 40,
                               .n_logits = 1};
    const kk_gemma4_forward_args a = {.groups = &g, .n_groups = 1, .watch = &watch};
    assert_ok(kk_cache_reserve(s->cache, 40, why));
    assert_ok(kk_gemma4_forward(e->model, &a, why));
    kk_engine_fused(e, &f);
    const int32_t n = kk_engine_config(e)->n_layer;
    assert_true(parts >= 3 * n && own.layers == 0 && f.layers_fused == 0);
    assert_int_equal(f.layers_by_ops, n);
    assert_int_equal(f.heads_fused, 1);
    kk_session_free(s);
    kk_engine_close(e);
}

static void a_failing_layer_ends_the_forward(void **state) {
    (void)state;
    kk_engine *e = own_engine(specs[0], 0);
    kk_session *s = tiny_session(e, 0, KK_KV_BF16);
    int32_t prompt[40];
    kk_err err = {0};
    tiny_prompt(prompt, 40, 5);
    own.fails = true;
    assert_int_equal(kk_session_append(s, prompt, 40, NULL, NULL, &err), KK_EDEVICE);
    assert_string_equal(err.msg, "this device lost a layer");
    kk_session_free(s);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_operations_are_the_default),
        cmocka_unit_test(a_device_takes_layers_whole),
        cmocka_unit_test(a_device_leaves_some_layers),
        cmocka_unit_test(watched_layers_are_not_offered),
        cmocka_unit_test(a_failing_layer_ends_the_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
