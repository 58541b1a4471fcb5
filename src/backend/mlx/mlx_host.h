/* mlx_host.h - C in the graph: a step that runs on the CPU when its inputs are there, with their
 * memory and that of its outputs at hand.
 *
 * Steps that read or write K/V pages depend on the one before them, so that they run in the order
 * in which they were asked for, whatever else MLX reorders. */
#ifndef KK_MLX_HOST_H
#define KK_MLX_HOST_H

#include "backend/mlx/mlx_device.h"

/* What a step is given: data of its inputs, row by row, and of its outputs.  It throws nothing. */
using kk_mlx_step =
    std::function<void(const std::vector<const void *> &in, const std::vector<void *> &out)>;

/* An output's shape and type. */
struct kk_mlx_out {
    mx::Shape shape;
    mx::Dtype type;
};

std::vector<mx::array> kk_mlx_host(kk_dev *dev, const std::vector<mx::array> &in,
                                   const std::vector<kk_mlx_out> &out, kk_mlx_step step);
/* The same, after all steps on pages that were asked for before, and before those asked for later.
 * The outputs are as many as `out`. */
std::vector<mx::array> kk_mlx_on_pages(kk_dev *dev, std::vector<mx::array> in,
                                       std::vector<kk_mlx_out> out, kk_mlx_step step);

#endif
