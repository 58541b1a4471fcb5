/* gate_quality.c - rules about what restoration, packing and training cost: KL, loss, errors. */
#include <math.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

/* ---- sums of quality rows ----------------------------------------------------------------- */

typedef struct {
    size_t texts;
    double rows, mean, worst, change; /* mean and change weighted by rows */
} sum;

/* arm NULL: all rows of the list. */
static sum sum_up(const json_t *list, const char *arm) {
    sum s = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *q = json_array_get(list, i);
        if (arm && strcmp(kk_gate_text(q, "arm"), arm) != 0) continue;
        const double rows = kk_gate_number_or(q, "rows", 0);
        const double worst = kk_gate_number_or(q, "worst_kl", 0);
        s.texts++;
        s.rows += rows;
        s.mean += rows * kk_gate_number_or(q, "mean_kl", 0);
        s.change +=
            rows * (kk_gate_number_or(q, "loss_arm", 0) - kk_gate_number_or(q, "loss_exact", 0));
        if (s.texts == 1 || worst > s.worst) s.worst = worst;
    }
    if (s.rows > 0) {
        s.mean /= s.rows;
        s.change /= s.rows;
    }
    return s;
}

/* The rows that an object's mean_kl should be of; false: it claims none, or is a row itself. */
static bool sum_of(const kk_gate *g, const json_t *o, sum *out) {
    double ignored;
    if (!kk_gate_number(o, "mean_kl", &ignored) || kk_gate_get(o, "text")) return false;
    const json_t *own = json_object_get(o, "quality");
    *out = own ? sum_up(own, NULL)
               : sum_up(json_object_get(g->report, "quality"), kk_gate_text(o, "arm"));
    return true;
}

/* Differences of losses are small beside the losses: what six digits of those leave. */
static bool same_change(double a, double b) { return fabs(a - b) <= KK_GATE_LOSS_DIGITS; }

static void visit_kl(kk_gate *g, const char *where, const json_t *o) {
    sum s;
    double mean = kk_gate_number_or(o, "mean_kl", 0), worst, change;
    if (!sum_of(g, o, &s)) return;
    if (s.texts == 0)
        kk_gate_say(g, "%s: mean_kl %.6g without quality rows", where, mean);
    else if (!kk_gate_same(mean, s.mean))
        kk_gate_say(g, "%s: mean_kl is %.6g, and the quality rows give %.6g", where, mean, s.mean);
    else if (kk_gate_number(o, "worst_kl", &worst) && !kk_gate_same(worst, s.worst))
        kk_gate_say(g, "%s: worst_kl is %.6g, and the quality rows give %.6g", where, worst,
                    s.worst);
    else if (kk_gate_number(o, "loss_change", &change) && !same_change(change, s.change))
        kk_gate_say(g, "%s: loss_change is %.6g, and the quality rows give %.6g", where, change,
                    s.change);
}

static void rule_kl_recount(kk_gate *g) { kk_gate_walk(g, visit_kl); }

static void visit_kl_rows(kk_gate *g, const char *where, const json_t *o) {
    sum s;
    if (sum_of(g, o, &s) && s.rows < KK_GATE_KL_ROWS)
        kk_gate_say(g, "%s: KL over %.0f positions, and %d is the least", where, s.rows,
                    KK_GATE_KL_ROWS);
}

static void rule_kl_rows(kk_gate *g) { kk_gate_walk(g, visit_kl_rows); }

static void visit_kl_range(kk_gate *g, const char *where, const json_t *o) {
    const double slack = KK_GATE_KL_OF_NONE;
    double mean, worst;
    if (!kk_gate_number(o, "mean_kl", &mean)) return;
    const bool identity = kk_gate_number_or(o, "alpha", 0) == 1 ||
                          strcmp(kk_gate_text(o, "arm"), "exact") == 0 ||
                          (kk_gate_is(g, "kv") && o == kk_gate_item(g->report, "rows", 0));
    if (mean < -slack) kk_gate_say(g, "%s: mean_kl is %.6g", where, mean);
    if (kk_gate_number(o, "worst_kl", &worst) && mean > worst + slack)
        kk_gate_say(g, "%s: mean_kl %.6g is above worst_kl %.6g", where, mean, worst);
    if (identity && mean > slack)
        kk_gate_say(g, "%s: the identity has a mean_kl of %.6g", where, mean);
}

static void rule_kl_range(kk_gate *g) { kk_gate_walk(g, visit_kl_range); }

/* ---- relative errors ---------------------------------------------------------------------- */

static void check_layer(kk_gate *g, const char *where, const json_t *layer) {
    double error, power, ratio;
    if (!kk_gate_number(layer, "error", &error) || !kk_gate_number(layer, "power", &power) ||
        !kk_gate_number(layer, "rel_mse", &ratio)) {
        kk_gate_say(g, "%s: a layer without `error`, `power` and `rel_mse`", where);
        return;
    }
    if (power <= 0 || !kk_gate_same(ratio, error / power))
        kk_gate_say(g, "%s, layer %.0f: rel_mse is %.6g, and %.6g / %.6g is something else", where,
                    kk_gate_number_or(layer, "layer", -1), ratio, error, power);
}

/* kind NULL: all layers. */
static double error_ratio(const json_t *layers, const char *kind) {
    double error = 0, power = 0;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *l = json_array_get(layers, i);
        if (kind && strcmp(kk_gate_text(l, "kind"), kind) != 0) continue;
        error += kk_gate_number_or(l, "error", 0);
        power += kk_gate_number_or(l, "power", 0);
    }
    return power > 0 ? error / power : 0;
}

static void visit_errors(kk_gate *g, const char *where, const json_t *o) {
    static const char *const parts[] = {"all", "sliding", "full"};
    const json_t *layers = json_object_get(o, "layers"), *ratios = json_object_get(o, "rel_mse");
    if (!json_is_object(ratios)) return;
    if (json_array_size(layers) == 0)
        kk_gate_say(g, "%s: `rel_mse` without the layers it is of", where);
    for (size_t i = 0; i < json_array_size(layers); i++)
        check_layer(g, where, json_array_get(layers, i));
    for (size_t i = 0; json_array_size(layers) && i < 3; i++) {
        const double is = error_ratio(layers, i ? parts[i] : NULL);
        double said;
        if (kk_gate_number(ratios, parts[i], &said) && !kk_gate_same(said, is))
            kk_gate_say(g, "%s: rel_mse of %s is %.6g, and the layers give %.6g", where, parts[i],
                        said, is);
    }
}

static void rule_rel_mse_recount(kk_gate *g) { kk_gate_walk(g, visit_errors); }

static void rule_bits_recount(kk_gate *g) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        double bits, values, bytes;
        if (!kk_gate_number(row, "bits", &bits)) continue;
        if (!kk_gate_number(row, "values", &values) || values <= 0 ||
            !kk_gate_number(row, "stored_bytes", &bytes))
            kk_gate_say(g, "%.40s: %.4g bits without `values` and `stored_bytes`",
                        kk_gate_text(row, "format"), bits);
        else if (!kk_gate_same(bits, 8 * bytes / values))
            kk_gate_say(g, "%.40s: %.4g bits, and %.0f bytes of %.0f values are %.4g",
                        kk_gate_text(row, "format"), bits, bytes, values, 8 * bytes / values);
    }
}

/* ---- the sweep ---------------------------------------------------------------------------- */

static bool recall_at_one(const kk_gate *g, double *out) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        if (kk_gate_number_or(row, "alpha", 0) == 1) return kk_gate_number(row, "recall", out);
    }
    return false;
}

static void rule_knee_recount(kk_gate *g) {
    double said, full, knee = 1;
    if (!kk_gate_number(g->report, "knee", &said)) return;
    if (!recall_at_one(g, &full)) {
        kk_gate_say(g, "a knee at %.4g without a row of alpha 1", said);
        return;
    }
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        const double alpha = kk_gate_number_or(row, "alpha", 1);
        if (alpha < knee &&
            kk_gate_number_or(row, "recall", 0) >= full - KK_GATE_RECALL_DROP - KK_GATE_SAME_NEAR_0)
            knee = alpha;
    }
    if (!kk_gate_same(said, knee))
        kk_gate_say(g, "the knee is said to be at %.4g, and the rows put it at %.4g", said, knee);
}

/* ---- training ----------------------------------------------------------------------------- */

static bool among(const json_t *list, const json_t *seed) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), seed)) return true;
    return false;
}

static void rule_seeds_overlap(kk_gate *g) {
    const json_t *train = json_object_get(json_object_get(g->report, "train"), "seeds");
    const json_t *held = json_object_get(json_object_get(g->report, "evaluation"), "seeds");
    /* An empty list says that nothing was drawn from a seed. */
    if (!json_is_array(train) || !json_is_array(held)) {
        kk_gate_say(g, "it does not say the seeds of %s",
                    json_is_array(train) ? "evaluation" : "training");
        return;
    }
    for (size_t i = 0; i < json_array_size(held); i++)
        if (among(train, json_array_get(held, i)))
            kk_gate_say(g, "seed %lld is evaluated and was trained on",
                        (long long)json_integer_value(json_array_get(held, i)));
}

static void rule_loss_recount(kk_gate *g) {
    for (size_t i = 0; i < kk_gate_size(g->report, "curve"); i++) {
        const json_t *row = kk_gate_item(g->report, "curve", i);
        const json_t *parts = json_object_get(row, "parts");
        const json_t *weights = json_object_get(row, "weights");
        double said, is = 0;
        const char *name;
        json_t *part;
        if (!kk_gate_number(row, "loss", &said)) continue;
        json_object_foreach((json_t *)parts, name, part) is +=
            json_number_value(part) * kk_gate_number_or(weights, name, 0);
        if (!kk_gate_same(said, is))
            kk_gate_say(g, "step %.0f: a loss of %.6g, and its parts by their weights are %.6g",
                        kk_gate_number_or(row, "step", -1), said, is);
    }
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry quality_rules[] = {
    {"KL_RECOUNT", rule_kl_recount, "mean, worst and change of loss are those of the quality rows"},
    {"KL_ROWS", rule_kl_rows, "KL and loss are of 256 positions or more"},
    {"KL_RANGE", rule_kl_range,
     "KL is not negative, its mean not above its worst, and that of the identity is 0"},
    {"REL_MSE_RECOUNT", rule_rel_mse_recount,
     "relative errors are squared error over power, layer by layer and in sum"},
};
KK_GATE_GROUP(quality, quality_rules);

static const kk_gate_entry bits_rules[] = {
    {"BITS_RECOUNT", rule_bits_recount, "bits per value are stored bytes by values"},
};
KK_GATE_GROUP(bits, bits_rules);

static const kk_gate_entry knee_rules[] = {
    {"KNEE_RECOUNT", rule_knee_recount,
     "the knee is the least alpha within 0.05 of the recall of alpha 1"},
};
KK_GATE_GROUP(knee, knee_rules);

static const kk_gate_entry training_rules[] = {
    {"SEEDS_OVERLAP", rule_seeds_overlap, "what is evaluated was not trained on"},
    {"LOSS_RECOUNT", rule_loss_recount, "a loss is the sum of its parts by their weights"},
};
KK_GATE_GROUP(training, training_rules);
