/* trainer_test.c - whole runs on the small model: the same bits for the same options, also when a
 * run was stopped in between; what cannot be trained is refused before it costs anything; what goes
 * wrong on the way leaves the last good state. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/alloc.h"
#include "core/file.h"
#include "format/projection.h"
#include "train/trainer.h"

static char root[64];

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/kakeya-trainer-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static const char *folder(const char *name) {
    static char path[4][128];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", root, name);
    return out;
}

/* Two layers, from one tap: quick. */
static kk_train_opts standard(const char *out) {
    return (kk_train_opts){.engine = {.model = KK_MODELS "/tiny/verifier",
                                      .drafter = KK_MODELS "/tiny/drafter",
                                      .threads = 1},
                           .out = out,
                           .source = "taps",
                           .rank = 16,
                           .n_taps = 1,
                           .taps = {4},
                           .layers = "full",
                           .prompts = KK_MODELS "/tiny/prompts",
                           .tokens = 900,
                           .predict = 2,
                           .length = 100,
                           .needles = 0,
                           .needle_lines = 20,
                           .loss = "ridge",
                           .adamw = {.lr = 1e-3, .weight_decay = 0.01, .clip = 1, .steps = 6},
                           .k_dir = 1,
                           .v_dir = 1,
                           .k_mag = 0.1,
                           .v_mag = 0.1,
                           .sink = 4,
                           .window = 16,
                           .chunk = 16,
                           .log_every = 4,
                           .seed = 1,
                           .replace = true};
}

static kk_train_result run(const kk_train_opts *o) {
    kk_train_result r;
    kk_err err;
    const kk_status st = kk_train_run(o, &r, &err);
    if (st != KK_OK) fail_msg("%s", err.msg);
    return r;
}

static void assert_same_files(const char *a, const char *b) {
    const char *const names[] = {"projection.safetensors", "projection.json"};
    for (int i = 0; i < 2; i++) {
        char *one, *two, *pa = kk_path_join(a, names[i]), *pb = kk_path_join(b, names[i]);
        size_t n, m;
        assert_int_equal(kk_file_read(pa, 64 << 20, &one, &n, NULL), KK_OK);
        assert_int_equal(kk_file_read(pb, 64 << 20, &two, &m, NULL), KK_OK);
        assert_int_equal(n, m);
        assert_memory_equal(one, two, n);
        kk_free(one);
        kk_free(two);
        kk_free(pa);
        kk_free(pb);
    }
}

/* ---- runs -------------------------------------------------------------------------------- */

static void test_ridge(void **state) {
    kk_train_opts o = standard(folder("ridge"));
    kk_projection *p;
    (void)state;
    o.layers = "all";
    o.n_taps = 0; /* the drafter's */
    const kk_train_result r = run(&o);
    assert_int_equal(r.rank, 16);
    assert_int_equal(r.n_in, 768);
    assert_int_equal(r.n_layers, 12);
    assert_true(r.rows >= 900);
    assert_true(r.held_rows > 0);
    for (int i = 0; i < 12; i++) {
        assert_true(r.end[i].restored && r.end[i].full == (i % 6 == 5));
        assert_true(r.end[i].k > 0 && r.end[i].k < 1 && r.end[i].v > 0 && r.end[i].v < 1);
    }
    assert_int_equal(kk_projection_open(&p, o.out, NULL, NULL), KK_OK);
    const kk_projection_config *c = kk_projection_config_of(p);
    assert_int_equal(kk_projection_params(c), r.params);
    assert_int_equal(c->n_taps, 3);
    assert_true(c->verifier != 0);
    kk_projection_close(p);
    o.out = folder("ridge-again");
    run(&o);
    assert_same_files(folder("ridge"), folder("ridge-again"));
}

/* What a token's embedding knows is not what a full layer sees. */
static void test_sources(void **state) {
    static const char *const sources[] = {"taps", "context", "embed", "drafter-kv"};
    double full[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        kk_train_opts o = standard(folder(sources[i]));
        o.source = sources[i];
        o.n_taps = 0;
        o.rank = 48;
        o.tokens = 1500;
        const kk_train_result r = run(&o);
        full[i] = (r.end[5].v + r.end[11].v) / 2;
        kk_projection *p;
        assert_int_equal(kk_projection_open(&p, o.out, NULL, NULL), KK_OK);
        assert_string_equal(kk_source_name(kk_projection_config_of(p)->source), sources[i]);
        kk_projection_close(p);
    }
    assert_true(full[0] < full[1] && full[1] < full[2]); /* taps, context, embed */
    assert_true(full[0] < full[3]);
}

static void test_sliding_alone(void **state) {
    kk_train_opts o = standard(folder("sliding"));
    (void)state;
    o.layers = "sliding";
    o.loss = "attn_distill";
    o.adamw.steps = 2;
    const kk_train_result r = run(&o);
    assert_int_equal(r.steps, 2);
    assert_true(r.end[0].restored && !r.end[5].restored);
}

/* Steps make the loss they take smaller: a run that starts where they ended begins with the same
 * batch as they did, and finds it better. */
static void test_losses_fall(void **state) {
    static const char *const losses[] = {"mse", "cos_mag", "combined", "attn_distill",
                                         "attn_distill_hybrid"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        kk_train_opts o = standard(folder(losses[i]));
        o.loss = losses[i];
        o.adamw.steps = 10;
        o.adamw.lr = 2e-3;
        const kk_train_result cold = run(&o);
        o.init_from = folder(losses[i]);
        o.out = folder("warm");
        o.adamw = (kk_adamw_opts){.lr = 1e-9, .steps = 1};
        const kk_train_result warm = run(&o);
        if (!(warm.initial_loss < 0.99 * cold.initial_loss))
            fail_msg("%s: %g at first, %g after steps", losses[i], cold.initial_loss,
                     warm.initial_loss);
    }
}

/* ---- sums on the device ------------------------------------------------------------------- */

/* Steps begin where the closed form ended, and draw from rows that came to the host. */
static void test_sums(void **state) {
    (void)state;
    kk_train_opts o = standard(folder("sums-host"));
    o.loss = "mse";
    o.adamw.steps = 2;
    const kk_train_result host = run(&o);
    o.sums = "device";
    o.out = folder("sums-device");
    const kk_train_result device = run(&o);
    assert_true(host.add_flop <= 0 && device.add_flop > 0);
    assert_true(host.rows == device.rows && host.sequences == device.sequences);
    for (int i = 5; i < 12; i += 6) { /* full layers; files are not read: their bf16 is coarser */
        assert_true(fabs(device.start[i].v / host.start[i].v - 1) < 1e-4);
        assert_true(fabs(device.end[i].v / host.end[i].v - 1) < 1e-4);
    }
    assert_true(fabs(device.initial_loss / host.initial_loss - 1) < 1e-4);
}

/* Random weights read random ids, of which a tenth is held out, from layers spread over them. */
static void test_synthetic(void **state) {
    const char *const sums[] = {"host", "device"};
    double error[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        kk_train_opts o = standard(folder("synthetic"));
        kk_projection *p;
        o.engine = (kk_engine_opts){.synthetic = "tiny:f32:3", .device = "cpu", .threads = 1};
        o.n_taps = 0;
        o.layers = "all";
        o.sums = sums[i];
        o.lambda = 1e-2; /* fewer rows than features */
        const kk_train_result r = run(&o);
        assert_int_equal(r.rows, 900);
        assert_int_equal(r.held_rows, 100);
        assert_int_equal(kk_projection_open(&p, o.out, NULL, NULL), KK_OK);
        assert_int_equal(kk_projection_config_of(p)->n_taps, 3);
        assert_int_equal(kk_projection_config_of(p)->taps[2], 2);
        kk_projection_close(p);
        error[i] = r.end[0].k;
    }
    assert_true(fabs(error[1] / error[0] - 1) < 1e-4);
}

/* ---- going on ---------------------------------------------------------------------------- */

static bool stop_at(void *user, const kk_train_event *e) {
    return e->phase != KK_TRAIN_STEPPING || e->done != *(const int64_t *)user;
}

static void test_resume(void **state) {
    static const char *const losses[] = {"combined", "attn_distill_hybrid"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const int64_t when = 3; /* in the middle of a line of the curve */
        kk_train_opts o = standard(folder("whole"));
        kk_train_result r;
        kk_err err;
        o.loss = losses[i];
        const kk_train_result whole = run(&o);
        o.out = folder("parts");
        o.on_event = stop_at;
        o.user = (void *)&when;
        assert_int_equal(kk_train_run(&o, &r, &err), KK_ESTOPPED);
        assert_non_null(strstr(err.msg, "step 3"));
        o.on_event = NULL;
        o.resume = true;
        r = run(&o);
        assert_int_equal(r.resumed_at, 3);
        assert_same_files(folder("whole"), folder("parts"));
        assert_true(r.final_loss == whole.final_loss && r.initial_loss == whole.initial_loss);
        o.adamw.lr *= 2; /* another run */
        assert_int_equal(kk_train_run(&o, &r, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "other options"));
    }
}

static void test_damaged_state(void **state) {
    kk_train_opts o = standard(folder("damaged"));
    kk_train_result r;
    kk_err err;
    (void)state;
    o.loss = "mse";
    o.checkpoint_every = 2;
    run(&o);
    o.resume = true;
    const char *path = folder("damaged/training.state");
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 4000, SEEK_SET);
    fputc(fgetc(f) ^ 1, f);
    fseek(f, 4000, SEEK_SET);
    fputc(0x5a, f);
    fclose(f);
    assert_int_equal(kk_train_run(&o, &r, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "checksum"));
    assert_int_equal(truncate(path, 3000), 0);
    assert_int_equal(kk_train_run(&o, &r, &err), KK_EFORMAT);
    unlink(path);
    assert_int_equal(kk_train_run(&o, &r, &err), KK_EIO);
}

/* ---- what goes wrong --------------------------------------------------------------------- */

static void refused(kk_train_opts o, const char *why) {
    kk_train_result r;
    kk_err err;
    assert_int_not_equal(kk_train_run(&o, &r, &err), KK_OK);
    if (!strstr(err.msg, why)) fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void test_refused_sums(void **state) {
    kk_train_opts o = standard(folder("refused-sums"));
    (void)state;
    o.sums = "elsewhere";
    refused(o, "'elsewhere'");
    o.sums = "device";
    o.source = "embed";
    o.n_taps = 0;
    refused(o, "features other than taps");
    o = standard(folder("refused-sums"));
    o.sums = "device";
    o.init_from = KK_MODELS "/tiny/projection";
    refused(o, "adds nothing up");
    o = standard(folder("refused-sums"));
    o.engine = (kk_engine_opts){.synthetic = "tiny:f32:2", .device = "cpu"};
    o.n_taps = 0;
    o.tokens = 0;
    refused(o, "no end of random ids");
}

static void test_refused(void **state) {
    const kk_train_opts good = standard(folder("refused"));
    kk_train_opts o;
    (void)state;
    o = good, o.rank = 0, refused(o, "rank 0");
    o = good, o.rank = 257, refused(o, "rank 257");
    o = good, o.sink = 0, o.window = 0, refused(o, "both 0");
    o = good, o.chunk = 0, refused(o, "chunk 0");
    o = good, o.window = 4000, refused(o, "nothing is left to rebuild");
    o = good, o.prompts = NULL, refused(o, "no text to train on");
    o = good, o.loss = "huber", refused(o, "huber");
    o = good, o.source = "tea", refused(o, "tea");
    o = good, o.layers = "odd", refused(o, "odd");
    o = good, o.n_taps = 1, o.taps[0] = 12, refused(o, "layer 12");
    o = good, o.n_taps = 0, o.engine.drafter = NULL, refused(o, "no drafter");
    o = good, o.source = "context", o.engine.drafter = NULL, refused(o, "context");
    o = good, o.init_from = "/no/such/projection", refused(o, "/no/such/projection");
    o = good, o.init_from = folder("ridge"), refused(o, "of 768 features");
    o = good, o.out = "/no/such/folder/deep", refused(o, "/no/such/folder/deep");
}

/* A rate that no training survives: it ends at the step, with the layer, and its last state is
 * there to go on from. */
static void test_no_number(void **state) {
    kk_train_opts o = standard(folder("nan"));
    kk_train_result r;
    kk_err err;
    (void)state;
    o.loss = "mse";
    o.adamw = (kk_adamw_opts){.lr = 1e30, .steps = 20};
    o.checkpoint_every = 1;
    assert_int_equal(kk_train_run(&o, &r, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "layer 5"));
    assert_non_null(strstr(err.msg, "not a number at step 2"));
    assert_non_null(strstr(err.msg, "training.state"));
    assert_true(kk_file_exists(folder("nan/training.state")));
    assert_false(kk_file_exists(folder("nan/projection.json"))); /* nothing that looks finished */
}

/* From the fourth step on nothing can be written. */
static bool fill_disk(void *user, const kk_train_event *e) {
    (void)user;
    if (e->phase == KK_TRAIN_STEPPING && e->done == 3) kk_fault_after(1, true);
    return true;
}

static void test_disk_full(void **state) {
    kk_train_opts o = standard(folder("full"));
    kk_train_result r;
    kk_err err;
    (void)state;
    o.loss = "mse";
    run(&o);
    const char *whole = folder("full"), *parts = folder("full-parts");
    o.out = parts;
    o.checkpoint_every = 3;
    o.on_event = fill_disk;
    const kk_status st = kk_train_run(&o, &r, &err);
    kk_fault_after(0, false);
    assert_int_not_equal(st, KK_OK);
    assert_true(err.msg[0] != 0);
    o.on_event = NULL;
    o.resume = true;
    r = run(&o);
    assert_int_equal(r.resumed_at, 3);
    assert_same_files(whole, parts);
}

/* ---- what is there ----------------------------------------------------------------------- */

static void refused_as(kk_train_opts o, kk_status code, const char *part) {
    kk_train_result r;
    kk_err err;
    const int64_t blocks = kk_live_blocks();
    assert_int_equal(kk_train_run(&o, &r, &err), code);
    if (!strstr(err.msg, part)) fail_msg("'%s' does not say '%s'", err.msg, part);
    assert_int_equal(kk_live_blocks(), blocks);
}

static void test_replaces_only_what_it_may(void **state) {
    kk_train_opts o = standard(folder("there"));
    kk_writer *busy;
    char report[600], config[600];
    (void)state;
    o.report = snprintf(report, sizeof report, "%s/report.json", o.out) > 0 ? report : NULL;
    o.replace = false;
    run(&o);
    refused_as(o, KK_EEXIST, "projection.safetensors' exists");
    o.replace = true;
    o.report = NULL;
    refused_as(o, KK_EEXIST, "report.json' is the report of the projection");
    o.init_from = o.out;
    o.report = report;
    refused_as(o, KK_EINVAL, "is read here");
    o.init_from = NULL;
    snprintf(config, sizeof config, "%s/projection.json", o.out);
    assert_int_equal(kk_writer_open(&busy, config, &(kk_writer_opts){.replace = true}, NULL),
                     KK_OK);
    refused_as(o, KK_EBUSY, "projection.json' is being written");
    kk_writer_close(busy);
    run(&o);
    /* Nothing is left of a run that comes to nothing, and a model is not even opened. */
    o.out = folder("nothing");
    o.replace = false;
    o.engine.model = "/no/such/model";
    refused_as(o, KK_EEXIST, "report.json' exists");
    assert_false(kk_dir_exists(o.out));
    o.report = NULL;
    refused_as(o, KK_EIO, "/no/such/model");
    assert_false(kk_dir_exists(o.out));
}

static void test_report(void **state) {
    kk_train_opts o = standard(folder("reported"));
    json_error_t why;
    (void)state;
    o.loss = "attn_distill_hybrid";
    o.report = folder("report.json");
    o.command = "kakeya train projection";
    const kk_train_result r = run(&o);
    json_t *j = json_load_file(folder("report.json"), 0, &why);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "kind")), "projection");
    static const char *const keys[] = {"command",
                                       "machine",
                                       "model",
                                       "projection",
                                       "settings",
                                       "train",
                                       "evaluation",
                                       "n_params",
                                       "n_sequences",
                                       "collect_seconds",
                                       "train_seconds",
                                       "initial_loss",
                                       "final_loss",
                                       "stages",
                                       "curve",
                                       "schema",
                                       "loss_reduction_factor",
                                       "final_diagnostic"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_object_get(j, keys[i])) fail_msg("the report has no '%s'", keys[i]);
    const json_t *curve = json_object_get(j, "curve"), *line = json_array_get(curve, 0);
    assert_int_equal(json_array_size(curve), 2); /* of 4 steps, and of 2 */
    double loss = 0;
    const char *name;
    json_t *part;
    json_object_foreach(json_object_get(line, "parts"), name, part) {
        loss += json_number_value(part) *
                json_number_value(json_object_get(json_object_get(line, "weights"), name));
    }
    assert_true(fabs(loss - json_number_value(json_object_get(line, "loss"))) < 1e-5 * loss);
    const json_t *d = json_object_get(j, "final_diagnostic");
    const double ratio = json_number_value(json_object_get(d, "mean_square_ratio"));
    assert_true(ratio > 0 && ratio < 10);
    assert_int_equal(json_array_size(json_object_get(j, "stages")), 2);
    const double final = json_number_value(json_object_get(j, "final_loss"));
    assert_true(fabs(final - r.final_loss) < 1e-5 * final);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ridge),         cmocka_unit_test(test_sources),
        cmocka_unit_test(test_sliding_alone), cmocka_unit_test(test_losses_fall),
        cmocka_unit_test(test_resume),        cmocka_unit_test(test_damaged_state),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_no_number),
        cmocka_unit_test(test_disk_full),     cmocka_unit_test(test_replaces_only_what_it_may),
        cmocka_unit_test(test_report),        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_synthetic),     cmocka_unit_test(test_refused_sums),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
