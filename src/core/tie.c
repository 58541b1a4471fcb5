/* tie.c - see tie.h. */
#include "core/tie.h"

#include <math.h>

bool kk_near_tie(const float *x, int32_t n, double share) {
    float first = -INFINITY, second = -INFINITY;
    double squares = 0;
    for (int32_t i = 0; i < n; i++) {
        squares += (double)x[i] * (double)x[i];
        if (x[i] > first) {
            second = first;
            first = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    return n > 1 && (double)first - (double)second <= 2 * share * sqrt(squares / n);
}
