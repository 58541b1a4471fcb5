/* grpc_front.c - see grpc_front.h. */
#include "server/grpc/grpc_front.h"

#include <string.h>

#include "server/listen.h"
#include "server/server.h"

/* ---- what the module asks of the server -------------------------------------------------- */

static sessions *ready(void *user, fault *f) {
    server *s = user;
    const int state = atomic_load(&s->state);
    if (state == SERVER_READY) return s->sessions;
    fault_set(f, 503, NULL,
              state == SERVER_LOADING ? "Loading model" : "the server is shutting down");
    return NULL;
}

static bool accepts(void *user, const char *authorization) {
    server *s = user;
    return keys_accept(&s->keys, authorization);
}

static void ended(void *user, const kk_grpc_ended *call) {
    server *s = user;
    const sessions_appended *a = &call->appended;
    metrics_grpc(&s->metrics, call->call, call->code);
    if (call->appends) metrics_prompt(&s->metrics, a->history, a->history - a->evaluated);
    if (!call->generates) return;
    metrics_generation m = metrics_of_session(&call->generated);
    if (call->code != 0) m.finish = metrics_finish_of_grpc(call->code);
    m.first_s = call->first_s;
    m.decode_s = call->first_s >= 0 ? call->whole_s - call->first_s : 0;
    m.whole_s = call->whole_s;
    metrics_generated(&s->metrics, &m);
}

kk_grpc_service grpc_front_table(void) {
    return (kk_grpc_service){.code = fault_grpc,
                             .standard = sessions_standard,
                             .create = sessions_create,
                             .append = sessions_append,
                             .append_text = sessions_append_text,
                             .append_messages = sessions_append_messages,
                             .generate = sessions_generate,
                             .fork = sessions_fork,
                             .describe = sessions_describe,
                             .list = sessions_list,
                             .remove = sessions_delete,
                             .tokens = sessions_tokens};
}

static kk_grpc_service service_of(server *s) {
    kk_grpc_service all = grpc_front_table();
    all.server = s;
    all.ready = ready;
    all.accepts = accepts;
    all.ended = ended;
    return all;
}

/* ---- its life ---------------------------------------------------------------------------- */

kk_status grpc_front_start(grpc_front *g, server *s, kk_err *err) {
    const kk_serve_opts *o = s->opts;
    const char *host = o->grpc_host ? o->grpc_host : o->host;
    int listening;
    *g = (grpc_front){NULL, NULL};
    if (o->grpc_port == 0) return KK_OK;
    kk_status st = kk_grpc_load(&g->api, err);
    if (st == KK_OK) st = listen_on(host, o->grpc_port < 0 ? 0 : o->grpc_port, &listening, err);
    if (st != KK_OK) return st;
    const int port = listen_port(listening);
    listen_warn(s, listening);
    const kk_grpc_opts opts = {.service = service_of(s),
                               .listening = listening,
                               .connections = o->connections,
                               .tls_cert = o->tls_cert,
                               .tls_key = o->tls_key,
                               .parallel = o->parallel,
                               .queue = o->queue,
                               .max_message = o->max_body,
                               .stream_buffer = o->stream_buffer,
                               .request_s = o->request_s,
                               .idle_s = o->idle_s};
    st = g->api->start(&g->grpc, &opts, err);
    if (st != KK_OK) return st;
    const bool v6 = strchr(host, ':') != NULL;
    server_say(s, "gRPC on %s%s%s:%d%s", v6 ? "[" : "", host, v6 ? "]" : "", port,
               o->tls_cert ? ", with TLS" : "");
    return KK_OK;
}

void grpc_front_ready(grpc_front *g) {
    if (g->grpc) g->api->serving(g->grpc, true);
}

kk_status grpc_front_renew(grpc_front *g, kk_err *err) {
    return g->grpc ? g->api->renew(g->grpc, err) : KK_OK;
}

void grpc_front_drain(grpc_front *g, double seconds) {
    if (g->grpc) g->api->drain(g->grpc, seconds);
}

void grpc_front_stop(grpc_front *g) {
    if (g->grpc) g->api->stop(g->grpc);
    *g = (grpc_front){NULL, NULL};
}
