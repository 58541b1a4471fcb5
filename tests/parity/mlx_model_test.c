/* mlx_model_test.c - models in MLX's files, from the folder to the tokens.
 *
 * Against the same values as float32: what differs is that activations are rounded to 8 bits in
 * blocks of 32 where they meet packed weights, as with every packed type, so that logits agree
 * within a bound.  And within itself: drafts, threads and kernels change no bit. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <math.h>

#include "backend/cpu/kernels.h"
#include "kakeya.h"
#include "support/mlx_folder.h"

enum { PROMPT = 64, TOKENS = 24 };

/* The shipped model as float32: trained, so that rounding does not multiply from layer to layer as
 * in random ones; with experts, K = V, and rows that all fill groups of 64. */
static model_tensors *shipped(void) {
    model_tensors *m = calloc(1, sizeof *m);
    kk_checkpoint *c = NULL;
    assert_ok(kk_checkpoint_open(&c, KK_MODELS "/tiny/verifier", NULL, why));
    m->config = *kk_checkpoint_config(c);
    for (; m->n < kk_checkpoint_count(c); m->n++) {
        const kk_tensor *from = kk_checkpoint_at(c, m->n);
        const size_t n = (size_t)kk_tensor_values(from);
        float *x = malloc(n * sizeof *x);
        assert_true(m->n < MODEL_MOST && x);
        kk_tensor_floats(from, 0, x, n);
        snprintf(m->names[m->n], KK_MAX_NAME, "%s", from->name);
        m->tensors[m->n] = (kk_tensor){.name = m->names[m->n],
                                       .dtype = KK_F32,
                                       .n_dims = from->n_dims,
                                       .data = {(uint8_t *)x, n * sizeof *x}};
        memcpy(m->tensors[m->n].dims, from->dims, sizeof from->dims);
    }
    kk_checkpoint_close(c);
    return m;
}

/* One of E2B's kind, of random numbers. */
static model_tensors *per_layer(void) {
    const kk_config c = small_ple();
    return model_make(&c, "", KK_F32);
}

/* Code, as the shipped model was trained on; the small one knows fewer tokens. */
static void prompt(int32_t out[PROMPT], int32_t vocab) {
    kk_map map;
    kk_safetensors s;
    assert_ok(kk_map_open(&map, KK_TEST_DATA "/parity/tiny-code/expect.safetensors", why));
    assert_ok(kk_safetensors_parse(&s, map.span, "expect", why));
    for (size_t i = 0; i < s.n; i++) {
        if (strcmp(s.tensors[i].name, "tokens") != 0) continue;
        assert_true(s.tensors[i].dtype == KK_I32 && kk_tensor_values(&s.tensors[i]) >= PROMPT);
        memcpy(out, s.tensors[i].data.base, PROMPT * sizeof *out);
    }
    for (int i = 0; i < PROMPT; i++) out[i] %= vocab;
    kk_safetensors_free(&s);
    kk_map_close(&map);
}

/* Writes the model twice: DIR/mlx, and DIR/float with what its codes mean. */
static void write_both(scratch *s, model_tensors *from, mlx_how how) {
    mlx_model *m = mlx_make(from, how);
    mkdir(scratch_path(s, "mlx"), 0700);
    mlx_write(s->path, m);
    mkdir(scratch_path(s, "float"), 0700);
    model_write(s->path, from);
    mlx_free(m);
    model_free(from);
}

static kk_engine *engine(scratch *s, const char *name, const char *isa, int32_t threads) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .model = scratch_path(s, name), .isa = isa, .threads = threads, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_session *prompted(kk_engine *e, kk_spec spec, size_t n) {
    int32_t tokens[PROMPT];
    kk_session *out = NULL;
    const kk_session_opts opts = {.ctx = 256,
                                  .spec = spec,
                                  .draft_max = spec == KK_SPEC_NGRAM ? 4 : 0,
                                  .draft_fixed = spec == KK_SPEC_NGRAM};
    kk_model_info info;
    kk_engine_info(e, &info);
    prompt(tokens, info.vocab);
    assert_ok(kk_session_new(&out, e, &opts, why));
    assert_ok(kk_session_append(out, tokens, n, NULL, NULL, why));
    return out;
}

/* The root of the mean square by which logits differ, after some tokens of the prompt, as a share
 * of that by which they differ from 0; the worst of several places. */
static double difference(scratch *s) {
    kk_engine *a = engine(s, "mlx", NULL, 2), *b = engine(s, "float", NULL, 2);
    kk_model_info info;
    double worst = 0;
    kk_engine_info(a, &info);
    for (size_t n = 1; n <= PROMPT; n += 21) {
        kk_session *x = prompted(a, KK_SPEC_NONE, n), *y = prompted(b, KK_SPEC_NONE, n);
        const float *have, *want;
        double off = 0, all = 0;
        assert_ok(kk_session_logits(x, &have, why));
        assert_ok(kk_session_logits(y, &want, why));
        for (int i = 0; i < info.vocab; i++) {
            off += pow((double)have[i] - (double)want[i], 2);
            all += pow((double)want[i], 2);
        }
        worst = sqrt(off / all) > worst ? sqrt(off / all) : worst;
        kk_session_free(x);
        kk_session_free(y);
    }
    kk_engine_close(a);
    kk_engine_close(b);
    return worst;
}

/* Every kind.  Random models multiply what rounding does: logits that have nothing to do with each
 * other differ by 1.4. */
static void logits_are_those_of_the_values(void **state) {
    static const kk_dtype planes[] = {KK_BF16, KK_F32, KK_F16, KK_BF16};
    for (int t = KK_MLX4_32; t <= KK_MLX8_64; t++)
        for (int random = 0; random < 2; random++) {
            const mlx_how how = {kk_affine_bits((kk_dtype)t), kk_dtype_get((kk_dtype)t)->values,
                                 planes[t - KK_MLX4_32], "language_model.model."};
            write_both(*state, random ? per_layer() : shipped(), how);
            const double d = difference(*state);
            print_message("%s, %s model: %.4f\n", kk_dtype_get((kk_dtype)t)->name,
                          random ? "random" : "shipped", d);
            assert_true(d <= (random ? 0.3 : 0.05));
        }
}

typedef struct {
    int32_t token[TOKENS];
    kk_result result;
} told;

static bool note(void *user, int32_t id) {
    told *t = user;
    t->token[t->result.n_tokens++] = id;
    return true;
}

static void tell(told *out, kk_engine *e, kk_spec spec, float temp) {
    kk_session *s = prompted(e, spec, PROMPT);
    const kk_generate_opts opts = {
        .max_tokens = TOKENS, .ignore_eos = true, .sampling = {.temp = temp, .seed = 9}};
    kk_result r;
    *out = (told){0};
    assert_ok(kk_generate(s, &opts, note, out, &r, why));
    out->result = r;
    kk_session_free(s);
}

static void assert_same(const told *a, const told *b) {
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_true(a->result.logits_hash == b->result.logits_hash);
}

/* Rows that come in a draft are the rows that come alone, in every kernel and by any threads. */
static void drafted_is_plain(void **state) {
    static const char *const isas[] = {"avx512", "avx2", "neon", "reference"};
    for (int t = KK_MLX4_64; t <= KK_MLX8_64; t += 2) {
        const mlx_how how = {kk_affine_bits((kk_dtype)t), 64, KK_BF16, "model."};
        write_both(*state, shipped(), how);
        told first[2], plain, drafted;
        int64_t accepted = 0, tried = 0;
        for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
            if (!kk_kernels_named(isas[i])) continue;
            kk_engine *e = engine(*state, "mlx", isas[i], 1 + (int32_t)i % 3);
            const bool fast = strcmp(isas[i], "reference") != 0;
            for (int hot = 0; hot < (fast ? 2 : 1); hot++) {
                tell(&plain, e, KK_SPEC_NONE, (float)hot);
                if (tried == 0) first[hot] = plain;
                assert_same(&plain, &first[hot]);
                if (!fast) continue;
                tell(&drafted, e, KK_SPEC_NGRAM, (float)hot);
                assert_same(&plain, &drafted);
                accepted += drafted.result.spec.accepted;
            }
            tried++;
            kk_engine_close(e);
        }
        assert_true(accepted > 0 || tried == 1);
    }
}

/* Weights are where the file is mapped: they are counted, and nothing is copied. */
static void nothing_is_copied(void **state) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_model_info info;
    write_both(*state, shipped(), (mlx_how){4, 64, KK_BF16, "model."});
    kk_engine *e = engine(*state, "mlx", NULL, 1);
    kk_engine_memory(e, bytes);
    assert_ok(kk_model_inspect(scratch_path(*state, "mlx"), &info, why));
    const int64_t vectors = bytes[KK_MEM_WEIGHTS_VERIFIER] - info.weight_bytes;
    assert_true(vectors >= 0 && vectors < info.weight_bytes / 8);
    kk_engine_close(e);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(logits_are_those_of_the_values),
        IN_FOLDER(drafted_is_plain),
        IN_FOLDER(nothing_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
