/* fuzz_request.c - any bytes as the body of a request: refused with a fault that is JSON itself, or
 * options within their limits. */
#include <stdlib.h>
#include <string.h>

#include "server/request.h"
#include "server/sessions_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void check_fault(const fault *f) {
    need((f->status == 400 || f->status == 501 || f->status == 503) && f->message[0]);
    need(strlen(f->message) < sizeof f->message && strlen(f->param) < sizeof f->param);
    json_t *envelope = fault_json(f);
    need(json_is_string(json_object_get(json_object_get(envelope, "error"), "message")));
    json_decref(envelope);
}

static void check_request(const request *r, const request_defaults *d) {
    need(r->n >= 1 && r->n <= d->max_choices && r->max_tokens >= 0);
    need(r->logprobs >= -1 && r->logprobs <= KK_MAX_LOGPROBS && r->n_stops <= REQUEST_STOPS);
    need(r->sampling.temp >= 0 && r->sampling.top_p >= 0 && r->sampling.top_p <= 1);
    for (size_t i = 0; i < r->n_stops; i++) need(r->stops[i][0] != '\0');
    for (size_t i = 0; i < r->n_bias; i++)
        need(r->bias[i].id >= 0 && r->bias[i].id < d->vocab && r->bias[i].bias <= 100);
    need(d->chat ? json_array_size(r->messages) > 0 : r->prompt != NULL);
}

/* The same bytes as bodies of the calls on sessions. */
static void check_sessions(const char *body, size_t size) {
    const request_defaults d = {.max_messages = 8, .max_choices = 1, .vocab = 1000};
    request r;
    fault f = {0};
    sessions_how how = {.n_stop_ids = 0};
    sessions_addition add = {0};
    sessions_place at;
    const bool read = request_generation(&r, body, size, &d, &f);
    if (!read) check_fault(&f);
    if (read && !sessions_json_how(r.root, d.vocab, &how, &f)) check_fault(&f);
    need(how.n_stop_ids >= 0 && how.n_stop_ids <= SESSIONS_STOP_IDS);
    if (read && !sessions_json_addition(r.root, d.vocab, 8, false, &add, &f)) check_fault(&f);
    sessions_addition_free(&add);
    if (read && !sessions_json_place(r.root, &at, &f)) check_fault(&f);
    request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_sessions((const char *)data, size);
    for (int chat = 0; chat < 2; chat++) {
        const request_defaults d = {
            .chat = chat, .max_messages = 8, .max_choices = 4, .vocab = 1000};
        request r;
        fault f = {0};
        if (request_parse(&r, (const char *)data, size, &d, &f))
            check_request(&r, &d);
        else
            check_fault(&f);
        request_free(&r);
    }
    return 0;
}
