/* grpc_calls.h - messages of runtime.proto as calls of service.h, and back.
 *
 * Each function checks a request, calls the server, and fills the response; false: *f says why
 * not.  Nothing here knows of the network, so a fuzzer reaches all of it. */
#ifndef KK_GRPC_CALLS_H
#define KK_GRPC_CALLS_H

#include <kakeya/v1/runtime.pb.h>

#include "server/grpc/grpc_entry.h"

namespace kakeya_grpc {

namespace v1 = kakeya::v1;

/* What a call works with. */
struct Context {
    const kk_grpc_service *service;
    sessions *table;
    sessions_watch watch; /* goes_on: false once the client has left or the time is over */
    kk_grpc_ended *ended; /* what the call has done is noted here; NULL: nowhere */
};

/* Where the messages of a stream go. */
class Sink {
  public:
    virtual ~Sink() = default;
    virtual bool send(v1::GenerateResponse &&message) = 0; /* false: nobody reads them any more */
};

bool create_session(const Context &c, const v1::CreateSessionRequest &in,
                    v1::CreateSessionResponse *out, fault *f);
bool append_tokens(const Context &c, const v1::AppendTokensRequest &in,
                   v1::AppendTokensResponse *out, fault *f);
bool append_text(const Context &c, const v1::AppendTextRequest &in, v1::AppendTextResponse *out,
                 fault *f);
bool generate(const Context &c, const v1::GenerateRequest &in, Sink *sink, fault *f);
bool close_session(const Context &c, const v1::CloseSessionRequest &in,
                   v1::CloseSessionResponse *out, fault *f);
bool session_info(const Context &c, const v1::GetSessionInfoRequest &in,
                  v1::GetSessionInfoResponse *out, fault *f);
bool fork_session(const Context &c, const v1::ForkSessionRequest &in, v1::ForkSessionResponse *out,
                  fault *f);
bool get_history(const Context &c, const v1::GetHistoryRequest &in, v1::GetHistoryResponse *out,
                 fault *f);
bool list_sessions(const Context &c, const v1::ListSessionsRequest &in,
                   v1::ListSessionsResponse *out, fault *f);

} // namespace kakeya_grpc

#endif
