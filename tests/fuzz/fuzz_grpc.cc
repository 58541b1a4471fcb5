/* fuzz_grpc.cc - any bytes as a request of RuntimeService: refused with a fault, or calls of the
 * sessions service whose arguments are within their limits; and messages that parse again.
 *
 * The first byte chooses the call.  The service is a stand-in that checks what it is handed. */
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "server/grpc/grpc_calls.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace {

using namespace kakeya_grpc;

void need(bool holds) {
    if (!holds) abort();
}

/* What the stand-in takes its answers from: the input itself. */
struct World {
    const uint8_t *data;
    size_t size;
};

sessions *as_table(World *w) { return reinterpret_cast<sessions *>(w); }
const World *world_of(sessions *t) { return reinterpret_cast<const World *>(t); }

void check_id(const char *id) { need(id[0] != '\0' && strlen(id) < SESSIONS_ID); }

void check_session(const kk_session_opts &o) {
    need(o.ctx >= 0 && o.kv_format >= 0 && o.kv_format < KK_KV_FORMATS);
    need(o.kv_sliding >= KK_KEEP_ALL && o.kv_sliding <= KK_KEEP_RESTORED);
    need(o.kv_full >= KK_KEEP_ALL && o.kv_full <= KK_KEEP_RESTORED);
    need(o.spec >= KK_SPEC_AUTO && o.spec <= KK_SPEC_NGRAM);
    need(o.sink >= -1 && o.window >= -1 && o.chunk >= 0);
}

void check_sampling(const kk_sampling &s) {
    need(s.temp >= 0 && s.temp <= 100 && s.top_p >= 0 && s.top_p <= 1 && s.top_k >= 0);
    need(s.min_p >= 0 && s.min_p <= 1 && s.repeat_penalty >= 0 && s.repeat_penalty <= 100);
    need(std::fabs(s.presence_penalty) <= 100 && std::fabs(s.frequency_penalty) <= 100);
}

void standard(sessions *, sessions_how *out) {
    memset(out, 0, sizeof *out);
    out->sampling.seed = 17;
}

bool create(sessions *, const sessions_how *how, char id[SESSIONS_ID], fault *) {
    check_session(how->session);
    need(how->n_stop_ids >= 0 && how->n_stop_ids <= SESSIONS_STOP_IDS);
    for (int32_t i = 0; i < how->n_stop_ids; i++) need(how->stop_ids[i] >= 0);
    need(memchr(how->label, '\0', sizeof how->label) != nullptr);
    snprintf(id, SESSIONS_ID, "sess-1");
    return true;
}

bool append(sessions *, const char *id, const int32_t *tokens, size_t n,
            const sessions_watch *watch, sessions_appended *out, fault *) {
    check_id(id);
    need(watch->goes_on(watch->user));
    for (size_t i = 0; i < n; i++) need(tokens[i] >= 0);
    *out = {};
    out->history = out->added = static_cast<int64_t>(n);
    return true;
}

bool append_bytes(sessions *, const char *id, const char *text, size_t len, const sessions_watch *,
                  sessions_appended *out, fault *f) {
    check_id(id);
    size_t sum = 0;
    for (size_t i = 0; i < len; i++) sum += static_cast<unsigned char>(text[i]);
    *out = {};
    if (sum % 2 == 0) return true;
    f->status = 400;
    return false;
}

/* Any bytes of a model, in pieces. */
bool run(sessions *t, const char *id, const sessions_generation *how, sessions_generated *out,
         fault *) {
    const World *w = world_of(t);
    check_id(id);
    check_sampling(*how->sampling);
    need(how->max_tokens >= 1 && how->n_stops <= 16);
    for (size_t i = 0; i < how->n_stops; i++) need(how->stops[i][0] != '\0');
    *out = {};
    for (size_t at = 0; at < w->size && out->generated < 64; at += 3, out->generated++) {
        const size_t n = std::min<size_t>(3, w->size - at);
        sessions_piece piece = {};
        piece.id = static_cast<int32_t>(w->data[at]);
        piece.text = reinterpret_cast<const char *>(w->data) + at;
        piece.len = n;
        need(how->on_piece(how->user, &piece));
    }
    sessions_piece last = {};
    last.id = -1;
    last.text = reinterpret_cast<const char *>(w->data);
    last.len = std::min<size_t>(w->size, 7);
    need(how->on_piece(how->user, &last));
    out->stop = static_cast<sessions_stop>(w->size % 5);
    return true;
}

bool fork_at(sessions *, const char *id, sessions_place at, const sessions_watch *,
             char fork_id[SESSIONS_ID], sessions_appended *out, fault *) {
    check_id(id);
    need(at.tokens >= -1 && at.tokens <= INT32_MAX && at.turn >= -1);
    need(at.tokens == -1 || at.turn == -1);
    snprintf(fork_id, SESSIONS_ID, "sess-2");
    *out = {};
    return true;
}

bool describe(sessions *t, const char *id, sessions_info *out, fault *) {
    check_id(id);
    *out = {};
    out->session.kv_full = KK_KEEP_WINDOW;
    out->session.chunk = 8;
    out->history = static_cast<int64_t>(world_of(t)->size);
    return true;
}

bool list(sessions *, sessions_info **out, size_t *n, fault *) {
    *n = 2;
    *out = static_cast<sessions_info *>(calloc(*n, sizeof **out));
    return *out != nullptr;
}

bool remove_one(sessions *, const char *id, int64_t *history, fault *) {
    check_id(id);
    *history = 3;
    return true;
}

bool tokens_of(sessions *, const char *id, int32_t **out, size_t *n, fault *) {
    check_id(id);
    *n = 2;
    *out = static_cast<int32_t *>(calloc(*n, sizeof **out));
    return *out != nullptr;
}

bool goes_on(void *) { return true; }

const kk_grpc_service service = {nullptr,  nullptr, nullptr,      nullptr,      nullptr, standard,
                                 create,   append,  append_bytes, append_bytes, run,     fork_at,
                                 describe, list,    remove_one,   tokens_of};

/* What is sent is UTF-8: protobuf's own parser says so. */
template <class Message> void check_message(const Message &m) {
    std::string bytes;
    Message again;
    need(m.SerializeToString(&bytes) && again.ParseFromString(bytes));
    need(again.SerializeAsString() == bytes);
}

class Frames final : public Sink {
  public:
    bool send(v1::GenerateResponse &&message) override {
        check_message(message);
        need(done_ == 0 && message.payload_case() != 0);
        if (message.has_truncated()) need(sent_ == 0);
        sent_++;
        done_ += message.has_done();
        return true;
    }
    int sent_ = 0, done_ = 0;
};

template <class In, class Out>
void check_call(const Context &c, const uint8_t *data, size_t size,
                bool (*function)(const Context &, const In &, Out *, fault *)) {
    In in;
    Out out;
    fault f = {};
    if (!in.ParseFromArray(data, static_cast<int>(size))) return;
    if (function(c, in, &out, &f))
        check_message(out);
    else
        need(f.status == 400 || f.status == 404);
}

void check_generate(const Context &c, const uint8_t *data, size_t size) {
    v1::GenerateRequest in;
    Frames frames;
    fault f = {};
    if (!in.ParseFromArray(data, static_cast<int>(size))) return;
    const bool good = generate(c, in, &frames, &f);
    need(good ? frames.done_ == 1 : frames.sent_ == 0 && f.message[0] != '\0');
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const int which = data[0] % 9;
    World w = {++data, --size};
    kk_grpc_ended ended = {};
    const Context c = {&service, as_table(&w), {goes_on, nullptr}, &ended};
    switch (which) {
    case 0: check_call(c, data, size, create_session); break;
    case 1: check_call(c, data, size, append_tokens); break;
    case 2: check_call(c, data, size, append_text); break;
    case 3: check_call(c, data, size, close_session); break;
    case 4: check_call(c, data, size, session_info); break;
    case 5: check_call(c, data, size, fork_session); break;
    case 6: check_call(c, data, size, get_history); break;
    case 7: check_call(c, data, size, list_sessions); break;
    default: check_generate(c, data, size); break;
    }
    return 0;
}
