/* engine_test.c - opening an engine on files and on bad options, what it says of itself, and
 * what the library says of the machine.  ctest: threads */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/device.h"
#include "engine/engine.h"
#include "support/model_folder.h"

static int setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    const kk_config moe = small_moe();
    model_tensors *m = model_make(&moe, "model.", KK_BF16);
    model_write(((scratch *)*state)->dir, m);
    model_free(m);
    return 0;
}

static kk_status open_with(kk_engine_opts opts, kk_engine **e, kk_err *err) {
    opts.threads = opts.threads ? opts.threads : 1;
    opts.no_pin = true;
    *err = (kk_err){0};
    return kk_engine_open(e, &opts, err);
}

static void bad_options_are_named(void **state) {
    const char *model = ((scratch *)*state)->dir;
    const struct {
        kk_engine_opts opts;
        kk_status st;
        const char *word;
    } bad[] = {
        {{0}, KK_EINVAL, "no model"},
        {{.model = model, .synthetic = "tiny:f32"}, KK_EINVAL, "not both"},
        {{.synthetic = "huge:f32"}, KK_EINVAL, "huge"},
        {{.synthetic = "tiny:f32:2", .device = "abacus"}, KK_EDEVICE, "abacus"},
        {{.synthetic = "tiny:f32:2", .isa = "mmx"}, KK_EDEVICE, "mmx"},
        {{.synthetic = "tiny:f32:2", .threads = -2}, KK_EINVAL, "threads is -2"},
        {{.synthetic = "tiny:f32:2", .max_rows = -1}, KK_EINVAL, "max_rows is -1"},
        {{.synthetic = "tiny:f32:2", .max_logits = 1 << 20}, KK_EINVAL, "max_logits"},
        {{.synthetic = "tiny:f32:2", .max_logits = INT32_MIN},
         KK_EINVAL,
         "max_logits is -2147483648"},
        {{.synthetic = "tiny:f32:2", .memory_limit = UINT64_MAX}, KK_EINVAL, "limit"},
        {{.synthetic = "tiny:f32:2", .memory_limit = 1000}, KK_ENOMEM, ""},
        {{.synthetic = "tiny:f32:2", .gpu_memory = UINT64_MAX}, KK_EINVAL, "gpu_memory"},
        {{.model = "/no/such/model"}, KK_EIO, "/no/such/model"},
    };
    const int64_t bytes = kk_live_bytes();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kk_engine *e = (kk_engine *)&e;
        kk_err err;
        const kk_status st = open_with(bad[i].opts, &e, &err);
        if (st != bad[i].st || !strstr(err.msg, bad[i].word))
            fail_msg("case %zu: status %d, '%s'", i, st, err.msg);
        assert_null(e);
        assert_int_equal(kk_live_bytes(), bytes);
    }
    kk_engine_close(NULL);
}

static void an_engine_describes_itself(void **state) {
    const char *model = ((scratch *)*state)->dir;
    kk_engine *e;
    kk_err err;
    kk_device_info device;
    kk_model_info info, inspected;
    int64_t bytes[KK_MEM_CATEGORIES];
    size_t n;
    assert_int_equal(open_with((kk_engine_opts){.model = model, .threads = 2}, &e, &err), KK_OK);
    kk_engine_device(e, &device);
    assert_string_equal(device.device, "cpu");
    assert_int_equal(device.threads, 2);
    assert_true(device.isa[0] != '\0');
    kk_engine_info(e, &info);
    assert_string_equal(info.format, "safetensors");
    assert_int_equal(info.vocab, 96);
    assert_int_equal(kk_model_inspect(model, &inspected, &err), KK_OK);
    assert_memory_equal(&info, &inspected, sizeof info);
    kk_engine_memory(e, bytes);
    /* The mapped files, and small vectors that the device keeps as floats. */
    assert_true(bytes[KK_MEM_WEIGHTS_VERIFIER] >= info.weight_bytes);
    assert_true(bytes[KK_MEM_WEIGHTS_VERIFIER] < info.weight_bytes + info.weight_bytes / 16);
    assert_true(bytes[KK_MEM_WORKSPACE] > 0);
    const int32_t *stop = kk_engine_stop_ids(e, &n);
    assert_int_equal(n, 1);
    assert_int_equal(stop[0], 1);
    assert_null(kk_engine_tokenizer(e));
    kk_engine_close(e);
}

static bool gpu_works;

static kk_status gpu_usable(kk_err *err) {
    return gpu_works ? KK_OK : kk_fail(err, KK_EDEVICE, "this GPU is on fire");
}

/* The CPU under the name of a GPU stands for one. */
static void no_device_is_the_fastest_that_can(void **state) {
    (void)state;
    const struct {
        kk_engine_opts opts;
        bool works;
        const char *device, *why;
    } cases[] = {
        {{.synthetic = "tiny:f32:2"}, true, "cuda", "fastest"},
        {{.synthetic = "tiny:f32:2"}, false, "cpu", "this GPU is on fire"},
        {{.synthetic = "tiny:f32:2", .device = "cpu"}, true, "cpu", "asked for"},
        {{.synthetic = "tiny:f32:2", .device = "cuda"}, true, "cuda", "asked for"},
        {{.synthetic = "tiny:f32:2", .isa = "reference"}, true, "cpu", "isa"},
        {{.synthetic = "tiny:f32:2", .drafter = "synthetic"}, true, "cuda", "fastest"},
        {{.synthetic = "tiny:mlx4_32:2"}, true, "cpu", "MLX"},
        {{.synthetic = "tiny:f32:2", .projection = "synthetic:64"}, true, "cpu", "projection"},
    };
    kk_backend gpu = kk_cpu_backend;
    gpu.name = "cuda";
    gpu.usable = gpu_usable;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_engine *e;
        kk_err err;
        kk_device_info device;
        kk_backend_add(&gpu);
        gpu_works = cases[i].works;
        assert_int_equal(open_with(cases[i].opts, &e, &err), KK_OK);
        kk_engine_device(e, &device);
        kk_engine_close(e);
        kk_backend_add(NULL);
        if (strcmp(device.device, cases[i].device) != 0 || !strstr(device.why, cases[i].why))
            fail_msg("case %zu: %s, because %s", i, device.device, device.why);
    }
    kk_engine *e;
    kk_err err;
    kk_device_info device;
    assert_int_equal(open_with((kk_engine_opts){.synthetic = "tiny:f32:2"}, &e, &err), KK_OK);
    kk_engine_device(e, &device);
    assert_string_equal(device.device, "cpu");
    assert_non_null(strstr(device.why, "no module"));
    kk_engine_close(e);
}

static void the_reference_kernels_can_be_asked_for(void **state) {
    const char *model = ((scratch *)*state)->dir;
    kk_engine *e;
    kk_err err;
    kk_device_info device;
    assert_int_equal(open_with((kk_engine_opts){.model = model, .isa = "reference"}, &e, &err),
                     KK_OK);
    kk_engine_device(e, &device);
    assert_string_equal(device.isa, "reference");
    kk_engine_close(e);
}

/* Without a tokenizer a model opens; with a broken one it does not. */
static void a_broken_tokenizer_is_an_error(void **state) {
    scratch *s = *state;
    kk_engine *e;
    kk_err err;
    const int64_t bytes = kk_live_bytes();
    scratch_write(scratch_path(s, "tokenizer.json"), "{\"model\": 7", 11);
    assert_int_equal(open_with((kk_engine_opts){.model = s->dir}, &e, &err), KK_EFORMAT);
    assert_null(e);
    assert_non_null(strstr(err.msg, "tokenizer.json"));
    remove(scratch_path(s, "tokenizer.json"));
    assert_int_equal(kk_live_bytes(), bytes);
}

static void a_gguf_may_lack_a_tokenizer(void **state) {
    scratch *s = *state;
    kk_engine *e;
    kk_err err;
    char path[600];
    snprintf(path, sizeof path, "%s/small.gguf", s->dir);
    assert_int_equal(kk_quantize(s->dir, path, "q8_0", NULL, NULL, &err), KK_OK);
    assert_int_equal(open_with((kk_engine_opts){.model = path}, &e, &err), KK_OK);
    kk_model_info info;
    kk_engine_info(e, &info);
    assert_string_equal(info.format, "gguf");
    assert_null(kk_engine_tokenizer(e));
    kk_engine_close(e);
}

static void the_machine_is_described(void **state) {
    (void)state;
    kk_machine m;
    double rate = 0;
    kk_err err;
    const int64_t bytes = kk_live_bytes();
    kk_machine_info(&m);
    assert_true(m.cores >= 1);
    assert_true(m.memory > 0 && m.memory_free > 0 && m.memory_free <= m.memory);
    assert_true(m.name[0] && m.best_isa[0]);
    assert_int_equal(kk_measure_bandwidth(1, 0, &rate, &err), KK_OK);
    assert_true(rate > 1e7 && rate < 1e13);
    assert_int_equal(kk_measure_bandwidth(-1, 0, &rate, &err), KK_EINVAL);
    for (int n = 1; n <= 3; n++) { /* the pool, its list, the memory to read */
        kk_fault_after(n, false);
        assert_int_equal(kk_measure_bandwidth(1, 0, &rate, &err), KK_ENOMEM);
        kk_fault_after(0, false);
    }
    assert_int_equal(kk_live_bytes(), bytes);
    assert_int_equal(strncmp(kk_version(), KK_VERSION, strlen(KK_VERSION)), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(no_device_is_the_fastest_that_can),
        cmocka_unit_test(an_engine_describes_itself),
        cmocka_unit_test(the_reference_kernels_can_be_asked_for),
        cmocka_unit_test(a_broken_tokenizer_is_an_error),
        cmocka_unit_test(a_gguf_may_lack_a_tokenizer),
        cmocka_unit_test(the_machine_is_described),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
