/* metrics.c - see metrics.h.  Names follow those of other servers, with our prefix. */
#include "server/metrics.h"

#include <string.h>

static const double bounds[METRICS_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                               0.25,  0.5,    1,     2.5,  5,     10,   60};
static const char *const finishes[FINISH_KINDS] = {
    "stop", "length", "tool_calls", "cancelled", "slow_client", "timeout", "error"};

static const char *const grpc_calls[METRICS_GRPC_CALLS] = {
    "CreateSession",  "AppendTokens", "AppendText", "Generate",    "CloseSession",
    "GetSessionInfo", "ForkSession",  "GetHistory", "ListSessions"};
static const char *const grpc_codes[METRICS_GRPC_CODES] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

void metrics_open(metrics *m) {
    *m = (metrics){0};
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_close(metrics *m) { pthread_mutex_destroy(&m->lock); }

static void observe(histogram *h, double value, int64_t times) {
    int i = 0;
    while (i < METRICS_BUCKETS && value > bounds[i]) i++;
    h->count[i] += times;
    h->sum += value * (double)times;
}

void metrics_response(metrics *m, int status) {
    const int class = status / 100;
    pthread_mutex_lock(&m->lock);
    if (class >= 1 && class <= 5) m->responses[class]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_grpc(metrics *m, const char *call, int code) {
    int i = 0;
    while (i < METRICS_GRPC_CALLS && strcmp(grpc_calls[i], call) != 0) i++;
    if (i == METRICS_GRPC_CALLS || code < 0 || code >= METRICS_GRPC_CODES) return;
    pthread_mutex_lock(&m->lock);
    m->grpc[i][code]++;
    pthread_mutex_unlock(&m->lock);
}

metrics_generation metrics_of_session(const sessions_generated *g) {
    static const metrics_finish of_stop[] = {[SESSIONS_MAX_TOKENS] = FINISH_LENGTH,
                                             [SESSIONS_EOS] = FINISH_STOP,
                                             [SESSIONS_STOP_TEXT] = FINISH_STOP,
                                             [SESSIONS_CANCELLED] = FINISH_CANCELLED,
                                             [SESSIONS_CONTEXT] = FINISH_LENGTH};
    return (metrics_generation){.finish = of_stop[g->stop],
                                .tokens = g->generated,
                                .rounds = g->rounds,
                                .drafted = g->drafted,
                                .accepted = g->accepted,
                                .histogram = g->histogram};
}

metrics_finish metrics_finish_of_grpc(int code) {
    enum { CANCELLED = 1, DEADLINE_EXCEEDED = 4, RESOURCE_EXHAUSTED = 8 };
    return code == CANCELLED            ? FINISH_CANCELLED
           : code == DEADLINE_EXCEEDED  ? FINISH_TIMEOUT
           : code == RESOURCE_EXHAUSTED ? FINISH_SLOW
                                        : FINISH_ERROR;
}

void metrics_prompt(metrics *m, int64_t tokens, int64_t cached) {
    pthread_mutex_lock(&m->lock);
    m->prompt_tokens += tokens;
    m->cached_tokens += cached;
    m->prefix_queries++;
    m->prefix_hits += cached > 0;
    pthread_mutex_unlock(&m->lock);
}

void metrics_dropped(metrics *m, int64_t n) {
    pthread_mutex_lock(&m->lock);
    m->prefix_dropped += n;
    pthread_mutex_unlock(&m->lock);
}

void metrics_rows(metrics *m, kv_rows before, kv_rows after) {
    pthread_mutex_lock(&m->lock);
    rows_add(&m->rows, before, after);
    pthread_mutex_unlock(&m->lock);
}

void metrics_reloaded(metrics *m, bool good) {
    pthread_mutex_lock(&m->lock);
    m->reloads[good]++;
    pthread_mutex_unlock(&m->lock);
}

/* A round that accepted n tokens accepted those at the positions 0 to n - 1. */
static void count_positions(metrics *m, const int64_t *by_accepted) {
    int64_t rounds = 0;
    for (int i = KK_MAX_DRAFT; i > 0; i--) {
        rounds += by_accepted[i];
        m->accepted_at[i - 1] += rounds;
    }
}

void metrics_generated(metrics *m, const metrics_generation *g) {
    pthread_mutex_lock(&m->lock);
    m->finished[g->finish]++;
    m->generated_tokens += g->tokens;
    m->rounds += g->rounds;
    m->drafted += g->drafted;
    m->accepted += g->accepted;
    if (g->histogram) count_positions(m, g->histogram);
    if (g->first_s >= 0) observe(&m->first_token, g->first_s, 1);
    if (g->tokens > 1)
        observe(&m->between_tokens, g->decode_s / (double)(g->tokens - 1), g->tokens - 1);
    observe(&m->whole, g->whole_s, 1);
    pthread_mutex_unlock(&m->lock);
}

/* ---- the text ---------------------------------------------------------------------------- */

static void head(textbuf *out, const char *name, const char *type, const char *help) {
    text_printf(out, "# HELP kakeya_%s %s\n# TYPE kakeya_%s %s\n", name, help, name, type);
}

static void one(textbuf *out, const char *name, const char *type, const char *help, int64_t value) {
    head(out, name, type, help);
    text_printf(out, "kakeya_%s %lld\n", name, (long long)value);
}

static void spread(textbuf *out, const char *name, const char *help, const histogram *h) {
    int64_t sum = 0;
    head(out, name, "histogram", help);
    for (int i = 0; i < METRICS_BUCKETS; i++)
        text_printf(out, "kakeya_%s_bucket{le=\"%g\"} %lld\n", name, bounds[i],
                    (long long)(sum += h->count[i]));
    sum += h->count[METRICS_BUCKETS];
    text_printf(out, "kakeya_%s_bucket{le=\"+Inf\"} %lld\n", name, (long long)sum);
    text_printf(out, "kakeya_%s_sum %.9g\nkakeya_%s_count %lld\n", name, h->sum, name,
                (long long)sum);
}

/* Of each call those codes that it ended with, and OK, which is there from the start. */
static void write_grpc(textbuf *out, const metrics *m) {
    head(out, "grpc_calls_total", "counter", "Calls of RuntimeService by how they ended.");
    for (int i = 0; i < METRICS_GRPC_CALLS; i++)
        for (int code = 0; code < METRICS_GRPC_CODES; code++)
            if (code == 0 || m->grpc[i][code])
                text_printf(out, "kakeya_grpc_calls_total{call=\"%s\",code=\"%s\"} %lld\n",
                            grpc_calls[i], grpc_codes[code], (long long)m->grpc[i][code]);
}

static void write_labelled(textbuf *out, const metrics *m, const metrics_now *now) {
    head(out, "build_info", "gauge", "1, with the version of the program.");
    text_printf(out, "kakeya_build_info{version=\"%s\"} 1\n", KK_VERSION);
    head(out, "http_responses_total", "counter", "HTTP responses by class of status.");
    for (int i = 2; i <= 5; i++)
        text_printf(out, "kakeya_http_responses_total{class=\"%dxx\"} %lld\n", i,
                    (long long)m->responses[i]);
    head(out, "request_success_total", "counter", "Generations by how they ended.");
    for (int i = 0; i < FINISH_KINDS; i++)
        text_printf(out, "kakeya_request_success_total{finished_reason=\"%s\"} %lld\n", finishes[i],
                    (long long)m->finished[i]);
    head(out, "memory_bytes", "gauge", "Bytes held by the engine, by category.");
    for (int c = 0; now->ready && c < KK_MEM_CATEGORIES; c++)
        text_printf(out, "kakeya_memory_bytes{category=\"%s\"} %lld\n",
                    kk_mem_category_name((kk_mem_category)c), (long long)now->memory[c]);
}

static int64_t kv_bytes(const metrics_now *now) {
    return now->memory[KK_MEM_KV_SLIDING] + now->memory[KK_MEM_KV_FULL] +
           now->memory[KK_MEM_KV_DRAFTER] + now->memory[KK_MEM_KV_LATENTS];
}

static void write_kv(textbuf *out, const metrics *m, const metrics_now *now) {
    const double limit = (double)now->kv_limit;
    one(out, "session_kv_bytes", "gauge", "K/V of all sessions and conversations in memory.",
        kv_bytes(now));
    head(out, "kv_cache_usage_perc", "gauge", "The same as a share of --kv-memory, from 0 to 1.");
    text_printf(out, "kakeya_kv_cache_usage_perc %.6g\n",
                limit > 0 ? (double)kv_bytes(now) / limit : 0);
    one(out, "kv_evicted_tokens_total", "counter",
        "Tokens whose K/V rows the policies window and restored evicted.",
        m->rows.evicted + now->sessions.rows.evicted);
    one(out, "kv_restored_tokens_total", "counter",
        "Evicted K/V rows rebuilt from latents, counted by layer and token.",
        m->rows.rebuilt + now->sessions.rows.rebuilt);
}

static void write_drafting(textbuf *out, const metrics *m) {
    one(out, "spec_decode_num_drafts_total", "counter", "Rounds of decoding.", m->rounds);
    one(out, "spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", m->drafted);
    one(out, "spec_decode_num_accepted_tokens_total", "counter", "Of them accepted.", m->accepted);
    head(out, "spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Accepted tokens by their position in the draft.");
    for (int i = 0; i < KK_MAX_DRAFT; i++)
        text_printf(out,
                    "kakeya_spec_decode_num_accepted_tokens_per_pos_total{position=\"%d\"} %lld\n",
                    i, (long long)m->accepted_at[i]);
}

static void write_counters(textbuf *out, const metrics *m) {
    one(out, "prompt_tokens_total", "counter", "Tokens of prompts.", m->prompt_tokens);
    one(out, "prompt_tokens_cached_total", "counter",
        "Of them those that were not evaluated again.", m->cached_tokens);
    one(out, "generation_tokens_total", "counter", "Tokens generated.", m->generated_tokens);
    one(out, "prefix_cache_queries_total", "counter", "Prompts looked up.", m->prefix_queries);
    one(out, "prefix_cache_hits_total", "counter", "Prompts of which a kept session had a part.",
        m->prefix_hits);
    one(out, "prefix_cache_dropped_total", "counter", "Kept sessions dropped for want of place.",
        m->prefix_dropped);
    head(out, "reloads_total", "counter", "Keys and certificates read again, after SIGHUP.");
    for (int i = 0; i < 2; i++)
        text_printf(out, "kakeya_reloads_total{result=\"%s\"} %lld\n", i ? "done" : "failed",
                    (long long)m->reloads[i]);
}

static void write_now(textbuf *out, const metrics_now *now) {
    const kk_sharing *s = &now->sharing;
    one(out, "num_requests_running", "gauge", "Requests that run.", now->running);
    one(out, "num_requests_waiting", "gauge", "Requests that wait for a worker.", now->waiting);
    one(out, "session_count", "gauge", "Sessions kept for their conversation to go on.", now->kept);
    one(out, "held_session_count", "gauge", "Sessions that clients hold by an id.",
        now->sessions.count);
    one(out, "held_session_resident", "gauge", "Of them those with K/V in memory.",
        now->sessions.resident);
    one(out, "held_session_kv_bytes", "gauge", "Their K/V in memory, shared pages counted each.",
        now->sessions.kv_bytes);
    head(out, "invariant_violations_total", "counter", "Sessions that broke an invariant.");
    for (int i = 0; i < SESSIONS_INVARIANTS; i++)
        text_printf(out, "kakeya_invariant_violations_total{invariant=\"INV-%d\"} %lld\n", i + 1,
                    (long long)now->sessions.violations[i]);
    one(out, "decode_passes_total", "counter", "Forward passes that decoded.", s->rounds);
    one(out, "decode_passes_shared_total", "counter", "Of them for more than one session.",
        s->shared);
    one(out, "decode_pass_sessions_total", "counter", "Sessions in all of them together.",
        s->sessions);
    one(out, "decode_pass_sessions_most", "gauge", "Most sessions in one.", s->most);
    one(out, "prefill_passes_total", "counter", "Forward passes that read prompts.", s->chunks);
    one(out, "prefill_rows_total", "counter", "Tokens in them.", s->chunk_rows);
}

static void write_store(textbuf *out, const store_counts *s) {
    one(out, "state_sessions", "gauge", "Sessions in the state folder.", s->sessions);
    one(out, "state_conversations", "gauge", "Conversations in it.", s->conversations);
    one(out, "state_bytes", "gauge", "Bytes of its journals and K/V files.", s->bytes);
    one(out, "state_turns_total", "counter", "Turns written to journals.", s->turns);
    one(out, "state_saved_total", "counter", "K/V files written.", s->saved);
    one(out, "state_loaded_total", "counter", "K/V files read.", s->loaded);
    one(out, "state_damaged_total", "counter", "Damaged files set aside.", s->damaged);
    one(out, "state_deleted_total", "counter", "Conversations deleted for the folder's limit.",
        s->deleted);
    one(out, "state_failures_total", "counter", "Writes that failed.", s->failed);
}

void metrics_text(metrics *m, const metrics_now *now, textbuf *out) {
    pthread_mutex_lock(&m->lock);
    const metrics copy = *m;
    pthread_mutex_unlock(&m->lock);
    write_counters(out, &copy);
    write_drafting(out, &copy);
    write_kv(out, &copy, now);
    write_labelled(out, &copy, now);
    write_grpc(out, &copy);
    write_now(out, now);
    write_store(out, &now->store);
    spread(out, "time_to_first_token_seconds", "From the request's first byte to its first token.",
           &copy.first_token);
    spread(out, "inter_token_latency_seconds", "Mean time between tokens of a generation.",
           &copy.between_tokens);
    spread(out, "e2e_request_latency_seconds", "From the request's first byte to its end.",
           &copy.whole);
}
