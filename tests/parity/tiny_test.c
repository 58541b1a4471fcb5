/* tiny_test.c - the shipped model, models/tiny, computed by the engine as transformers does.
 *
 * Random weights show a wrong formula; only trained ones show whether text comes out right past
 * several windows, whether the loss on code nobody trained on is the one of the card, and
 * whether chats end.  The figures are printed, and models/tiny/README.md quotes them.
 *
 * Where a row costs many times as much (sanitizers, valgrind, no optimisation), fewer windows and
 * chats are looked at; the printed lines say how many. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdio.h>

#include "support/numbers.h"
#include "support/slow.h"
#include "support/tiny.h"
#include "support/tokens.h"

#define TINY KK_MODELS "/tiny"

enum { VOCAB = 4096, HIDDEN = 256, LAYERS = 12, CHUNK = 256, TURN_CLOSE = 106 };

static kk_engine *open_model(const char *path) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .model = path, .max_rows = CHUNK, .max_logits = CHUNK, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    assert_int_equal(kk_engine_config(e)->vocab, VOCAB);
    assert_int_equal(kk_engine_config(e)->hidden, HIDDEN);
    assert_int_equal(kk_engine_config(e)->n_layer, LAYERS);
    return e;
}

static kk_engine *shipped;

static int open_shipped(void **state) {
    (void)state;
    shipped = open_model(TINY "/verifier");
    return 0;
}

static int close_shipped(void **state) {
    (void)state;
    kk_engine_close(shipped);
    return 0;
}

/* ---- reference files ----------------------------------------------------------------------- */

/* The library has no use for 64-bit floats and leaves them out of the list, so they are found by
 * the header itself. */
static void take_doubles(const numbers *x, const char *name, double *out, size_t n) {
    uint64_t header;
    memcpy(&header, x->map.span.base, sizeof header);
    json_t *all = json_loadb((const char *)x->map.span.base + 8, header, 0, NULL);
    json_t *t = json_object_get(all, name);
    assert_string_equal(json_string_value(json_object_get(t, "dtype")), "F64");
    json_t *at = json_object_get(t, "data_offsets");
    const json_int_t from = json_integer_value(json_array_get(at, 0));
    assert_int_equal(json_integer_value(json_array_get(at, 1)) - from, n * sizeof *out);
    memcpy(out, x->map.span.base + 8 + header + from, n * sizeof *out);
    json_decref(all);
}

/* ---- feeding ------------------------------------------------------------------------------- */

/* What becomes of a row: its logits, and where its taps begin (the next tap is `stride` on). */
typedef void (*on_row)(void *user, int32_t position, const float *logits, const float *taps,
                       size_t stride);

/* Feeds n tokens in pieces, past the session and straight to the model, which alone gives the
 * logits of every row and the layers between. */
static void feed(kk_engine *e, const int32_t *tokens, int32_t n, int32_t piece,
                 const int32_t *tap_layers, int32_t n_taps, on_row row, void *user) {
    kk_session *s = tiny_session(e, n, KK_KV_F32);
    float *taps = malloc(((size_t)n_taps * CHUNK * HIDDEN + 1) * sizeof *taps), logits[VOCAB];
    for (int32_t at = 0; at < n; at += piece) {
        const int32_t rows = n - at < piece ? n - at : piece;
        const kk_gemma4_group group = {s->cache, s->layout, tokens + at, rows, .n_logits = rows};
        const kk_gemma4_forward_args args = {.groups = &group,
                                             .n_groups = 1,
                                             .tap_layers = tap_layers,
                                             .n_taps = n_taps,
                                             .tap_out = taps};
        assert_ok(kk_cache_reserve(s->cache, rows, why));
        assert_ok(kk_gemma4_forward(e->model, &args, why));
        kk_cache_commit(s->cache, at + rows);
        for (int32_t i = 0; i < rows; i++) {
            assert_ok(kk_gemma4_logits(e->model, i, logits, why));
            row(user, at + i, logits, taps + (size_t)i * HIDDEN, (size_t)rows * HIDDEN);
        }
    }
    free(taps);
    kk_session_free(s);
}

/* ---- three prompts ------------------------------------------------------------------------- */

/* hidden.N is the output of layer N - 1, hidden.0 the scaled embedding, and the last one is taken
 * after the final norm. */
static const int32_t hidden_of[] = {0, 2, 5, 6, 11, 12};
static const int32_t tap_of[] = {-1, 1, 4, 5, 10, LAYERS};
enum { TAPS = sizeof tap_of / sizeof *tap_of };

/* The chosen rows of one prompt, as computed. */
typedef struct {
    const int32_t *rows;
    int32_t n, found;
    float *logits;       /* [n][VOCAB] */
    float *hidden[TAPS]; /* [n][HIDDEN] each */
} picture;

static picture new_picture(const int32_t *rows, int32_t n) {
    picture p = {.rows = rows, .n = n, .logits = calloc((size_t)n * VOCAB, sizeof(float))};
    for (int t = 0; t < TAPS; t++) p.hidden[t] = calloc((size_t)n * HIDDEN, sizeof(float));
    return p;
}

static void free_picture(picture *p) {
    free(p->logits);
    for (int t = 0; t < TAPS; t++) free(p->hidden[t]);
}

static void keep_row(void *user, int32_t position, const float *logits, const float *taps,
                     size_t stride) {
    picture *p = user;
    if (p->found == p->n || p->rows[p->found] != position) return;
    memcpy(p->logits + (size_t)p->found * VOCAB, logits, VOCAB * sizeof *logits);
    for (size_t t = 0; t < TAPS; t++)
        memcpy(p->hidden[t] + (size_t)p->found * HIDDEN, taps + t * stride, HIDDEN * sizeof *taps);
    p->found++;
}

static void compare(const char *name, const numbers *x, const picture *p) {
    distance logits = {0}, hidden = {0};
    float *want = take(x, "logits", KK_F32, p->n, VOCAB);
    widen(&logits, p->logits, want, (size_t)p->n * VOCAB);
    free(want);
    for (int t = 0; t < TAPS; t++) {
        char tensor[24];
        snprintf(tensor, sizeof tensor, "hidden.%d", hidden_of[t]);
        want = take(x, tensor, KK_F32, p->n, HIDDEN);
        widen(&hidden, p->hidden[t], want, (size_t)p->n * HIDDEN);
        free(want);
    }
    print_message("%s: logits within %.1e (of %.1f), hidden states within %.1e (of %.1f)\n", name,
                  logits.gap, logits.largest, hidden.gap, hidden.largest);
    assert_true(logits.gap <= 2e-4);
    assert_true(hidden.gap <= 5e-4);
}

static void assert_same_picture(const picture *a, const picture *b) {
    assert_memory_equal(a->logits, b->logits, (size_t)a->n * VOCAB * sizeof(float));
    for (int t = 0; t < TAPS; t++)
        assert_memory_equal(a->hidden[t], b->hidden[t], (size_t)a->n * HIDDEN * sizeof(float));
}

/* The session's own way through the same prompt: its last logits are those of the picture, and
 * what it says next is what transformers says. */
static void compare_greedy(const numbers *x, const int32_t *tokens, int32_t n, const float *last) {
    const int32_t n_greedy = length(x, "greedy");
    int32_t *want = take(x, "greedy", KK_I32, 0, 0);
    kk_session *s = tiny_session(shipped, n + n_greedy, KK_KV_F32);
    const float *logits;
    const kk_generate_opts how = {.max_tokens = n_greedy, .ignore_eos = true};
    assert_int_equal(n_greedy, 32);
    tiny_append(s, tokens, n);
    assert_ok(kk_session_logits(s, &logits, why));
    assert_memory_equal(logits, last, VOCAB * sizeof *logits);
    assert_ok(kk_generate(s, &how, NULL, NULL, NULL, why));
    assert_int_equal(kk_session_len(s), n + n_greedy);
    assert_memory_equal(kk_session_tokens(s) + n, want, (size_t)n_greedy * sizeof *want);
    kk_session_free(s);
    free(want);
}

static void prompts_agree_with_transformers(void **state) {
    (void)state;
    static const char *const names[] = {"tiny-code", "tiny-needle", "tiny-chat"};
    for (int i = 0; i < 3; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/parity/%s/expect.safetensors", KK_TEST_DATA, names[i]);
        numbers x = open_numbers(path);
        const int32_t n = length(&x, "tokens"), n_rows = length(&x, "rows");
        int32_t *tokens = take(&x, "tokens", KK_I32, 0, 0), *rows = take(&x, "rows", KK_I32, 0, 0);
        picture whole = new_picture(rows, n_rows), pieces = new_picture(rows, n_rows);
        assert_true(n > 2 * kk_engine_config(shipped)->window);
        assert_int_equal(rows[n_rows - 1], n - 1);
        feed(shipped, tokens, n, CHUNK, tap_of, TAPS, keep_row, &whole);
        feed(shipped, tokens, n, 37, tap_of, TAPS, keep_row, &pieces);
        assert_int_equal(whole.found, n_rows);
        compare(names[i], &x, &whole);
        assert_same_picture(&whole, &pieces);
        compare_greedy(&x, tokens, n, whole.logits + (size_t)(n_rows - 1) * VOCAB);
        free_picture(&whole);
        free_picture(&pieces);
        free(tokens);
        free(rows);
        close_numbers(&x);
    }
}

/* ---- loss on code -------------------------------------------------------------------------- */

enum { WIDTH = 1024, ALL_WINDOWS = 16 };

typedef struct {
    const int32_t *tokens; /* of this window */
    double nats;
} loss;

static void add_row(void *user, int32_t position, const float *logits, const float *taps,
                    size_t stride) {
    (void)taps;
    (void)stride;
    loss *l = user;
    if (position == WIDTH - 1) return;
    double sum = 0; /* the soft-cap keeps logits within 30: nothing overflows */
    for (int i = 0; i < VOCAB; i++) sum += exp((double)logits[i]);
    l->nats += log(sum) - (double)logits[l->tokens[position + 1]];
}

static double window_loss(kk_engine *e, const int32_t *tokens) {
    loss l = {tokens, 0};
    feed(e, tokens, WIDTH, CHUNK, NULL, 0, add_row, &l);
    return l.nats;
}

static numbers open_windows(int32_t **tokens, double nats[ALL_WINDOWS]) {
    numbers x = open_numbers(KK_TEST_DATA "/tiny/code-loss.safetensors");
    *tokens = take(&x, "tokens", KK_I32, ALL_WINDOWS, WIDTH);
    take_doubles(&x, "nats", nats, ALL_WINDOWS);
    return x;
}

static void code_loss_agrees_with_transformers(void **state) {
    (void)state;
    int32_t *tokens;
    double want[ALL_WINDOWS], ours = 0, theirs = 0, bits = 0, furthest = 0;
    numbers x = open_windows(&tokens, want);
    const int windows = slow() ? 2 : ALL_WINDOWS;
    int32_t *sizes = take(&x, "bytes", KK_I32, ALL_WINDOWS, 0);
    for (int i = 0; i < windows; i++) {
        const double got = window_loss(shipped, tokens + (size_t)i * WIDTH);
        ours += got;
        theirs += want[i];
        bits += sizes[i] * log(2);
        if (!(fabs(got - want[i]) <= furthest)) furthest = fabs(got - want[i]);
    }
    print_message("code, %d windows: %.6f bits a byte, transformers %.6f; %.5f nats a token; "
                  "windows of 1,023 tokens within %.1e nats\n",
                  windows, ours / bits, theirs / bits, ours / (windows * (WIDTH - 1)), furthest);
    assert_true(fabs(ours - theirs) / bits < 5e-5);
    /* Errors of either sign cancel in the sum; a window off by one moves one of these by 0.2. */
    assert_true(furthest < 5e-3);
    free(sizes);
    free(tokens);
    close_numbers(&x);
}

/* ---- chats --------------------------------------------------------------------------------- */

static bool ends_with_turn(const int32_t *ids, int32_t n, int32_t most) {
    kk_session *s = tiny_session(shipped, n + most, KK_KV_BF16);
    const kk_generate_opts how = {.max_tokens = most};
    kk_result r;
    tiny_append(s, ids, n);
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    const bool ended = r.stop == KK_STOP_EOS && s->tokens[s->len - 1] == TURN_CLOSE;
    kk_session_free(s);
    return ended;
}

static void chats_end_with_the_turn(void **state) {
    (void)state;
    size_t len;
    const int wanted = slow() ? 8 : 50;
    int chats = 0, ended = 0;
    char *text = data_read("tiny/prompts.jsonl", &len), *at = text;
    for (json_t *line; chats < wanted && (line = next_line(&at)); json_decref(line)) {
        if (strcmp(json_string_value(json_object_get(line, "kind")), "chat") != 0) continue;
        int32_t ids[1024];
        const json_t *list = json_object_get(line, "ids");
        const size_t n = json_array_size(list);
        assert_in_range(n, 1, 1024);
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        const json_int_t most = json_integer_value(json_object_get(line, "new"));
        ended += ends_with_turn(ids, (int32_t)n, (int32_t)most);
        chats++;
    }
    print_message("chats that end with the turn token: %d of %d\n", ended, chats);
    assert_int_equal(chats, wanted);
    assert_true(ended >= 0.95 * chats);
    free(text);
}

/* ---- files --------------------------------------------------------------------------------- */

static int64_t folder_bytes(const char *folder, int64_t most) {
    int64_t sum = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        struct stat st;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(stat(path, &st), 0);
        if (st.st_size >= most) fail_msg("%s has %lld bytes", path, (long long)st.st_size);
        sum += st.st_size;
    }
    closedir(d);
    return sum;
}

static void the_pair_is_small(void **state) {
    (void)state;
    const int64_t verifier = folder_bytes(TINY "/verifier", 15000000);
    const int64_t drafter = folder_bytes(TINY "/drafter", 15000000);
    assert_true(verifier > 1000000 && drafter > 1000000);
    assert_true(verifier + drafter < 26000000);
}

static const char question[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}],"
    "\"add_generation_prompt\":true}";

/* The answer of a model to the question, stop token included. */
static int32_t answer(kk_engine *e, int32_t out[64], kk_result *r) {
    int32_t *ids;
    size_t n;
    const kk_generate_opts how = {.max_tokens = 64};
    assert_ok(kk_chat_encode(kk_engine_tokenizer(e), question, strlen(question), &ids, &n, why));
    kk_session *s = tiny_session(e, (int32_t)n + 64, KK_KV_BF16);
    tiny_append(s, ids, (int32_t)n);
    assert_ok(kk_generate(s, &how, NULL, NULL, r, why));
    memcpy(out, s->tokens + n, (size_t)r->n_tokens * sizeof *out);
    kk_session_free(s);
    kk_free(ids);
    return r->n_tokens;
}

static void assert_text(kk_engine *e, const int32_t *ids, int32_t n, const char *want) {
    char *text;
    size_t len;
    assert_ok(kk_decode(kk_engine_tokenizer(e), ids, (size_t)n, false, &text, &len, why));
    assert_string_equal(text, want);
    kk_free(text);
}

static void a_bf16_file_is_the_folder(void **state) {
    const char *path = scratch_path(*state, "tiny-bf16.gguf");
    int32_t ours[64], theirs[64];
    kk_result a, b;
    assert_ok(kk_quantize(TINY "/verifier", path, "bf16", NULL, NULL, why));
    kk_engine *e = open_model(path);
    const int32_t n = answer(shipped, ours, &a);
    assert_int_equal(answer(e, theirs, &b), n);
    assert_memory_equal(ours, theirs, (size_t)n * sizeof *ours);
    assert_true(a.logits_hash == b.logits_hash); /* every row's bits */
    assert_text(e, theirs, n, "The capital of France is Paris.");
    kk_engine_close(e);
}

/* Eight bits cost little: the same answer, and code predicted as well to within half a percent. */
static void a_q8_0_file_predicts_as_well(void **state) {
    const char *path = scratch_path(*state, "tiny-q8_0.gguf");
    int32_t ids[64], *tokens;
    double want[ALL_WINDOWS];
    kk_result r;
    kk_model_info info;
    assert_ok(kk_quantize(TINY "/verifier", path, "q8_0", NULL, NULL, why));
    kk_engine *e = open_model(path);
    kk_engine_info(e, &info);
    assert_string_equal(info.weight_type, "q8_0");
    const int32_t n = answer(e, ids, &r);
    assert_int_equal(r.stop, KK_STOP_EOS);
    assert_text(e, ids, n, "The capital of France is Paris.");
    numbers x = open_windows(&tokens, want);
    const double got = window_loss(e, tokens);
    print_message("q8_0: %.4f nats a token, transformers in float32 %.4f\n", got / (WIDTH - 1),
                  want[0] / (WIDTH - 1));
    assert_true(fabs(got - want[0]) < 0.005 * want[0]);
    free(tokens);
    close_numbers(&x);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_agree_with_transformers),
        cmocka_unit_test(code_loss_agrees_with_transformers),
        cmocka_unit_test(chats_end_with_the_turn),
        cmocka_unit_test(the_pair_is_small),
        cmocka_unit_test_setup_teardown(a_bf16_file_is_the_folder, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_q8_0_file_predicts_as_well, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests_name("tiny", tests, open_shipped, close_shipped);
}
