/* sampling.c - see sampling.h. */
#define _GNU_SOURCE
#include "cli/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

void sampling_draw_seed(uint64_t *seed) {
    uint32_t drawn; /* short enough to be typed again */
    if (*seed != SAMPLING_DRAW) return;
    if (getentropy(&drawn, sizeof drawn) != 0) drawn = (uint32_t)time(NULL);
    *seed = drawn;
}

/* "ID+BIAS", "ID-BIAS" as llama.cpp has it, or "ID=BIAS". */
static bool read_bias(const char *text, kk_logit_bias *out) {
    char *sign, *end;
    errno = 0;
    const long long id = strtoll(text, &sign, 10);
    if (sign == text || errno || id < 0 || id > INT32_MAX) return false;
    if (*sign != '+' && *sign != '-' && *sign != '=') return false;
    const char *number = *sign == '=' ? sign + 1 : sign;
    const double bias = strtod(number, &end);
    if (end == number || *end || !(bias < INFINITY)) return false;
    *out = (kk_logit_bias){(int32_t)id, (float)bias};
    return out->bias < INFINITY; /* as a float too */
}

bool sampling_biases(const verb *v, const option_words *given, kk_logit_bias *out, int *code) {
    for (int i = 0; i < given->n; i++) {
        if (read_bias(given->word[i], &out[i])) continue;
        *code = options_wrong(v, "--logit-bias takes ID+BIAS or ID-BIAS, as in 15043+1, not '%s'",
                              given->word[i]);
        return false;
    }
    return true;
}
