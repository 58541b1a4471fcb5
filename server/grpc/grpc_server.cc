/* grpc_server.cc - RuntimeService on a socket, with gRPC's services of health and reflection.
 *
 * gRPC calls back when a request has come, a message was written, or a client has left; none of
 * these waits.  A request becomes a job of a pool: long ones (append, generate, fork) of one with
 * `parallel` threads and a queue, quick ones of two threads of their own, so that they are answered
 * while all others work.  A generation hands its messages to a queue of bounded size, which is
 * written as fast as the client reads; so a client that does not read holds no thread.
 *
 * No exception leaves a callback or a function of the table at the end. */
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <kakeya/v1/runtime.grpc.pb.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "server/grpc/grpc_accept.h"
#include "server/grpc/grpc_calls.h"
#include "server/grpc/grpc_pool.h"

namespace kakeya_grpc {

namespace {

using Clock = std::chrono::steady_clock;

Clock::duration seconds(double s) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(s, 1e9)));
}

/* ---- a call -------------------------------------------------------------------------------- */

/* What all calls share. */
struct Shared {
    kk_grpc_opts opts = {};
    mutable std::atomic<int> calls{0}; /* that were not answered to the end */
    std::unique_ptr<Pool> working, quick;
};

/* One call, as the thread that works for it and the callbacks see it. */
struct Call {
    Call(const Shared &all, const char *name)
        : left(std::make_shared<std::atomic<bool>>(false)), began(Clock::now()),
          until(began + seconds(all.opts.request_s)), shared(all) {
        shared.calls++;
        done.call = name;
        done.first_s = -1;
    }
    ~Call() { shared.calls--; }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    std::shared_ptr<std::atomic<bool>> left;
    Clock::time_point began, until;
    const Shared &shared;
    kk_grpc_ended done = {};

    bool late() const { return Clock::now() >= until; }
    double age() const { return std::chrono::duration<double>(Clock::now() - began).count(); }
    /* Called once, with the status that the client is about to be told. */
    void count(const grpc::Status &status) {
        const kk_grpc_service &service = shared.opts.service;
        done.code = status.error_code();
        done.whole_s = age();
        if (service.ended) service.ended(service.server, &done);
        Pool::answered();
    }
    bool goes_on() const { return !left->load() && !late(); }
};

bool goes_on(void *call) { return static_cast<const Call *>(call)->goes_on(); }

/* A fault as gRPC tells it; without one, why the call did not go on. */
grpc::Status status_of(const Shared &shared, const Call &call, const fault &f) {
    constexpr int stopped = 499; /* because goes_on said so */
    if (f.status != 0 && f.status != stopped)
        return {static_cast<grpc::StatusCode>(shared.opts.service.code(&f)), f.message};
    if (!call.left->load() && call.late())
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "the time that a call may take is over"};
    return {grpc::StatusCode::CANCELLED, f.status != 0 ? f.message : "cancelled"};
}

/* Runs `work`, which fills a fault where it returns false. */
template <class Work> grpc::Status attempt(const Shared &shared, Call *call, const Work &work) {
    try {
        fault f = {};
        const kk_grpc_service &service = shared.opts.service;
        if (!call->goes_on()) return status_of(shared, *call, f);
        sessions *table = service.ready(service.server, &f);
        const Context context = {&service, table, {goes_on, call}, &call->done};
        if (!table || !work(context, &f)) return status_of(shared, *call, f);
        return grpc::Status::OK;
    } catch (const std::bad_alloc &) {
        return {grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory"};
    } catch (...) {
        return {grpc::StatusCode::INTERNAL, "the server failed"};
    }
}

/* What can be said before any work: empty when the call may go on. */
grpc::Status admit(const Shared &shared, const grpc::CallbackServerContext *context) {
    const auto &metadata = context->client_metadata();
    const auto found = metadata.find("authorization");
    const std::string given =
        found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
    const kk_grpc_service &service = shared.opts.service;
    if (service.accepts(service.server, found == metadata.end() ? nullptr : given.c_str()))
        return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED, "the API key is missing or wrong"};
}

const grpc::Status &full() {
    static const grpc::Status status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                     "too many calls wait already: try again later");
    return status;
}

/* ---- calls with one response --------------------------------------------------------------- */

class Unary final : public grpc::ServerUnaryReactor {
  public:
    Unary(const Shared &shared, const char *name) : call_(std::make_shared<Call>(shared, name)) {}
    void end(const grpc::Status &status) {
        call_->count(status);
        Finish(status);
    }
    void OnCancel() override { call_->left->store(true); }
    void OnDone() override { delete this; }
    const std::shared_ptr<Call> &call() { return call_; }

  private:
    std::shared_ptr<Call> call_;
};

template <class In, class Out>
using Function = bool (*)(const Context &, const In &, Out *, fault *);

template <class In, class Out>
grpc::ServerUnaryReactor *answer(const Shared &shared, Pool *pool, const char *name,
                                 const grpc::CallbackServerContext *context, const In *in, Out *out,
                                 Function<In, Out> function) {
    Unary *reactor = new Unary(shared, name);
    grpc::Status status = admit(shared, context);
    bool taken = false;
    if (status.ok()) {
        try {
            const std::shared_ptr<Call> call = reactor->call();
            /* The request and the response live until the reactor is done. */
            taken = pool->submit(
                {[&shared, call, reactor, in, out, function] {
                     reactor->end(attempt(shared, call.get(), [&](const Context &c, fault *f) {
                         return function(c, *in, out, f);
                     }));
                 },
                 call->left});
        } catch (...) {
        }
        if (!taken) status = full();
    }
    if (!taken) reactor->end(status);
    return reactor;
}

/* ---- a generation -------------------------------------------------------------------------- */

/* Messages wait in a queue; one at a time is being written.  The object lives until gRPC is done
 * with it and no job holds it. */
class Generation final : public grpc::ServerWriteReactor<v1::GenerateResponse>, public Sink {
  public:
    Generation(const Shared &shared, grpc::CallbackServerContext *context)
        : shared_(shared), context_(context), call_(std::make_shared<Call>(shared, "Generate")) {}

    void start(std::shared_ptr<Generation> self, const v1::GenerateRequest *in) {
        self_ = self;
        grpc::Status status = admit(shared_, context_);
        if (status.ok()) {
            bool taken = false;
            try {
                taken = shared_.working->submit({[self, in] { self->run(*in); }, call_->left});
            } catch (...) {
            }
            if (taken) return;
            status = full();
        }
        end(status);
    }

    /* From the thread that generates. */
    bool send(v1::GenerateResponse &&message) override {
        {
            const std::lock_guard<std::mutex> hold(lock_);
            if (call_->done.first_s < 0) call_->done.first_s = call_->age();
            bytes_ += message.ByteSizeLong() + sizeof message;
            if (bytes_ > static_cast<size_t>(shared_.opts.stream_buffer)) slow_ = true;
            if (slow_) return false;
            if (message.done().stop_reason() == v1::STOP_REASON_CANCELLED) cancelled_ = true;
            waiting_.push_back(std::move(message));
        }
        pump();
        return call_->goes_on();
    }

    void OnWriteDone(bool ok) override {
        {
            const std::lock_guard<std::mutex> hold(lock_);
            writing_ = false;
            if (!ok) call_->left->store(true);
        }
        pump();
    }
    void OnCancel() override { call_->left->store(true); }
    void OnDone() override { const std::shared_ptr<Generation> last = std::move(self_); }

  private:
    void run(const v1::GenerateRequest &in) {
        grpc::Status status = attempt(shared_, call_.get(), [&](const Context &c, fault *f) {
            return generate(c, in, this, f);
        });
        /* What ends a generation early is no failure of its session. */
        if (slow_)
            status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"};
        else if (status.ok() && cancelled_)
            status = status_of(shared_, *call_, fault{});
        end(status);
    }

    void end(const grpc::Status &status) {
        bool stuck;
        call_->count(status);
        {
            const std::lock_guard<std::mutex> hold(lock_);
            ended_ = true;
            status_ = status;
            stuck = slow_;
        }
        /* A message that is not taken would wait for as long as the client likes. */
        if (stuck) context_->TryCancel();
        pump();
    }

    /* Starts the next write, or the end, unless a write is under way. */
    void pump() {
        bool finish = false;
        grpc::WriteOptions options;
        {
            const std::lock_guard<std::mutex> hold(lock_);
            if (writing_ || finished_) return;
            const bool gone = slow_ || call_->left->load();
            if (!waiting_.empty() && !gone) {
                current_ = std::move(waiting_.front());
                waiting_.pop_front();
                bytes_ -= current_.ByteSizeLong() + sizeof current_;
                writing_ = true;
                if (!waiting_.empty()) options.set_buffer_hint(); /* one system call for all */
            } else if (ended_) {
                finished_ = finish = true;
            } else {
                return;
            }
        }
        if (finish)
            Finish(status_);
        else
            StartWrite(&current_, options);
    }

    const Shared &shared_;
    grpc::CallbackServerContext *context_;
    std::shared_ptr<Call> call_;
    std::shared_ptr<Generation> self_; /* while gRPC has it */

    std::mutex lock_;
    std::deque<v1::GenerateResponse> waiting_;
    v1::GenerateResponse current_;
    grpc::Status status_;
    size_t bytes_ = 0; /* of the messages that wait */
    bool writing_ = false, ended_ = false, finished_ = false;
    /* Written by the thread that generates alone. */
    bool slow_ = false, cancelled_ = false;
};

/* ---- the service --------------------------------------------------------------------------- */

class Service final : public v1::RuntimeService::CallbackService {
  public:
    explicit Service(const Shared &shared) : shared_(shared) {}

    using Context = grpc::CallbackServerContext;
    using Reactor = grpc::ServerUnaryReactor;

    Reactor *CreateSession(Context *c, const v1::CreateSessionRequest *in,
                           v1::CreateSessionResponse *out) override {
        return answer(shared_, shared_.quick.get(), "CreateSession", c, in, out, create_session);
    }
    Reactor *AppendTokens(Context *c, const v1::AppendTokensRequest *in,
                          v1::AppendTokensResponse *out) override {
        return answer(shared_, shared_.working.get(), "AppendTokens", c, in, out, append_tokens);
    }
    Reactor *AppendText(Context *c, const v1::AppendTextRequest *in,
                        v1::AppendTextResponse *out) override {
        return answer(shared_, shared_.working.get(), "AppendText", c, in, out, append_text);
    }
    Reactor *CloseSession(Context *c, const v1::CloseSessionRequest *in,
                          v1::CloseSessionResponse *out) override {
        return answer(shared_, shared_.quick.get(), "CloseSession", c, in, out, close_session);
    }
    Reactor *GetSessionInfo(Context *c, const v1::GetSessionInfoRequest *in,
                            v1::GetSessionInfoResponse *out) override {
        return answer(shared_, shared_.quick.get(), "GetSessionInfo", c, in, out, session_info);
    }
    Reactor *ForkSession(Context *c, const v1::ForkSessionRequest *in,
                         v1::ForkSessionResponse *out) override {
        return answer(shared_, shared_.working.get(), "ForkSession", c, in, out, fork_session);
    }
    Reactor *GetHistory(Context *c, const v1::GetHistoryRequest *in,
                        v1::GetHistoryResponse *out) override {
        return answer(shared_, shared_.quick.get(), "GetHistory", c, in, out, get_history);
    }
    Reactor *ListSessions(Context *c, const v1::ListSessionsRequest *in,
                          v1::ListSessionsResponse *out) override {
        return answer(shared_, shared_.quick.get(), "ListSessions", c, in, out, list_sessions);
    }
    grpc::ServerWriteReactor<v1::GenerateResponse> *
    Generate(Context *c, const v1::GenerateRequest *in) override {
        const auto generation = std::make_shared<Generation>(shared_, c);
        generation->start(generation, in);
        return generation.get();
    }

  private:
    const Shared &shared_;
};

/* ---- a server's life ------------------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) kk_status fail(kk_err *err, kk_status code, const char *fmt,
                                                     ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return err->code = code;
}

/* gRPC writes what it notices to stderr, which is the program's. */
void ignore_log(gpr_log_func_args *) {}

kk_status read_file(const char *path, std::string *out, kk_err *err) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    if (!in || !(text << in.rdbuf()))
        return fail(err, KK_EIO, "cannot read '%.180s': %s", path, strerror(errno));
    *out = text.str();
    return KK_OK;
}

kk_status credentials(const kk_grpc_opts &opts, std::shared_ptr<grpc::ServerCredentials> *out,
                      kk_err *err) {
    if (!opts.tls_cert) {
        *out = grpc::InsecureServerCredentials();
        return KK_OK;
    }
    grpc::SslServerCredentialsOptions tls;
    grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
    kk_status st = read_file(opts.tls_key, &pair.private_key, err);
    if (st == KK_OK) st = read_file(opts.tls_cert, &pair.cert_chain, err);
    if (st != KK_OK) return st;
    tls.pem_key_cert_pairs.push_back(std::move(pair));
    *out = grpc::SslServerCredentials(tls);
    return KK_OK;
}

/* Messages that come in pieces are held until they are whole: all together have a limit too, above
 * which gRPC stops reading and cancels calls. */
constexpr int64_t held_messages = 8, other_bytes = 64 << 20;

void set_limits(const kk_grpc_opts &opts, grpc::ServerBuilder *builder) {
    grpc::ResourceQuota quota("kakeya");
    quota.Resize(static_cast<size_t>(held_messages * opts.max_message + other_bytes));
    builder->SetResourceQuota(quota);
    const int idle_ms = static_cast<int>(std::min(opts.idle_s, 1e6) * 1000);
    builder->SetMaxReceiveMessageSize(
        static_cast<int>(std::min<int64_t>(opts.max_message, INT32_MAX)));
    builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
    builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, opts.parallel + opts.queue + 16);
    /* A connection that says nothing is closed, as one that is idle. */
    builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, idle_ms);
    /* A client that vanished is noticed, and may itself ask as often. */
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, idle_ms);
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, idle_ms);
    builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

const char *const service_name = "kakeya.v1.RuntimeService";

} // namespace
} // namespace kakeya_grpc

using namespace kakeya_grpc;

namespace {

/* A server of gRPC with one certificate; none of its ports is its own. */
struct Serving {
    explicit Serving(const Shared &shared) : service(shared) {}
    Service service;
    std::unique_ptr<Acceptor::Target> target;
    std::unique_ptr<grpc::Server> server; /* the first to go */
};

} // namespace

struct kk_grpc {
    explicit kk_grpc(const kk_grpc_opts &opts) { shared.opts = opts; }
    Shared shared;
    bool ready = false;
    std::vector<std::unique_ptr<Serving>> all; /* the last takes what comes */
    std::unique_ptr<Acceptor> acceptor;
};

namespace {

void tell_health(const Serving &v, bool ready) {
    v.server->GetHealthCheckService()->SetServingStatus(ready);
    v.server->GetHealthCheckService()->SetServingStatus(service_name, ready);
}

/* Another one, with the certificate as it is in its files now. */
kk_status add_serving(kk_grpc *g, kk_err *err) {
    const kk_grpc_opts &opts = g->shared.opts;
    std::shared_ptr<grpc::ServerCredentials> how;
    const kk_status st = credentials(opts, &how, err);
    if (st != KK_OK) return st;
    auto v = std::make_unique<Serving>(g->shared);
    grpc::ServerBuilder builder;
    set_limits(opts, &builder);
    constexpr auto given = grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD;
    v->target = builder.experimental().AddExternalConnectionAcceptor(given, how);
    builder.RegisterService(&v->service);
    v->server = builder.BuildAndStart();
    if (!v->server)
        return fail(err, KK_EIO, "gRPC does not start%s",
                    opts.tls_cert ? ": the certificate and its key may not be a pair" : "");
    tell_health(*v, g->ready);
    g->all.push_back(std::move(v));
    return KK_OK;
}

kk_status begin(kk_grpc *g, kk_err *err) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    const kk_status st = add_serving(g, err);
    if (st != KK_OK) return st;
    g->acceptor = std::make_unique<Acceptor>(g->shared.opts.listening, g->shared.opts.connections,
                                             g->all.back()->target.get());
    return KK_OK;
}

/* gRPC's library exchanges no certificate of a server that runs: another one takes what comes from
 * now on, and those before go on with the connections they have. */
kk_status renew(kk_grpc *g, kk_err *err) {
    try {
        const kk_status st = add_serving(g, err);
        if (st != KK_OK) return st;
        g->acceptor->aim(g->all.back()->target.get());
        const auto idle = [g](const std::unique_ptr<Serving> &v) {
            if (g->acceptor->serves(v->target.get())) return false;
            v->server->Shutdown(std::chrono::system_clock::now());
            return true;
        };
        g->all.erase(std::remove_if(g->all.begin(), g->all.end() - 1, idle), g->all.end() - 1);
        return KK_OK;
    } catch (const std::exception &e) {
        return fail(err, KK_ENOMEM, "gRPC takes no certificate: %.180s", e.what());
    } catch (...) {
        return fail(err, KK_EDEVICE, "gRPC takes no certificate");
    }
}

void drain(kk_grpc *g, double s) {
    try {
        const Clock::time_point end = Clock::now() + seconds(s);
        for (const auto &v : g->all) v->server->GetHealthCheckService()->Shutdown();
        /* gRPC's own Shutdown would wait for those who watch the health, too. */
        while (g->shared.calls > 0 && Clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        g->acceptor.reset(); /* it hands nothing to a server that has ended */
        for (const auto &v : g->all) v->server->Shutdown(std::chrono::system_clock::now());
    } catch (...) { /* what was not drained is ended by `stop` */
    }
}

void stop(kk_grpc *g) {
    if (!g) return;
    drain(g, 0);
    try {
        delete g;
    } catch (...) {
    }
}

kk_status start(kk_grpc **out, const kk_grpc_opts *opts, kk_err *err) {
    *out = nullptr;
    kk_grpc *g = nullptr;
    kk_status st;
    try {
        gpr_set_log_function(ignore_log);
        g = new kk_grpc(*opts);
        g->shared.working = std::make_unique<Pool>(opts->parallel, opts->queue);
        g->shared.quick = std::make_unique<Pool>(2, opts->queue + 16);
        st = begin(g, err);
    } catch (const std::exception &e) {
        st = fail(err, KK_ENOMEM, "gRPC does not start: %.180s", e.what());
    } catch (...) {
        st = fail(err, KK_EDEVICE, "gRPC does not start");
    }
    if (st != KK_OK) {
        if (!g || !g->acceptor) close(opts->listening);
        stop(g);
    }
    if (st == KK_OK) *out = g;
    return st;
}

void serving(kk_grpc *g, bool ready) {
    try {
        g->ready = ready;
        for (const auto &v : g->all) tell_health(*v, ready);
    } catch (...) { /* clients go on hearing what they heard before */
    }
}

const kk_grpc_api api = {start, serving, renew, drain, stop};

} // namespace

const kk_grpc_api *kk_grpc_module(const kk_grpc_build *caller) {
    const kk_grpc_build own = KK_GRPC_BUILD;
    const bool same = strcmp(caller->version, own.version) == 0 && caller->api == own.api &&
                      caller->opts == own.opts && caller->how == own.how &&
                      caller->generation == own.generation && caller->generated == own.generated &&
                      caller->info == own.info && caller->ended == own.ended &&
                      caller->fault == own.fault && caller->err == own.err;
    return same ? &api : nullptr;
}
