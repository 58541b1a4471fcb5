/* bench.h - how fast a model decodes and prefills here, beside how fast this machine reads.
 *
 * Memory bandwidth is measured in the same run, before and after; warm-up is on other tokens
 * than the ones timed; medians come with their spread.  The figures are of the engine as a
 * program uses it (kakeya.h), but for the rows of dense matrices and for attention, which time
 * one operation of the backend.
 *
 * Arms are ways to decode: plainly, or with someone who drafts.  They take turns on the same
 * prompts, and every one must give the tokens and logits of plain decoding.  What their rounds
 * should cost is measured apart from them, forward by forward, and stands beside what they did
 * cost.
 *
 * Policies are what layers keep of their rows: bench_policies.c. */
#ifndef KK_EVAL_BENCH_H
#define KK_EVAL_BENCH_H

#include "eval/measure/trace.h"
#include "eval/texts/subset.h"
#include "kakeya.h"

enum {
    KK_BENCH_ROWS = 16,
    KK_BENCH_ARMS = 4,
    KK_BENCH_SETS = 8,
    KK_BENCH_MAX_REPEAT = 64,
    KK_BENCH_CONTEXTS = 8,
    KK_BENCH_MOST_SESSIONS = 64,
    KK_BENCH_FIRST = 8,   /* rounds of a generation that count as its warm-up, and are kept each */
    KK_BENCH_LOGITS = 17, /* rows of a forward that may ask for them, unless the engine is told */
};

/* What layers keep of their rows: all; what their window leaves, and the rest is lost; or the rest
 * is rebuilt, in sliding layers, in full ones, in all. */
typedef enum {
    KK_BENCH_EXACT,
    KK_BENCH_WINDOW,
    KK_BENCH_RESTORED_SLIDING,
    KK_BENCH_RESTORED_FULL,
    KK_BENCH_RESTORED,
    KK_BENCH_WAYS
} kk_bench_way;
const char *kk_bench_way_name(kk_bench_way w); /* "exact", "restored-full", ... */

typedef struct {
    kk_engine_opts engine;
    kk_kv_format kv_format;
    int32_t ctx;                       /* tokens in the context when decoding begins */
    int32_t longer[KK_BENCH_CONTEXTS]; /* decoding is timed at these too, in ascending order */
    int32_t n_longer;
    int32_t predict; /* tokens decoded in each repeat */
    int32_t prefill; /* tokens of the timed prefill; 0: none */
    int32_t repeat;
    double read_s;               /* of each measurement of the bandwidth; 0: 1 second */
    int32_t rows[KK_BENCH_ROWS]; /* 1 first */
    int32_t n_rows;              /* 0: no rows are timed */

    kk_spec arms[KK_BENCH_ARMS]; /* KK_SPEC_NONE, which is plain decoding, first */
    int32_t n_arms;              /* 0: no arms are compared */
    const char *sets;            /* prompts: sets by name, with commas between; */
    const char *folder;          /*   where they lie; NULL: not found */
    const char *prompts;         /* or a JSONL file; or neither: random ids, ctx of them */
    int32_t samples;             /* prompts of each set that are timed, at most */
    kk_subset subset;            /* which of them, over all sets */
    int32_t arm_predict;         /* most tokens after each; 0: what the prompt says */
    int32_t draft_max, draft_ctx;
    bool draft_fixed;
    kk_trace_opts trace; /* of the dflash arm */
    bool attention;      /* compare attention over the K/V formats */

    int32_t sessions;         /* decode together at ctx, and alone; 0: none do */
    bool sampling;            /* compare ways to sample at ctx */
    bool ways[KK_BENCH_WAYS]; /* policies to compare at ctx; none: nothing is */
    bool ways_possible;       /* of these, what the engine's projection can do; else all or none */
    kk_session_opts keep;     /* sink, window, chunk and latents of them */
    /* Told what happens next; false stops the bench with KK_ESTOPPED.  May be NULL. */
    bool (*on_step)(void *user, const char *what);
    void *user;
} kk_bench_opts;

/* Of n measurements. */
typedef struct {
    double median, min, max;
    int32_t n;
} kk_bench_spread;

/* How long rounds took: of one generation, or of several, of which the first rounds are those of
 * the first one and the others are counted together. */
typedef struct {
    int64_t n;
    double first_ms[KK_BENCH_FIRST];
    int32_t n_first;
    double longest_ms, sum_ms;
    /* Of the rounds after the first eight of each generation: the mean, and the sum of squared
     * differences from it, in ms and ms^2. */
    int64_t n_steady;
    double steady_mean_ms, steady_squares;
} kk_bench_rounds;
/* Standard deviation over mean of the steady rounds; negative: there are fewer than two. */
double kk_bench_rounds_cv(const kk_bench_rounds *r);

typedef struct {
    int32_t rows;
    kk_bench_spread seconds;            /* of one pass */
    double sample[KK_BENCH_MAX_REPEAT]; /* that it is of, in turn */
    int32_t n_samples;                  /* 0: they are not kept */
    double ratio;                       /* to one row */
    double experts; /* distinct ones of a layer, on average; 0: the model has none */
    int64_t bytes;  /* of the weights it reads; 0: not known */
} kk_bench_pass;

/* Plain decoding at one length of context. */
typedef struct {
    int32_t ctx;
    kk_bench_spread tok_s;
    double rate[KK_BENCH_MAX_REPEAT]; /* in turn */
    double round_ms;
    double syncs, ahead;  /* per token: waits that left the device idle; rounds enqueued ahead */
    uint64_t logits_hash; /* of the last repeat */
    kk_bench_rounds turn[KK_BENCH_MAX_REPEAT], rounds; /* by repeat, and of all */
    kk_offload offload;                                /* its counts: of these tokens */
    int64_t tokens;                                    /* in all */
} kk_bench_decode;

/* One arm on one set.  Of the repeats of a prompt the one of median time counts. */
typedef struct {
    int64_t tokens;        /* that took a round: all but the first of each generation */
    double seconds;        /* of these rounds, the callback's commits included */
    double tok_s, speedup; /* over plain */
    kk_spec_stats spec;
    double accept_len;       /* tokens of a round: what it accepted and one more */
    double rows;             /* of a round's forward */
    double overhead;         /* share of the time that is no forward */
    double predicted_s;      /* from the costs, for the same rounds; 0: not known */
    double of_predicted;     /* rate over the predicted rate */
    int32_t best_draft;      /* with a trace: the length that the costs say is best for it, */
    double best_tok_s;       /* and the rate it should have; 0: not known */
    double floor_share;      /* plain: of the rate at which its weights can be read */
    int32_t runs, different; /* generations, and of them not as plain decoding */
    kk_bench_rounds rounds;
} kk_bench_arm;

/* One generation of an arm behind a prompt. */
typedef struct {
    double seconds;          /* of its rounds */
    uint64_t tokens, logits; /* hashes of what was generated, and of its logits */
} kk_bench_run_of;

/* One arm on one prompt. */
typedef struct {
    uint64_t prompt, text; /* hashes of its ids and of what they were made of */
    int32_t prompt_tokens, tokens;
    double seconds, seconds_min, seconds_max; /* of the repeats; the first is the median one's */
    double predicted_s; /* of the median one's rounds, from the costs measured beside this prompt */
    double prefill_s;
    kk_spec_stats spec;
    kk_bench_run_of run[KK_BENCH_MAX_REPEAT];
    int32_t runs;
    kk_bench_rounds rounds; /* of the median one */
} kk_bench_row;

typedef struct {
    char name[64];
    int32_t prompts;
    double prompt_tokens; /* on average */
    uint64_t warm_up;     /* hash of the prompt that warmed up */
    kk_bench_row *row;    /* [prompts, arms] */
    kk_bench_arm arm[KK_BENCH_ARMS];
    kk_bench_pass verify[KK_BENCH_ROWS]; /* a forward of so many rows with their logits */
    kk_bench_pass draft[KK_BENCH_ROWS];  /* a draft of so many tokens */
    int32_t n_verify, n_draft;
} kk_bench_set;

/* Attention of all layers for one row, over K/V stored so. */
typedef struct {
    kk_kv_format format;
    kk_bench_spread seconds;
    double sample[KK_BENCH_MAX_REPEAT]; /* that it is of, in turn */
    double ratio;                       /* to bf16 */
    int64_t kv_bytes;                   /* of the context */
    double kv_ratio;
} kk_bench_attention;

/* Tokens decoded behind a piece of text, at the same length of context in every turn. */
typedef struct {
    uint64_t prompt;  /* hash of the piece */
    int32_t tokens;   /* that took a round */
    double seconds;   /* of these rounds */
    double prefill_s; /* of the piece */
    int64_t rounds, drafted, accepted;
    kk_key_counts counts;              /* of these rounds */
    uint64_t tokens_hash, logits_hash; /* of what was generated, and of its logits */
    bool same;                         /* as plain decoding of the same policy */
    kk_bench_rounds times;
} kk_bench_turn;

/* One policy, decoding in one way. */
typedef struct {
    kk_bench_turn turn[KK_BENCH_MAX_REPEAT];
    int32_t n; /* 0: it was not timed */
    int64_t tokens;
    double seconds, tok_s;
    kk_bench_spread ms; /* per token, of turns */
    kk_spec_stats spec;
    double accept_len; /* tokens of a round */
    double speedup;    /* over plain decoding of the same policy */
    kk_key_counts counts;
    double rows_per_token;            /* pairs of layer and position that were rebuilt */
    double stored_keys, rebuilt_keys; /* that a query read */
    int32_t different;                /* turns unlike plain decoding */
    kk_bench_rounds times;
} kk_bench_turns;

typedef struct {
    kk_bench_way way;
    kk_session_opts how; /* with the defaults filled in */
    kk_bench_turns plain, dflash;
    double ratio; /* plain time of a token to that of exact */
    kk_bench_spread prefill_tok_s;
    double prefill_rate[2];           /* that it is of */
    int64_t bytes[KK_MEM_CATEGORIES]; /* with one such session, and no other */
} kk_bench_policy;

/* Decoding with one set of options. */
enum { KK_BENCH_SAMPLINGS = 8 };
typedef struct {
    const char *name;
    kk_bench_spread tok_s;
    double rate[KK_BENCH_MAX_REPEAT]; /* in turn */
    double of_greedy;                 /* its median over that of greedy decoding */
    double ahead;                     /* rounds enqueued ahead, per token */
    uint64_t logits_hash;             /* of the last repeat */
} kk_bench_sampling;

/* All sessions once, one after the other or together. */
typedef struct {
    int64_t tokens;    /* that took a round */
    double seconds;    /* wall time */
    int32_t different; /* sessions whose logits were others than before */
} kk_bench_turns_of;

typedef struct {
    int32_t n, turns; /* sessions, 0: none were compared; and how often */
    kk_bench_turns_of alone[KK_BENCH_MAX_REPEAT], together[KK_BENCH_MAX_REPEAT];
    kk_bench_turns_of all_alone, all_together;
    double ratio;              /* rate together over rate alone */
    int64_t rounds, in_rounds; /* forwards together, and sessions in them, summed */
    uint64_t alone_hash[KK_BENCH_MOST_SESSIONS], together_hash[KK_BENCH_MOST_SESSIONS];
    /* A prompt that is read beside a session that decodes. */
    int32_t arriving;
    double prefill_alone_s, prefill_beside_s;
    int64_t chunks;
    kk_bench_spread gap; /* seconds between tokens meanwhile */
    double *gaps;        /* [gap.n]: that it is of, in turn */
    /* Logits of the session that decodes, and those behind the prompt. */
    uint64_t arrival_alone[2], arrival_beside[2];
} kk_bench_sessions;
bool kk_bench_sessions_same(const kk_bench_sessions *s); /* everybody always did */

typedef struct {
    kk_machine machine;
    kk_model_info model;
    kk_drafter_info drafter;     /* layers 0: none */
    kk_projection_info restores; /* rank 0: none */
    kk_device_info device;
    kk_fingerprints prints;
    double bandwidth_before, bandwidth_after; /* bytes per second */
    int64_t token_bytes; /* weights that the device reads for a token, as it keeps them */
    double bandwidth;    /* the larger, which shares are of */
    double load_s;
    double copy_s;                             /* of it: the device's copy of the weights */
    kk_bench_decode decode;                    /* at ctx */
    kk_bench_decode longer[KK_BENCH_CONTEXTS]; /* as many as asked for */
    kk_bench_spread prefill_tok_s;             /* n 0: not timed */
    double prefill_rate[KK_BENCH_MAX_REPEAT];  /* in turn */
    double decode_bytes_s;                     /* weights read while decoding */
    double decode_share;                       /* of the bandwidth */
    double floor_share;                        /* of floor_bytes_s */
    /* A forward of so many rows: of the whole model, its experts included, and of dense q4_0
     * matrices larger than any cache. */
    kk_bench_pass whole[KK_BENCH_ROWS], dense[KK_BENCH_ROWS];
    int32_t n_whole, n_dense;
    int64_t dense_bytes;
    double floor_bytes_s; /* read rate of a buffer as large as the weights of a token */
    kk_bench_set set[KK_BENCH_SETS], all;
    int32_t n_sets; /* 0: no arms were compared */
    kk_bench_attention attention[KK_KV_FORMATS];
    int32_t n_attention;
    kk_bench_sessions sessions;
    kk_bench_sampling sampling[KK_BENCH_SAMPLINGS]; /* greedy decoding first */
    int32_t n_sampling;                             /* 0: nothing was compared */
    kk_bench_policy policy[KK_BENCH_WAYS];
    int32_t n_policies;        /* 0: none were compared */
    char policy_text[64];      /* where the text came from */
    int32_t policy_piece;      /* tokens of a turn's own text */
    uint64_t policy_warm_up;   /* hash of the piece that warmed up */
    struct json_t *projection; /* kk_report_projection */
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_fused fused;                            /* in plain decoding */
    int64_t device_total, device_over_weights; /* of a device's own memory; total 0: it has none */
    int64_t resident_over_weights; /* anonymous memory of the process, less weights; -1: unknown */
} kk_bench_result;

/* What a synthetic model would be, without making it. */
kk_status kk_bench_inspect(const char *synthetic, kk_model_info *out, kk_err *err);

/* On failure *out holds nothing; otherwise release it. */
kk_status kk_bench_run(const kk_bench_opts *opts, kk_bench_result *out, kk_err *err);
void kk_bench_release(kk_bench_result *r);

/* The result with its settings, machine, commit and date as one JSON object, NULL without memory;
 * and the same written.  command is what was typed; NULL: not known. */
struct json_t *kk_bench_report(const kk_bench_opts *opts, const kk_bench_result *r,
                               const char *command);
kk_status kk_bench_write(kk_writer *to, const kk_bench_opts *opts, const kk_bench_result *r,
                         const char *command, kk_err *err);

#endif
