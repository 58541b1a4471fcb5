/* metrics.h - what a server counts, and Prometheus' text of it. */
#ifndef KK_SERVER_METRICS_H
#define KK_SERVER_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "kakeya.h"
#include "server/service.h"
#include "server/store.h"
#include "server/text.h"

enum { METRICS_BUCKETS = 14, METRICS_GRPC_CALLS = 9, METRICS_GRPC_CODES = 17 };
typedef struct {
    int64_t count[METRICS_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
} histogram;

typedef enum {
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_CALLS,
    FINISH_CANCELLED, /* the client left */
    FINISH_SLOW,      /* it read too slowly */
    FINISH_TIMEOUT,
    FINISH_ERROR,
    FINISH_KINDS,
} metrics_finish;

typedef struct {
    pthread_mutex_t lock;
    int64_t responses[6]; /* by hundreds of their status */
    int64_t grpc[METRICS_GRPC_CALLS][METRICS_GRPC_CODES];
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t prefix_queries, prefix_hits, prefix_dropped;
    int64_t finished[FINISH_KINDS];
    int64_t rounds, drafted, accepted;
    int64_t accepted_at[KK_MAX_DRAFT];            /* by position in the draft */
    int64_t reloads[2];                           /* of keys and certificates: failed, done */
    kv_rows rows;                                 /* of conversations; sessions count their own */
    histogram first_token, between_tokens, whole; /* seconds */
} metrics;

void metrics_open(metrics *m);
void metrics_close(metrics *m);
void metrics_response(metrics *m, int status);
/* A call of RuntimeService, by its name there, ended with that code. */
void metrics_grpc(metrics *m, const char *call, int code);
/* A prompt was brought into a session: so many tokens, of which so many were there. */
void metrics_prompt(metrics *m, int64_t tokens, int64_t cached);
/* A piece of work in a session evicted and rebuilt rows. */
void metrics_rows(metrics *m, kv_rows before, kv_rows after);
void metrics_reloaded(metrics *m, bool good);
void metrics_dropped(metrics *m, int64_t n); /* kept sessions, for want of place */

/* One generation. */
typedef struct {
    metrics_finish finish;
    int64_t tokens;
    double first_s, decode_s, whole_s; /* first_s < 0: no token came */
    int64_t rounds, drafted, accepted;
    const int64_t *histogram; /* rounds by tokens accepted, KK_MAX_DRAFT + 1; NULL: not known */
} metrics_generation;
void metrics_generated(metrics *m, const metrics_generation *g);
/* The counts of a generation in a session that ended well; times are the caller's. */
metrics_generation metrics_of_session(const sessions_generated *g);
metrics_finish metrics_finish_of_grpc(int code); /* of one that did not */

/* What is asked of others when the text is written. */
typedef struct {
    int waiting, running, kept;
    bool ready;
    int64_t memory[KK_MEM_CATEGORIES];
    int64_t kv_limit; /* bytes of K/V above which sessions leave memory; 0: none */
    kk_sharing sharing;
    sessions_totals sessions; /* that clients hold */
    store_counts store;
} metrics_now;
void metrics_text(metrics *m, const metrics_now *now, textbuf *out);

#endif
