/* grpc_client.cc - see grpc_client.h. */
#include "support/grpc_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <kakeya/v1/runtime.grpc.pb.h>

#include <cstdio>

namespace v1 = kakeya::v1;

struct grpc_client {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::RuntimeService::Stub> stub;
};

namespace {

struct Call : grpc::ClientContext {
    Call() { set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1)); }
};

void copy_id(const std::string &from, char *to, size_t cap) {
    snprintf(to, cap, "%s", from.c_str());
}

} // namespace

grpc_client *grpc_client_open(int port) {
    grpc_client *c = new grpc_client;
    grpc::ChannelArguments own; /* a connection of its own, not one that other clients have */
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    c->channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                           grpc::InsecureChannelCredentials(), own);
    c->stub = v1::RuntimeService::NewStub(c->channel);
    return c;
}

void grpc_client_close(grpc_client *c) { delete c; }

int grpc_client_create(grpc_client *c, char *id, size_t cap) {
    Call call;
    v1::CreateSessionResponse out;
    const grpc::Status st = c->stub->CreateSession(&call, {}, &out);
    copy_id(out.session_id(), id, cap);
    return st.error_code();
}

int grpc_client_append(grpc_client *c, const char *id, const int32_t *tokens, size_t n) {
    Call call;
    v1::AppendTokensRequest in;
    v1::AppendTokensResponse out;
    in.set_session_id(id);
    for (size_t i = 0; i < n; i++) in.add_token_ids(static_cast<uint32_t>(tokens[i]));
    return c->stub->AppendTokens(&call, in, &out).error_code();
}

int grpc_client_generate(grpc_client *c, const char *id, grpc_client_stream *s) {
    Call call;
    v1::GenerateRequest in;
    v1::GenerateResponse out;
    in.set_session_id(id);
    in.set_max_tokens(static_cast<uint32_t>(s->max_tokens));
    in.set_ignore_eos(true);
    const auto stream = c->stub->Generate(&call, in);
    s->n = s->done = 0;
    while (stream->Read(&out)) {
        if (out.has_done()) {
            s->done++;
            s->logits_hash = out.done().logits_hash();
        } else if (s->n < 512) {
            s->tokens[s->n++] = static_cast<int32_t>(out.token_id());
        }
        if (s->cancel_after > 0 && s->n >= s->cancel_after) call.TryCancel();
    }
    const grpc::Status st = stream->Finish();
    snprintf(s->message, sizeof s->message, "%s", st.error_message().c_str());
    return st.error_code();
}

int grpc_client_info(grpc_client *c, const char *id, uint64_t *history, uint64_t violations[3]) {
    Call call;
    v1::GetSessionInfoRequest in;
    v1::GetSessionInfoResponse out;
    in.set_session_id(id);
    const grpc::Status st = c->stub->GetSessionInfo(&call, in, &out);
    *history = out.history_length();
    violations[0] = out.cache_invariant_inv1_violations();
    violations[1] = out.cache_invariant_inv2_violations();
    violations[2] = out.cache_invariant_inv3_violations();
    return st.error_code();
}

int grpc_client_fork(grpc_client *c, const char *id, char *fork_id, size_t cap) {
    Call call;
    v1::ForkSessionRequest in;
    v1::ForkSessionResponse out;
    in.set_session_id(id);
    const grpc::Status st = c->stub->ForkSession(&call, in, &out);
    copy_id(out.session_id(), fork_id, cap);
    return st.error_code();
}

int grpc_client_list(grpc_client *c, size_t *n) {
    Call call;
    v1::ListSessionsResponse out;
    const grpc::Status st = c->stub->ListSessions(&call, {}, &out);
    *n = static_cast<size_t>(out.sessions_size());
    return st.error_code();
}

int grpc_client_remove(grpc_client *c, const char *id) {
    Call call;
    v1::CloseSessionRequest in;
    v1::CloseSessionResponse out;
    in.set_session_id(id);
    return c->stub->CloseSession(&call, in, &out).error_code();
}

/* A message with one string, and one with one enum: no stub is needed for these. */
int grpc_client_serving(grpc_client *c) {
    Call call;
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(c->channel);
    const std::string service = "kakeya.v1.RuntimeService";
    const std::string bytes = "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
    grpc::Slice slice(bytes);
    const grpc::ByteBuffer in(&slice, 1);
    const auto reader = stub.PrepareUnaryCall(&call, "/grpc.health.v1.Health/Check", in, &queue);
    reader->StartCall();
    grpc::ByteBuffer out;
    grpc::Status st;
    reader->Finish(&out, &st, nullptr);
    void *tag;
    bool ok;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    std::vector<grpc::Slice> slices;
    if (!st.ok() || !out.Dump(&slices).ok()) return -1;
    std::string said;
    for (const grpc::Slice &one : slices)
        said.append(reinterpret_cast<const char *>(one.begin()), one.size());
    return said == "\x08\x01";
}
