/* cmd_info.c - `kakeya info`: what a model is and needs, before anyone waits for it to load.
 *
 * Files are opened as an engine would, which maps them and reads next to nothing: so the drafter
 * is checked against its model, and memory is what the allocator counts.  Random weights would
 * have to be made first; they are, only when a drafter is asked for beside them. */
#include <stdio.h>

#include "cli/flags.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "eval/measure/bench.h"

typedef struct {
    loader_args load;
    bool check, json;
} info_args;

#define AT(field) offsetof(info_args, field)
static const option info_options[] = {
    LOADER_MODEL_OPTIONS(info_args, load),
    OPTION_HEADING("Output"),
    OPTION_FLAG(NULL, "check", AT(check),
                "read every weight and name tensors with values that are not finite"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object"),
};

static const int32_t contexts[] = {8192, 32768, 131072};

/* Bytes of activations and the program itself, beside weights and K/V. */
static const double workspace = 300e6;

/* What the model needs beside its weights at a context of n tokens, in bytes. */
static double kv_bytes(const kk_model_info *m, int64_t n) {
    int64_t held = n < m->window ? n : m->window;
    double sliding = m->window > 0 ? (double)m->kv_sliding_max * (double)held / m->window : 0;
    return sliding + (double)m->kv_full_per_token * (double)n;
}

/* Largest context that fits the free memory, at most the model's own; 0: not even the weights. */
static int64_t fitting_context(const kk_model_info *m, const kk_machine *machine) {
    double left = (double)machine->memory_free - (double)m->weight_bytes - workspace;
    int64_t low = 0, high = m->context;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (kv_bytes(m, middle) <= left)
            low = middle;
        else
            high = middle - 1;
    }
    return left < 0 ? 0 : low;
}

static void print_billions(const char *label, int64_t n) {
    printf("%s", label);
    if (n >= 1000000000)
        printf("%.2f billion", (double)n / 1e9);
    else
        printf("%.2f million", (double)n / 1e6);
}

static void print_fit(const kk_model_info *m) {
    kk_machine machine;
    kk_machine_info(&machine);
    int64_t ctx = fitting_context(m, &machine);
    printf("fits here    ");
    if (ctx >= m->context)
        printf("yes, with its whole context");
    else if (ctx > 0)
        printf("yes, with up to %s tokens of context", term_count(ctx).text);
    else
        printf("no");
    printf(" (%s of %s memory free)\n", term_bytes((double)machine.memory_free).text,
           term_bytes((double)machine.memory).text);
    if (ctx == 0)
        printf("             It would be read from disk again for every token.  Take a smaller "
               "type (kakeya quantize).\n");
}

/* What the context takes at the usual sizes, as far as the model goes. */
static void print_kv(const kk_model_info *m) {
    printf("             ");
    for (size_t i = 0; i < OPTION_COUNT(contexts) && contexts[i] < m->context; i++)
        printf("%s at %dk, ", term_bytes(kv_bytes(m, contexts[i])).text, contexts[i] / 1024);
    bool round = m->context % 1024 == 0;
    printf("%s at %d%s\n", term_bytes(kv_bytes(m, m->context)).text,
           round ? m->context / 1024 : m->context, round ? "k" : "");
}

static void print_info(const kk_model_info *m) {
    printf("model        %s, %s weights (%s)\n", m->name, m->weight_type, m->format);
    printf("layers       %d: %d sliding (window %d), %d full%s\n", m->layers, m->sliding_layers,
           m->window, m->full_layers, m->k_eq_v ? " with K = V" : "");
    if (m->experts) printf("experts      %d, %d used per token\n", m->experts, m->experts_used);
    print_billions("parameters   ", m->params);
    if (m->params_active != m->params) print_billions(", active ", m->params_active);
    printf("\nweights      %s, of which a token reads %s\n",
           term_bytes((double)m->weight_bytes).text, term_bytes((double)m->token_bytes).text);
    printf("vocabulary   %s\n", term_count(m->vocab).text);
    printf("context      %s tokens\n", term_count(m->context).text);
    printf("K/V (bf16)   %s per token, and up to %s for the windows\n",
           term_bytes((double)m->kv_full_per_token).text,
           term_bytes((double)m->kv_sliding_max).text);
    print_kv(m);
    print_fit(m);
}

/* ---- the engine: its drafter and its memory ------------------------------------------------ */

/* What an engine of the model says of itself. */
typedef struct {
    bool opened, drafts, restores;
    kk_drafter_info drafter;
    kk_projection_info projection;
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_err why; /* not opened: the reason, or nothing when none was asked for */
} loaded;

/* False: the drafter is not one for this model, or cannot be read. */
static bool look_inside(const info_args *a, loaded *out, int *code) {
    loader_path path;
    kk_engine_opts opts;
    kk_engine *e;
    *out = (loaded){.opened = false};
    if (!loader_options(&verb_info, &a->load, &path, &opts, code)) return false;
    if (opts.synthetic && !opts.drafter && !opts.projection) return true;
    if (kk_engine_open(&e, &opts, &out->why) != KK_OK) {
        if (!opts.drafter && !opts.projection)
            return true; /* its files were read; that it cannot run is told */
        *code = loader_failed(&a->load, &out->why);
        return false;
    }
    out->opened = true;
    out->drafts = kk_engine_drafter(e, &out->drafter);
    out->restores = kk_engine_projection(e, &out->projection);
    kk_engine_memory(e, out->bytes);
    kk_engine_close(e);
    return true;
}

static void print_drafter(const kk_drafter_info *d) {
    printf("drafter      %d layers of width %d, blocks of %d, reads layers", d->layers, d->hidden,
           d->block);
    for (int32_t i = 0; i < d->n_taps; i++) printf("%s %d", i ? "," : "", d->taps[i]);
    print_billions("\n             ", d->params);
    printf(" parameters, %s; embedding scale: %s\n", term_bytes((double)d->weight_bytes).text,
           d->embed_scale);
}

static void print_projection(const kk_projection_info *p) {
    printf("projection   rank %d from %s", p->rank, p->source);
    for (int32_t i = 0; i < p->n_taps; i++) printf("%s %d", i ? "," : " of layers", p->taps[i]);
    printf(", rebuilds %d sliding and %d full layers\n", p->sliding_layers, p->full_layers);
    print_billions("             ", p->params);
    printf(" parameters, %s\n", term_bytes((double)p->weight_bytes).text);
}

static void print_loaded(const loaded *l) {
    if (l->drafts) print_drafter(&l->drafter);
    if (l->restores) print_projection(&l->projection);
    if (!l->opened && l->why.msg[0]) printf("runs here    no: %s\n", flags_for(l->why.msg).text);
    if (!l->opened) return;
    printf("opened       ");
    const char *between = "";
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) {
        if (!l->bytes[c]) continue;
        printf("%s%s %s", between, kk_mem_category_name((kk_mem_category)c),
               term_bytes((double)l->bytes[c]).text);
        between = ", ";
    }
    printf("\n");
}

static json_t *drafter_json(const loaded *l) {
    const kk_drafter_info *d = &l->drafter;
    if (!l->drafts) return json_null();
    json_t *taps = json_array();
    for (int32_t i = 0; i < d->n_taps; i++) json_array_append_new(taps, json_integer(d->taps[i]));
    return json_pack("{s:i, s:i, s:i, s:i, s:o, s:s, s:I, s:I}", "layers", d->layers, "hidden",
                     d->hidden, "block", d->block, "window", d->window, "taps", taps, "embed_scale",
                     d->embed_scale, "params", (json_int_t)d->params, "weight_bytes",
                     (json_int_t)d->weight_bytes);
}

static json_t *projection_json(const loaded *l) {
    const kk_projection_info *p = &l->projection;
    if (!l->restores) return json_null();
    json_t *taps = json_array();
    for (int32_t i = 0; i < p->n_taps; i++) json_array_append_new(taps, json_integer(p->taps[i]));
    return json_pack("{s:s, s:o, s:i, s:i, s:i, s:I, s:I}", "source", p->source, "taps", taps,
                     "rank", p->rank, "sliding_layers", p->sliding_layers, "full_layers",
                     p->full_layers, "params", (json_int_t)p->params, "weight_bytes",
                     (json_int_t)p->weight_bytes);
}

static void add_loaded(json_t *o, const loaded *l) {
    json_object_set_new(o, "drafter", drafter_json(l));
    json_object_set_new(o, "projection", projection_json(l));
    json_object_set_new(o, "bytes", l->opened ? output_memory(l->bytes) : json_null());
}

static json_t *info_json(const kk_model_info *m) {
    kk_machine machine;
    kk_machine_info(&machine);
    int64_t ctx = fitting_context(m, &machine);
    json_t *at = json_object();
    for (size_t i = 0; i < OPTION_COUNT(contexts); i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", contexts[i]);
        json_object_set_new(at, key, json_integer((json_int_t)kv_bytes(m, contexts[i])));
    }
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b}",
                          "name", m->name, "weight_type", m->weight_type, "format", m->format,
                          "layers", m->layers, "sliding_layers", m->sliding_layers, "full_layers",
                          m->full_layers, "vocab", m->vocab, "hidden", m->hidden, "heads", m->heads,
                          "window", m->window, "context", m->context, "experts", m->experts,
                          "experts_used", m->experts_used, "k_eq_v", m->k_eq_v);
    json_t *sizes = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:b, s:I}", "params", (json_int_t)m->params,
        "params_active", (json_int_t)m->params_active, "weight_bytes", (json_int_t)m->weight_bytes,
        "token_bytes", (json_int_t)m->token_bytes, "kv_full_per_token",
        (json_int_t)m->kv_full_per_token, "kv_sliding_max", (json_int_t)m->kv_sliding_max,
        "kv_bytes_at", at, "memory_free", (json_int_t)machine.memory_free, "fits", ctx > 0,
        "fits_context", (json_int_t)ctx);
    if (o && sizes) json_object_update(o, sizes);
    json_decref(sizes);
    return o;
}

/* ---- --check ----------------------------------------------------------------------------- */

typedef struct {
    json_t *list; /* NULL: print instead */
} bad_list;

static void on_bad(void *user, const char *tensor, int64_t count) {
    bad_list *b = user;
    if (b->list)
        json_array_append_new(
            b->list, json_pack("{s:s, s:I}", "tensor", tensor, "values", (json_int_t)count));
    else
        printf("not finite   %s: %s values\n", tensor, term_count(count).text);
}

/* The usual advice about a broken file is this command. */
static int failed(const kk_err *err) {
    return err->code == KK_EFORMAT ? output_failed(err->msg, "Download or convert the file again.")
                                   : output_error(err);
}

/* Scans the weights; a model with bad values is a failure. */
static int check(const char *path, json_t *object) {
    bad_list bad = {.list = object ? json_array() : NULL};
    int64_t n = 0;
    kk_err err;
    kk_status st = kk_model_check(path, on_bad, &bad, &n, &err);
    if (st != KK_OK) {
        json_decref(bad.list);
        return failed(&err);
    }
    if (object) {
        json_object_set_new(object, "bad_values", json_integer(n));
        json_object_set_new(object, "bad_tensors", bad.list);
    } else if (n == 0) {
        printf("check        every weight is finite\n");
    }
    if (n == 0) return EXIT_DONE;
    fprintf(stderr, "kakeya: %s weights are not finite\n  Download or convert the model again.\n",
            term_count(n).text);
    return EXIT_FAILED;
}

static bool inspect(const info_args *a, loader_path *path, kk_model_info *info, int *code) {
    kk_err err;
    if (a->load.synthetic && !a->load.model) {
        if (kk_bench_inspect(a->load.synthetic, info, &err) == KK_OK) return true;
        *code = loader_failed(&a->load, &err);
        return false;
    }
    if (!loader_find(&verb_info, &a->load, path, code)) return false;
    if (kk_model_inspect(path->path, info, &err) == KK_OK) return true;
    *code = failed(&err);
    return false;
}

static int run(int argc, char **argv) {
    info_args a = {.load.restores = true};
    loader_path path = {.path = ""};
    kk_model_info info;
    loaded inside;
    int code;
    if (!options_parse(&verb_info, argc, argv, &a, NULL, &code)) return code;
    if (a.check && a.load.synthetic)
        return options_wrong(&verb_info, "--check reads a model's files; there are none of a "
                                         "synthetic one");
    if (!inspect(&a, &path, &info, &code) || !look_inside(&a, &inside, &code)) return code;
    json_t *object = a.json ? info_json(&info) : NULL;
    if (object) add_loaded(object, &inside);
    if (!a.json) {
        print_info(&info);
        print_loaded(&inside);
    }
    code = a.check ? check(path.path, object) : EXIT_DONE;
    if (a.json && !output_json(object)) return output_failed("out of memory for the output", NULL);
    return code;
}

const verb verb_info = {
    .name = "info",
    .summary = "show what a model is, what it needs, and whether it fits here",
    .usage = "[-m MODEL | --synthetic SPEC] [options]",
    .about =
        "Reads a model's files without loading it and shows its layers and parameters, the\n"
        "bytes it reads for each token, the memory its context takes, whether it fits this\n"
        "machine, its drafter and projection, and the memory an engine of it takes before the\n"
        "first token.",
    .examples = "  kakeya info\n"
                "  kakeya info -m gemma-4-26b-a4b-q4_0.gguf -md gemma-4-26b-a4b-dflash\n"
                "  kakeya info -m gemma-4-26B-A4B --check\n"
                "  kakeya info --synthetic tiny:f32 --json\n",
    .options = info_options,
    .n_options = OPTION_COUNT(info_options),
    .run = run,
};
