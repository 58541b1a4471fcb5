/* route.c - see route.h; and the endpoints that need no worker, or little of one. */
#include "server/route.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "server/chat_page.h"
#include "server/completion.h"
#include "server/request.h"
#include "server/server.h"
#include "server/sessions_http.h"
#include "server/stats.h"

/* ---- what the server is ------------------------------------------------------------------ */

static void health(exchange *x, const char *rest) {
    (void)rest;
    const int state = atomic_load(&x->server->state);
    fault f;
    if (state == SERVER_READY) {
        exchange_reply_json(x, 200, json_pack("{s:s}", "status", "ok"));
        return;
    }
    fault_set(&f, 503, NULL,
              state == SERVER_LOADING ? "Loading model" : "the server is shutting down");
    f.retry_s = 1;
    exchange_refuse(x, &f);
}

static json_t *model_json(const server *s) {
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:I, s:i, s:i, s:I}}", "id", s->opts->name, "object",
                     "model", "created", (json_int_t)s->created, "owned_by", "kakeya", "meta",
                     "n_params", (json_int_t)s->info.params, "n_ctx", (int)s->session.ctx,
                     "n_vocab", (int)s->info.vocab, "size", (json_int_t)s->info.weight_bytes);
}

static void models(exchange *x, const char *rest) {
    (void)rest;
    exchange_reply_json(x, 200,
                        json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(x->server)));
}

static void one_model(exchange *x, const char *rest) {
    fault f;
    if (strcmp(rest, x->server->opts->name) == 0) {
        exchange_reply_json(x, 200, model_json(x->server));
        return;
    }
    fault_set(&f, 404, "model", "there is no model '%.80s': this server has '%s'", rest,
              x->server->opts->name);
    f.code = "model_not_found";
    exchange_refuse(x, &f);
}

static void version(exchange *x, const char *rest) {
    (void)rest;
    exchange_reply_json(x, 200,
                        json_pack("{s:s, s:s}", "version", KK_VERSION, "build", kk_version()));
}

static const char *keep_name(kk_keep k, const char *all) {
    return k == KK_KEEP_WINDOW ? "window" : k == KK_KEEP_RESTORED ? "restored" : all;
}

/* What the K/V of a token takes, from which a client can say what a policy would save. */
static json_t *kv_costs(const server *s) {
    kk_projection_info p;
    json_t *formats = json_array();
    for (int i = 0; i < KK_KV_FORMATS; i++)
        json_array_append_new(formats, json_string(kk_kv_format_name((kk_kv_format)i)));
    const bool restores = kk_engine_projection(s->engine, &p);
    return json_pack("{s:I, s:I, s:i, s:i, s:o}", "full_bytes_per_token",
                     (json_int_t)s->info.kv_full_per_token, "sliding_bytes_most",
                     (json_int_t)s->info.kv_sliding_max, "sliding_window", (int)s->info.window,
                     "latent_rank", restores ? (int)p.rank : 0, "formats", formats);
}

static json_t *sampling_defaults(const server *s) {
    const kk_sampling *d = &s->opts->sampling;
    return json_pack("{s:f, s:i, s:f, s:f, s:f}", "temperature", (double)d->temp, "top_k",
                     (int)d->top_k, "top_p", (double)d->top_p, "min_p", (double)d->min_p,
                     "repeat_penalty", (double)d->repeat_penalty);
}

/* Which path is active is said, so that a fall back is never silent. */
static void props(exchange *x, const char *rest) {
    const server *s = x->server;
    kk_device_info device;
    kk_drafter_info drafter;
    (void)rest;
    kk_engine_device(s->engine, &device);
    json_t *o = json_pack(
        "{s:s, s:s, s:i, s:i, s:{s:s, s:s, s:i}, s:{s:s, s:b}, s:{s:s, s:s, s:s}, s:s}",
        "model_alias", s->opts->name, "model_path",
        s->opts->engine.model ? s->opts->engine.model : "", "n_ctx", (int)s->session.ctx,
        "total_slots", (int)s->opts->parallel, "device", "name", device.device, "isa", device.isa,
        "threads", (int)device.threads, "spec", "proposer", kk_spec_name(s->session.spec),
        "drafter", kk_engine_drafter(s->engine, &drafter), "kv", "sliding",
        keep_name(s->session.kv_sliding, "native"), "full", keep_name(s->session.kv_full, "exact"),
        "format", kk_kv_format_name(s->session.kv_format), "build_info", kk_version());
    json_object_set_new(o, "kv_costs", kv_costs(s));
    json_object_set_new(o, "sampling", sampling_defaults(s));
    json_object_set_new(o, "thinking", json_boolean(s->opts->think));
    json_object_set_new(o, "chat", json_boolean(s->tok != NULL));
    exchange_reply_json(x, o ? 200 : 500, o);
}

static metrics_now gather(server *s) {
    metrics_now now = {.ready = atomic_load(&s->state) != SERVER_LOADING && s->sessions};
    workers_count(&s->workers, &now.waiting, &now.running);
    if (!now.ready) return now;
    now.kept = prefixes_count(s->prefixes);
    sessions_count(s->sessions, &now.sessions);
    if (s->store) store_count(s->store, &now.store);
    kk_engine_memory(s->engine, now.memory);
    now.kv_limit = s->opts->kv_bytes;
    kk_engine_sharing(s->engine, &now.sharing);
    return now;
}

static void show_stats(exchange *x, const char *rest) {
    server *s = x->server;
    const metrics_now now = gather(s);
    (void)rest;
    json_t *o = stats_json(&s->metrics, &now);
    json_object_set_new(o, "parallel", json_integer(s->opts->parallel));
    json_object_set_new(o, "queue", json_integer(s->opts->queue));
    exchange_reply_json(x, o ? 200 : 500, o);
}

/* With ?fail_on_no_slot=1 the status says whether one is idle. */
static void show_slots(exchange *x, const char *rest) {
    int idle;
    json_t *list = slots_json(x->server, &idle);
    const char *must =
        MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, "fail_on_no_slot");
    (void)rest;
    if (!must || strcmp(must, "0") == 0 || idle > 0) {
        exchange_reply_json(x, list ? 200 : 500, list);
        return;
    }
    fault f;
    json_decref(list);
    fault_set(&f, 503, NULL, "all %d slots are busy", (int)x->server->opts->parallel);
    f.retry_s = 1;
    exchange_refuse(x, &f);
}

static void show_metrics(exchange *x, const char *rest) {
    server *s = x->server;
    const metrics_now now = gather(s);
    textbuf out = {0};
    (void)rest;
    metrics_text(&s->metrics, &now, &out);
    x->type = "text/plain; version=0.0.4; charset=utf-8";
    exchange_reply(x, out.failed ? 500 : 200, &out);
}

/* ---- tokens ------------------------------------------------------------------------------ */

static bool has_tokenizer(const server *s, fault *f) {
    return s->tok || fault_set(f, 501, NULL, "the model has no tokenizer");
}

/* {"content": TEXT, "add_special": bool, "parse_special": bool} -> {"tokens": [...]} */
static json_t *encode(const server *s, const json_t *in, fault *f) {
    const json_t *content = json_object_get(in, "content");
    const json_t *special = json_object_get(in, "parse_special");
    unsigned flags = json_is_true(json_object_get(in, "add_special")) ? KK_ENCODE_BOS : 0;
    int32_t *ids;
    size_t n;
    kk_err err;
    if (!json_is_string(content)) {
        fault_set(f, 400, "content", "'content' must be a string");
        return NULL;
    }
    if (!special || json_is_true(special)) flags |= KK_ENCODE_SPECIAL;
    if (kk_encode(s->tok, json_string_value(content), json_string_length(content), flags, &ids, &n,
                  &err) != KK_OK) {
        fault_from(f, &err);
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    kk_free(ids);
    return json_pack("{s:o}", "tokens", list);
}

/* {"tokens": [...]} -> {"content": TEXT} */
static json_t *decode(const server *s, const json_t *in, fault *f) {
    const json_t *list = json_object_get(in, "tokens");
    const size_t n = json_array_size(list);
    char *content;
    size_t len;
    kk_err err;
    if (!json_is_array(list)) {
        fault_set(f, 400, "tokens", "'tokens' must be a list of ids");
        return NULL;
    }
    int32_t *ids = calloc(n + 1, sizeof *ids);
    bool good = ids || fault_set(f, 503, NULL, "out of memory");
    for (size_t i = 0; i < n && good; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t value = json_integer_value(id);
        good = json_is_integer(id) && value >= 0 && value < kk_tokenizer_size(s->tok);
        if (good && ids) ids[i] = (int32_t)value;
        if (!good) fault_set(f, 400, "tokens", "tokens[%zu] is not an id of the vocabulary", i);
    }
    if (good && kk_decode(s->tok, ids, n, true, &content, &len, &err) != KK_OK)
        good = fault_from(f, &err);
    free(ids);
    if (!good) return NULL;
    json_t *o = json_pack("{s:o}", "content", text_json(content, len));
    kk_free(content);
    return o;
}

/* The body of a chat -> {"prompt": TEXT}, which is what its tokens are made of. */
static json_t *render(const server *s, const json_t *in, fault *f) {
    const request_defaults d = {.chat = true,
                                .think = s->opts->think,
                                .max_messages = s->opts->max_messages,
                                .max_choices = s->opts->max_choices,
                                .vocab = s->info.vocab};
    request r;
    char *text;
    size_t len;
    kk_err err;
    json_t *out = NULL;
    char *body = json_dumps(in, JSON_COMPACT);
    if (!body) {
        fault_set(f, 503, NULL, "out of memory");
        return NULL;
    }
    if (request_parse(&r, body, strlen(body), &d, f)) {
        size_t n;
        char *conversation = request_conversation(&r, false, true, &n);
        if (!conversation)
            fault_set(f, 503, NULL, "out of memory");
        else if (kk_chat_render(conversation, n, &text, &len, &err) != KK_OK)
            fault_from(f, &err);
        else
            out = json_pack("{s:o}", "prompt", text_json(text, len));
        if (out) kk_free(text);
        free(conversation);
    }
    request_free(&r);
    free(body);
    return out;
}

static void convert(exchange *x, json_t *(*how)(const server *, const json_t *, fault *)) {
    fault f = {0};
    json_t *in = NULL, *out = NULL;
    if (has_tokenizer(x->server, &f)) in = request_object(x->body.bytes, x->body.len, &f);
    if (in) out = how(x->server, in, &f);
    if (f.status)
        exchange_refuse(x, &f);
    else
        exchange_reply_json(x, 200, out);
    json_decref(in);
}

static void tokenize(exchange *x, const char *rest) {
    (void)rest;
    convert(x, encode);
}

static void detokenize(exchange *x, const char *rest) {
    (void)rest;
    convert(x, decode);
}

static void apply_template(exchange *x, const char *rest) {
    (void)rest;
    convert(x, render);
}

/* ---- the table --------------------------------------------------------------------------- */

static void complete(exchange *x, const char *rest) {
    (void)rest;
    completion_run(x);
}

static void not_yet(exchange *x, const char *rest) {
    fault f;
    (void)rest;
    fault_set(&f, 501, NULL, "%s is not supported yet: use /v1/chat/completions", x->route->path);
    exchange_refuse(x, &f);
}

static const route routes[] = {
    {.method = "GET", .path = "/", .whole = true, .open = true, .early = true, .run = chat_page},
    {.method = "GET", .path = "/stats", .early = true, .run = show_stats},
    {.method = "GET", .path = "/health", .open = true, .early = true, .run = health},
    {.method = "GET", .path = "/healthz", .open = true, .early = true, .run = health},
    {.method = "GET", .path = "/metrics", .early = true, .run = show_metrics},
    {.method = "GET", .path = "/props", .run = props},
    {.method = "GET", .path = "/slots", .run = show_slots},
    {.method = "GET", .path = "/version", .early = true, .run = version},
    {.method = "GET", .path = "/v1/models", .run = models},
    {.method = "GET", .path = "/v1/models/", .run = one_model},
    {.method = "POST", .path = "/tokenize", .works = true, .run = tokenize},
    {.method = "POST", .path = "/detokenize", .works = true, .run = detokenize},
    {.method = "POST", .path = "/apply-template", .works = true, .run = apply_template},
    {.method = "POST",
     .path = "/v1/chat/completions",
     .works = true,
     .chat = true,
     .run = complete},
    {.method = "POST", .path = "/v1/completions", .works = true, .run = complete},
    {.method = "POST", .path = "/v1/sessions", .works = true, .run = sessions_post},
    {.method = "GET", .path = "/v1/sessions", .reads = true, .run = sessions_get},
    {.method = "GET", .path = "/v1/sessions/", .reads = true, .run = sessions_get_one},
    {.method = "POST", .path = "/v1/sessions/", .works = true, .run = sessions_post_one},
    {.method = "DELETE", .path = "/v1/sessions/", .works = true, .run = sessions_delete_one},
    {.method = "POST", .path = "/v1/responses", .run = not_yet},
    {.method = "POST", .path = "/v1/messages", .run = not_yet},
    {.method = "POST", .path = "/v1/messages/", .run = not_yet}, /* count_tokens */
};

static bool serves(const route *r, const char *path, const char **rest) {
    const size_t n = strlen(r->path);
    *rest = "";
    if (r->whole || r->path[n - 1] != '/') return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n) != 0 || !path[n]) return false;
    *rest = path + n;
    return true;
}

const route *route_find(const char *method, const char *path, const char **rest, fault *f) {
    const char *allowed = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!serves(&routes[i], path, rest)) continue;
        /* HEAD is GET, whose body libmicrohttpd leaves out. */
        if (strcmp(routes[i].method, strcmp(method, "HEAD") == 0 ? "GET" : method) == 0)
            return &routes[i];
        allowed = routes[i].method;
    }
    *rest = "";
    if (allowed)
        fault_set(f, 405, NULL, "%.60s takes %s, not %.20s", path, allowed, method);
    else
        fault_set(f, 404, NULL, "there is nothing at %.200s", path);
    return NULL;
}
