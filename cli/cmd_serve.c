/* cmd_serve.c - `kakeya serve`: an HTTP server that OpenAI's clients can use.
 *
 * The server is a module (server/serve_entry.h); this file turns options into what it takes, says
 * its lines on stderr, and tells it when a signal asks to end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/config_file.h"
#include "cli/loader.h"
#include "cli/notify.h"
#include "cli/output.h"
#include "cli/sampling.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "server/serve_entry.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    kk_sampling sampling;
    const char *http, *grpc, *host, *grpc_host, *alias, *key_file, *tls_cert, *tls_key,
        *cors_origin, *state;
    const char *config, *log;
    int32_t port, grpc_port, parallel, queue, connections, kept, sessions, kv_memory, max_body,
        stream_buffer;
    int32_t max_messages, max_choices, timeout, idle, ping, drain, idle_time, state_limit;
    bool think, quiet, verbose, log_content;
    notify_link notify;
    struct {
        char http[256], grpc[256];
    } file, given; /* hosts of --http and --grpc, in the config file and beside it */
    int code;      /* to exit with, where options are wrong */
} serve_args;

#define AT(field) offsetof(serve_args, field)
static const option serve_options[] = {
    LOADER_MODEL_OPTIONS(serve_args, load),
    OPTION_STRING("a", "alias", "NAME", AT(alias),
                  "what clients call the model (default: its file or folder)"),
    OPTION_STRING(
        NULL, "config", "FILE", AT(config),
        "options in a file, a line 'name = value' each, with the long names of this list; "
        "those of the command line win"),
    OPTION_HEADING("Network"),
    OPTION_STRING(NULL, "http", "HOST:PORT", AT(http), "both of the next two at once"),
    OPTION_STRING(NULL, "host", "HOST", AT(host),
                  "address to listen on; 0.0.0.0: all (default: 127.0.0.1, this machine only)"),
    OPTION_INT(NULL, "port", "N", AT(port), 0, 65535, "0: one that is free (default: 8080)"),
    OPTION_INT(NULL, "grpc-port", "N", AT(grpc_port), 0, 65535,
               "serve sessions over gRPC too; 0: a port that is free (default: no gRPC)"),
    OPTION_STRING(NULL, "grpc", "HOST:PORT", AT(grpc),
                  "the same at an address of its own (default: that of --host)"),
    OPTION_STRING(NULL, "api-key-file", "FILE", AT(key_file),
                  "a key on each line; requests must bring one of them.  SIGHUP reads it again"),
    OPTION_STRING(NULL, "tls-cert", "FILE", AT(tls_cert),
                  "PEM certificate: serve HTTPS.  SIGHUP reads it again"),
    OPTION_STRING(NULL, "tls-key", "FILE", AT(tls_key), "its private key"),
    OPTION_STRING(NULL, "cors-origin", "ORIGIN", AT(cors_origin),
                  "web pages of this origin may call; *: of any (default: of none)"),
    OPTION_HEADING("State"),
    OPTION_STRING(NULL, "state", "FOLDER", AT(state),
                  "where sessions and conversations go that leave memory, and come back from when "
                  "they are used, after a restart too (default: nowhere)"),
    OPTION_INT(NULL, "idle-time", "S", AT(idle_time), 1, 1 << 30,
               "without use, before a session leaves memory for --state (default: 300)"),
    OPTION_INT(NULL, "state-limit", "MB", AT(state_limit), 0, 1 << 30,
               "of --state, above which the oldest conversations are deleted, never sessions; 0: "
               "no limit (default: 16384)"),
    OPTION_HEADING("Requests"),
    OPTION_INT("np", "parallel", "N", AT(parallel), 1, 256,
               "requests that run at the same time (default: 8)"),
    OPTION_INT(NULL, "queue", "N", AT(queue), 0, 100000,
               "requests that wait; more are refused with 429 (default: 64)"),
    OPTION_INT(NULL, "sessions", "N", AT(kept), 1, 100000,
               "conversations kept so that they go on without being read again (default: 64)"),
    OPTION_INT(NULL, "max-sessions", "N", AT(sessions), 1, 1000000,
               "sessions that clients hold by an id; more are refused with 429 (default: 1024)"),
    OPTION_INT(NULL, "kv-memory", "MB", AT(kv_memory), 0, 1 << 30,
               "K/V above which sessions leave memory, the one not used for longest first: to "
               "--state, or conversations are dropped; 0: no limit "
               "(default: a quarter of the machine's memory)"),
    OPTION_INT(NULL, "max-connections", "N", AT(connections), 1, 100000,
               "connections at the same time (default: 256)"),
    OPTION_INT(NULL, "max-body", "MB", AT(max_body), 1, 1024,
               "most of a request's body (default: 16)"),
    OPTION_INT(NULL, "max-messages", "N", AT(max_messages), 1, 1 << 20,
               "most messages of a conversation (default: 4096)"),
    OPTION_INT(NULL, "max-choices", "N", AT(max_choices), 1, 1024,
               "most choices of a request (default: 16)"),
    OPTION_INT(NULL, "stream-buffer", "KB", AT(stream_buffer), 64, 1 << 20,
               "how far a client may lag behind its stream before it is given up (default: 1024)"),
    OPTION_INT(NULL, "timeout", "S", AT(timeout), 1, 1 << 20,
               "longest time of a request, waiting included (default: 600)"),
    OPTION_INT(NULL, "idle-timeout", "S", AT(idle), 1, 1 << 20,
               "of a connection that sends and takes nothing (default: 60)"),
    OPTION_INT(NULL, "sse-ping-interval", "S", AT(ping), 1, 1 << 20,
               "silence in a stream before a comment is sent (default: 10)"),
    OPTION_INT(NULL, "drain-timeout", "S", AT(drain), 0, 1 << 20,
               "for running requests, after SIGTERM or Ctrl-C (default: 30)"),
    OPTION_FLAG(NULL, "think", AT(think),
                "let the model think where a request does not say (reasoning_effort)"),
    OPTION_HEADING("Log, on stderr"),
    OPTION_CHOICE("log", "FORMAT", AT(log), "text json", NULL,
                  "text, or json: one object on each line (default: text)"),
    OPTION_FLAG("q", "quiet", AT(quiet), "say nothing but failures"),
    OPTION_FLAG("v", "verbose", AT(verbose),
                "a line for each request: its id, path, status and time, never what was said"),
    OPTION_FLAG(NULL, "log-content", AT(log_content),
                "with --log json and -v: what requests and answers said too"),
    SAMPLING_OPTIONS(serve_args, sampling, "1", "64", "0.95", "-1"),
    LOADER_CACHE_OPTIONS(serve_args, cache),
    LOADER_DEVICE_OPTIONS(serve_args, load),
};

static bool is_json(const serve_args *a) { return strcmp(a->log, "json") == 0; }

static void say(void *user, const char *line) {
    const serve_args *a = user;
    if (a->quiet) return;
    if (is_json(a))
        fprintf(stderr, "%s\n", line);
    else
        fprintf(stderr, "kakeya serve: %s\n", line);
}

/* Asked by the thread that also takes idle sessions out of memory: where that hangs, the service
 * manager is no longer told that the server is alive. */
static bool stop(void *user) {
    serve_args *a = user;
    notify_alive(&a->notify);
    return term_signal() != 0;
}

static bool reload(void *user) {
    (void)user;
    return term_reload();
}

static void enter(void *user, kk_serve_phase phase) {
    const serve_args *a = user;
    switch (phase) {
    case KK_SERVE_LOADED: term_on_signal(TERM_ASK); break;
    case KK_SERVE_READY: notify_ready(&a->notify); break;
    case KK_SERVE_RELOADING: notify_reloading(&a->notify); break;
    case KK_SERVE_STOPPING: notify_stopping(&a->notify); break;
    }
}

/* HOST:PORT, [V6]:PORT, or :PORT for this machine only.  False: it is none of these. */
static bool split_address(const char *text, char *host, size_t cap, const char **out,
                          int32_t *out_port) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : -1;
    size_t n = colon ? (size_t)(colon - text) : 0;
    const char *from = text;
    if (n >= 2 && from[0] == '[' && from[n - 1] == ']') from++, n -= 2;
    if (!colon || end == colon + 1 || *end || port < 0 || port > 65535 || n >= cap) return false;
    snprintf(host, cap, "%.*s", (int)n, from);
    if (n > 0) *out = host;
    *out_port = (int32_t)port;
    return true;
}

/* --host, --port and --grpc-port that come later win. */
static bool split_addresses(serve_args *a, char *http, char *grpc, size_t cap) {
    const char *wrong = NULL, *flag = "http";
    if (a->http && !split_address(a->http, http, cap, &a->host, &a->port)) wrong = a->http;
    if (!wrong && a->grpc && !split_address(a->grpc, grpc, cap, &a->grpc_host, &a->grpc_port)) {
        wrong = a->grpc;
        flag = "grpc";
    }
    if (wrong)
        a->code = options_wrong(&verb_serve, "--%s takes HOST:PORT, as in 127.0.0.1:%s, not '%s'",
                                flag, a->grpc == wrong ? "50051" : "8080", wrong);
    a->http = a->grpc = NULL;
    return !wrong;
}

/* The last part of a path, without .gguf; of the shipped model its folder's name tells nothing. */
static void name_model(const serve_args *a, const loader_path *path, char *out, size_t cap) {
    if (a->alias || a->load.synthetic || !a->load.model) {
        snprintf(out, cap, "%s",
                 a->alias            ? a->alias
                 : a->load.synthetic ? a->load.synthetic
                                     : "kakeya-tiny");
        return;
    }
    size_t n = strlen(path->path);
    while (n > 1 && path->path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path->path[from - 1] != '/') from--;
    snprintf(out, cap, "%.*s", (int)(n - from), path->path + from);
    char *dot = strrchr(out, '.');
    if (dot && strcmp(dot, ".gguf") == 0) *dot = '\0';
}

/* The server's 0 is none, and its -1 one that is free. */
static int32_t grpc_port(const serve_args *a) {
    return a->grpc_port > 0 ? a->grpc_port : a->grpc_port == 0 ? -1 : 0;
}

static kk_serve_opts server_options(serve_args *a) {
    kk_machine machine;
    kk_machine_info(&machine);
    const int64_t kv = a->kv_memory < 0 ? machine.memory / 4 : (int64_t)a->kv_memory * 1000000;
    return (kk_serve_opts){.session = loader_session_opts(&a->cache),
                           .sampling = a->sampling,
                           .think = a->think,
                           .host = a->host,
                           .port = a->port,
                           .grpc_port = grpc_port(a),
                           .grpc_host = a->grpc_host,
                           .key_file = a->key_file,
                           .tls_cert = a->tls_cert,
                           .tls_key = a->tls_key,
                           .cors_origin = a->cors_origin,
                           .parallel = a->parallel,
                           .queue = a->queue,
                           .connections = a->connections,
                           .kept = a->kept,
                           .sessions = a->sessions,
                           .kv_bytes = kv,
                           .state = a->state,
                           .state_bytes = (int64_t)a->state_limit * 1000000,
                           .idle_session_s = a->idle_time,
                           .max_body = (int64_t)a->max_body << 20,
                           .stream_buffer = (int64_t)a->stream_buffer << 10,
                           .max_messages = a->max_messages,
                           .max_choices = a->max_choices,
                           .request_s = a->timeout,
                           .idle_s = a->idle,
                           .ping_s = a->ping,
                           .drain_s = a->drain,
                           .verbose = a->verbose,
                           .log_json = is_json(a),
                           .log_content = a->log_content,
                           .stop = stop,
                           .reload = reload,
                           .phase = enter,
                           .say = say,
                           .user = a};
}

static int serve(serve_args *a) {
    char name[256];
    loader_path path;
    const kk_serve_api *api;
    kk_engine_opts engine;
    kk_err err;
    int code = EXIT_FAILED;
    if (!loader_options(&verb_serve, &a->load, &path, &engine, &code)) return code;
    if (kk_serve_load(&api, &err) != KK_OK)
        return output_failed(err.msg, "It is built where libmicrohttpd and SQLite are (Debian: "
                                      "libmicrohttpd-dev, libsqlite3-dev), beside the program.");
    kk_serve_opts opts = server_options(a);
    name_model(a, &path, name, sizeof name);
    opts.engine = engine;
    opts.engine.max_logits = -a->parallel; /* all of them may share a round, and draft */
    opts.name = name;
    signal(SIGPIPE, SIG_IGN);   /* a client that left is an error of its connection alone */
    term_on_signal(TERM_LEAVE); /* loading may take minutes, and looks at no signal */
    term_catch_reload();
    return api->run(&opts, &err) == KK_OK ? EXIT_DONE : output_error(&err);
}

/* What the config file says, then what the command line does.  False: a->code is set. */
static bool configure(serve_args *a, char **text, int argc, char **argv) {
    const char *file = config_file_asked(argc, argv);
    if (file && !config_file_read(&verb_serve, file, a, text, &a->code)) return false;
    if (!split_addresses(a, a->file.http, a->file.grpc, sizeof a->file.http) ||
        !options_parse(&verb_serve, argc, argv, a, NULL, &a->code) ||
        !split_addresses(a, a->given.http, a->given.grpc, sizeof a->given.http))
        return false;
    if (!a->tls_cert != !a->tls_key) {
        a->code = options_wrong(&verb_serve, "--tls-cert and --tls-key go together");
        return false;
    }
    if (a->log_content && !(is_json(a) && a->verbose)) {
        a->code = options_wrong(&verb_serve, "--log-content goes with --log json and -v");
        return false;
    }
    loader_expect(&a->load, &a->cache);
    notify_open(&a->notify);
    return true;
}

static int run(int argc, char **argv) {
    serve_args args = {.sampling = {.temp = 1, .top_k = 64, .top_p = 0.95f, .seed = SAMPLING_DRAW},
                       .cache = LOADER_CACHE_DEFAULTS,
                       .log = "text",
                       .notify = {.fd = -1},
                       .host = "127.0.0.1",
                       .port = 8080,
                       .grpc_port = -1,
                       .parallel = 8,
                       .queue = 64,
                       .connections = 256,
                       .kept = 64,
                       .sessions = 1024,
                       .kv_memory = -1,
                       .idle_time = 300,
                       .state_limit = 16384,
                       .max_body = 16,
                       .stream_buffer = 1024,
                       .max_messages = 4096,
                       .max_choices = 16,
                       .timeout = 600,
                       .idle = 60,
                       .ping = 10,
                       .drain = 30};
    char *text = NULL; /* of the config file; options point into it */
    const int code = configure(&args, &text, argc, argv) ? serve(&args) : args.code;
    notify_close(&args.notify);
    free(text);
    return code;
}

const verb verb_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP, as OpenAI's clients expect it",
    .usage = "[-m MODEL] [--host HOST] [--port N] [options]",
    .about =
        "Answers /v1/chat/completions, /v1/completions, /v1/models, /v1/sessions, /tokenize,\n"
        "/detokenize, /props, /health and /metrics.  A conversation that goes on is not read\n"
        "again: its K/V is kept, with --state on disk and across restarts too, and\n"
        "usage.prompt_tokens_details.cached_tokens says how much was.\n"
        "Requests at the same time share passes over the weights.  It listens on this machine\n"
        "only unless told otherwise, and ends after SIGTERM when what runs is done.\n"
        "With --grpc-port, sessions are served over gRPC too (kakeya.v1.RuntimeService).\n\n"
        "Signals: SIGTERM and SIGINT end it when what runs is done, within --drain-timeout; a\n"
        "second one, or one while the model loads, at once.  SIGHUP reads the key file and the\n"
        "certificate again; what cannot be read is said, and what was there stays.  Under systemd\n"
        "(Type=notify) it says when it is ready, reloading and stopping, and feeds the "
        "watchdog.\n\n"
        "To watch: /health answers 503 until the model is loaded and while it ends; /metrics is\n"
        "Prometheus text; every answer has an X-Request-Id, the client's own or one that was\n"
        "drawn, which -v writes to the log.  Exit codes: 0 ended as asked, 1 failed, 2 wrong "
        "usage.",
    .examples =
        "  kakeya serve -m gemma-4-26b-a4b-q4_0.gguf -c 32768\n"
        "  kakeya serve --state ~/.local/state/kakeya --idle-time 600\n"
        "  kakeya serve --host 0.0.0.0 --port 8000 --api-key-file keys.txt\n"
        "  kakeya serve --tls-cert cert.pem --tls-key key.pem --http 0.0.0.0:8443\n"
        "  kakeya serve --config /etc/kakeya/serve.conf --log json -v\n"
        "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\",\n"
        "      \"content\": \"Name three seas.\"}]}'\n",
    .options = serve_options,
    .n_options = OPTION_COUNT(serve_options),
    .run = run,
};
