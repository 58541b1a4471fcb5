/* cmd_doctor.c - `kakeya doctor`: what this machine is and what to expect of it. */
#define _GNU_SOURCE
#include <histedit.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "cli/exactness.h"
#include "cli/flags.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "eval/measure/bench.h"
#include "eval/measure/devices.h"

typedef struct {
    int32_t threads;
    const char *device, *keep;
    bool json;
} doctor_args;

#define AT(field) offsetof(doctor_args, field)
static const option doctor_options[] = {
    OPTION_HEADING("Options"),
    OPTION_INT("t", "threads", "N", AT(threads), 0, 1024,
               "threads that read memory (default: one for every core)"),
    OPTION_CHOICE(
        "device", "NAME", AT(device), LOADER_DEVICES, NULL,
        "look at this device alone: measure how fast it reads memory and, of mlx, how many "
        "rows of a round have the same bits alone, which later runs draft within"),
    OPTION_STRING(NULL, "keep", "FILE", AT(keep),
                  "with --device: where the measurement is kept; none: nowhere (default: "
                  "~/.local/state/kakeya/exact-NAME.json, which other commands read)"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object"),
};

/* Decoding is reading: the speed to expect of this model is the bandwidth over what it reads for
 * each token, times the share of a plain reader's bandwidth that decoding reaches. */
static const char estimated_model[] = "26b-a4b:q4_0";
static const double share_low = 0.60, share_high = 0.80;

typedef struct {
    kk_machine machine;
    double bandwidth;   /* 0: could not be measured */
    double token_bytes; /* of the model whose speed is estimated */
    char why[240];
    kk_device_state device[KK_DEVICE_KINDS];
    char huge_pages[32], libraries[96];
    double lock_limit; /* bytes; below 0: none */
} findings;

static void read_system(findings *f) {
    snprintf(f->huge_pages, sizeof f->huge_pages, "unknown");
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char line[128];
    if (file && fgets(line, sizeof line, file)) {
        const char *at = strchr(line, '['), *end = at ? strchr(at, ']') : NULL;
        if (end) snprintf(f->huge_pages, sizeof f->huge_pages, "%.*s", (int)(end - at - 1), at + 1);
    }
    if (file) fclose(file);
    struct rlimit limit;
    f->lock_limit = -1;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        f->lock_limit = (double)limit.rlim_cur;
    int at = snprintf(f->libraries, sizeof f->libraries, "jansson %s, libedit %d.%d",
                      JANSSON_VERSION, LIBEDIT_MAJOR, LIBEDIT_MINOR);
#ifdef __GLIBC__
    snprintf(f->libraries + at, sizeof f->libraries - (size_t)at, ", glibc %s",
             gnu_get_libc_version());
#else
    (void)at;
#endif
}

static void look(findings *f, const doctor_args *a) {
    kk_err err = {.msg = ""};
    kk_machine_info(&f->machine);
    read_system(f);
    for (size_t i = 0; i < KK_DEVICE_KINDS; i++) kk_device_probe(i, &f->device[i]);
    if (kk_measure_bandwidth(a->threads, 1.0, &f->bandwidth, &err) != KK_OK) f->bandwidth = 0;
    snprintf(f->why, sizeof f->why, "%s", err.msg);
    kk_model_info info;
    if (kk_bench_inspect(estimated_model, &info, &err) == KK_OK)
        f->token_bytes = (double)info.token_bytes;
}

/* Tokens per second at a share of the bandwidth; 0: unknown. */
static double estimate(const findings *f, double share) {
    return f->token_bytes > 0 ? share * f->bandwidth / f->token_bytes : 0;
}

static const char *state_of(const kk_device_state *d) {
    return !d->built ? "not in this build" : d->usable ? "usable" : "not usable here";
}

static void print(const findings *f) {
    const kk_machine *m = &f->machine;
    printf("cpu         %s\n", m->name);
    printf("features    %s\n", m->features[0] ? m->features : "none that matter here");
    printf("best code   %s\n", m->best_isa);
    printf("cores       %d\n", m->cores);
    printf("memory      %s", term_bytes((double)m->memory).text);
    printf(", %s free\n", term_bytes((double)m->memory_free).text);
    if (f->bandwidth > 0)
        printf("bandwidth   %.1f GB/s read (measured)\n", f->bandwidth / 1e9);
    else
        printf("bandwidth   not measured: %s\n", flags_for(f->why).text);
    printf("huge pages  %s\n", f->huge_pages);
    printf("mlock       %s\n", f->lock_limit < 0 ? "no limit" : term_bytes(f->lock_limit).text);
    for (size_t i = 0; i < KK_DEVICE_KINDS; i++) {
        const kk_device_state *d = &f->device[i];
        printf("%-11s %s", i ? "" : "backends", d->name);
        if (d->usable)
            printf(": usable (%s, %d threads)\n", d->isa, d->threads);
        else
            printf(": %s%s%s\n", state_of(d), d->why[0] ? ": " : "", flags_for(d->why).text);
    }
    printf("libraries   %s\n", f->libraries);
    if (estimate(f, 1) > 0)
        printf("estimate    26B-A4B in q4_0: %.1f to %.1f tok/s (not measured: %.2f GB read per "
               "token\n            at %.0f to %.0f %% of the bandwidth; 'kakeya bench' measures)\n",
               estimate(f, share_low), estimate(f, share_high), f->token_bytes / 1e9,
               100 * share_low, 100 * share_high);
}

static bool print_json(const findings *f) {
    const kk_machine *m = &f->machine;
    json_t *backends = json_object();
    for (size_t i = 0; i < KK_DEVICE_KINDS; i++)
        json_object_set_new(backends, f->device[i].name,
                            json_pack("{s:b, s:b, s:s}", "built", f->device[i].built, "usable",
                                      f->device[i].usable, "isa", f->device[i].isa));
    return output_json(
        json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:s, s:o}", "cpu", m->name, "features",
                  m->features, "best_isa", m->best_isa, "cores", m->cores, "memory",
                  (json_int_t)m->memory, "memory_free", (json_int_t)m->memory_free, "bandwidth",
                  f->bandwidth > 0 ? output_real(f->bandwidth) : json_null(), "backends", backends,
                  "libraries", f->libraries, "estimate_26b_a4b_q4_0_tok_s",
                  json_pack("[f, f]", estimate(f, share_low), estimate(f, share_high))));
}

/* ---- one device ---------------------------------------------------------------------------- */

static void print_device(const char *name, const kk_device_exactness *e, const char *kept) {
    printf("%-11s %s\n", name, e->isa);
    if (e->bandwidth > 0)
        printf("bandwidth   %.1f GB/s read by the device (measured)\n", e->bandwidth / 1e9);
    if (!e->measured)
        printf("exact       any number of rows, by the way its kernels are made\n");
    else
        printf("exact       of a round %d row%s with packed weights and %d with others have the\n"
               "            bits they have alone (measured)\n",
               e->exact_packed_rows, e->exact_packed_rows == 1 ? "" : "s", e->exact_rows);
    if (e->measured && (e->exact_rows == 1 || e->exact_packed_rows == 1))
        printf("            it does not draft where that is 1; --exact-rows -1 drafts, not proven\n"
               "            bit-exact\n");
    if (e->exact_page_rows)
        printf("attention   of a round by kernels over K/V pages: %d rows have the bits they have\n"
               "            alone, and are what attention by MLX's own is (measured)\n",
               e->exact_page_rows);
    else if (e->measured)
        printf("attention   MLX's own, over rows that are gathered as float32, not kernels over\n"
               "            K/V pages: %s\n",
               e->no_page_rows);
    if (e->measured)
        printf("memory      the CPU's; quantised weights stay packed, others become float32\n");
    if (kept) printf("kept in     %s\n", kept);
}

static bool print_device_json(const char *name, const kk_device_exactness *e, const char *kept) {
    return output_json(json_pack(
        "{s:s, s:s, s:o, s:b, s:o, s:o, s:o, s:s?}", "device", name, "isa", e->isa, "bandwidth",
        e->bandwidth > 0 ? output_real(e->bandwidth) : json_null(), "measured", e->measured,
        "exact_rows", e->measured ? json_integer(e->exact_rows) : json_null(), "exact_packed_rows",
        e->measured ? json_integer(e->exact_packed_rows) : json_null(), "exact_page_rows",
        e->measured ? json_integer(e->exact_page_rows) : json_null(), "kept", kept));
}

static int look_at_device(const doctor_args *a) {
    kk_device_exactness e;
    kk_err err;
    char path[4096] = "";
    if (kk_device_measure(a->device, &e, &err) != KK_OK) return output_error(&err);
    const bool nowhere = !e.measured || (a->keep && strcmp(a->keep, "none") == 0);
    if (a->keep && !nowhere) snprintf(path, sizeof path, "%s", a->keep);
    if (!a->keep && !nowhere) exactness_path(a->device, path, sizeof path);
    if (path[0] && !exactness_keep(path, a->device, &e)) return EXIT_FAILED;
    if (!a->json)
        print_device(a->device, &e, path[0] ? path : NULL);
    else if (!print_device_json(a->device, &e, path[0] ? path : NULL))
        return output_failed("out of memory for the output", NULL);
    return EXIT_DONE;
}

static int run(int argc, char **argv) {
    doctor_args args = {0};
    int code;
    if (!options_parse(&verb_doctor, argc, argv, &args, NULL, &code)) return code;
    if (args.keep && !args.device) return options_wrong(&verb_doctor, "--keep goes with --device");
    if (args.device) return look_at_device(&args);
    findings f = {0};
    look(&f, &args);
    if (!args.json)
        print(&f);
    else if (!print_json(&f))
        return output_failed("out of memory for the output", NULL);
    return f.device[0].usable ? EXIT_DONE : EXIT_FAILED;
}

const verb verb_doctor = {
    .name = "doctor",
    .summary = "show what this machine can run, and how fast it reads memory",
    .usage = "[options]",
    .about =
        "Shows the processor, the memory and its measured read bandwidth, which backends are\n"
        "built and usable, and what speed that lets you expect.  Takes about a second.\n\n"
        "With --device mlx it measures how many rows of a product have the bits they have\n"
        "alone on this chip with this MLX, and keeps the number: until then mlx drafts nothing,\n"
        "since what it drafts could not be promised to be plain decoding's text.",
    .examples = "  kakeya doctor\n"
                "  kakeya doctor --device mlx\n",
    .options = doctor_options,
    .n_options = OPTION_COUNT(doctor_options),
    .run = run,
};
