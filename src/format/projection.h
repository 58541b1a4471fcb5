/* projection.h - the learned map f_theta on disk: its configuration, checked, and its tensors.
 *
 * A projection rebuilds K and V of a verifier's layers from a latent kept per position: z = E x,
 * K = D_k z, V = D_v z, all before their norms and before RoPE.  It names what x is.  A folder
 * holds projection.json and projection.safetensors: `encoder.weight` [rank, n_in] and for each
 * restored layer `layers.N.k.weight` and `layers.N.v.weight` [n_kv_head * head_dim, rank]; a layer
 * with K = V has the latter alone.  With two encoders (not joint: the form of the Python
 * prototype) they are `encoder_k.weight` and `encoder_v.weight`, and every layer has both
 * decoders; drafter-kv has always two, one for the drafter's K and one for its V.  A layer that
 * reads another's K/V has none.  Files stay mapped.
 *
 * projection.json carries a checksum of the tensors and one of itself, so that halves of two
 * trainings are not taken for a projection.  Files of earlier builds have none; they are read, and
 * kk_projection_config says so (data 0). */
#ifndef KK_FORMAT_PROJECTION_H
#define KK_FORMAT_PROJECTION_H

#include "format/drafter.h"

typedef enum {
    KK_SOURCE_TAPS,       /* outputs of some layers, each RMS-normalised, side by side */
    KK_SOURCE_CONTEXT,    /* the drafter's fc of its taps, RMS-normalised */
    KK_SOURCE_EMBED,      /* the token's own embedding row, RMS-normalised */
    KK_SOURCE_DRAFTER_KV, /* K/V of the drafter run over the whole text: not causal */
    KK_SOURCES,
} kk_source;
const char *kk_source_name(kk_source s); /* "taps", "context", "embed", "drafter-kv" */
bool kk_source_named(const char *name, kk_source *out);

enum { KK_MAX_RANK = 8192 };

typedef struct {
    kk_source source;
    int32_t n_taps, taps[KK_MAX_TAPS]; /* taps and context: layers, from 0 */
    int32_t n_in, rank;
    bool joint;              /* one latent for K and V */
    int32_t n_layer, hidden; /* shape of the verifier it was trained for */
    struct {
        int32_t n_layer, n_kv_head, head_dim;
    } draft; /* drafter-kv: the drafter it reads, n_in values for K and as many for V; else zeros */
    struct {
        bool restored; /* false: it has no decoders, its rows are kept (S5) */
        bool k_eq_v;
        int32_t n_kv_head, head_dim;
    } layer[256];
    /* What it was made with (lineage.h); 0: not said, or no drafter was read. */
    uint64_t verifier, verifier_source, verifier_identity, drafter, drafter_identity;
    uint64_t data; /* checksum of the tensors; 0: not said */
} kk_projection_config;

/* json: the text of projection.json, whose own checksum must hold where it has one. */
kk_status kk_projection_config_from_json(kk_projection_config *out, const char *json, size_t len,
                                         kk_err *err);
/* The text itself, released with kk_free; NULL: no memory. */
char *kk_projection_config_to_json(const kk_projection_config *c);
int64_t kk_projection_params(const kk_projection_config *c);
/* Whether it can rebuild this verifier's rows, with this drafter (NULL: none); if not, the first
 * reason: layers, heads, widths, K = V, taps, n_in, source and what the source needs.  causal
 * refuses `drafter-kv` and two encoders, which no cache can keep. */
kk_status kk_projection_check(const kk_projection_config *c, const kk_config *verifier,
                              const kk_drafter_config *drafter, bool causal, kk_err *err);

typedef struct kk_projection kk_projection;

/* Strict: a tensor that is missing, of another shape, or unknown is refused by name. */
kk_status kk_projection_open(kk_projection **out, const char *path, const kk_checkpoint_opts *opts,
                             kk_err *err);
/* Random values in the shapes of a map from `taps` for this verifier, all layers restored, counted
 * in mem under weights.projection.  A layer that reads another's K/V has none.  mem NULL: shapes
 * and sizes alone. */
kk_status kk_projection_synthetic(kk_projection **out, const kk_config *verifier, int32_t rank,
                                  const int32_t *taps, int32_t n_taps, kk_mem *mem, kk_err *err);
/* Three layers spread over the model, none twice, to read where nothing else is said; how many. */
int32_t kk_projection_spread_taps(const kk_config *verifier, int32_t taps[KK_MAX_TAPS]);
/* Rounds its decoders to KK_Q8_0 in memory, counted in mem; the encoder stays as it is. */
kk_status kk_projection_pack(kk_projection *p, const kk_drafter_packing *how, kk_mem *mem,
                             kk_err *err);
int64_t kk_projection_packed_bytes(const kk_projection *p);
void kk_projection_close(kk_projection *p); /* NULL is fine */
const kk_projection_config *kk_projection_config_of(const kk_projection *p);
/* Its tensors as a checkpoint, whose configuration is empty. */
const kk_checkpoint *kk_projection_tensors(const kk_projection *p);

/* Values of a projection to be written, [rows, columns] each; decoder rows by layer, NULL where
 * the configuration has none.  encoder[1]: the second one, unless joint. */
typedef struct {
    const float *encoder[2];
    const float *k[256], *v[256];
} kk_projection_values;
/* The files of a projection, opened before there is one to write: zero value is fine to close. */
typedef struct {
    kk_writer *tensors, *config;
} kk_projection_files;
kk_status kk_projection_files_open(kk_projection_files *out, const char *path,
                                   const kk_writer_opts *opts, kk_err *err);
void kk_projection_files_close(kk_projection_files *f); /* leaves it zero */
/* Brings both to the disk, values as KK_F32 or KK_BF16; commit then names them, the configuration
 * last: without it there is no projection. */
kk_status kk_projection_put(const kk_projection_files *to, const kk_projection_config *c,
                            const kk_projection_values *v, kk_dtype type, kk_err *err);
kk_status kk_projection_commit(const kk_projection_files *to, kk_err *err);
/* All of these; files that are there are replaced.  The folder is made when it is not there. */
kk_status kk_projection_write(const char *path, const kk_projection_config *c,
                              const kk_projection_values *v, kk_dtype type, kk_err *err);

#endif
