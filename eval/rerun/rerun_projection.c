/* rerun_projection.c - reports of `kakeya train projection`: the projection is trained again.
 *
 * Everything of it is a function of the options and of the number of threads, so that losses, the
 * curve and the errors on texts held out are the same, but that OpenBLAS adds in an order of each
 * processor: so they agree to about six digits.  There is nothing in it that could be
 * executed by rows: a draw trains too. */
#include "core/error.h"
#include "eval/rerun/kinds.h"

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    {"*_seconds", KK_MEMBER_TIMED},
    {"stages/seconds", KK_MEMBER_TIMED},
    {"resumed_at", KK_MEMBER_LEFT},
    {NULL, KK_MEMBER_EQUAL},
};

static const kk_list_rule lists[] = {
    {"stages", "loss"},      {"stages/layers", "layer"}, {"stages/blocks", "layer part"},
    {"curve", "stage step"}, {"files", "name"},          {NULL, NULL},
};

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    if (r->train) return r->train(r->user, r->stored, report, err);
    return kk_fail(err, KK_EINVAL,
                   "this program cannot train, so the report cannot be executed "
                   "again");
}

const kk_rerun_kind kk_rerun_projection = {.kind = "projection",
                                           .whole = "a projection is trained as a whole",
                                           .members = members,
                                           .lists = lists,
                                           .within = 1e-3,
                                           .run = run};
