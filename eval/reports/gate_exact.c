/* gate_exact.c - rules about what a device may be said to compute exactly.
 *
 * A device whose kernels give a row the same bits however many lie beside it says so and no more.
 * Of others a report says how far that was measured, or who asked for it, and counts the choices
 * that such bits might change. */
#include <string.h>

#include "eval/reports/gate_rules.h"

enum { FIRST_SCHEMA = 4 };

static const json_t *machine_of(const kk_gate *g) { return kk_gate_get(g->report, "machine"); }

/* Not asked of: older reports of this repository, and those of the CPU, whose kernels are all made
 * to be exact. */
static bool is_earlier(const kk_gate *g) {
    return kk_gate_number_or(g->report, "schema", 0) < FIRST_SCHEMA &&
           (g->older || strcmp(kk_gate_text(machine_of(g), "device"), "cpu") == 0);
}

/* What exact rows rest on, where it is not how kernels are made. */
static bool is_limited(const char *by) {
    return strcmp(by, "measured") == 0 || strcmp(by, "asked") == 0 || strcmp(by, "neither") == 0;
}

/* What is said of rows, and what it rests on. */
static void rule_exact_unsaid(kk_gate *g) {
    const json_t *m = machine_of(g);
    const char *by = kk_gate_text(m, "exact_by");
    double rows = 0;
    if (is_earlier(g)) return;
    const bool limited = kk_gate_number(m, "exact_rows", &rows), open = kk_gate_get(m, "exact");
    if (!is_limited(by) && strcmp(by, "kernels") != 0) {
        kk_gate_say(g, "exact rows are by '%.20s': kernels, measured, asked or neither", by);
        return;
    }
    if (limited && open)
        kk_gate_say(g, "%g rows are exact, and it is not proven that any are", rows);
    if (limited && (rows < 1 || rows > KK_GATE_EXACT_ROWS))
        kk_gate_say(g, "%g rows of a round are exact: 1 to %d", rows, KK_GATE_EXACT_ROWS);
    if (strcmp(by, "kernels") == 0) {
        if (limited || open || kk_gate_get(m, "near_ties"))
            kk_gate_say(g, "exact by how kernels are made, and yet limited or counted");
        return;
    }
    if (!limited && !open) kk_gate_say(g, "exact rows are %s, and not how many", by);
    if (strcmp(by, "neither") == 0 && rows > 1)
        kk_gate_say(g, "%g rows are exact, and were neither measured nor asked for", rows);
    if (open && strcmp(by, "asked") != 0)
        kk_gate_say(g, "nothing is proven of a limit that was lifted, and it was %s", by);
    if (strcmp(kk_gate_text(m, "device"), "cpu") == 0)
        kk_gate_say(g, "the CPU's rows are exact by how its kernels are made, not %s", by);
}

/* Tokens that arms of a bench decoded, all of them greedy. */
static double tokens_of_arms(const kk_gate *g) {
    const char *name;
    json_t *arm;
    double sum = 0;
    if (!kk_gate_is(g, "bench")) return 0;
    json_object_foreach((json_t *)(uintptr_t)kk_gate_get(g->report, "arms"), name, arm) sum +=
        kk_gate_number_or(arm, "tokens", 0);
    return sum;
}

static void rule_ties_recount(kk_gate *g) {
    const json_t *m = machine_of(g), *ties = kk_gate_get(m, "near_ties");
    double choices, near, share;
    const char *by = kk_gate_text(m, "exact_by");
    if (is_earlier(g) || !is_limited(by)) return;
    if (!kk_gate_number(ties, "choices", &choices) || !kk_gate_number(ties, "near", &near) ||
        !kk_gate_number(ties, "share", &share)) {
        kk_gate_say(g, "near ties are not counted on a device that is exact by %s", by);
        return;
    }
    if (near < 0 || near > choices) kk_gate_say(g, "%g of %g choices are near ties", near, choices);
    if (share <= 0) kk_gate_say(g, "near ties are those within a share of %g", share);
    if (choices < tokens_of_arms(g))
        kk_gate_say(g, "near ties are of %g choices, and arms decoded %g tokens", choices,
                    tokens_of_arms(g));
}

static const kk_gate_entry exact_rules[] = {
    {"EXACT_UNSAID", rule_exact_unsaid,
     "rows are exact by how kernels are made, measured, asked for, or neither, and at most as "
     "many"},
    {"TIES_RECOUNT", rule_ties_recount,
     "near ties are counted on devices that are not exact by how their kernels are made"},
};
KK_GATE_GROUP(exact, exact_rules);
