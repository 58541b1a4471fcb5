/* mlx_device.h - the MLX device: buffers that hold arrays which are not computed yet, and the one
 * place where they are.
 *
 * An operation adds nodes to MLX's graph and returns.  What is in a buffer is then the newest array
 * put into it, over older ones that reach further, over its bytes in host memory; nothing is
 * computed until a result is read, and then all of it at once: one wait a round.  K/V pages lie in
 * ordinary memory, which MLX's arrays share on an Apple machine as on a CPU: rows are packed and
 * unpacked by C steps in the graph (mlx_host.h), products, norms and attention are MLX's.
 *
 * C++ stays in this folder: the table of operations is C, and every exception becomes a status. */
#ifndef KK_MLX_DEVICE_H
#define KK_MLX_DEVICE_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <mlx/mlx.h>

extern "C" {
#include "backend/backend.h"
#include "backend/sample.h"
}

#include "backend/mlx/mlx_arena.h"

namespace mx = mlx::core;

struct kk_mlx_kernels;

enum {
    KK_MLX_ROUND_ROWS = KK_PICK_ROWS, /* forwards of more rows are prompts */
    KK_MLX_DEPTH = 6,                 /* most arrays that lie over each other in a buffer */
};

/* The first n words, of 4 bytes, of a buffer, in any shape.  Once they are computed they lie row by
 * row. */
struct kk_mlx_layer {
    size_t n;
    mx::array words;
};

struct kk_buf {
    kk_mem_category category = KK_MEM_WORKSPACE;
    size_t bytes = 0;
    size_t most = 0;               /* not 0: reserved, may grow up to so many bytes */
    std::shared_ptr<uint8_t> host; /* what lies under the arrays */
    std::vector<kk_mlx_layer> layers;
};

/* Scales and biases of packed codes, [n_out, groups], of several [n_mat, n_out, groups]. */
struct kk_mlx_planes {
    mx::array scales, biases;
};

/* Matrices as MLX multiplies them. */
struct kk_weight {
    int64_t n_mat = 0, n_out = 0, n_in = 0, bytes = 0;
    int bits = 0, group = 0; /* of packed ones: bits of a code, codes that share a scale */
    /* float32 [n_out, n_in], of several [n_mat, n_out, n_in]; packed ones have rows of words */
    std::optional<mx::array> w;
    std::vector<kk_mlx_planes> planes;        /* of packed ones: one, or of each half of a group */
    mutable std::optional<mx::array> decoder; /* float32 [n_in, n_out], made when first asked for */
    std::optional<mx::array> halves;          /* [n_in], 1 where the first set of two holds */
};

/* The rows [from, to) that were rebuilt in a forward, [n_kv_head, to - from, d] each. */
struct kk_mlx_rebuilt {
    int64_t from, to;
    mx::array k, v;
};

struct kk_dev {
    explicit kk_dev(mx::Stream s, mx::Stream h) : stream(s), host_stream(h) {}
    kk_mem *mem = nullptr;
    int32_t max_rows = 0;
    int32_t threads = 1; /* that weights are packed by */
    /* Rows of a product whose bits do not depend on each other: with float32 weights, and with
     * packed ones. */
    int32_t exact_rows = 1, exact_packed_rows = 1;
    bool unlimited = false;         /* rounds multiply all rows at once, exact or not */
    mx::Stream stream, host_stream; /* where arrays are computed; where C steps run */
    std::vector<kk_buf *> bufs;
    kk_mlx_arena arena; /* K/V pages */
    std::shared_ptr<kk_mlx_kernels>
        kernels;                         /* that read pages where they lie; none: the plain way */
    int32_t page_rows = 0;               /* rows of a round that these were measured to keep */
    std::optional<mx::array> pages_done; /* depends on all that was asked of pages so far */
    int64_t asked = 0;                   /* operations since all was computed */
    kk_status lost = KK_OK;              /* of work whose failure has not been reported yet */
    kk_dev_counts counts = {};
    int64_t weights = 0, packed = 0; /* bytes; those of packed ones among them */
    kk_pick picks[KK_PICKS][KK_PICK_ROWS] = {};
    int64_t tickets = 0;
    kk_sampler *sampler = nullptr;
    int32_t sampler_vocab = 0;
    int64_t rebuilt_forward = 0;
    std::map<std::pair<int32_t, int32_t>, kk_mlx_rebuilt> rebuilt; /* by layer and group */
};

/* ---- errors -------------------------------------------------------------------------------- */

kk_status kk_mlx_caught(kk_err *err, const char *what); /* inside a catch */

/* Runs f, which returns a status; what it throws becomes one. */
template <typename F> kk_status kk_mlx_try(kk_err *err, const char *what, F &&f) {
    try {
        return f();
    } catch (...) {
        return kk_mlx_caught(err, what);
    }
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Where arrays are computed, and where C steps run; one, of a device without a GPU. */
std::pair<mx::Stream, mx::Stream> kk_mlx_streams_take(bool gpu);
void kk_mlx_streams_give(
    const std::pair<mx::Stream, mx::Stream> &streams); /* with nothing queued */
/* Starts computing arrays; and waits for them. */
void kk_mlx_begin(std::vector<mx::array> all);
void kk_mlx_compute(std::vector<mx::array> all);

/* ---- arrays in buffers --------------------------------------------------------------------- */

/* The first n words of a buffer, [n]. */
mx::array kk_mlx_get(kk_dev *dev, const kk_buf *b, size_t n, mx::Dtype type = mx::float32);
/* The same in a shape of so many words; and as a matrix.  What was put there in that shape comes
 * back without a step in between. */
mx::array kk_mlx_shaped(kk_dev *dev, const kk_buf *b, const mx::Shape &shape);
mx::array kk_mlx_rows(kk_dev *dev, const kk_buf *b, int64_t rows, int64_t dim);
/* All words of an array become the first of a buffer. */
void kk_mlx_put(kk_dev *dev, kk_buf *b, const mx::array &words);
/* Words [at, at + n). */
void kk_mlx_put_at(kk_dev *dev, kk_buf *b, size_t at, const mx::array &words);
/* Computes all that was asked for and waits: one sync where there was anything. */
kk_status kk_mlx_flush(kk_dev *dev, kk_err *err);
/* Starts it and does not wait. */
void kk_mlx_start(kk_dev *dev);
/* Bytes of a buffer, once all is computed. */
void kk_mlx_copy_out(const kk_buf *b, size_t off, void *dst, size_t n);
/* Brings what lies over a buffer's own memory into it. */
kk_status kk_mlx_settle(kk_dev *dev, kk_buf *b, kk_err *err);

static inline int kk_mlx_int(int64_t n) { return static_cast<int>(n); }
/* Columns [from, to) of the last axis. */
mx::array kk_mlx_columns(kk_dev *dev, const mx::array &x, int64_t from, int64_t to);

/* ---- operations ---------------------------------------------------------------------------- */

/* y = x w^T, [n, n_out], in one product. */
mx::array kk_mlx_multiply(kk_dev *dev, const mx::array &x, const kk_weight *w);
/* y = x w^T, [n, n_out], by products whose rows have the same bits however many they are. */
mx::array kk_mlx_product(kk_dev *dev, const mx::array &x, const kk_weight *w);
/* Rows of a matrix by id, as floats. */
mx::array kk_mlx_lookup(kk_dev *dev, const kk_weight *w, const mx::array &ids);
mx::array kk_mlx_norm_of(kk_dev *dev, const mx::array &x, const kk_buf *w, int64_t dim, float eps);
/* Attention of rows q [n, n_head, head_dim] by MLX's own, over rows that are gathered as floats. */
mx::array kk_mlx_plain_attend(kk_dev *dev, const kk_attend_args *a, const mx::array &q);
mx::array kk_mlx_gelu(kk_dev *dev, const mx::array &x);

extern "C" {
int64_t kk_mlx_stored(kk_dtype type, int64_t values);
kk_status kk_mlx_weight_new(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err);
void kk_mlx_weight_free(kk_dev *dev, kk_weight *w);
kk_status kk_mlx_embed(kk_dev *dev, const kk_embed_args *a, kk_err *err);
kk_status kk_mlx_norm(kk_dev *dev, const kk_norm_args *a, kk_err *err);
kk_status kk_mlx_linear(kk_dev *dev, const kk_linear_args *a, kk_err *err);
kk_status kk_mlx_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err);
kk_status kk_mlx_store(kk_dev *dev, const kk_store_args *a, kk_err *err);
kk_status kk_mlx_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err);
kk_status kk_mlx_residual(kk_dev *dev, const kk_residual_args *a, kk_err *err);
kk_status kk_mlx_glu(kk_dev *dev, const kk_glu_args *a, kk_err *err);
kk_status kk_mlx_route(kk_dev *dev, const kk_route_args *a, kk_err *err);
kk_status kk_mlx_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err);
kk_status kk_mlx_ple(kk_dev *dev, const kk_ple_args *a, kk_err *err);
kk_status kk_mlx_gather(kk_dev *dev, const kk_gather_args *a, kk_err *err);
kk_status kk_mlx_softcap(kk_dev *dev, const kk_softcap_args *a, kk_err *err);
kk_status kk_mlx_argmax(kk_dev *dev, const kk_argmax_args *a, kk_err *err);
kk_status kk_mlx_ids(kk_dev *dev, const kk_ids_args *a, kk_err *err);
kk_status kk_mlx_replay(kk_dev *dev, const kk_replay_args *a, kk_err *err);
kk_status kk_mlx_keep(kk_dev *dev, const kk_keep_args *a, kk_err *err);
kk_status kk_mlx_keep_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err);
kk_status kk_mlx_choose(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err);
kk_status kk_mlx_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                        kk_err *err);
kk_status kk_mlx_measure_exact(kk_dev *dev, kk_exact_rows *out, kk_err *pages, kk_err *err);
}

#endif
