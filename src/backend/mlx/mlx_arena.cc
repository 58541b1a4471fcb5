/* mlx_arena.cc - see mlx_arena.h.
 *
 * Addresses are reserved once, as many as the machine has memory, and cost nothing until they are
 * written.  Extents are the slabs of the pools of pages, some dozens of megabytes each; a free one
 * is found by walking over those that are used.  What is given back goes back to the system. */
#include "backend/mlx/mlx_arena.h"

#include <algorithm>
#include <stdexcept>

#include <sys/mman.h>
#include <unistd.h>

#include <mlx/allocator.h>

extern "C" {
#include "core/alloc.h"
}

namespace mx = mlx::core;

/* Bytes: a multiple of the system's pages, 16 KiB on Apple's chips; the least that a view grows
 * by; and the least that is reserved. */
static constexpr size_t unit = 16384, step = (size_t)64 << 20, least = (size_t)4 << 30;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t memory_of_machine() {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

kk_mlx_arena::~kk_mlx_arena() { kk_mem_unreserve(base, bytes); }

bool kk_mlx_arena::reserve() {
    if (base) return true;
    const size_t all = round_up(std::max(memory_of_machine(), least), step);
    base = static_cast<uint8_t *>(kk_mem_reserve(all));
    if (base) bytes = all;
    return base != nullptr;
}

uint8_t *kk_mlx_arena::take(size_t n) {
    if (base ? kk_fault_point() : !reserve()) return nullptr;
    const size_t need = round_up(std::max(n, (size_t)1), unit);
    size_t at = 0;
    for (const auto &extent : used) {
        if (extent.first - at >= need) break;
        at = extent.first + extent.second;
    }
    if (need > bytes - at) return nullptr;
    used[at] = need;
    return base + at;
}

void kk_mlx_arena::give(uint8_t *at, size_t n) {
    if (!at) return;
    const size_t end = used.rbegin()->first + used.rbegin()->second;
    used.erase((size_t)(at - base));
#ifdef __linux__
    madvise(at, round_up(std::max(n, (size_t)1), unit), MADV_DONTNEED);
#else
    madvise(at, round_up(std::max(n, (size_t)1), unit), MADV_FREE);
#endif
    /* A view that reaches beyond what is used would keep that memory. */
    if (used.empty() || used.rbegin()->first + used.rbegin()->second < end) view.reset();
}

const mx::array &kk_mlx_arena::shown() {
    const size_t end = used.empty() ? 0 : used.rbegin()->first + used.rbegin()->second;
    if (view && viewed >= end) return *view;
    viewed = std::min(round_up(std::max(end, (size_t)1), step), bytes);
    const mx::allocator::Buffer shared = mx::allocator::make_buffer(base, viewed);
    if (!shared.ptr()) throw std::runtime_error("MLX cannot show the memory of pages to the GPU");
    view.emplace(mx::allocator::Data(shared, [](mx::allocator::Buffer b) { release(b); }),
                 mx::Shape{(int)(viewed / unit), (int)unit}, mx::uint8);
    return *view;
}
