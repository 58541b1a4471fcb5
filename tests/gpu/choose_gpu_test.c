/* choose_gpu_test.c - choices of the GPU against the sampler, from the same logits: tokens, digests
 * and log-probabilities to the bit, for 1 to 16 rows, all kinds of rows and options; and how long
 * they take.
 *
 * choose_gpu_test [ROUNDS]: of each vocabulary (80).  The exit status is 1 when one differs. */
#include <stdio.h>

#include "support/choose_cases.h"

static int failed;

static void check_vocab(choose_world *w, int32_t vocab, uint32_t rounds) {
    kk_err err = {0};
    uint32_t k = 0;
    if (!cc_open(w, vocab, &err)) {
        printf("FAIL  vocabulary %d: %s\n", vocab, err.msg);
        exit(1);
    }
    while (k < rounds && cc_round(w, k % (CC_KINDS + 1))) k++;
    if (k < rounds) failed++;
    printf("%s  vocabulary %d: %u of %u rounds%s%s\n", k < rounds ? "FAIL" : "ok  ", vocab, k,
           rounds, k < rounds ? ": " : "", k < rounds ? w->what : "");
    fflush(stdout);
    cc_close(w);
}

/* The same choice again and again, enqueued ahead; seconds of each by the device's clock. */
static double time_choice(choose_world *w, const kk_choose_args *a) {
    enum { TIMES = 40 };
    kk_err err = {0};
    kk_pick pick[CC_ROWS];
    int64_t ticket;
    double best = 1, seconds;
    for (int i = 0; i < TIMES; i++) {
        if (w->be->choose(w->dev, a, &ticket, &err) != KK_OK ||
            w->be->picked(w->dev, ticket, pick, a->n_rows, &seconds, &err) != KK_OK) {
            printf("FAIL  %s\n", err.msg);
            exit(1);
        }
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void show_times(choose_world *w, int32_t vocab) {
    static const struct {
        const char *name;
        kk_sampling how;
        bool logprobs;
    } ways[] = {
        {"greedy", {0}, false},
        {"temp 0.8", {.temp = 0.8f}, false},
        {"temp 0.8, top-k 40", {.temp = 0.8f, .top_k = 40}, false},
        {"temp 0.8, top-p 0.95", {.temp = 0.8f, .top_p = 0.95f}, false},
        {"temp 0.8, top-k 40, top-p 0.95", {.temp = 0.8f, .top_k = 40, .top_p = 0.95f}, false},
        {"temp 0.8, min-p 0.05", {.temp = 0.8f, .min_p = 0.05f}, false},
        {"greedy, repeat 1.1", {.repeat_penalty = 1.1f}, false},
        {"temp 1, all penalties, all tokens",
         {.temp = 1, .repeat_penalty = 1.1f, .frequency_penalty = 0.1f, .penalty_last_n = -1},
         false},
        {"temp 0.8, 20 logprobs", {.temp = 0.8f}, true},
    };
    kk_err err = {0};
    if (!cc_open(w, vocab, &err)) exit(1);
    for (uint32_t kind = 0; kind < 3; kind++) {
        for (int32_t r = 0; r < CC_ROWS; r++)
            cc_fill(w, w->logits + (size_t)r * (size_t)vocab, kind);
        if (w->be->write(w->dev, w->x, 0, w->logits, (size_t)CC_ROWS * (size_t)vocab * 4, &err))
            exit(1);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            double us[3];
            for (int32_t k = 0, n = 1; k < 3; k++, n *= 4) {
                for (int32_t r = 0; r < n; r++)
                    w->row[r] = (kk_choose_row){.how = ways[i].how,
                                                .history = w->history,
                                                .n_history = CC_HISTORY,
                                                .logprobs = ways[i].logprobs,
                                                .n_best = ways[i].logprobs ? 20 : 0};
                const kk_choose_args a = {.token = w->token,
                                          .x = w->x,
                                          .n_rows = n,
                                          .dim = vocab,
                                          .row = w->row,
                                          .pending = w->pending};
                us[k] = 1e6 * time_choice(w, &a);
            }
            printf("      rows of kind %u, %-34s 1, 4, 16 rows: %6.1f %6.1f %6.1f us\n", kind,
                   ways[i].name, us[0], us[1], us[2]);
        }
    }
    fflush(stdout);
    cc_close(w);
}

int main(int argc, char **argv) {
    static const int32_t vocabs[] = {1, 31, 32, 33, 4096, 32000, 262144, 300000};
    const uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 80;
    kk_mem mem = {0};
    kk_err err = {0};
    choose_world w = {.mem = &mem, .random = 5};
    if (kk_backend_find(&w.be, "cuda", &err) != KK_OK) {
        printf("FAIL  %s\n", err.msg);
        return 1;
    }
    const kk_dev_opts how = {.mem = &mem, .max_rows = CC_ROWS};
    if (w.be->open(&w.dev, &how, &err) != KK_OK) {
        printf("FAIL  %s\n", err.msg);
        return 1;
    }
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++)
        check_vocab(&w, vocabs[i], vocabs[i] > 100000 ? rounds / 4 : rounds);
    show_times(&w, 262144);
    w.be->close(w.dev);
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
