/* kakeya.h - the public API, and the only header a program includes.
 *
 * An engine is a device, its threads and one model: read-only after open, shared by its
 * sessions.  A session is one token timeline with its K/V cache; use one session from one
 * thread at a time, and as many sessions from as many threads as you like: those that generate at
 * the same time share forward passes, and each gets the tokens and logits it would get alone.
 *
 * Every call that can fail returns a kk_status and, when err is not NULL, says why in it,
 * naming the value that was wrong.  A failed call leaves its object as it was.  The library
 * never prints, exits or reads the environment.
 *
 * Options are structs whose zero value is the default: use designated initialisers. */
#ifndef KAKEYA_H
#define KAKEYA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KK_API __attribute__((visibility("default")))
#else
#define KK_API
#endif

#define KK_VERSION "0.1.0"

/* ---- failure ---------------------------------------------------------------------------- */

typedef enum {
    KK_OK = 0,
    KK_EINVAL,   /* an argument is wrong */
    KK_EIO,      /* a file could not be opened, read or written */
    KK_EFORMAT,  /* a file is not what it should be */
    KK_ENOMEM,   /* out of memory, or over the engine's memory limit */
    KK_ECONTEXT, /* the tokens do not fit the session's context */
    KK_EDEVICE,  /* the device failed, or is not usable here */
    KK_ESTOPPED, /* a callback asked to stop */
    KK_EEXIST,   /* a file to be written is there already */
    KK_EBUSY,    /* a file to be written is being written by another */
    KK_ENUMERIC, /* logits are not finite: NaN or infinite; the message names the first layer */
} kk_status;

typedef struct {
    kk_status code;
    char msg[240]; /* an option that would help stands in backquotes: "raise `ctx`" */
} kk_err;

KK_API const char *kk_status_name(kk_status st);
KK_API const char *kk_version(void); /* "0.1.0", with the commit where one is known */

/* ---- tokenizer and chat ----------------------------------------------------------------- */

typedef struct kk_tokenizer kk_tokenizer;
/* path: a folder with tokenizer.json, a tokenizer.json, or a GGUF file. */
KK_API kk_status kk_tokenizer_open(kk_tokenizer **out, const char *path, kk_err *err);
KK_API void kk_tokenizer_close(kk_tokenizer *tok); /* NULL is fine */
KK_API int32_t kk_tokenizer_size(const kk_tokenizer *tok);
/* The id of a special token by its text, such as "<bos>"; -1 when there is none. */
KK_API int32_t kk_tokenizer_special(const kk_tokenizer *tok, const char *text);

enum {
    KK_ENCODE_BOS = 1,     /* put <bos> first, unless the text already starts with one */
    KK_ENCODE_SPECIAL = 2, /* special strings in the text become special tokens */
};
/* Encodes text; bytes that are not UTF-8 become byte tokens.  Release *ids with kk_free. */
KK_API kk_status kk_encode(const kk_tokenizer *tok, const char *text, size_t len, unsigned flags,
                           int32_t **ids, size_t *n, kk_err *err);
/* Decodes ids to bytes, NUL-terminated, released with kk_free.  Special tokens are written as
 * their text when show_special is set and left out otherwise.  Any bytes survive an encode and a
 * decode, UTF-8 or not; only U+2581, which the vocabulary uses for a space, comes back as one. */
KK_API kk_status kk_decode(const kk_tokenizer *tok, const int32_t *ids, size_t n, bool show_special,
                           char **text, size_t *len, kk_err *err);
/* The least tokens that so many bytes can become: what cannot fit is refused unencoded. */
KK_API size_t kk_encode_least(const kk_tokenizer *tok, size_t len);
KK_API void kk_free(void *p); /* what kk_encode, kk_decode, kk_chat_* and kk_*_json returned */

/* Renders a conversation in Gemma 4's format.  json: an object with "messages" and, each
 * optional, "tools", "enable_thinking", "add_generation_prompt" (false when absent), in the
 * shapes the OpenAI API uses; content is text.  *text starts with <bos> (kk_free). */
KK_API kk_status kk_chat_render(const char *json, size_t json_len, char **text, size_t *len,
                                kk_err *err);
/* The same conversation as ids.  Only what the format itself writes becomes special tokens:
 * special strings inside the messages are encoded as plain text. */
KK_API kk_status kk_chat_encode(const kk_tokenizer *tok, const char *json, size_t json_len,
                                int32_t **ids, size_t *n, kk_err *err);

/* An answer taken apart as it comes: text, thoughts and tool calls, without the format's marks.
 * Push what the model writes by tokens, or as text, in which what spells a mark is one; wherever it
 * is cut, the same parts come out.  Half characters and starts of stop texts are held back. */
typedef struct kk_answer kk_answer;
typedef enum { KK_ANSWER_TEXT, KK_ANSWER_THOUGHT, KK_ANSWER_CALL } kk_answer_kind;
typedef struct {
    kk_answer_kind kind;
    int32_t part;     /* 0, 1, ...: spans with one number are one part.  A call is one span */
    const char *text; /* what is added to the part; of a call: all of it, as the model wrote it */
    size_t len;
    const char *name, *arguments; /* a call's function and JSON object; NULL: not complete */
} kk_answer_span;
typedef struct {
    const kk_tokenizer *tok;  /* NULL: only text will be pushed */
    bool raw;                 /* do not take it apart: all is text, special tokens left out */
    const char *const *stops; /* the first of these in a part of text ends the answer before it */
    size_t n_stops;
} kk_answer_opts;
KK_API kk_status kk_answer_new(kk_answer **out, const kk_answer_opts *opts, kk_err *err);
KK_API void kk_answer_free(kk_answer *a); /* NULL is fine */
/* spans[0, n) are borrowed until the next call on a. */
KK_API kk_status kk_answer_push(kk_answer *a, int32_t id, const kk_answer_span **spans, size_t *n,
                                kk_err *err);
KK_API kk_status kk_answer_push_text(kk_answer *a, const char *text, size_t len,
                                     const kk_answer_span **spans, size_t *n, kk_err *err);
KK_API kk_status kk_answer_finish(kk_answer *a, const kk_answer_span **spans, size_t *n,
                                  kk_err *err);
/* A stop text has come: what is pushed after it is ignored, and kk_on_token should return false. */
KK_API bool kk_answer_stopped(const kk_answer *a);

/* ---- engine ----------------------------------------------------------------------------- */

typedef struct kk_engine kk_engine;
/* How K/V rows are stored.  q8, q4, s8: 8.5, 4.5, 8.25 bits per value; "cuda" has no s8. */
typedef enum { KK_KV_BF16, KK_KV_F32, KK_KV_Q8, KK_KV_Q4, KK_KV_S8, KK_KV_FORMATS } kk_kv_format;
KK_API const char *kk_kv_format_name(kk_kv_format f); /* "bf16", ...; NULL: there is none */
KK_API bool kk_kv_format_named(const char *name, kk_kv_format *out); /* false: there is none */

typedef struct {
    const char *model;             /* Hugging Face folder or GGUF file */
    const char *synthetic;         /* instead of model: "26b-a4b:q4_0[:layers]", random weights */
    const char *drafter;           /* DFlash folder or GGUF; "synthetic" beside such a model */
    const char *draft_type;        /* "q8_0", "q4_0", "file"; NULL: q8_0, on a GPU file */
    const char *draft_embed_scale; /* "1", "once", "twice"; NULL: as the drafter says */
    const char *draft_vocab;       /* its short head: FILE[:N] of counts, N ids; "full": none */
    bool draft_bidirectional;      /* sliding layers of the drafter see their whole block */
    const char *projection;        /* its folder; "synthetic:RANK" beside a synthetic; NULL: none */
    const char *projection_type;   /* type of its decoders: "q8_0", "file"; NULL: q8_0 */
    const char *device;            /* "cpu", "cuda", "mlx"; NULL: the fastest of the first two */
    const char *isa;               /* "avx512", "avx2", "neon", "reference"; a GPU's: "sm_86" */
    int32_t threads;               /* 0: all cores this process may run on */
    int32_t max_rows;              /* rows of one forward pass; 0: 128, 2048 on a GPU */
    int32_t max_logits;            /* rows of it that may ask for logits; 0: 17; -n: as many as
                                    * suit n sessions that draft together */
    bool no_pin;                   /* do not pin threads to cores */
    bool mlock;                    /* lock the weights in memory */
    bool huge_pages;               /* ask for huge pages where the system has them */
    uint64_t memory_limit, gpu_memory; /* most bytes of K/V and workspace; on "cuda"; 0: no limit */
    /* "cpu": bytes of keys of evicted rows that stay rebuilt between tokens, of all sessions
     * together; 0: 32 MiB, or 1/8 of memory_limit where that is less; -1: none */
    int64_t key_cache;
    int32_t ahead; /* enqueue rounds before their token is known: 1; -1: never; 0: where it gains */
    /* "mlx": rows of a round measured to be exact, of weights as floats and of packed ones; 0: 1;
     * -1: no limit */
    int32_t exact_rows, exact_packed_rows;
    int32_t exact_page_rows; /* the same of its kernels over K/V pages; 0: they are not used */
    bool exact_measured;     /* `kakeya doctor` measured these here; else they are asked for */
} kk_engine_opts;
/* A file of weights that is shortened while it is in use raises SIGBUS in the thread that reads it.
 * The library installs no handler; a program may have one, as cli/truncated.c. */
KK_API kk_status kk_engine_open(kk_engine **out, const kk_engine_opts *opts, kk_err *err);
KK_API void kk_engine_close(kk_engine *e); /* NULL is fine; close its sessions first */
/* The model's tokenizer, or NULL when it came without one.  Borrowed. */
KK_API const kk_tokenizer *kk_engine_tokenizer(const kk_engine *e);
/* Ids that end a generation, from the model's own files.  Borrowed. */
KK_API const int32_t *kk_engine_stop_ids(const kk_engine *e, size_t *n);

/* What a user wants to know of a model.  Bytes are of the stored weights. */
typedef struct {
    char name[64];        /* "26B-A4B", "31B", "E2B", "E4B" or "custom" */
    char weight_type[16]; /* the type that holds most bytes, as in "q4_0" */
    char format[16];      /* "safetensors", "mlx", "gguf" or "synthetic" */
    int32_t layers, sliding_layers, full_layers, vocab, hidden, heads, window, context;
    int32_t experts, experts_used; /* 0: dense */
    bool k_eq_v;
    int64_t params, params_active; /* in all, and read for one token */
    int64_t weight_bytes;          /* in all */
    int64_t token_bytes;           /* weights read to decode one token */
    int64_t kv_full_per_token;     /* bf16 K/V that grows with each token */
    int64_t kv_sliding_max;        /* bf16 K/V of full windows, which stop growing */
} kk_model_info;
KK_API void kk_engine_info(const kk_engine *e, kk_model_info *out);
/* The same from the files alone, without an engine. */
KK_API kk_status kk_model_inspect(const char *model, kk_model_info *out, kk_err *err);
/* The drafter beside it. */
typedef struct {
    int32_t layers, hidden, block, window; /* block - 1 tokens are the most it drafts */
    int32_t short_rows, n_taps, taps[16];  /* ids of its short head; layers that it reads */
    char embed_scale[8];                   /* "1", "once" or "twice" */
    int64_t params, weight_bytes;
} kk_drafter_info;
KK_API bool kk_engine_drafter(const kk_engine *e, kk_drafter_info *out); /* false: none */
/* The projection that rebuilds rows. */
typedef struct {
    char source[16]; /* what its latents are made of: "taps", "context", "embed" */
    int32_t n_taps, taps[16];
    int32_t rank;                        /* values of a latent */
    int32_t sliding_layers, full_layers; /* layers whose rows it can rebuild */
    int64_t params, weight_bytes;
    bool other_weights; /* it was made with others of this model, such as another precision */
    bool checked;       /* its files have checksums that match; earlier builds wrote none */
} kk_projection_info;
KK_API bool kk_engine_projection(const kk_engine *e, kk_projection_info *out); /* false: none */
/* Which weights these are: a sample of every tensor's bytes, with names and shapes; 0: none.  What
 * is made with one precision of a model works with another: where `source`, what these were
 * quantised from (kk_quantize writes it down; else `model`), or `identity`, of configuration and
 * tokenizer, is that of the model it was made with. */
typedef struct {
    uint64_t model, drafter, projection, source, identity;
} kk_fingerprints;
KK_API void kk_engine_fingerprints(kk_engine *e, kk_fingerprints *out);
/* Reads every weight and counts values that are not finite; on_bad names each tensor with some. */
KK_API kk_status kk_model_check(const char *model,
                                void (*on_bad)(void *user, const char *tensor, int64_t count),
                                void *user, int64_t *n_bad, kk_err *err);

/* The device as the engine sees it. */
typedef struct {
    char device[16], isa[64];
    int32_t threads, exact_rows; /* rows of a round proven to be exact; 0: any; -1: not proven */
    bool exact_packed;           /* by exact_packed_rows, as most of its weights are packed */
    bool page_kernel;            /* kernels read K/V pages where they lie */
    char exact_by[12];          /* "kernels" (as they are made), "measured", "asked" or "neither" */
    int64_t choices, near_ties; /* greedy ones so far, unless by kernels; as in kk_result */
    char why[256];              /* why it is this one */
} kk_device_info;
KK_API void kk_engine_device(const kk_engine *e, kk_device_info *out);
/* Layers and heads that the device has run as one operation of its own, and as small ones. */
typedef struct {
    int64_t layers_fused, layers_by_ops, heads_fused, heads_by_ops;
} kk_fused;
KK_API void kk_engine_fused(kk_engine *e, kk_fused *out);
/* Experts that do not fit gpu_memory are read from host memory; docs/gpu.md says what each is. */
typedef struct {
    int64_t limit, on_gpu, on_host, hits, misses, gpu_bytes, host_bytes, swaps, evicted;
} kk_offload;
KK_API void kk_engine_offload(kk_engine *e, kk_offload *out); /* waits for the device */

/* Bytes by category, read from the allocator. */
typedef enum {
    KK_MEM_WEIGHTS_VERIFIER,
    KK_MEM_WEIGHTS_DRAFTER,
    KK_MEM_WEIGHTS_PROJECTION,
    KK_MEM_KV_SLIDING,
    KK_MEM_KV_FULL,
    KK_MEM_KV_DRAFTER,
    KK_MEM_KV_LATENTS,
    KK_MEM_WORKSPACE,
    KK_MEM_CATEGORIES,
} kk_mem_category;
KK_API const char *kk_mem_category_name(kk_mem_category c); /* "weights.verifier", ... */
KK_API void kk_engine_memory(const kk_engine *e, int64_t bytes[KK_MEM_CATEGORIES]);

/* How sessions shared forward passes since the engine was opened. */
typedef struct {
    int64_t rounds;             /* passes that decoded */
    int64_t shared;             /* forwards for more than one session */
    int64_t sessions;           /* in all of them together; sessions / rounds: in one */
    int32_t most;               /* in one */
    int64_t retried;            /* shared ones that failed and were run again one by one */
    int64_t chunks, chunk_rows; /* passes that evaluated appended tokens, and these */
    int64_t cut;                /* chunks made shorter because other sessions were decoding */
    int64_t ahead; /* of `sessions`, those whose thread was still handing out earlier tokens */
} kk_sharing;
KK_API void kk_engine_sharing(kk_engine *e, kk_sharing *out);

/* ---- session ---------------------------------------------------------------------------- */

typedef struct kk_session kk_session;
/* The proposer of draft tokens.  Drafting changes how fast tokens come, never which. */
typedef enum {
    KK_SPEC_AUTO = 0, /* in each round what promises more of the two below; no drafter: none */
    KK_SPEC_NONE,     /* plain decoding */
    KK_SPEC_DFLASH,   /* the drafter */
    KK_SPEC_NGRAM,    /* what followed last time in the session's own tokens */
} kk_spec;
KK_API const char *kk_spec_name(kk_spec s); /* "auto", "none", "dflash", "ngram" */

/* What layers of a kind keep of their rows.  To a row at p, with a = p / chunk * chunk, rows
 * before a - window are evicted, except the first `sink`. */
typedef enum {
    KK_KEEP_ALL = 0,  /* all that their mask shows: "native" of sliding layers, "exact" of full */
    KK_KEEP_WINDOW,   /* "window": evicted rows are not seen */
    KK_KEEP_RESTORED, /* "restored": evicted rows are rebuilt by the projection */
} kk_keep;

typedef struct {
    int32_t ctx;              /* most tokens held; 0: 4096, or the model's own if smaller */
    kk_kv_format kv_format;   /* how K/V rows are stored */
    kk_spec spec;             /* the proposer of draft tokens */
    int32_t draft_max;        /* most tokens drafted in a round, below max_logits; 0: what pays */
    bool draft_fixed;         /* always draft draft_max, whether it pays or not */
    int32_t draft_ctx;        /* rows the drafter's full layers look back over; 0: all */
    int64_t checkpoint_bytes; /* most K/V held by checkpoints alone; 0: 1 GiB; -1: no checkpoints */
    kk_keep kv_sliding, kv_full;
    int32_t sink, window, chunk; /* rows of each; 0: 4, 64 and 64; -1: no sink, no window */
    kk_kv_format latents;        /* how what rows are rebuilt from is stored */
} kk_session_opts;
KK_API kk_status kk_session_new(kk_session **out, kk_engine *e, const kk_session_opts *opts,
                                kk_err *err);
KK_API void kk_session_free(kk_session *s); /* NULL is fine */
/* A second session with the same timeline and checkpoints; K/V pages are shared until written. */
KK_API kk_status kk_session_fork(kk_session **out, kk_session *s, kk_err *err);
/* The same with the first len tokens; *evaluated (may be NULL) as of kk_session_rewind. */
KK_API kk_status kk_session_fork_at(kk_session **out, kk_session *s, int32_t len,
                                    int32_t *evaluated, kk_err *err);
KK_API int32_t kk_session_len(const kk_session *s);           /* tokens on the timeline */
KK_API const int32_t *kk_session_tokens(const kk_session *s); /* borrowed */
KK_API int32_t kk_session_ctx(const kk_session *s);
KK_API kk_spec kk_session_spec(const kk_session *s); /* KK_SPEC_AUTO: both proposers */
KK_API void kk_session_options(const kk_session *s, kk_session_opts *out); /* defaults filled */

/* What attention read, over all layers; a row rebuilt for several queries of a pass counts once. */
typedef struct {
    int64_t queries;                   /* (layer, position) */
    int64_t keys_stored, keys_rebuilt; /* (layer, query, key) */
    int64_t rows_rebuilt;              /* (layer, position) */
} kk_key_counts;
KK_API void kk_session_key_counts(const kk_session *s, kk_key_counts *out);
/* What its cache holds: rows of all tokens, or of all but the last, which the next pass evaluates;
 * and bytes of K/V, pages that it shares included, those of checkpoints and latents not. */
typedef struct {
    int64_t rows, kv_bytes;
} kk_cache_use;
KK_API void kk_session_cache(const kk_session *s, kk_cache_use *out);
/* Called after each chunk of a long append.  False: it fails with KK_ESTOPPED, nothing changed. */
typedef bool (*kk_progress)(void *user, int64_t done, int64_t total);
/* Appends tokens and evaluates them; only the new ones cost anything. */
KK_API kk_status kk_session_append(kk_session *s, const int32_t *tokens, size_t n,
                                   kk_progress progress, void *user, kk_err *err);
/* Takes the timeline back to len tokens.  Further back than the window of sliding layers the
 * nearest checkpoint before len is taken and the rest evaluated again: *evaluated tokens.  Fails
 * only for want of memory, or when len is not on the timeline. */
KK_API kk_status kk_session_rewind(kk_session *s, int32_t len, int32_t *evaluated, kk_err *err);
/* Marks this point, so that a later rewind or fork to it is free.  Beyond checkpoint_bytes those
 * are dropped that a rewind would miss least, never the newest; -1: none is kept. */
KK_API kk_status kk_session_checkpoint(kk_session *s, kk_err *err);
/* Where they are: lens[0, min(n, cap)) in rising order; returns n, how many there are. */
KK_API int32_t kk_session_checkpoints(const kk_session *s, int32_t *lens, int32_t cap);
/* Logits of the last token, after the soft-cap: [vocab], borrowed until the next call. */
KK_API kk_status kk_session_logits(kk_session *s, const float **logits, kk_err *err);

/* ---- generation ------------------------------------------------------------------------- */

typedef struct {
    float temp;           /* 0: greedy */
    int32_t top_k;        /* 0: all */
    float top_p;          /* 0 or 1: all */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 0 or 1: off */
    float presence_penalty, frequency_penalty;
    int32_t penalty_last_n; /* tokens the penalties look back over; 0: 64; -1: all */
    uint64_t seed;          /* with a position it fixes the draw, however rows were grouped */
} kk_sampling;

/* Added to a token's logit before anything else; -INFINITY: it is never chosen. */
typedef struct {
    int32_t id;
    float bias;
} kk_logit_bias;
/* Which ids may follow tokens[0..n): bit id % 32 of word id / 32, for all of the vocabulary,
 * borrowed until the next call; NULL: what the options' own mask says.  It must depend on the
 * tokens alone; it runs inside the round, perhaps in another thread, and calls nothing here. */
typedef const uint32_t *(*kk_mask_at)(void *user, const int32_t *tokens, int32_t n);

/* ln of a token's probability by the logits alone: no bias, mask, penalties or temperature. */
typedef struct {
    int32_t id;
    float logprob;
} kk_logprob;
enum { KK_MAX_LOGPROBS = 20 };
typedef struct {
    kk_logprob chosen;
    int32_t n_best;                   /* n_logprobs, or the whole vocabulary if that is smaller */
    kk_logprob best[KK_MAX_LOGPROBS]; /* the likeliest first, equal ones by id */
} kk_logprobs;
typedef void (*kk_on_logprobs)(void *user, const kk_logprobs *of); /* just before on_token */

/* A round, before its tokens: what was drafted for it.  The first n_right of these are its first
 * tokens; the others are wrong, or stand behind a stop id. */
typedef void (*kk_on_round)(void *user, const int32_t *draft, int32_t n_draft, int32_t n_right);

typedef enum { KK_STOP_LENGTH, KK_STOP_EOS, KK_STOP_CALLBACK, KK_STOP_CONTEXT } kk_stop_reason;

typedef struct {
    int32_t max_tokens; /* 0: until a stop id or the context is full */
    kk_sampling sampling;
    const int32_t *stop_ids; /* added to the model's own */
    size_t n_stop_ids;
    bool ignore_eos; /* stop at max_tokens only */
    /* Of this generation alone, and unchanged until it ends; saved sessions do not keep them.  A
     * choice of which the masks leave nothing fails with KK_EINVAL. */
    const kk_logit_bias *bias; /* [n_bias]; those of one id add up */
    size_t n_bias;
    const uint32_t *mask; /* ids that may be chosen, as kk_mask_at has it; NULL: all */
    kk_mask_at mask_at;   /* the same by position; NULL: none.  Called with user */
    int32_t n_logprobs;   /* the best so many are handed to on_logprobs, at most KK_MAX_LOGPROBS */
    kk_on_logprobs on_logprobs; /* NULL: none.  Called with user */
    kk_on_round on_round;       /* NULL: none.  Called with user, in the thread of on_token */
} kk_generate_opts;
/* Called for each token as it is chosen, stop ids included.  Return false to stop. */
typedef bool (*kk_on_token)(void *user, int32_t id);
enum { KK_MAX_DRAFT = 31 }; /* tokens drafted in one round, at most */

/* What one proposer did. */
typedef struct {
    int64_t rounds, drafted, accepted; /* rounds that it drafted for, and tokens */
    int64_t drafts[KK_MAX_DRAFT + 1];  /* rounds by the number of tokens they drafted */
} kk_spec_part;

/* What drafting did. */
typedef struct {
    int64_t rounds, rows;                /* verify forwards, and rows in them */
    int64_t drafted, accepted;           /* tokens */
    int64_t histogram[KK_MAX_DRAFT + 1]; /* rounds by tokens accepted */
    int64_t chosen[KK_MAX_DRAFT + 1];    /* rounds by tokens the controller asked for */
    int64_t drafts[KK_MAX_DRAFT + 1];    /* rounds by tokens that were drafted */
    int64_t looking, ahead;              /* rounds drafted to learn; enqueued before their token */
    int64_t short_rounds, short_missed;  /* drafts by the short head; tokens chosen outside it */
    kk_spec_part by[KK_SPEC_NGRAM + 1];  /* by kk_spec: dflash and ngram */
    double draft_s, verify_s, choose_s, commit_s; /* where the time went */
} kk_spec_stats;

typedef struct {
    kk_stop_reason stop;
    int32_t n_tokens;     /* emitted */
    double decode_s;      /* wall time of the rounds */
    int32_t rounds;       /* forwards */
    uint64_t logits_hash; /* hash of every chosen row's logits, in order */
    int64_t syncs;        /* times the device was left without work, to be waited for */
    /* Greedy choices whose two best logits are nearer than what sums in another order may change;
     * counted on devices that are not exact by how their kernels are made. */
    int32_t near_ties;
    kk_spec_stats spec;
} kk_result;
/* Continues the timeline.  Callbacks may use other sessions, not this one.  When it fails, the
 * session holds the tokens that were handed out until then. */
KK_API kk_status kk_generate(kk_session *s, const kk_generate_opts *opts, kk_on_token on_token,
                             void *user, kk_result *result, kk_err *err);

/* ---- files that are written ------------------------------------------------------------- */

/* A file that appears whole or not at all.  Open it before the work whose result it takes: what
 * cannot be written is said then.  Until it is complete it is called NAME.kakeya-tmp, and no other
 * run can open it (KK_EBUSY); what a dead one left of it is removed.  Links are followed, and stay;
 * a file that is replaced keeps its owner and mode; what is no regular file (a device, a FIFO,
 * /dev/stdout, /dev/fd/N) is written through, never replaced. */
typedef struct kk_writer kk_writer;
typedef struct {
    bool replace;              /* a file that is there; else it is refused with KK_EEXIST */
    bool owner_only;           /* a new file is for its owner alone, whatever the umask */
    const char *const *inputs; /* files and folders of models that are read for it; none of */
    size_t n_inputs;           /* them may be the file, by whatever name.  NULLs are left out */
} kk_writer_opts;
KK_API kk_status kk_writer_open(kk_writer **out, const char *path, const kk_writer_opts *opts,
                                kk_err *err);
KK_API void kk_writer_close(kk_writer *w); /* leaves nothing of a file that is not complete */
KK_API const char *kk_writer_temp(const kk_writer *w); /* to unlink instead of closing, or NULL */

/* ---- saved sessions --------------------------------------------------------------------- */

/* Writes the timeline, its caches, what its proposer keeps, its checkpoints, and the sampling
 * settings last used; K/V that several of these share once.  Replaces a file that is there; a new
 * one is for its owner alone.  kk_session_save_to completes one that was opened before. */
KK_API kk_status kk_session_save(kk_session *s, const char *path, kk_err *err);
KK_API kk_status kk_session_save_to(kk_session *s, kk_writer *to, kk_err *err);
/* Continues a saved session.  opts may change who drafts and the context; all else is as saved.
 * Refused, with the reason: another model (kk_fingerprints), another projection where rows are
 * rebuilt, a damaged or a shortened file.  *exact (may be NULL): whether tokens and logits will be
 * those of the saved session, to the bit: with the same weights, kind of device and build. */
KK_API kk_status kk_session_load(kk_session **out, kk_engine *e, const char *path,
                                 const kk_session_opts *opts, bool *exact, kk_err *err);
/* Whether some rows were made with other weights of the model than the engine's; saved as well. */
KK_API bool kk_session_other_weights(const kk_session *s);
/* The settings of the last generation, for one that goes on; false: there was none. */
KK_API bool kk_session_sampling(const kk_session *s, kk_sampling *out);

typedef struct {
    char model[64], device[16], build[64]; /* what it was saved with */
    uint64_t fingerprint, identity;        /* the model's, as in kk_fingerprints; 0: not recorded */
    kk_kv_format kv_format;
    kk_spec spec;
    int32_t tokens, ctx;
    int64_t bytes;                    /* size of the file */
    char kv_sliding[16], kv_full[16]; /* what layers keep: "native", "exact", "window", ... */
    int32_t sink, window, chunk;      /* 0: they keep all */
    uint64_t projection;              /* as fingerprint; 0: nothing is rebuilt */
    int32_t format, checkpoints;      /* version: 4, or 2 and 3 of earlier builds; checkpoints */
    bool other_weights;               /* kk_session_other_weights of it */
} kk_saved_info;
/* What a file holds, from its head alone. */
KK_API kk_status kk_saved_inspect(const char *path, kk_saved_info *out, kk_err *err);

/* ---- tools ------------------------------------------------------------------------------ */

/* Writes a GGUF of a Hugging Face folder, of a model or of a DFlash drafter.  type: "q8_0", "q4_0",
 * "bf16" or "f16".  Replaces a file that is there, unless it is read; _to completes an open one. */
KK_API kk_status kk_quantize(const char *in, const char *out, const char *type,
                             kk_progress progress, void *user, kk_err *err);
KK_API kk_status kk_quantize_to(const char *in, kk_writer *to, const char *type,
                                kk_progress progress, void *user, kk_err *err);

/* What the CPU offers: features as one line, such as "avx2 fma avx512f avx512vnni". */
typedef struct {
    char name[64];
    char features[160];
    char best_isa[16];
    int32_t cores; /* this process may run on */
    int64_t memory, memory_free;
} kk_machine;
KK_API void kk_machine_info(kk_machine *out);
/* Reads memory with so many threads (0: all) for about so long. */
KK_API kk_status kk_measure_bandwidth(int32_t threads, double seconds, double *bytes_per_s,
                                      kk_err *err);

#ifdef __cplusplus
}
#endif
#endif
