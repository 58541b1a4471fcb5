/* mlx_pages.h - attention of a round's rows by kernels that read K/V pages where they lie.
 *
 * mlx_pages.metal has the kernels and mlx_pages.cc what goes into them: which stored rows each row
 * adds up, in which parts.  MLX makes Metal kernels of the text; tests put the same text, compiled
 * as C++, in their place, so that all but MLX's own compiling of it runs on Linux too.
 *
 * The plain way, rows gathered as float32 and MLX's attention, is what the kernels are held
 * against, and what computes wherever they do not. */
#ifndef KK_MLX_PAGES_H
#define KK_MLX_PAGES_H

#include "backend/mlx/mlx_device.h"

/* What the kernels are called with: names of their inputs, in order, and their bodies. */
#define KK_MLX_PART_BODY                                                                           \
    kk_attend_part<D, FORMAT, K_IS_V>(q, pages, blocks, parts, sizes, k_norm, angles, sums, tops,  \
                                      thread_position_in_grid)
#define KK_MLX_JOIN_BODY kk_attend_join<D>(sums, tops, rows, sizes, out, thread_position_in_grid)
extern const std::vector<std::string> kk_mlx_part_inputs, kk_mlx_join_inputs;

/* The kernels, of Metal or of a test; and the memory of pages as they are given it, of which a
 * block's place is counted from `base`. */
struct kk_mlx_kernels {
    mx::fast::CustomKernelFunction part, join;
    std::function<mx::array()> shown;
    const uint8_t *base;
    size_t bytes;
};

/* What is added up: words as mlx_pages.metal names them. */
struct kk_mlx_plan {
    std::vector<int64_t> blocks;
    std::vector<int32_t> parts;
    std::vector<int32_t> rows; /* of each row: its first part, and how many */
};

/* Whether attention of this kind is the kernels' at all; by nothing that changes from one forward
 * to the next, since their bits are not those of the plain way. */
bool kk_mlx_pages_fit(const kk_attend_args *a);
/* The plan of rows [from, to) of a forward.  Throws where a page is not in the memory shown. */
kk_mlx_plan kk_mlx_pages_plan(const kk_attend_args *a, const kk_mlx_kernels *k, int32_t from,
                              int32_t to);
/* out [n_rows, n_head * head_dim]; whatever touches pages later waits for it. */
mx::array kk_mlx_pages_attend(kk_dev *dev, const kk_attend_args *a, const mx::array &q);
/* Kernels of Metal, where there is Metal; else none. */
std::unique_ptr<kk_mlx_kernels> kk_mlx_metal_kernels(kk_dev *dev);
/* The self-test: how many rows of a round are alike by these kernels, each of which is also what
 * the plain way says; 0: they are not. */
int32_t kk_mlx_pages_alike(kk_dev *dev);

#endif
