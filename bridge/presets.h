/* presets.h - the allow-list: what a request may ask a runner to do.
 *
 * A preset is one or more command lines of `kakeya`, written out here; a request chooses a preset
 * and gives values within bounds for its parameters.  Nothing else of a request ends up in an
 * argv.  Paths come from the runner's own configuration. */
#ifndef KK_BRIDGE_PRESETS_H
#define KK_BRIDGE_PRESETS_H

#include "bridge/words.h"

enum { KK_PRESET_PARAMS = 6, KK_PRESET_COMMANDS = 2 };

typedef struct {
    const char *name;  /* NULL: there are no more */
    const char *words; /* what it may be, with a space between; NULL: it is a whole number */
    int64_t min, max;  /* of a number */
    int64_t otherwise; /* its value where a request does not say: a number or the i-th word */
} kk_param;

/* Words of a command are separated by spaces.  One may be
 *   {name}     inside of a word: the value of a parameter
 *   ?model ?drafter ?projection   -m, -md or -mp and the path, where the runner has one
 *   @case      one of the runner's cases: the command is run for each
 *   @reports   the runner's folder of reports
 *   @report    the report that the command writes */
typedef struct {
    const char *name, *summary;
    const char *commands[KK_PRESET_COMMANDS];
    kk_param params[KK_PRESET_PARAMS];
    int32_t minutes; /* all its commands together */
} kk_preset;

const kk_preset *kk_presets_at(size_t i);           /* NULL after the last */
const kk_preset *kk_presets_find(const char *name); /* NULL: there is none */
const char *kk_presets_without(const char *name);   /* why a preset of the original is not here;
                                                         * NULL: it was none */
size_t kk_preset_params(const kk_preset *p);        /* how many it has */
const char *kk_param_word(const kk_param *p, int64_t i, size_t *len); /* the i-th; NULL: none */

/* The machine's own paths; "" where it has none. */
typedef struct {
    const char *model, *drafter, *projection, *reports;
    const char *const *cases;
    size_t n_cases;
} kk_preset_paths;

/* The command lines of a preset: each begins with the path of the program. */
enum { KK_PLAN_COMMANDS = 32 };
typedef struct {
    kk_words command[KK_PLAN_COMMANDS];
    size_t n;
} kk_plan;

/* value [KK_PRESET_PARAMS]: within the bounds; tag: the end of the names of reports.  KK_EINVAL
 * when the machine lacks a path.  *plan is to be released also after a failure. */
kk_status kk_plan_make(kk_plan *plan, const kk_preset *p, const int64_t *value, const char *program,
                       const kk_preset_paths *paths, const char *tag, kk_err *err);
void kk_plan_free(kk_plan *plan);

#endif
