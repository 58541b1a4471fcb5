/* mlx_arena.h - the memory of K/V pages: one range of addresses for all of a device's pages, so
 * that a kernel of the GPU reads all of them through one buffer, without a copy. */
#ifndef KK_MLX_ARENA_H
#define KK_MLX_ARENA_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include <mlx/mlx.h>

/* Invariant: extents in `used` do not overlap, lie within `bytes`, and begin and end on units of
 * the system's pages. */
struct kk_mlx_arena {
    kk_mlx_arena() = default;
    kk_mlx_arena(const kk_mlx_arena &) = delete;
    kk_mlx_arena &operator=(const kk_mlx_arena &) = delete;
    ~kk_mlx_arena();

    uint8_t *base = nullptr;              /* nullptr: no page was taken yet */
    size_t bytes = 0;                     /* of addresses */
    std::map<size_t, size_t> used;        /* bytes of each extent by where it begins */
    std::optional<mlx::core::array> view; /* the first `viewed` bytes, as the GPU sees them */
    size_t viewed = 0;

    bool reserve();          /* addresses, unless they are there; false: there are none */
    uint8_t *take(size_t n); /* nullptr: there is no memory */
    void give(uint8_t *at, size_t n);
    /* All that is taken, [*, 16384] bytes that are not copied.  Throws where MLX cannot show this
     * memory to the GPU. */
    const mlx::core::array &shown();
};

#endif
