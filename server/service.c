/* service.c - see service.h: the calls that change a session. */
#define _GNU_SOURCE
#include "server/service.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/checkpoints.h"
#include "server/request.h"
#include "server/server.h"
#include "server/sessions_table.h"
#include "server/text.h"
#include "server/thought.h"

kk_status sessions_open(sessions **out, kk_engine *e, const sessions_opts *opts, kk_err *err) {
    sessions *t = *out = calloc(1, sizeof *t);
    if (!t) return server_fail(err, KK_ENOMEM, "no memory for sessions");
    t->engine = e;
    t->opts = *opts;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    const kk_status st = opts->store ? sessions_from_store(t, err) : KK_OK;
    if (st == KK_OK) return KK_OK;
    sessions_close(t);
    *out = NULL;
    return st;
}

/* ---- create ------------------------------------------------------------------------------ */

void sessions_standard(sessions *t, sessions_how *out) {
    *out = (sessions_how){.session = t->opts.session, .sampling = t->opts.sampling};
    if (getentropy(&out->sampling.seed, sizeof out->sampling.seed) != 0)
        out->sampling.seed = (uint64_t)(1e9 * text_now());
}

bool sessions_create(sessions *t, const sessions_how *how, char id[SESSIONS_ID], fault *f) {
    sessions_entry *e = sessions_add(t, how, f);
    if (!e) return false;
    if (!sessions_make(t, e, f)) { /* options that the engine refuses are refused here */
        sessions_remove(t, e);
        return false;
    }
    kk_session_options(e->session, &e->how.session);
    e->how.session.spec = kk_session_spec(e->session);
    sessions_show_made(t, e);
    if (!sessions_store_entry(t, e, f)) {
        sessions_remove(t, e);
        return false;
    }
    memcpy(id, e->id, SESSIONS_ID);
    sessions_release(t, e);
    return true;
}

/* ---- append ------------------------------------------------------------------------------ */

static bool check_tokens(const sessions *t, const int32_t *tokens, size_t n, fault *f) {
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= t->opts.info.vocab)
            return fault_set(f, 400, "tokens", "tokens[%zu] is %d: ids are from 0 to %d", i,
                             tokens[i], t->opts.info.vocab - 1);
    return true;
}

static bool check_fits(const sessions_entry *e, size_t n, fault *f) {
    const int64_t ctx = e->shown.context;
    if (n <= (size_t)(ctx - e->history.len)) return true;
    fault_set(f, 400, "tokens", "%lld tokens and %zu more do not fit the context of %lld",
              (long long)e->history.len, n, (long long)ctx);
    f->code = "context_length_exceeded";
    return false;
}

/* Appends to an entry that the caller has. */
static bool append(sessions *t, sessions_entry *e, const int32_t *tokens, size_t n,
                   const sessions_watch *watch, sessions_appended *out, fault *f) {
    const double start = text_now();
    if (!check_tokens(t, tokens, n, f) || !check_fits(e, n, f)) return false;
    if (!sessions_wake(t, e, watch, &out->cached, &out->evaluated, f)) return false;
    if (!sessions_evaluate(t, e, tokens, n, watch, f)) return false;
    /* What cannot be stored was not appended. */
    if (!sessions_store_turn(t, e, kk_session_tokens(e->session), n, false, f)) {
        kk_session_rewind(e->session, (int32_t)e->history.len, NULL, NULL);
        return false;
    }
    history_add(&e->history, tokens, n);
    sessions_bind_position(&e->binding, e->session);
    if (!sessions_holds(t, e, f)) return false;
    out->evaluated += (int64_t)n;
    out->added = (int64_t)n;
    out->history = e->history.len;
    out->seconds = text_now() - start;
    return true;
}

bool sessions_append(sessions *t, const char *id, const int32_t *tokens, size_t n,
                     const sessions_watch *watch, sessions_appended *out, fault *f) {
    *out = (sessions_appended){0};
    sessions_entry *e = sessions_acquire(t, id, f);
    if (!e) return false;
    const bool done = append(t, e, tokens, n, watch, out, f);
    sessions_release(t, e);
    return done;
}

static bool needs_tokenizer(const sessions *t, fault *f) {
    return kk_engine_tokenizer(t->engine) ||
           fault_set(f, 501, NULL, "the model has no tokenizer: append token ids");
}

/* Text that cannot fit is refused before it is encoded. */
static bool encode_text(const sessions *t, const sessions_entry *e, const char *text, size_t len,
                        int32_t **ids, size_t *n, fault *f) {
    const kk_tokenizer *tok = kk_engine_tokenizer(t->engine);
    const unsigned flags = KK_ENCODE_SPECIAL | (e->history.len == 0 ? KK_ENCODE_BOS : 0);
    kk_err err;
    *ids = NULL;
    if (!check_fits(e, kk_encode_least(tok, len), f)) return false;
    return kk_encode(tok, text, len, flags, ids, n, &err) == KK_OK || fault_from(f, &err);
}

bool sessions_append_text(sessions *t, const char *id, const char *text, size_t len,
                          const sessions_watch *watch, sessions_appended *out, fault *f) {
    int32_t *ids = NULL;
    size_t n = 0;
    *out = (sessions_appended){0};
    if (!needs_tokenizer(t, f)) return false;
    sessions_entry *e = sessions_acquire(t, id, f);
    if (!e) return false;
    const bool done =
        encode_text(t, e, text, len, &ids, &n, f) && append(t, e, ids, n, watch, out, f);
    kk_free(ids);
    sessions_release(t, e);
    return done;
}

/* What the format writes between the last token of a history and the next turn. */
static bool encode_border(const sessions *t, const int32_t *tokens, int64_t len, int32_t **ids,
                          size_t *n, fault *f) {
    const kk_tokenizer *tok = kk_engine_tokenizer(t->engine);
    const int32_t ends = kk_tokenizer_special(tok, "<turn|>");
    const bool ended = len > 0 && tokens[len - 1] == ends;
    const bool after = len > 1 && tokens[len - 2] == ends;
    const char *border = after ? "" : ended ? "\n" : "<turn|>\n";
    kk_err err;
    return kk_encode(tok, border, strlen(border), KK_ENCODE_SPECIAL, ids, n, &err) == KK_OK ||
           fault_from(f, &err);
}

/* Messages as tokens: behind a history without the <bos> that the format starts with. */
static bool encode_messages(sessions *t, sessions_entry *e, const char *json, size_t len,
                            int32_t **ids, size_t *n, fault *f) {
    const kk_tokenizer *tok = kk_engine_tokenizer(t->engine);
    int32_t *turn = NULL, *border = NULL;
    size_t n_turn, n_border = 0;
    kk_err err;
    if (kk_chat_encode(tok, json, len, &turn, &n_turn, &err) != KK_OK) return fault_from(f, &err);
    const size_t skip = e->history.len > 0 && n_turn > 0 ? 1 : 0;
    const int32_t *held = e->session ? kk_session_tokens(e->session) : e->tokens;
    bool good =
        e->history.len == 0 || encode_border(t, held, e->history.len, &border, &n_border, f);
    *ids = good ? malloc((n_border + n_turn + 1) * sizeof **ids) : NULL;
    if (good && !*ids) good = fault_set(f, 503, NULL, "out of memory");
    if (*ids) {
        if (n_border) memcpy(*ids, border, n_border * sizeof **ids);
        memcpy(*ids + n_border, turn + skip, (n_turn - skip) * sizeof **ids);
        *n = n_border + n_turn - skip;
    }
    kk_free(turn);
    kk_free(border);
    return good;
}

bool sessions_append_messages(sessions *t, const char *id, const char *json, size_t len,
                              const sessions_watch *watch, sessions_appended *out, fault *f) {
    int32_t *ids = NULL;
    size_t n = 0;
    int64_t cached, evaluated;
    *out = (sessions_appended){0};
    if (!needs_tokenizer(t, f) || !request_is_small(json, len, f)) return false;
    sessions_entry *e = sessions_acquire(t, id, f);
    if (!e) return false;
    bool done = sessions_wake(t, e, watch, &cached, &evaluated, f) &&
                encode_messages(t, e, json, len, &ids, &n, f) &&
                append(t, e, ids, n, watch, out, f);
    if (done) {
        out->cached = cached;
        out->evaluated += evaluated;
    }
    free(ids);
    sessions_release(t, e);
    return done;
}

/* ---- generate ---------------------------------------------------------------------------- */

static const char *const stop_names[] = {[SESSIONS_MAX_TOKENS] = "max_tokens",
                                         [SESSIONS_EOS] = "eos",
                                         [SESSIONS_STOP_TEXT] = "stop_text",
                                         [SESSIONS_CANCELLED] = "cancelled",
                                         [SESSIONS_CONTEXT] = "context"};

const char *sessions_stop_name(sessions_stop s) { return stop_names[s]; }

/* A generation while it runs. */
typedef struct {
    sessions *table;
    sessions_entry *e;
    const sessions_generation *how;
    kk_answer *answer; /* NULL: the model has no tokenizer */
    int64_t n;
    int32_t round, n_draft, n_right; /* of the round whose tokens come */
    int32_t draft[KK_MAX_DRAFT];
    int32_t in_round; /* tokens of it that have come */
    bool cancelled;
    kk_status failed;
    kk_err err;
} running;

static void on_round(void *user, const int32_t *draft, int32_t n_draft, int32_t n_right) {
    running *r = user;
    r->round++;
    r->n_draft = n_draft;
    r->n_right = n_right;
    r->in_round = 0;
    memcpy(r->draft, draft, (size_t)n_draft * sizeof *draft);
}

/* What drafting did for the token that comes now. */
static sessions_piece next_piece(running *r, int32_t id) {
    sessions_piece piece = {.id = id, .text = "", .round = r->round};
    if (id < 0) return piece;
    const int32_t i = r->in_round++;
    piece.drafted = i < r->n_right;
    if (i != r->n_right) return piece;
    piece.rejected = r->draft + r->n_right;
    piece.n_rejected = r->n_draft - r->n_right;
    return piece;
}

/* Of a chat: each part by itself. */
static bool give_parts(running *r, sessions_piece piece, const kk_answer_span *spans, size_t n) {
    bool on = n > 0 || r->how->on_piece(r->how->user, &piece);
    for (size_t i = 0; i < n && on; i++) {
        piece.kind = spans[i].kind;
        piece.text = spans[i].text;
        piece.len = spans[i].len;
        piece.name = spans[i].name;
        piece.arguments = spans[i].arguments;
        on = r->how->on_piece(r->how->user, &piece);
        piece = (sessions_piece){.id = -1, .round = piece.round};
    }
    return on;
}

static bool give(running *r, int32_t id, const kk_answer_span *spans, size_t n_spans) {
    sessions_piece piece = next_piece(r, id);
    textbuf joined = {0};
    if (!r->how->on_piece) return true;
    if (r->how->chat) return give_parts(r, piece, spans, n_spans);
    if (n_spans == 1) {
        piece.text = spans[0].text;
        piece.len = spans[0].len;
    }
    for (size_t i = 0; n_spans > 1 && i < n_spans; i++)
        text_add(&joined, spans[i].text, spans[i].len);
    if (joined.bytes) {
        piece.text = joined.bytes;
        piece.len = joined.len;
    }
    const bool on = r->how->on_piece(r->how->user, &piece) && !joined.failed;
    text_free(&joined);
    return on;
}

static bool on_token(void *user, int32_t id) {
    running *r = user;
    const kk_answer_span *spans = NULL;
    size_t n = 0;
    r->n++;
    history_add(&r->e->history, &id, 1);
    if (r->answer) r->failed = kk_answer_push(r->answer, id, &spans, &n, &r->err);
    if (r->failed) return false;
    if (!give(r, id, spans, n) || !sessions_goes_on(r->e, &r->how->watch)) r->cancelled = true;
    return !r->cancelled && !(r->answer && kk_answer_stopped(r->answer));
}

static bool open_answer(running *r, fault *f) {
    const kk_tokenizer *tok = kk_engine_tokenizer(r->table->engine);
    const kk_answer_opts opts = {
        .tok = tok, .raw = !r->how->chat, .stops = r->how->stops, .n_stops = r->how->n_stops};
    bool inside;
    if (!tok && r->how->n_stops)
        return fault_set(f, 501, "stop", "the model has no tokenizer: use stop ids");
    if (!tok && r->how->chat)
        return fault_set(f, 501, "chat", "the model has no tokenizer: it has no chat");
    kk_status st = tok ? kk_answer_new(&r->answer, &opts, &r->err) : KK_OK;
    if (st == KK_OK && r->how->chat)
        st = thought_resume(r->answer, tok, kk_session_tokens(r->e->session),
                            (size_t)r->e->history.len, &inside, &r->err);
    return st == KK_OK || fault_from(f, &r->err);
}

/* Ids that end it: those of the session, those of the call, and those of a chat. */
static bool join_stops(const running *r, int32_t **out, size_t *n, fault *f) {
    static const char *const marks[] = {"<turn|>", "<|tool_response>"};
    const sessions_generation *how = r->how;
    const kk_tokenizer *tok = kk_engine_tokenizer(r->table->engine);
    const size_t own = (size_t)r->e->how.n_stop_ids;
    *n = own + how->n_stop_ids;
    *out = calloc(*n + 3, sizeof **out);
    if (!*out) return fault_set(f, 503, NULL, "out of memory");
    memcpy(*out, r->e->how.stop_ids, own * sizeof **out);
    if (how->n_stop_ids) memcpy(*out + own, how->stop_ids, how->n_stop_ids * sizeof **out);
    for (size_t i = 0; how->chat && i < sizeof marks / sizeof *marks; i++) {
        const int32_t id = kk_tokenizer_special(tok, marks[i]);
        if (id >= 0) (*out)[(*n)++] = id; /* a tokenizer without the mark */
    }
    return true;
}

static void add_result(sessions_generated *out, const kk_result *r) {
    out->decode_s += r->decode_s;
    out->rounds += r->spec.rounds;
    out->drafted += r->spec.drafted;
    out->accepted += r->spec.accepted;
    for (int i = 0; i <= KK_MAX_DRAFT; i++) out->histogram[i] += r->spec.histogram[i];
    out->logits_hash = r->logits_hash;
}

static sessions_stop stop_of(const running *r, const kk_result *result) {
    if (r->cancelled) return SESSIONS_CANCELLED;
    if (r->answer && kk_answer_stopped(r->answer)) return SESSIONS_STOP_TEXT;
    return result->stop == KK_STOP_EOS       ? SESSIONS_EOS
           : result->stop == KK_STOP_CONTEXT ? SESSIONS_CONTEXT
                                             : SESSIONS_MAX_TOKENS;
}

/* Rounds until it ends; where memory ends others give theirs back, and it goes on where it is. */
static bool decode(running *r, sessions_generated *out, fault *f) {
    const sessions_generation *how = r->how;
    kk_generate_opts opts = {.max_tokens = how->max_tokens,
                             .sampling = how->sampling ? *how->sampling : r->e->how.sampling,
                             .ignore_eos = how->ignore_eos,
                             .bias = how->bias,
                             .n_bias = how->n_bias,
                             .on_round = on_round};
    int32_t *stops;
    kk_result result = {0};
    if (!join_stops(r, &stops, &opts.n_stop_ids, f)) return false;
    opts.stop_ids = stops;
    kk_status st;
    do {
        if (how->max_tokens > 0) opts.max_tokens = how->max_tokens - (int32_t)r->n;
        result = (kk_result){0};
        st = kk_generate(r->e->session, &opts, on_token, r, &result, &r->err);
        add_result(out, &result);
    } while (sessions_try_again(r->table, st) && (how->max_tokens == 0 || r->n < how->max_tokens));
    free(stops);
    if (st == KK_OK && r->failed) st = r->failed;
    out->stop = stop_of(r, &result);
    return st == KK_OK || fault_from(f, &r->err);
}

/* What was held back for a stop text that did not come. */
static void give_rest(running *r) {
    const kk_answer_span *spans;
    size_t n;
    if (!r->answer || r->cancelled) return;
    if (kk_answer_finish(r->answer, &spans, &n, NULL) == KK_OK && n > 0) give(r, -1, spans, n);
}

/* What was generated becomes a turn of the history.  A turn that cannot be stored is taken back:
 * its client hears that it failed. */
static bool end_turn(sessions *t, sessions_entry *e, running *r, bool done, fault *f) {
    const int64_t before = e->history.len - r->n;
    fault unstored;
    if (r->n == 0) return true; /* no turn, in the journal neither */
    const int32_t *all = kk_session_tokens(e->session);
    if (kk_session_len(e->session) == e->history.len &&
        !sessions_store_turn(t, e, all, (size_t)r->n, true, &unstored)) {
        if (done) *f = unstored;
        kk_session_rewind(e->session, (int32_t)before, NULL, NULL);
        e->history.len = 0;
        e->history.chain = HISTORY_START;
        history_add(&e->history, kk_session_tokens(e->session), (size_t)before);
        r->n = 0;
        return false;
    }
    sessions_bind_position(&e->binding, e->session);
    return history_turn(&e->history) || (done && fault_set(f, 503, NULL, "out of memory"));
}

static bool generate(sessions *t, sessions_entry *e, const sessions_generation *how,
                     sessions_generated *out, fault *f) {
    running r = {.table = t, .e = e, .how = how};
    const double start = text_now();
    if (e->history.len == 0)
        return fault_set(f, 400, NULL, "the session has no token yet: append some");
    if (!sessions_wake(t, e, &how->watch, &out->cached, &out->evaluated, f)) return false;
    out->prefill_s = text_now() - start;
    if (!open_answer(&r, f)) return false;
    bool done = decode(&r, out, f);
    if (done) give_rest(&r);
    kk_answer_free(r.answer);
    if (!end_turn(t, e, &r, done, f)) done = false;
    out->generated = r.n;
    out->history = e->history.len;
    return sessions_holds(t, e, f) && done;
}

bool sessions_generate(sessions *t, const char *id, const sessions_generation *how,
                       sessions_generated *out, fault *f) {
    *out = (sessions_generated){0};
    sessions_entry *e = sessions_acquire(t, id, f);
    if (!e) return false;
    const bool done = generate(t, e, how, out, f);
    sessions_release(t, e);
    return done;
}

/* ---- fork and read ----------------------------------------------------------------------- */

static bool place_of(const history *h, sessions_place at, int64_t *len, fault *f) {
    *len = h->len;
    if (at.turn >= 0) {
        if (at.turn > h->n_turns)
            return fault_set(f, 400, "turn", "the session has %d turns, not %d", h->n_turns,
                             at.turn);
        *len = at.turn == 0 ? 0 : h->turns[at.turn - 1];
    } else if (at.tokens >= 0) {
        if (at.tokens > h->len)
            return fault_set(f, 400, "at", "the session has %lld tokens, not %lld",
                             (long long)h->len, (long long)at.tokens);
        *len = at.tokens;
    }
    return true;
}

/* Both entries are the caller's. */
static bool fork_into(sessions *t, sessions_entry *to, sessions_entry *from, int64_t len,
                      const sessions_watch *watch, sessions_appended *out, fault *f) {
    const int32_t *tokens = kk_session_tokens(from->session);
    const int32_t at = checkpoints_before(from->session, (int32_t)len, t->opts.info.window);
    int32_t evaluated = 0;
    kk_err err;
    kk_status st;
    do {
        st = kk_session_fork_at(&to->session, from->session, at, &evaluated, &err);
    } while (sessions_try_again(t, st));
    if (st != KK_OK) return fault_from(f, &err);
    sessions_bind(&to->binding, to->id, to->session);
    sessions_show_made(t, to);
    if (!sessions_evaluate(t, to, tokens + at, (size_t)(len - at), watch, f)) return false;
    if (!history_fork(&to->history, &from->history, tokens, len))
        return fault_set(f, 503, NULL, "out of memory");
    sessions_bind_position(&to->binding, to->session);
    out->history = len;
    out->evaluated += evaluated + len - at;
    return sessions_holds(t, to, f) && sessions_store_entry(t, to, f);
}

bool sessions_fork(sessions *t, const char *id, sessions_place at, const sessions_watch *watch,
                   char fork_id[SESSIONS_ID], sessions_appended *out, fault *f) {
    int64_t len;
    *out = (sessions_appended){0};
    sessions_entry *from = sessions_acquire(t, id, f);
    if (!from) return false;
    sessions_entry *to = NULL;
    bool done = sessions_wake(t, from, watch, &out->cached, &out->evaluated, f) &&
                place_of(&from->history, at, &len, f) &&
                (to = sessions_add(t, &from->how, f)) != NULL &&
                fork_into(t, to, from, len, watch, out, f);
    sessions_release(t, from);
    if (done) memcpy(fork_id, to->id, SESSIONS_ID);
    if (to && done) sessions_release(t, to);
    if (to && !done) sessions_remove(t, to);
    return done;
}

bool sessions_tokens(sessions *t, const char *id, int32_t **out, size_t *n, fault *f) {
    sessions_entry *e = sessions_acquire(t, id, f);
    if (!e) return false;
    journal stored = {.good = 0};
    kk_err err;
    const bool on_disk = !e->session && t->opts.store;
    const bool read =
        !on_disk || store_read(t->opts.store, e->id, &stored, &err) == KK_OK || fault_from(f, &err);
    const int32_t *held = e->session ? kk_session_tokens(e->session)
                          : on_disk  ? stored.tokens
                                     : e->tokens;
    *n = on_disk ? stored.len : (size_t)e->history.len;
    *out = read ? malloc(*n * sizeof **out + 1) : NULL;
    if (*out && *n) memcpy(*out, held, *n * sizeof **out);
    journal_free(&stored);
    sessions_release(t, e);
    return *out || (read && fault_set(f, 503, NULL, "out of memory"));
}
