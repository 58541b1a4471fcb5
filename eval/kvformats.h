/* kvformats.h - what storing K/V rows in fewer bits costs, and saves.
 *
 * Documents are read by a session in float32, and every row it holds is stored and read again in
 * each format: bits of a value by the format's own layout, and the mean square error.  Then
 * sessions that keep their rows in the format answer the same documents and read the same texts,
 * their next-token distributions against those of float32.  Float32 itself comes first: the
 * identity. */
#ifndef KK_EVAL_KVFORMATS_H
#define KK_EVAL_KVFORMATS_H

#include "eval/sweep_ask.h"

/* A way to store a row.  One entry of the table is all that a new one takes here. */
typedef struct {
    const char *name;
    kk_kv_format format; /* of sessions */
    /* y: x, the n values of one head's row, stored and read again. */
    void (*round_trip)(const float *x, float *y, size_t n);
} kk_kv_codec;
extern const kk_kv_codec kk_kv_codecs[];
extern const size_t kk_n_kv_codecs;
const kk_kv_codec *kk_kv_codec_named(const char *name); /* NULL: there is none */

enum { KK_KVFORMATS = 16 };

typedef struct {
    kk_engine_opts engine;
    const kk_kv_codec *codec[KK_KVFORMATS]; /* f32 is put first */
    int32_t n_codecs;
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
    kk_kvformats_row row[KK_KVFORMATS];
    int32_t n_rows;
    json_t *report;
} kk_kvformats_result;

/* On failure *out holds nothing; otherwise release it. */
kk_status kk_kvformats_run(const kk_kvformats_opts *opts, kk_kvformats_result *out, kk_err *err);
void kk_kvformats_release(kk_kvformats_result *r);
kk_status kk_kvformats_write(const char *path, const kk_kvformats_result *r, kk_err *err);

#endif
