/* fault.c - see fault.h. */
#include "server/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/text.h"

static const struct {
    int status;
    const char *type, *code;
    int grpc;
} kinds[] = {
    {400, "invalid_request_error", NULL, 3},              /* INVALID_ARGUMENT */
    {401, "authentication_error", "invalid_api_key", 16}, /* UNAUTHENTICATED */
    {403, "permission_error", NULL, 7},                   /* PERMISSION_DENIED */
    {404, "not_found_error", NULL, 5},                    /* NOT_FOUND */
    {405, "invalid_request_error", "method_not_allowed", 12},
    {408, "timeout_error", "timeout", 4},                /* DEADLINE_EXCEEDED */
    {413, "invalid_request_error", "body_too_large", 8}, /* RESOURCE_EXHAUSTED */
    {429, "rate_limit_error", "rate_limit_exceeded", 8},
    {500, "server_error", NULL, 13},                   /* INTERNAL */
    {501, "not_supported_error", "not_supported", 12}, /* UNIMPLEMENTED */
    {503, "unavailable_error", NULL, 14},              /* UNAVAILABLE */
    {504, "timeout_error", "timeout", 4},
    {409, "conflict_error", NULL, 10},        /* ABORTED */
    {499, "cancelled_error", "cancelled", 1}, /* CANCELLED */
    {414, "invalid_request_error", "uri_too_long", 3},
    {431, "invalid_request_error", "head_too_large", 3},
};

static size_t kind_of(int status) {
    const size_t n = sizeof kinds / sizeof *kinds;
    for (size_t i = 0; i < n; i++)
        if (kinds[i].status == status) return i;
    return 8; /* 500 */
}

bool fault_set(fault *f, int status, const char *param, const char *fmt, ...) {
    va_list ap;
    *f = (fault){.status = status, .code = kinds[kind_of(status)].code};
    if (param) snprintf(f->param, sizeof f->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return false;
}

bool fault_from(fault *f, const kk_err *err) {
    switch (err->code) {
    case KK_EINVAL: return fault_set(f, 400, NULL, "%s", err->msg);
    case KK_ECONTEXT:
        fault_set(f, 400, NULL, "%s", err->msg);
        f->code = "context_length_exceeded";
        return false;
    case KK_ENOMEM:
        fault_set(f, 503, NULL, "%s", err->msg);
        f->code = "out_of_memory";
        f->retry_s = 5;
        return false;
    default: return fault_set(f, 500, NULL, "%s", err->msg);
    }
}

int fault_grpc(const fault *f) {
    if (f->code && strcmp(f->code, "invariant_violation") == 0) return 9; /* FAILED_PRECONDITION */
    if (f->code && strcmp(f->code, "out_of_memory") == 0) return 8;
    if (f->code && strcmp(f->code, "data_loss") == 0) return 15;
    return kinds[kind_of(f->status)].grpc;
}

json_t *fault_json(const fault *f) {
    const bool too_long = f->n_ctx > 0;
    const char *type = too_long ? "exceed_context_size_error" : kinds[kind_of(f->status)].type;
    json_t *e =
        json_pack("{s:o, s:s, s:s?, s:s?}", "message", text_json(f->message, strlen(f->message)),
                  "type", type, "code", f->code, "param", f->param[0] ? f->param : NULL);
    if (e && too_long) {
        json_object_set_new(e, "n_prompt_tokens", json_integer(f->n_prompt));
        json_object_set_new(e, "n_ctx", json_integer(f->n_ctx));
    }
    return json_pack("{s:o}", "error", e);
}
