/* bench_rounds.c - how long single rounds took, and how evenly; see kk_bench_rounds.
 *
 * A mean hides a stall: an allocation, a kernel that is planned at its first use, another process.
 * The first rounds of a generation are kept one by one, the longest with them, and the coefficient
 * of variation is of the rounds after those.  Squares are summed as differences from the mean,
 * which six digits in a report are enough for. */
#include <math.h>

#include "eval/measure/bench_parts.h"
#include "eval/reports/report.h"

/* Mean and squared differences of `more` taken in beside those of `to`. */
static void add_steady(kk_bench_rounds *to, int64_t n, double mean, double squares) {
    const double a = (double)to->n_steady, b = (double)n, all = a + b;
    const double apart = mean - to->steady_mean_ms;
    if (n == 0) return;
    to->steady_squares += squares + apart * apart * a * b / all;
    to->steady_mean_ms += apart * b / all;
    to->n_steady += n;
}

kk_bench_rounds kk_bench_rounds_of(const double *seconds, int32_t n) {
    kk_bench_rounds r = {.n = n};
    for (int32_t i = 0; i < n; i++) {
        const double ms = 1e3 * seconds[i];
        r.sum_ms += ms;
        if (ms > r.longest_ms) r.longest_ms = ms;
        if (i < KK_BENCH_FIRST)
            r.first_ms[r.n_first++] = ms;
        else
            add_steady(&r, 1, ms, 0);
    }
    return r;
}

void kk_bench_rounds_add(kk_bench_rounds *to, const kk_bench_rounds *more) {
    if (to->n == 0) {
        *to = *more;
        return;
    }
    to->n += more->n;
    to->sum_ms += more->sum_ms;
    if (more->longest_ms > to->longest_ms) to->longest_ms = more->longest_ms;
    add_steady(to, more->n_steady, more->steady_mean_ms, more->steady_squares);
}

/* Population deviation: these are all the rounds there were. */
static double deviation(const kk_bench_rounds *r) {
    return r->n_steady ? sqrt(r->steady_squares / (double)r->n_steady) : 0;
}

double kk_bench_rounds_cv(const kk_bench_rounds *r) {
    return r->n_steady < 2 || r->steady_mean_ms <= 0 ? -1 : deviation(r) / r->steady_mean_ms;
}

json_t *kk_bench_rounds_json(const kk_bench_rounds *r) {
    const double cv = kk_bench_rounds_cv(r);
    json_t *first = json_array();
    for (int32_t i = 0; i < r->n_first; i++)
        json_array_append_new(first, kk_report_real(r->first_ms[i]));
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:i, s:{s:I, s:o, s:o, s:o}}", "n",
                     (json_int_t)r->n, "sum_ms", kk_report_real(r->sum_ms), "mean_ms",
                     r->n ? kk_report_real(r->sum_ms / (double)r->n) : json_null(), "longest_ms",
                     kk_report_real(r->longest_ms), "first_ms", first, "warm_up", KK_BENCH_FIRST,
                     "steady", "n", (json_int_t)r->n_steady, "mean_ms",
                     r->n_steady ? kk_report_real(r->steady_mean_ms) : json_null(), "deviation_ms",
                     r->n_steady ? kk_report_real(deviation(r)) : json_null(), "cv",
                     cv < 0 ? json_null() : kk_report_real(cv));
}
