/* attend_few.cuh - attend.cuh's pages for the kernel that does a whole forward: bf16 rows of large
 * heads, with few registers and little code.
 *
 * There a page has been asked into the cache a stage ahead, so what counts is not to ask early but
 * to leave nothing in local memory: queries and new rows are made ready first, then the page is
 * read.  The same bits as any other way. */
#ifndef KK_CUDA_ATTEND_FEW_CUH
#define KK_CUDA_ATTEND_FEW_CUH

#include "attend.cuh"

struct kk_few_unit {
    kk_unit u;
    int m_from, m_to, queries;
    uint8_t *mem;
};

/* The walk's unit; false: it has no queries for this share. */
__device__ __forceinline__ bool kk_few_open(kk_few_unit &f, const kk_cu_attend &a,
                                            const kk_attend_walk &walk) {
    const int n_kv = a.slot.n_kv_head;
    int i = walk.at - walk.before;
    f.u.a = &a;
    f.u.group = a.n_head / n_kv;
    f.u.kv = i % n_kv;
    i /= n_kv;
    const int share = i % walk.shares;
    f.u.index = i / walk.shares;
    f.u.tile = walk.tile;
    f.u.info = a.rows.tile + a.first_tile + f.u.tile;
    f.u.page = kk_pages_of(a, *f.u.info).at(f.u.index);
    f.queries = f.u.rows() * f.u.group;
    const int tiles = (f.queries + 15) / 16;
    f.m_from = tiles * share / walk.shares;
    f.m_to = tiles * (share + 1) / walk.shares;
    f.mem = a.rows.pages[f.u.info->pages + f.u.page];
    return f.m_from < f.m_to;
}

/* Asks the pages of a block's units into the cache; one thread. */
__device__ __forceinline__ void kk_few_prefetch(const kk_cu_attend &a, int block, int blocks) {
    kk_attend_walk walk;
    walk.open(a, block, blocks);
#pragma unroll 1
    for (; walk.find(a); walk.at += blocks) {
        kk_few_unit f;
        if (!kk_few_open(f, a, walk)) continue;
        const uint8_t *head = f.mem + (size_t)f.u.kv * a.slot.head_bytes;
#if __CUDA_ARCH__ >= 900
        if (!a.slot.k_eq_v)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(head + a.slot.k_off),
                         "r"((uint32_t)a.slot.head_bytes));
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(head + a.slot.v_off),
                     "r"((uint32_t)a.slot.head_bytes));
#endif
    }
}

/* Whether a value that only some of the tile's rows see is not finite. */
template <int D>
__device__ __forceinline__ bool kk_few_careful(const kk_unit &u,
                                               const uint32_t (&v)[16][kk_cut<D>::NW]) {
    if (u.rows() == 1) return false;
    const uint64_t some = ~(u.seen(0) & u.seen(u.rows() - 1)) >> threadIdx.x % 4 * 2;
    bool odd = false;
#pragma unroll
    for (int e = 0; e < 16; e++)
#pragma unroll
        for (int w = 0; w < kk_cut<D>::NW; w++)
            odd = odd || (kk_has(some, e) && kk_not_finite(v[e][w]));
    return __any_sync(0xffffffffu, odd);
}

/* All units of this block, as kk_attend_stage. */
template <int D, bool EQ>
__device__ __forceinline__ void kk_attend_few(const kk_cu_store &s, const kk_cu_attend &a,
                                              char *room, int block, int blocks) {
    using cut = kk_cut<D>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = warp / 8;
    const int j = warp % 8 * 8 + lane / 4;
    float *score = (float *)(room + 16 * cut::PITCH);
    kk_attend_walk walk;
    walk.open(a, block, blocks);
#pragma unroll 1
    for (; walk.find(a); walk.at += blocks) {
        kk_few_unit f;
        if (!kk_few_open(f, a, walk)) continue;
        const kk_unit &u = f.u;
        const int64_t base = (int64_t)u.page * KK_PAGE;
        uint4 k[cut::STEPS];
        uint32_t v[16][cut::NW];
        bool careful = false;
#pragma unroll 1
        for (int m = f.m_from; m < f.m_to; m++) {
            const int q0 = m * 16, n = min(16, f.queries - q0);
            if (warp < n) {
                kk_head<D> raw = kk_query_load<D, true>(u, s, q0 + warp);
                kk_query_stage<D, true>(room + warp * cut::PITCH, raw, u, s, q0 + warp);
            }
            if (m == f.m_from) {
                const int from = kk_clip(u.info->group_pos, base);
                const int to = kk_clip(u.info->group_end, base);
                if (s.k && from < to)
                    kk_store_fresh<D, EQ>(s, f.mem, u.kv, from, to,
                                          u.info->row + (base - u.info->pos));
                kk_sync();
                const uint64_t any = u.seen_by_any();
                const uint8_t *head = f.mem + (size_t)u.kv * a.slot.head_bytes;
#pragma unroll
                for (int e = 0; e < cut::STEPS; e++) k[e] = make_uint4(0, 0, 0, 0);
                if (any >> j & 1) {
                    kk_fetch_key<D, false, true>(k, a, head + (EQ ? a.slot.v_off : a.slot.k_off),
                                                 base, chain, j);
                    if (EQ) kk_rebuild_key<D>(k, a, base, chain, j);
                }
                kk_fetch_values<D, true, true>(v, a.slot, head + a.slot.v_off, any);
                careful = kk_few_careful<D>(u, v);
            } else {
                kk_sync();
            }
            kk_page_scores<D>(score, k, room, n, a.scale);
            if (warp < n)
                kk_page_softmax(score + warp * KK_SCORE_PITCH, u.seen(u.row(q0 + warp)),
                                u.part(q0 + warp));
            kk_sync();
            /* All rows at once; where a value is odd, one after the other. */
            const int last = careful ? u.row(q0 + n - 1) : 0;
#pragma unroll 1
            for (int r = careful ? u.row(q0) : 0; r <= last; r++) {
                float o[cut::NT][4];
                kk_page_sums<D, true>(o, v, (const char *)score, n, careful ? u.seen(r) : ~0ull);
                kk_page_keep<D>(o, u, q0, n, careful ? r : -1);
            }
        }
        kk_sync(); /* q and scores are free for the next unit */
    }
}

#endif
