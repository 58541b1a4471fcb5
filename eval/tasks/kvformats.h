/* kvformats.h - what storing K/V rows in fewer bits costs, and saves.
 *
 * Documents are read by a session in float32, and every row it holds is stored and read again in
 * each format: bits of a value by the format's own layout, and the mean square error.  Then
 * sessions that keep their rows in the format answer the same documents and read the same texts,
 * their next-token distributions against those of float32.  Float32 itself comes first: the
 * identity. */
#ifndef KK_EVAL_KVFORMATS_H
#define KK_EVAL_KVFORMATS_H

#include "eval/tasks/sweep_ask.h"

typedef struct {
    kk_engine_opts engine;
    kk_kv_format format[KK_KV_FORMATS]; /* f32 is put first */
    int32_t n_formats;
    kk_ask_draw draw;
    int32_t predict;
    kk_quality_source source; /* of texts; tok and from are set here */
    const char *command;
    bool (*tell)(void *user, int32_t done, int32_t total);
    void *user;
} kk_kvformats_opts;

typedef struct {
    const char *format;
    int64_t values, stored_bytes; /* of the rows that were compared */
    double bits, rel_mse[3];      /* all, sliding, full */
    double recall, mean_kl, worst_kl;
    int64_t bytes[KK_MEM_CATEGORIES];
} kk_kvformats_row;

typedef struct {
    kk_kvformats_row row[KK_KV_FORMATS + 1];
    int32_t n_rows;
    json_t *report;
} kk_kvformats_result;

/* y: x, the n values of one head's row, stored and read again; block: a buffer for its bytes, at
 * most those of x. */
void kk_kvformats_round_trip(kk_kv_format f, const float *x, float *y, int32_t n, uint8_t *block);
/* On failure *out holds nothing; otherwise release it. */
kk_status kk_kvformats_run(const kk_kvformats_opts *opts, kk_kvformats_result *out, kk_err *err);
void kk_kvformats_release(kk_kvformats_result *r);
kk_status kk_kvformats_write(kk_writer *to, const kk_kvformats_result *r, kk_err *err);

#endif
