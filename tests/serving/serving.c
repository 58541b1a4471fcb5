/* serving.c - measures `kakeya serve` from outside: `make load`, `make soak`, `make chaos`.
 *
 * Each starts servers of its own, asks them over loopback with the client of client.h, and writes a
 * report that `kakeya report check` judges.  Exit status: 0 all limits hold, 1 one does not, or
 * nothing could be measured, 2 wrong usage. */
#define _GNU_SOURCE
#include <ftw.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serving/scene.h"
#include "support/scratch.h"

typedef struct {
    const char *name;
    int (*run)(const scene *s);
} measurement;

static const measurement measurements[] = {
    {"load", measure_load}, {"soak", measure_soak}, {"chaos", measure_chaos}, {"ask", measure_ask}};
enum { MEASUREMENTS = sizeof measurements / sizeof *measurements };

static int usage(void) {
    fprintf(stderr,
            "usage: serving load|soak|chaos|ask [options]\n"
            "  --kakeya PATH     the program (default: build/kakeya)\n"
            "  --report FILE     write a report\n"
            "  --prompts DIR     folder of prompt sets (default: models/tiny/prompts)\n"
            "  -m, -md, --synthetic, -t, --device   as `kakeya serve` takes them\n"
            "  --clients N       at the same time (default: 8)\n"
            "  --seed N          of what is drawn (default: 7)\n"
            "load:\n"
            "  --ctx N,...       tokens of the prompts, 18 or more (default: 64,1024)\n"
            "  --predict N       tokens of an answer (default: 256)\n"
            "  --turns N         of each arm (default: 5)\n"
            "  --requests N      of mixed lengths (default: 64)\n"
            "  --arrivals N      short requests beside a long prompt (default: 5)\n"
            "  --min-served X    least speed of one stream over `kakeya run` (default: 0.9)\n"
            "  --min-together X,...   least speed of all streams over a plain one, by --ctx\n"
            "                    (default: 1.8,1.2)\n"
            "soak:\n"
            "  --seconds N       how long (default: 1800)\n"
            "  --bucket N        seconds of a bucket (default: a sixtieth of that, 2 at least)\n"
            "chaos:\n"
            "  --kills N         times the server is killed (default: 200)\n"
            "  --requests N      that are malformed (default: 100000)\n"
            "ask:\n"
            "  --port N          of a server on this machine that runs already\n"
            "  --ctx, --predict, --requests   as above; prompts are random ids\n");
    return 2;
}

enum {
    OPT_KAKEYA = 256,
    OPT_REPORT,
    OPT_PROMPTS,
    OPT_SYNTHETIC,
    OPT_DEVICE,
    OPT_CLIENTS,
    OPT_SEED,
    OPT_CTX,
    OPT_PREDICT,
    OPT_TURNS,
    OPT_REQUESTS,
    OPT_MIN_SERVED,
    OPT_MIN_TOGETHER,
    OPT_ARRIVALS,
    OPT_SECONDS,
    OPT_BUCKET,
    OPT_KILLS,
    OPT_PORT
};

static const struct option long_options[] = {
    {"kakeya", required_argument, NULL, OPT_KAKEYA},
    {"report", required_argument, NULL, OPT_REPORT},
    {"prompts", required_argument, NULL, OPT_PROMPTS},
    {"synthetic", required_argument, NULL, OPT_SYNTHETIC},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"clients", required_argument, NULL, OPT_CLIENTS},
    {"seed", required_argument, NULL, OPT_SEED},
    {"ctx", required_argument, NULL, OPT_CTX},
    {"predict", required_argument, NULL, OPT_PREDICT},
    {"turns", required_argument, NULL, OPT_TURNS},
    {"requests", required_argument, NULL, OPT_REQUESTS},
    {"min-served", required_argument, NULL, OPT_MIN_SERVED},
    {"arrivals", required_argument, NULL, OPT_ARRIVALS},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"bucket", required_argument, NULL, OPT_BUCKET},
    {"port", required_argument, NULL, OPT_PORT},
    {"kills", required_argument, NULL, OPT_KILLS},
    {"min-together", required_argument, NULL, OPT_MIN_TOGETHER},
    {0},
};

static size_t numbers(const char *list, double *out, size_t most) {
    size_t n = 0;
    for (char *end; n < most && *list; list = *end == ',' ? end + 1 : end) {
        out[n] = strtod(list, &end);
        if (end == list) return 0;
        n++;
    }
    return *list ? 0 : n;
}

static void add_model(scene *s, const char *option, const char *value) {
    if (s->n_model_args + 3 > SCENE_MOST_MODEL_ARGS) return;
    s->model_args[s->n_model_args++] = option;
    s->model_args[s->n_model_args++] = value;
}

/* False: it is no number that the option takes. */
static bool whole(const char *text, int least, int most, int *out) {
    char *end;
    const long v = strtol(text, &end, 10);
    if (end == text || *end || v < least || v > most) return false;
    *out = (int)v;
    return true;
}

static bool take_model(scene *s, int option, const char *value) {
    int threads = 0;
    switch (option) {
    case 'm':
        s->engine.model = value;
        s->engine.drafter = NULL;
        add_model(s, "-m", value);
        return true;
    case 'd':
        s->engine.drafter = strcmp(value, "none") == 0 ? NULL : value;
        add_model(s, "-md", value);
        return true;
    case OPT_SYNTHETIC:
        s->engine.synthetic = value;
        s->engine.model = s->engine.drafter = NULL;
        add_model(s, "--synthetic", value);
        return true;
    case OPT_DEVICE:
        s->engine.device = value;
        add_model(s, "--device", value);
        return true;
    case 't':
        if (!whole(value, 1, 1024, &threads)) return false;
        s->engine.threads = threads;
        add_model(s, "-t", value);
        return true;
    default: return false;
    }
}

static bool take_option(scene *s, int option, const char *value) {
    double list[4];
    int seed;
    switch (option) {
    case OPT_KAKEYA: s->kakeya = value; return true;
    case OPT_REPORT: s->report = value; return true;
    case OPT_PROMPTS: s->prompts = value; return true;
    case OPT_CLIENTS: return whole(value, 1, SCENE_MOST_CLIENTS, &s->clients);
    case OPT_PREDICT: return whole(value, 2, 4096, &s->predict);
    case OPT_TURNS: return whole(value, 1, 1000, &s->turns);
    case OPT_REQUESTS: return whole(value, 1, 1 << 30, &s->requests);
    case OPT_PORT: return whole(value, 1, 65535, &s->port);
    case OPT_KILLS: return whole(value, 1, 4096, &s->kills);
    case OPT_SECONDS: return numbers(value, &s->seconds, 1) == 1 && s->seconds > 0;
    case OPT_BUCKET: return numbers(value, &s->bucket_s, 1) == 1 && s->bucket_s > 0;
    case OPT_ARRIVALS: return whole(value, 1, 20, &s->arrivals);
    case OPT_MIN_SERVED: return numbers(value, &s->min_served, 1) == 1;
    case OPT_MIN_TOGETHER: return numbers(value, s->min_together, 4) > 0;
    case OPT_SEED:
        if (!whole(value, 0, 1 << 30, &seed)) return false;
        s->seed = (uint64_t)seed;
        return true;
    case OPT_CTX:
        s->n_ctx = numbers(value, list, 4);
        for (size_t i = 0; i < s->n_ctx; i++) s->ctx[i] = (int32_t)list[i];
        return s->n_ctx > 0;
    default: return take_model(s, option, value);
    }
}

/* -md is one option here, as it is for `kakeya serve`. */
static bool read_options(scene *s, int argc, char **argv) {
    static char drafter[] = "-d";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-md") == 0) argv[i] = drafter;
    for (int o; (o = getopt_long(argc, argv, "m:d:t:", long_options, NULL)) != -1;)
        if (!take_option(s, o, optarg)) return false;
    return optind == argc;
}

static void write_command(scene *s, int argc, char **argv) {
    size_t at = (size_t)snprintf(s->command, sizeof s->command, "serving");
    for (int i = 1; i < argc && at < sizeof s->command; i++) {
        const char *slash = strrchr(argv[i], '/');
        at += (size_t)snprintf(s->command + at, sizeof s->command - at, " %s",
                               slash ? slash + 1 : argv[i]);
    }
}

int main(int argc, char **argv) {
    scene s = {
        .kakeya = "build/kakeya",
        .prompts = KK_MODELS "/tiny/prompts",
        .engine = {.model = KK_MODELS "/tiny/verifier", .drafter = KK_MODELS "/tiny/drafter"},
        .clients = 8,
        .turns = 5,
        .predict = 256,
        .seconds = 1800,
        .kills = 200,
        .arrivals = 5,
        .ctx = {64, 1024},
        .n_ctx = 2,
        .seed = 7,
        .min_served = 0.9,
        .min_drafted = 1,
        .max_chunks = 2,
        .min_together = {1.8, 1.2, 1, 1},
        .work = "/tmp/kakeya-serving-XXXXXX"};
    const measurement *m = NULL;
    for (size_t i = 0; argc > 1 && i < MEASUREMENTS; i++)
        if (strcmp(argv[1], measurements[i].name) == 0) m = &measurements[i];
    if (!m) return usage();
    write_command(&s, argc, argv);
    if (!read_options(&s, argc - 1, argv + 1)) return usage();
    s.drafts = s.engine.drafter != NULL;
    if (!s.requests) s.requests = m->run == measure_chaos ? 100000 : 64;
    if (m->run == measure_ask && !s.port) return usage();
    if (m->run == measure_load && s.requests > 4096) return usage(); /* a report has no more rows */
    for (size_t k = 0; m->run == measure_load && k < s.n_ctx; k++)
        if (s.ctx[k] < KK_SERVED_SHORTEST) return usage();
    if (s.bucket_s <= 0) s.bucket_s = s.seconds / 60 > 2 ? s.seconds / 60 : 2;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!mkdtemp(s.work)) return 1;
    const int code = m->run(&s);
    nftw(s.work, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    return code;
}
