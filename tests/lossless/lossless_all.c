/* lossless_all.c - every prompt with every block size, cache format, number of threads and way of
 * sampling: drafted decoding against plain, as support/lossless.h compares them.
 *
 * lossless_test draws some of these cases; this runs all of them, which takes a while: `make
 * lossless-all`.  Proposers take turns over the cases, policies over prompts and formats; rows are
 * restored by a projection that has learned nothing, which is all the same to what is compared.
 * Prompts are shared out among processes, one per core; what they counted is written as a report.
 * With --against a draw of the prompts is run, each as in the run that the report is of, and the
 * hashes are compared with the report's.  Exit status 1 when a case differed. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/clock.h"
#include "eval/reports/report.h"
#include "support/lossless_axes.h"
#include "support/projection_folder.h"
#include "support/scratch.h"

#define TINY KK_MODELS "/tiny"

enum { TOKENS = KK_LOSSLESS_TOKENS, MOST_WORKERS = 64, MOST_SAID = 8 };

static char folder[] = "/tmp/kakeya-lossless-XXXXXX"; /* of the projection */
static const kk_engine_opts pair = {
    .model = TINY "/verifier", .drafter = TINY "/drafter", .projection = folder};

/* What the processes share. */
typedef struct {
    atomic_int next; /* prompt to be taken */
    atomic_llong cases, mismatches, single[AXES][AXIS_VALUES];
    struct {
        uint64_t plain, drafted;
    } group[PROMPTS][KK_KV_FORMATS];
    atomic_int n_said;
    char said[MOST_SAID][2 * SAY];
} tally;

static tally *all;
static lossless_prompt prompts[PROMPTS];
static int n_prompts = PROMPTS, n_run = PROMPTS, step = 1;
static bool left_out[PROMPTS]; /* not in the draw */

/* ---- a worker ----------------------------------------------------------------------------- */

static void differs(const char *name, const char *why) {
    atomic_fetch_add(&all->mismatches, 1);
    const int at = atomic_fetch_add(&all->n_said, 1);
    if (at < MOST_SAID) snprintf(all->said[at], sizeof all->said[at], "%s: %s", name, why);
}

static void run_case(lossless_stage *stage, const lossless_point *p) {
    char why[SAY], name[SAY];
    const lossless_setting how = lossless_setting_of(p);
    if (!lossless_case(stage, &how, why)) {
        lossless_name(p, stage->seed, name, sizeof name);
        differs(name, why);
    }
    for (int a = 0; a < AXES; a++) atomic_fetch_add(&all->single[a][p->value[a]], 1);
    atomic_fetch_add(&all->cases, 1);
}

static void cross(lossless_stage *stage) {
    lossless_point p = {{0}};
    int32_t *v = p.value;
    v[AXIS_KIND] = (int32_t)stage->prompt->kind;
    v[AXIS_LENGTH] = (int32_t)stage->prompt->length;
    v[AXIS_FORMAT] = (int32_t)stage->format;
    v[AXIS_POLICY] = (int32_t)stage->policy;
    for (v[AXIS_THREADS] = 0; v[AXIS_THREADS] < 2; v[AXIS_THREADS]++)
        for (v[AXIS_SAMPLING] = 0; v[AXIS_SAMPLING] < SAMPLINGS; v[AXIS_SAMPLING]++)
            for (v[AXIS_BLOCK] = 0; v[AXIS_BLOCK] < MOST_BLOCK; v[AXIS_BLOCK]++) {
                v[AXIS_ENDING] = (int32_t)lossless_ending_of(stage->seed, v[AXIS_SAMPLING]);
                v[AXIS_PROPOSER] =
                    kk_lossless_proposer((int32_t)stage->seed, v[AXIS_FORMAT], v[AXIS_THREADS],
                                         v[AXIS_SAMPLING], v[AXIS_BLOCK]);
                run_case(stage, &p);
            }
}

static int work(void) {
    static lossless_stage stage;
    char why[SAY];
    lossless_world w;
    if (!lossless_world_open(&w, &pair, why)) {
        fprintf(stderr, "lossless-all: %s\n", why);
        return 1;
    }
    for (int i; (i = atomic_fetch_add(&all->next, 1)) < n_prompts;)
        for (int f = 0; f < KK_KV_FORMATS && !left_out[i]; f++) {
            const lossless_policy policy = (lossless_policy)kk_lossless_policy(i, f);
            if (lossless_stage_open(&stage, &w, &prompts[i], (uint32_t)i, (kk_kv_format)f, policy,
                                    TOKENS, why))
                cross(&stage);
            else
                differs("a prompt", why);
            all->group[i][f].plain = stage.plain_hash;
            all->group[i][f].drafted = stage.drafted_hash;
            lossless_stage_close(&stage);
            if (!lossless_world_empty(&w, why)) differs("after a prompt", why);
        }
    lossless_world_close(&w);
    return 0;
}

/* ---- progress ----------------------------------------------------------------------------- */

static int64_t expected(void) {
    return (int64_t)n_run * MOST_BLOCK * KK_KV_FORMATS * 2 * SAMPLINGS;
}

static void show(double seconds) {
    const double done = (double)atomic_load(&all->cases), share = done / (double)expected();
    const double left = share > 0 ? seconds / share - seconds : 0;
    fprintf(stderr, "%8.0f of %lld cases, %lld differ, %.0f s, about %.0f s to go\n", done,
            (long long)expected(), (long long)atomic_load(&all->mismatches), seconds, left);
}

/* Waits for all workers; false: one of them failed. */
static bool wait_for(int n, double from) {
    bool good = true;
    for (double shown = 0; n > 0;) {
        int status;
        const pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) {
            n--;
            good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
        } else if (ended < 0 && errno != EINTR) {
            return false;
        } else {
            usleep(200000);
        }
        if (kk_now() - from - shown < 10 && n > 0) continue;
        shown = kk_now() - from;
        show(shown);
    }
    return good;
}

/* ---- the report --------------------------------------------------------------------------- */

static json_t *axes(void) {
    json_t *o = json_object();
    for (int a = 0; a < AXES; a++) {
        json_t *values = json_object();
        for (int v = 0; v < lossless_axes[a].values; v++) {
            json_object_set_new(values, lossless_value_name(a, v).text,
                                json_integer(atomic_load(&all->single[a][v])));
        }
        json_object_set_new(o, lossless_axes[a].name, values);
    }
    return o;
}

static json_t *formats_json(void) {
    json_t *list = json_array();
    for (int f = 0; f < KK_KV_FORMATS; f++)
        json_array_append_new(list, json_string(kk_kv_format_name((kk_kv_format)f)));
    return list;
}

static json_t *hash_json(uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

static json_t *group_json(int i, int f) {
    const lossless_prompt *p = &prompts[i];
    const uint64_t ids = kk_hash_bytes(KK_HASH_START, p->ids, (size_t)p->n * sizeof *p->ids);
    return json_pack(
        "{s:o, s:s, s:i, s:s, s:s, s:i, s:o, s:o}", "prompt", hash_json(ids), "kind",
        lossless_kinds[p->kind], "tokens", p->n, "format", kk_kv_format_name((kk_kv_format)f),
        "policy", lossless_policies[kk_lossless_policy(i, f)], "cases", KK_LOSSLESS_GROUP, "plain",
        hash_json(all->group[i][f].plain), "drafted", hash_json(all->group[i][f].drafted));
}

/* One entry for each prompt and format: chains over its cases, plain and drafted. */
static json_t *groups_json(void) {
    json_t *list = json_array();
    for (int i = 0; i < n_prompts; i++)
        for (int f = 0; f < KK_KV_FORMATS; f++) json_array_append_new(list, group_json(i, f));
    return list;
}

/* Whether the groups that were run are those of a report; says which are not. */
static bool same_groups(const json_t *stored) {
    const json_t *list = json_object_get(stored, "groups");
    bool same = json_array_size(list) == (size_t)n_prompts * KK_KV_FORMATS;
    if (!same)
        fprintf(stderr, "lossless-all: the report has %zu groups, this run would have %d\n",
                json_array_size(list), n_prompts * KK_KV_FORMATS);
    for (int i = 0; same && i < n_prompts; i++)
        for (int f = 0; f < KK_KV_FORMATS && !left_out[i]; f++) {
            json_t *made = group_json(i, f);
            if (!json_equal(made, json_array_get(list, (size_t)i * KK_KV_FORMATS + (size_t)f)))
                differs(kk_kv_format_name((kk_kv_format)f), "a group is not the report's");
            json_decref(made);
        }
    return same;
}

static kk_status report(kk_writer *to, double seconds, int workers, const char *command,
                        kk_err *err) {
    kk_engine *e;
    KK_TRY(kk_engine_open(&e, &pair, err));
    json_t *run = kk_report_run(e, &pair, command);
    kk_engine_close(e);
    int64_t rows = 0;
    for (int i = 0; i < n_prompts; i++) rows += prompts[i].n;
    json_t *body = json_pack(
        "{s:{s:i, s:i, s:i, s:i, s:i, s:o}, s:i, s:I, s:I, s:I, s:[s,s,s,s,s,s,s], s:o, s:f, s:i}",
        "settings", "tokens", TOKENS, "draft_most", MOST_BLOCK, "step", step, "seed",
        KK_LOSSLESS_SEED, "document_seed", KK_LOSSLESS_DOCUMENT_SEED, "formats", formats_json(),
        "prompts", n_prompts, "prompt_tokens", (json_int_t)rows, "cases",
        (json_int_t)atomic_load(&all->cases), "mismatches",
        (json_int_t)atomic_load(&all->mismatches), "compared", "tokens", "logits hash",
        "reason of the end", "lengths and anchor", "cache rows, byte for byte", "bytes of pages",
        "the next turn", "cases_by", axes(), "seconds", seconds, "processes", workers);
    if (body) json_object_set_new(body, "groups", groups_json());
    return kk_report_write(to, kk_report_new("lossless", kk_report_join(run, body)), err);
}

/* ---- main --------------------------------------------------------------------------------- */

static int usage(void) {
    fprintf(stderr, "usage: lossless_all [--report FILE] [--prompts N] [--processes N]\n"
                    "       lossless_all --against FILE [--draw N] [--seed S] [--prompts N]\n"
                    "  --prompts N: only about so many, spread over all, for a try\n"
                    "  --draw N: of the prompts of a report, so many (2) are run again\n");
    return 2;
}

/* Keeps every step-th prompt.  A step that kinds divide would leave one of them. */
static void thin_out(int wanted) {
    step = wanted > 0 && wanted < PROMPTS ? PROMPTS / wanted : 1;
    if (step > 1 && step % KINDS_OF_TEXT == 0) step--;
    n_prompts = 0;
    for (int i = 0; i < PROMPTS; i++)
        if (i % step == 0)
            prompts[n_prompts++] = prompts[i];
        else
            free(prompts[i].ids);
}

/* So many prompts, each as likely as the others. */
static void draw(int wanted, int seed) {
    uint64_t state = 0x9e3779b97f4a7c15u * ((uint64_t)seed + 1);
    for (int i = 0; i < n_prompts; i++) left_out[i] = true;
    for (n_run = 0; n_run < wanted && n_run < n_prompts;) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int i = (int)((state >> 33) % (uint64_t)n_prompts);
        n_run += left_out[i];
        left_out[i] = false;
    }
}

static int finish(kk_writer *to, double seconds, int workers, const char *command, bool good) {
    kk_err err = {0};
    for (int i = 0; i < MOST_SAID && i < atomic_load(&all->n_said); i++)
        fprintf(stderr, "%s\n", all->said[i]);
    if (to && report(to, seconds, workers, command, &err) != KK_OK) {
        fprintf(stderr, "lossless-all: %s\n", err.msg);
        return 1;
    }
    return good && atomic_load(&all->mismatches) == 0 && atomic_load(&all->cases) == expected() ? 0
                                                                                                : 1;
}

int main(int argc, char **argv) {
    const char *path = NULL, *against = NULL;
    int workers = 2, wanted = 0, drawn = 2, seed = 1;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return usage();
        if (strcmp(argv[i], "--report") == 0)
            path = argv[i + 1];
        else if (strcmp(argv[i], "--against") == 0)
            against = argv[i + 1];
        else if (strcmp(argv[i], "--draw") == 0)
            drawn = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--prompts") == 0)
            wanted = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--processes") == 0)
            workers = atoi(argv[i + 1]);
        else
            return usage();
    }
    if (workers < 1 || workers > MOST_WORKERS || drawn < 1 || (path && against)) return usage();
    json_t *stored = against ? json_load_file(against, 0, NULL) : NULL;
    if (against && !stored) {
        fprintf(stderr, "lossless-all: cannot read '%s'\n", against);
        return 1;
    }
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return 1;
    kk_model_info info;
    kk_err err;
    const kk_writer_opts over = {.replace = true}; /* the report before this one */
    kk_writer *to = NULL;
    if (path && kk_writer_open(&to, path, &over, &err) != KK_OK) {
        fprintf(stderr, "lossless-all: %s\n", err.msg);
        return 1;
    }
    if (!mkdtemp(folder)) return 1;
    if (kk_model_inspect(pair.model, &info, &err) != KK_OK ||
        projection_unlearned(folder, pair.model, &err) != KK_OK) {
        fprintf(stderr, "lossless-all: %s\n", err.msg);
        return 1;
    }
    lossless_prompts_make(prompts, pair.model, info.vocab);
    thin_out(wanted);
    if (against)
        draw(drawn, seed);
    else
        n_run = n_prompts;
    const double from = kk_now();
    for (int i = 0; i < workers; i++) {
        const pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) _exit(work());
    }
    const bool good = wait_for(workers, from) && (!against || same_groups(stored));
    json_decref(stored);
    char command[120];
    snprintf(command, sizeof command, "lossless_all --prompts %d --processes %d", n_prompts,
             workers);
    const int code = finish(to, kk_now() - from, workers, command, good);
    kk_writer_close(to);
    nftw(folder, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    for (int i = 0; i < n_prompts; i++) free(prompts[i].ids);
    return code;
}
