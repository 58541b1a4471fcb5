/* grpc_calls.cc - see grpc_calls.h. */
#include "server/grpc/grpc_calls.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace kakeya_grpc {

namespace {

/* ---- what is refused before the server is asked ------------------------------------------- */

__attribute__((format(printf, 3, 4))) bool refuse(fault *f, const char *field, const char *fmt,
                                                  ...) {
    va_list ap;
    *f = fault{};
    f->status = 400;
    snprintf(f->param, sizeof f->param, "%s", field);
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return false;
}

/* An id with a NUL in it would be cut to another one. */
bool check_id(const std::string &id, fault *f) {
    if (id.empty()) return refuse(f, "session_id", "session_id is empty");
    if (id.size() < SESSIONS_ID && id.find('\0') == std::string::npos) return true;
    *f = fault{};
    f->status = 404;
    snprintf(f->message, sizeof f->message, "no session has this id");
    return false;
}

template <class Ids>
bool take_ids(const Ids &from, const char *field, std::vector<int32_t> *to, fault *f) {
    to->reserve(static_cast<size_t>(from.size()));
    for (const uint32_t id : from) {
        if (id >= INT32_MAX) return refuse(f, field, "%s: %u is no token", field, id);
        to->push_back(static_cast<int32_t>(id));
    }
    return true;
}

bool take_size(uint32_t value, const char *field, int32_t *to, fault *f) {
    if (value > INT32_MAX) return refuse(f, field, "%s is %u: %d at most", field, value, INT32_MAX);
    *to = static_cast<int32_t>(value);
    return true;
}

bool take_real(float value, const char *field, float least, float most, float *to, fault *f) {
    if (!(value >= least && value <= most))
        return refuse(f, field, "%s is %g: from %g to %g", field, static_cast<double>(value),
                      static_cast<double>(least), static_cast<double>(most));
    *to = value;
    return true;
}

/* ---- options of a session ------------------------------------------------------------------ */

/* The enums of runtime.proto are those of kakeya.h, one higher: 0 leaves the server's choice. */
static_assert(v1::KV_FORMAT_BF16 == KK_KV_BF16 + 1 && v1::KV_FORMAT_F32 == KK_KV_F32 + 1 &&
                  v1::KV_FORMAT_Q8 == KK_KV_Q8 + 1 && v1::KV_FORMAT_Q4 == KK_KV_Q4 + 1 &&
                  v1::KV_FORMAT_S8 == KK_KV_S8 + 1 && KK_KV_FORMATS == 5,
              "formats of K/V rows");
static_assert(v1::CACHE_POLICY_ALL == KK_KEEP_ALL + 1 &&
                  v1::CACHE_POLICY_WINDOW == KK_KEEP_WINDOW + 1 &&
                  v1::CACHE_POLICY_RESTORED == KK_KEEP_RESTORED + 1,
              "policies of caches");
static_assert(v1::DRAFTING_AUTO == KK_SPEC_AUTO + 1 && v1::DRAFTING_NONE == KK_SPEC_NONE + 1 &&
                  v1::DRAFTING_DFLASH == KK_SPEC_DFLASH + 1 &&
                  v1::DRAFTING_NGRAM == KK_SPEC_NGRAM + 1,
              "proposers");

/* `valid` is the generated IsValid: clients may send any number. */
template <class Enum, class Own>
bool take_enum(Enum value, bool (*valid)(int), const char *field, Own *to, fault *f) {
    if (!valid(value))
        return refuse(f, field, "%s: there is no %d", field, static_cast<int>(value));
    if (value != 0) *to = static_cast<Own>(value - 1);
    return true;
}

/* None is -1 to the library, whose 0 is a default. */
bool take_rows(uint32_t value, const char *field, int32_t *to, fault *f) {
    if (!take_size(value, field, to, f)) return false;
    if (*to == 0) *to = -1;
    return true;
}

bool take_options(const v1::SessionOptions &in, kk_session_opts *to, fault *f) {
    if (in.context() > 0 && !take_size(in.context(), "context", &to->ctx, f)) return false;
    if (in.has_sink() && !take_rows(in.sink(), "sink", &to->sink, f)) return false;
    if (in.has_window() && !take_rows(in.window(), "window", &to->window, f)) return false;
    if (in.has_chunk() && in.chunk() == 0) return refuse(f, "chunk", "chunk is 0: 1 at least");
    if (in.has_chunk() && !take_size(in.chunk(), "chunk", &to->chunk, f)) return false;
    return take_enum(in.kv_format(), v1::KvFormat_IsValid, "kv_format", &to->kv_format, f) &&
           take_enum(in.sliding_layers(), v1::CachePolicy_IsValid, "sliding_layers",
                     &to->kv_sliding, f) &&
           take_enum(in.full_layers(), v1::CachePolicy_IsValid, "full_layers", &to->kv_full, f) &&
           take_enum(in.drafting(), v1::Drafting_IsValid, "drafting", &to->spec, f);
}

void tell_options(const sessions_info &s, v1::SessionOptions *out) {
    const kk_session_opts &o = s.session;
    out->set_context(static_cast<uint32_t>(s.context));
    out->set_kv_format(static_cast<v1::KvFormat>(o.kv_format + 1));
    out->set_sliding_layers(static_cast<v1::CachePolicy>(o.kv_sliding + 1));
    out->set_full_layers(static_cast<v1::CachePolicy>(o.kv_full + 1));
    if (o.kv_sliding != KK_KEEP_ALL || o.kv_full != KK_KEEP_ALL) {
        out->set_sink(o.sink > 0 ? static_cast<uint32_t>(o.sink) : 0);
        out->set_window(o.window > 0 ? static_cast<uint32_t>(o.window) : 0);
        out->set_chunk(static_cast<uint32_t>(o.chunk));
    }
    out->set_drafting(static_cast<v1::Drafting>(o.spec + 1));
}

/* ---- text ---------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence at the start of s[0, n), n > 0; 0: it is none. */
size_t utf8_sequence(const unsigned char *s, size_t n) {
    const unsigned char c = s[0];
    const size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    /* Overlong forms, surrogates, and what is past U+10FFFF show in the second byte. */
    if (c == 0xe0 && s[1] < 0xa0) return 0;
    if (c == 0xed && s[1] > 0x9f) return 0;
    if (c == 0xf0 && s[1] < 0x90) return 0;
    if (c == 0xf4 && s[1] > 0x8f) return 0;
    return len;
}

/* Strings of protobuf are UTF-8, and a model may write any bytes: each that is not of UTF-8 becomes
 * U+FFFD, as over HTTP. */
void add_text(std::string *to, const char *text, size_t len) {
    const unsigned char *s = reinterpret_cast<const unsigned char *>(text);
    for (size_t at = 0; at < len;) {
        const size_t n = utf8_sequence(s + at, len - at);
        if (n > 0)
            to->append(text + at, n);
        else
            to->append("\xef\xbf\xbd");
        at += n > 0 ? n : 1;
    }
}

/* ---- a generation -------------------------------------------------------------------------- */

bool take_sampling(const v1::GenerateRequest &in, kk_sampling *to, fault *f) {
    if (in.has_temperature() && !take_real(in.temperature(), "temperature", 0, 100, &to->temp, f))
        return false;
    if (in.has_top_p()) {
        if (!take_real(in.top_p(), "top_p", 0, 1, &to->top_p, f)) return false;
        /* To the library a top_p of 0 is off; to clients it is the likeliest token alone. */
        if (to->top_p <= 0) to->top_p = 1e-6f;
    }
    if (in.has_top_k() && !take_size(in.top_k(), "top_k", &to->top_k, f)) return false;
    if (in.has_min_p() && !take_real(in.min_p(), "min_p", 0, 1, &to->min_p, f)) return false;
    if (in.has_repeat_penalty() &&
        !take_real(in.repeat_penalty(), "repeat_penalty", 0, 100, &to->repeat_penalty, f))
        return false;
    if (in.has_presence_penalty() &&
        !take_real(in.presence_penalty(), "presence_penalty", -100, 100, &to->presence_penalty, f))
        return false;
    if (in.has_frequency_penalty() && !take_real(in.frequency_penalty(), "frequency_penalty", -100,
                                                 100, &to->frequency_penalty, f))
        return false;
    return true;
}

bool take_stops(const v1::GenerateRequest &in, std::vector<const char *> *to, fault *f) {
    constexpr int most = 16;
    if (in.stop_size() > most)
        return refuse(f, "stop", "%d stop texts: %d at most", in.stop_size(), most);
    for (const std::string &text : in.stop()) {
        if (text.empty()) return refuse(f, "stop", "a stop text is empty");
        if (text.find('\0') != std::string::npos)
            return refuse(f, "stop", "a stop text has a NUL in it");
        to->push_back(text.c_str());
    }
    return true;
}

struct Stream {
    Sink *sink;
    bool with_text;
    std::string rest; /* text that came without a token */
    bool failed;      /* no memory */
};

/* Called by C: no exception leaves it. */
bool on_piece(void *user, const sessions_piece *piece) {
    Stream *s = static_cast<Stream *>(user);
    try {
        if (piece->id < 0) {
            if (s->with_text) add_text(&s->rest, piece->text, piece->len);
            return true;
        }
        v1::GenerateResponse message;
        message.set_token_id(static_cast<uint32_t>(piece->id));
        if (s->with_text && piece->len > 0)
            add_text(message.mutable_text(), piece->text, piece->len);
        return s->sink->send(std::move(message));
    } catch (...) {
        s->failed = true;
        return false;
    }
}

v1::StopReason stop_reason(sessions_stop stop) {
    switch (stop) {
    case SESSIONS_MAX_TOKENS: return v1::STOP_REASON_MAX_TOKENS;
    case SESSIONS_EOS: return v1::STOP_REASON_EOS;
    case SESSIONS_STOP_TEXT: return v1::STOP_REASON_STOP_TEXT;
    case SESSIONS_CANCELLED: return v1::STOP_REASON_CANCELLED;
    case SESSIONS_CONTEXT: return v1::STOP_REASON_CONTEXT_FULL;
    }
    return v1::STOP_REASON_UNSPECIFIED;
}

void tell_done(const sessions_generated &g, v1::GenerateDone *out) {
    out->set_stop_reason(stop_reason(g.stop));
    out->set_generated_token_count(static_cast<uint32_t>(g.generated));
    out->set_prefill_duration_seconds(g.prefill_s);
    out->set_total_duration_seconds(g.prefill_s + g.decode_s);
    out->set_history_length(static_cast<uint64_t>(g.history));
    out->set_rounds(static_cast<uint32_t>(g.rounds));
    out->set_drafted_tokens(static_cast<uint32_t>(g.drafted));
    out->set_accepted_tokens(static_cast<uint32_t>(g.accepted));
    out->set_logits_hash(g.logits_hash);
    out->set_evaluated_tokens(static_cast<uint64_t>(g.evaluated));
}

bool tell_truncated(const Context &c, const std::string &id, Sink *sink, fault *f) {
    sessions_info info;
    if (!c.service->describe(c.table, id.c_str(), &info, f)) return false;
    if (info.dropped == 0) return true;
    v1::GenerateResponse message;
    message.mutable_truncated()->set_dropped_token_count(static_cast<uint64_t>(info.dropped));
    sink->send(std::move(message)); /* whether anybody reads it, the tokens will tell */
    return true;
}

struct Release {
    void operator()(void *p) const { free(p); }
};

} // namespace

/* ---- the calls ----------------------------------------------------------------------------- */

bool create_session(const Context &c, const v1::CreateSessionRequest &in,
                    v1::CreateSessionResponse *out, fault *f) {
    sessions_how how;
    char id[SESSIONS_ID];
    sessions_info info;
    std::vector<int32_t> eos;
    c.service->standard(c.table, &how);
    if (!take_options(in.options(), &how.session, f)) return false;
    if (in.eos_token_ids_size() > SESSIONS_STOP_IDS)
        return refuse(f, "eos_token_ids", "%d eos_token_ids: %d at most", in.eos_token_ids_size(),
                      SESSIONS_STOP_IDS);
    if (!take_ids(in.eos_token_ids(), "eos_token_ids", &eos, f)) return false;
    how.n_stop_ids = 0;
    for (const int32_t one : eos) how.stop_ids[how.n_stop_ids++] = one;
    /* A label is cut between characters, which begin with bytes other than 10xxxxxx. */
    size_t n = std::min(in.client_label().size(), sizeof how.label - 1);
    if (n < in.client_label().size())
        while (n > 0 && (in.client_label()[n] & 0xc0) == 0x80) n--;
    snprintf(how.label, sizeof how.label, "%s", in.client_label().substr(0, n).c_str());
    if (!c.service->create(c.table, &how, id, f)) return false;
    if (!c.service->describe(c.table, id, &info, f)) return false;
    out->set_session_id(id);
    tell_options(info, out->mutable_options());
    return true;
}

static void note(const Context &c, const sessions_appended &done) {
    if (!c.ended) return;
    c.ended->appends = true;
    c.ended->appended = done;
}

bool append_tokens(const Context &c, const v1::AppendTokensRequest &in,
                   v1::AppendTokensResponse *out, fault *f) {
    sessions_appended done;
    std::vector<int32_t> ids;
    if (!check_id(in.session_id(), f) || !take_ids(in.token_ids(), "token_ids", &ids, f) ||
        !c.service->append(c.table, in.session_id().c_str(), ids.data(), ids.size(), &c.watch,
                           &done, f))
        return false;
    note(c, done);
    out->set_history_length(static_cast<uint64_t>(done.history));
    return true;
}

bool append_text(const Context &c, const v1::AppendTextRequest &in, v1::AppendTextResponse *out,
                 fault *f) {
    sessions_appended done;
    if (!check_id(in.session_id(), f)) return false;
    const char *id = in.session_id().c_str();
    bool appended;
    switch (in.input_case()) {
    case v1::AppendTextRequest::kText:
        appended = c.service->append_text(c.table, id, in.text().data(), in.text().size(), &c.watch,
                                          &done, f);
        break;
    case v1::AppendTextRequest::kChatJson:
        appended = c.service->append_messages(c.table, id, in.chat_json().data(),
                                              in.chat_json().size(), &c.watch, &done, f);
        break;
    default: return refuse(f, "input", "neither text nor chat_json is set");
    }
    if (!appended) return false;
    note(c, done);
    out->set_history_length(static_cast<uint64_t>(done.history));
    out->set_added_tokens(static_cast<uint64_t>(done.added));
    return true;
}

bool generate(const Context &c, const v1::GenerateRequest &in, Sink *sink, fault *f) {
    sessions_generation how = {};
    sessions_how standard;
    sessions_generated done = {};
    kk_sampling sampling = {};
    std::vector<const char *> stops;
    Stream stream = {sink, in.with_text(), {}, false};
    if (!check_id(in.session_id(), f)) return false;
    if (in.max_tokens() == 0) return refuse(f, "max_tokens", "max_tokens is 0: 1 at least");
    if (!take_size(in.max_tokens(), "max_tokens", &how.max_tokens, f) ||
        !take_sampling(in, &sampling, f) || !take_stops(in, &stops, f))
        return false;
    c.service->standard(c.table, &standard);
    sampling.seed = in.has_seed() ? in.seed() : standard.sampling.seed;
    how.sampling = &sampling;
    how.stops = stops.data();
    how.n_stops = stops.size();
    how.ignore_eos = in.ignore_eos();
    how.on_piece = on_piece;
    how.watch = c.watch;
    how.user = &stream;
    if (!tell_truncated(c, in.session_id(), sink, f)) return false;
    const bool good = c.service->generate(c.table, in.session_id().c_str(), &how, &done, f);
    if (c.ended) c.ended->generates = true;
    if (c.ended) c.ended->generated = done;
    if (!good) return false;
    if (stream.failed) throw std::bad_alloc();
    v1::GenerateResponse message;
    tell_done(done, message.mutable_done());
    message.set_text(std::move(stream.rest));
    sink->send(std::move(message));
    return true;
}

bool close_session(const Context &c, const v1::CloseSessionRequest &in,
                   v1::CloseSessionResponse *out, fault *f) {
    int64_t history = 0;
    if (!check_id(in.session_id(), f) ||
        !c.service->remove(c.table, in.session_id().c_str(), &history, f))
        return false;
    out->set_final_history_length(static_cast<uint64_t>(history));
    return true;
}

bool session_info(const Context &c, const v1::GetSessionInfoRequest &in,
                  v1::GetSessionInfoResponse *out, fault *f) {
    sessions_info s;
    if (!check_id(in.session_id(), f) ||
        !c.service->describe(c.table, in.session_id().c_str(), &s, f))
        return false;
    out->set_history_length(static_cast<uint64_t>(s.history));
    out->set_kv_live_bytes(static_cast<uint64_t>(s.kv_bytes));
    out->set_cache_invariant_inv1_violations(static_cast<uint64_t>(s.violations[0]));
    out->set_cache_invariant_inv2_violations(static_cast<uint64_t>(s.violations[1]));
    out->set_cache_invariant_inv3_violations(static_cast<uint64_t>(s.violations[2]));
    out->set_idle_seconds(s.idle_s);
    out->set_client_label(s.label);
    tell_options(s, out->mutable_options());
    out->set_turns(static_cast<uint32_t>(s.turns));
    out->set_busy(s.busy);
    out->set_created_unix_seconds(s.created);
    return true;
}

bool fork_session(const Context &c, const v1::ForkSessionRequest &in, v1::ForkSessionResponse *out,
                  fault *f) {
    sessions_place at = {-1, -1};
    sessions_appended done;
    char id[SESSIONS_ID];
    if (!check_id(in.session_id(), f)) return false;
    if (in.at_case() == v1::ForkSessionRequest::kHistoryLength) {
        if (in.history_length() > INT32_MAX)
            return refuse(f, "history_length", "history_length is %llu: %d at most",
                          static_cast<unsigned long long>(in.history_length()), INT32_MAX);
        at.tokens = static_cast<int64_t>(in.history_length());
    }
    if (in.at_case() == v1::ForkSessionRequest::kTurn && !take_size(in.turn(), "turn", &at.turn, f))
        return false;
    if (!c.service->fork(c.table, in.session_id().c_str(), at, &c.watch, id, &done, f))
        return false;
    out->set_session_id(id);
    out->set_history_length(static_cast<uint64_t>(done.history));
    return true;
}

bool get_history(const Context &c, const v1::GetHistoryRequest &in, v1::GetHistoryResponse *out,
                 fault *f) {
    int32_t *tokens = nullptr;
    size_t n = 0;
    if (!check_id(in.session_id(), f) ||
        !c.service->tokens(c.table, in.session_id().c_str(), &tokens, &n, f))
        return false;
    const std::unique_ptr<int32_t, Release> held(tokens);
    out->mutable_token_ids()->Reserve(static_cast<int>(n));
    for (size_t i = 0; i < n; i++) out->add_token_ids(static_cast<uint32_t>(tokens[i]));
    return true;
}

bool list_sessions(const Context &c, const v1::ListSessionsRequest &, v1::ListSessionsResponse *out,
                   fault *f) {
    sessions_info *all = nullptr;
    size_t n = 0;
    if (!c.service->list(c.table, &all, &n, f)) return false;
    const std::unique_ptr<sessions_info, Release> held(all);
    for (size_t i = 0; i < n; i++) {
        v1::SessionSummary *s = out->add_sessions();
        s->set_session_id(all[i].id);
        s->set_client_label(all[i].label);
        s->set_history_length(static_cast<uint64_t>(all[i].history));
        s->set_kv_live_bytes(static_cast<uint64_t>(all[i].kv_bytes));
        s->set_idle_seconds(all[i].idle_s);
    }
    return true;
}

} // namespace kakeya_grpc
