/* kinds.h - what a kind of report registers to be executed again, and what such code shares. */
#ifndef KK_EVAL_RERUN_KINDS_H
#define KK_EVAL_RERUN_KINDS_H

#include "eval/rerun/rerun.h"
#include "eval/tasks/quality.h"
#include "eval/tasks/sweep_ask.h"

typedef struct kk_rerun_kind {
    const char *kind;
    const char *refused; /* why it cannot be executed again; NULL: it can */
    const char *unit; /* what is drawn where not all is executed; NULL: nothing, as `whole` says */
    const char *whole;
    const kk_member_rule *members;
    const kk_list_rule *lists;
    /* By how much numbers that are not whole may differ, relative to the larger: of what a library
     * computes whose kernels follow the processor, which its name does not tell (a virtual machine
     * calls many of them by one). */
    double within;
    /* Whether a controller chose the length of drafts; NULL: nothing of it depends on that. */
    bool (*free_drafts)(const json_t *stored);
    /* The report of the run, released by the caller. */
    kk_status (*run)(const kk_rerun *r, json_t **report, kk_err *err);
} kk_rerun_kind;

extern const kk_rerun_kind kk_rerun_needle, kk_rerun_sweep, kk_rerun_kv, kk_rerun_memory,
    kk_rerun_accept, kk_rerun_bench, kk_rerun_projection, kk_rerun_steps, kk_rerun_load;

/* Rules for members that all kinds have, and for answers and quality rows. */
/* Reports of schema 1 said of a row whether it was the same; later ones have both hashes. */
#define KK_RERUN_ENVELOPE                                                                          \
    {"schema", KK_MEMBER_LEFT}, {"**/same_tokens", KK_MEMBER_LEFT},                                \
        {"**/same_hash", KK_MEMBER_LEFT}, {"version", KK_MEMBER_LEFT}, {"date", KK_MEMBER_LEFT},   \
        {"command", KK_MEMBER_LEFT}, {"build", KK_MEMBER_LEFT}, {"machine", KK_MEMBER_LEFT},       \
        {"model/source", KK_MEMBER_LEFT}, {                                                        \
        "load_s", KK_MEMBER_LEFT                                                                   \
    }
#define KK_RERUN_ROW_TIMES                                                                         \
    {"**/prefill_s", KK_MEMBER_LEFT}, { "**/decode_s", KK_MEMBER_LEFT }
#define KK_RERUN_TEXTS                                                                             \
    {"settings/texts/texts", KK_MEMBER_TOTAL}, { "settings/texts/rows", KK_MEMBER_TOTAL }

/* Members of an object; with what stands where there is none of that type. */
const json_t *kk_rerun_settings(const kk_rerun *r);
int64_t kk_rerun_int(const json_t *o, const char *key, int64_t otherwise);
double kk_rerun_real(const json_t *o, const char *key, double otherwise);
const char *kk_rerun_text(const json_t *o, const char *key, const char *otherwise);
bool kk_rerun_flag(const json_t *o, const char *key);
/* Fails, naming the setting, when it is missing or is no number from low to high. */
kk_status kk_rerun_need(const json_t *o, const char *key, int64_t low, int64_t high, int32_t *out,
                        kk_err *err);
/* A list of such numbers, of 1 to cap entries. */
kk_status kk_rerun_list(const json_t *o, const char *key, int32_t high, int32_t *out, int32_t cap,
                        int32_t *n, kk_err *err);
kk_status kk_rerun_format(const json_t *o, const char *key, kk_kv_format *out, kk_err *err);
kk_status kk_rerun_keep(const json_t *o, const char *key, kk_keep *out, kk_err *err);
kk_status kk_rerun_spec(const char *name, kk_spec *out, kk_err *err); /* "plain" is none */
/* sink, window and chunk as sessions take them: 0 is none. */
void kk_rerun_rows(const json_t *o, kk_session_opts *to);
/* The ladder, samples and seed of documents, and the texts; with the draw. */
kk_status kk_rerun_draw(const kk_rerun *r, kk_ask_draw *out, kk_err *err);
kk_status kk_rerun_source(const kk_rerun *r, kk_quality_source *out, kk_err *err);
/* The one file of prompts of a report that says it read one; NULL: it is not known here. */
const char *kk_rerun_file(const kk_rerun *r);
/* Tells "NAME: 3 of 8". */
bool kk_rerun_tell(const kk_rerun *r, const char *name, int64_t done, int64_t total);

#endif
