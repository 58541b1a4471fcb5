/* cuda_sample.cu - sampled choices: a token for each row by the arithmetic of backend/sample.h, and
 * log-probabilities where they are wanted.
 *
 *    grid: teams x blocks; a team of up to 64 blocks takes one row after the other
 *    block: 512 threads; its share of the row's values stays in shared memory, a contiguous range
 *           of ids for each warp
 *
 *    values    logits, digest; bias, penalties and mask of the block's own ids      -- team_sync
 *    cut       top-k, top-p: bins in shared memory, added up in the team's scratch  -- team_sync
 *              (rank.h), once to four times; then the few that are left are listed  -- team_sync
 *    draw      sums of weights by block                                             -- team_sync
 *              the block whose range the draw falls into walks through it
 *
 * Blocks of a team wait for one another, so all of them are resident: no more teams are launched
 * than fit.  Everything that is added up is an integer. */
#include "arith.cuh"
#include "core/digest.h"
#include "launch.cuh"
#include "rank.h"
#include "sample_ops.h"

namespace {

enum {
    THREADS = KK_CU_SAMPLE_THREADS,
    WARPS = THREADS / KK_WARP,
    BINS = KK_RANK_BINS,
    COPIES = 2, /* of each bin in shared memory: neighbours often meet in one */
    PER_THREAD = BINS / THREADS,
};
static_assert((int)BINS == (int)KK_CU_SAMPLE_BINS && (int)KK_RANK_LIST == (int)KK_CU_SAMPLE_LIST,
              "as in rank.h");
static_assert(sizeof(kk_cu_sample_team) % 16 == 0, "its bins are cleared 16 bytes at a time");
static_assert(BINS % THREADS == 0, "each thread has as many bins");
static_assert((int)KK_RANK_LIST <= (int)THREADS, "a thread for each of a list");
static_assert((int)KK_CU_SAMPLE_WARP_IDS * (int)WARPS <= 2 * 4095, "halves of weights fit 32 bits");

struct bins {
    uint32_t high[BINS][COPIES], low[BINS][COPIES], count[BINS][COPIES];
};

/* A block's shared memory; its values follow. */
struct block_memory {
    union {
        bins of;
        int32_t times[BINS * COPIES * 3]; /* of an id in the penalties' window */
        struct {
            uint64_t candidate[KK_RANK_LIST], weight[KK_RANK_LIST];
        } list;
    };
    uint64_t warp[WARPS];
    uint64_t found[4];
};

/* What a block knows of its row. */
struct job {
    const kk_cu_sample &a;
    const kk_cu_sample_row how;
    kk_cu_sample_team *team;
    kk_cu_sample_head *head;
    block_memory *mem;
    float *v;             /* [n], in shared memory */
    const float *x;       /* the row's logits */
    const uint32_t *mask; /* NULL: all */
    int row, block, first, n;
    int steps, lists; /* used of the team's */
    unsigned &target; /* of the team's barrier */
};

/* A prefix of the rank, as it is being looked for. */
struct prefix {
    uint64_t cut;  /* those before and at this candidate stay; 0: all */
    uint64_t need; /* what it counts or weighs */
    bool listed;   /* it was not cut: it, and no more than fits, is in the last list used */
};

__device__ __forceinline__ int warp_of() { return (int)threadIdx.x / KK_WARP; }
__device__ __forceinline__ int lane_of() { return (int)threadIdx.x % KK_WARP; }

/* All blocks of a team come here before any goes on. */
__device__ __forceinline__ void team_sync(job &j) {
    __syncthreads();
    j.target += (unsigned)j.a.blocks;
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&j.team->arrived, 1u);
        while (*(volatile unsigned *)&j.team->arrived < j.target) {
        }
        __threadfence();
    }
    __syncthreads();
}

__device__ __forceinline__ uint64_t warp_sum(uint64_t v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ __forceinline__ uint64_t warp_most(uint64_t v) {
    for (int d = 16; d > 0; d >>= 1) {
        const uint64_t o = __shfl_xor_sync(0xffffffffu, v, d);
        v = o > v ? o : v;
    }
    return v;
}
/* The sum of v over the lanes up to this one. */
__device__ __forceinline__ uint64_t warp_scan(uint64_t v) {
    for (int d = 1; d < KK_WARP; d <<= 1) {
        const uint64_t o = __shfl_up_sync(0xffffffffu, v, d);
        if (lane_of() >= d) v += o;
    }
    return v;
}

/* Over the block, in all its threads. */
template <bool SUM>
__device__ __forceinline__ uint64_t block_reduce(block_memory *mem, uint64_t v) {
    v = SUM ? warp_sum(v) : warp_most(v);
    __syncthreads(); /* mem->warp may still be read */
    if (lane_of() == 0) mem->warp[warp_of()] = v;
    __syncthreads();
    v = lane_of() < WARPS ? mem->warp[lane_of()] : 0;
    return SUM ? warp_sum(v) : warp_most(v);
}

/* The sum over the threads before this one; *all over the whole block. */
__device__ __forceinline__ uint64_t block_scan(block_memory *mem, uint64_t v, uint64_t *all) {
    const uint64_t up_to = warp_scan(v);
    __syncthreads();
    if (lane_of() == KK_WARP - 1) mem->warp[warp_of()] = up_to;
    __syncthreads();
    const uint64_t of = lane_of() < WARPS ? mem->warp[lane_of()] : 0, scanned = warp_scan(of);
    const uint64_t before = __shfl_sync(0xffffffffu, scanned - of, warp_of());
    *all = __shfl_sync(0xffffffffu, scanned, WARPS - 1);
    return before + up_to - v;
}

/* Calls f(i) for the block's ids first + i, those of a warp being neighbours. */
template <class F> __device__ __forceinline__ void each_id(const job &j, F f) {
    const int from = warp_of() * j.a.warp_ids, to = min(from + j.a.warp_ids, j.n);
#pragma unroll 4
    for (int i = from + lane_of(); i < to; i += KK_WARP) f(i);
}

/* ---- values --------------------------------------------------------------------------------- */

/* Logits into shared memory, and their digest. */
__device__ __forceinline__ void load_values(job &j, bool digest) {
    uint64_t sum = 0, carry = 0;
    const uint32_t *from = (const uint32_t *)j.x + j.first;
    uint32_t *to = (uint32_t *)j.v;
    for (int c = (int)threadIdx.x; c * KK_DIGEST_WORDS < j.n; c += THREADS) {
        uint32_t word[KK_DIGEST_WORDS];
        const int at = c * KK_DIGEST_WORDS, n = min(j.n - at, (int)KK_DIGEST_WORDS);
        if (n == KK_DIGEST_WORDS && j.a.dim % 4 == 0) {
#pragma unroll
            for (int i = 0; i < KK_DIGEST_WORDS; i += 4) {
                const uint4 q = __ldcg((const uint4 *)(from + at + i));
                word[i] = q.x, word[i + 1] = q.y, word[i + 2] = q.z, word[i + 3] = q.w;
                *(uint4 *)(to + at + i) = q;
            }
        } else {
#pragma unroll
            for (int i = 0; i < KK_DIGEST_WORDS; i++) {
                word[i] = i < n ? from[at + i] : 0;
                if (i < n) to[at + i] = word[i];
            }
        }
        const uint64_t chunk = (uint64_t)(j.first / KK_DIGEST_WORDS + c);
        if (digest && n == KK_DIGEST_WORDS)
            sum += kk_digest_chunk(chunk, word, KK_DIGEST_WORDS, &carry);
        else if (digest)
            sum += kk_digest_chunk(chunk, word, n, &carry);
    }
    if (digest) {
        sum = block_reduce<true>(j.mem, sum);
        const int broken = __syncthreads_or(kk_digest_broken(carry));
        if (threadIdx.x == 0) {
            atomicAdd((unsigned long long *)&j.head->digest, (unsigned long long)sum);
            if (broken) atomicOr(&j.head->broken, 1u);
        }
    }
    __syncthreads();
}

/* The list is sorted by id, equal ids in the caller's order: who has the first of them adds all. */
__device__ __forceinline__ void add_bias(job &j) {
    const kk_cu_bias *bias = (const kk_cu_bias *)(j.a.data + j.how.bias);
    for (int i = (int)threadIdx.x; i < j.how.n_bias; i += THREADS) {
        const int id = bias[i].id, at = id - j.first;
        if (at < 0 || at >= j.n || (i > 0 && bias[i - 1].id == id)) continue;
        float v = j.v[at];
        for (int k = i; k < j.how.n_bias && bias[k].id == id; k++) v = __fadd_rn(v, bias[k].bias);
        j.v[at] = v;
    }
    __syncthreads();
}

/* Place in this block of the i-th token of the penalties' window; -1: another block's. */
__device__ __forceinline__ int window_place(const job &j, int i) {
    const int32_t *known = (const int32_t *)(j.a.data + j.how.known);
    const int id = i < j.how.n_known ? known[i] : j.a.pending[j.how.pending + i - j.how.n_known];
    return id >= j.first && id < j.first + j.n ? id - j.first : -1;
}

__device__ __forceinline__ void add_penalties(job &j) {
    const int n = j.how.n_known + j.how.n_pending;
    for (int i = (int)threadIdx.x; i < j.n; i += THREADS) j.mem->times[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        const int at = window_place(j, i);
        if (at >= 0) atomicAdd(&j.mem->times[at], 1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        const int at = window_place(j, i);
        const int times = at >= 0 ? atomicExch(&j.mem->times[at], 0) : 0;
        if (times == 0) continue;
        float v = j.v[at];
        v = v > 0 ? __fdiv_rn(v, j.how.repeat) : __fmul_rn(v, j.how.repeat);
        v = __fsub_rn(v, __fmul_rn((float)times, j.how.frequency));
        j.v[at] = __fsub_rn(v, j.how.presence);
    }
    __syncthreads();
}

/* first is a multiple of 32, so that a warp's lanes share a word. */
__device__ __forceinline__ bool allowed(const job &j, int i) {
    return !j.mask || (j.mask[(j.first + i) / 32] >> ((j.first + i) % 32) & 1);
}

__device__ __forceinline__ void add_mask(job &j) {
    each_id(j, [&](int i) {
        if (!allowed(j, i)) j.v[i] = -INFINITY;
    });
    __syncthreads();
}

/* The first in rank of the row, by all blocks: complete after the next team_sync. */
__device__ __forceinline__ void find_first(job &j, uint64_t *to, bool masked) {
    uint64_t best = 0;
    each_id(j, [&](int i) {
        const uint32_t key = masked && !allowed(j, i) ? 0 : kk_rank_key(j.v[i]);
        const uint64_t c = key ? kk_rank_candidate(key, j.first + i) : 0;
        best = c > best ? c : best;
    });
    best = block_reduce<false>(j.mem, best);
    if (threadIdx.x == 0) atomicMax((unsigned long long *)to, (unsigned long long)best);
}

/* ---- cuts ----------------------------------------------------------------------------------- */

/* Counts, and weighs where weights are asked for, those of the interval that stayed so far, by
 * bin; complete after the next team_sync. */
template <bool WEIGHTS>
__device__ __forceinline__ void fill_bins(job &j, const kk_rank_interval &in, uint64_t cut,
                                          kk_cu_sample_bins *to) {
    bins &of = j.mem->of;
    for (int i = (int)threadIdx.x; i < BINS * COPIES; i += THREADS) {
        (&of.count[0][0])[i] = 0;
        if (WEIGHTS) (&of.high[0][0])[i] = (&of.low[0][0])[i] = 0;
    }
    __syncthreads();
    const int copy = lane_of() % COPIES;
    each_id(j, [&](int i) {
        const float v = j.v[i];
        const uint32_t key = kk_rank_key(v);
        if (key < in.low || key > in.high) return;
        if (kk_rank_candidate(key, j.first + i) < cut) return;
        const int bin = kk_rank_bin(&in, key);
        atomicAdd(&of.count[bin][copy], 1u);
        if (!WEIGHTS) return;
        const kk_rank_halves w = kk_rank_weigh(v, in.m, 1);
        if (w.high) atomicAdd(&of.high[bin][copy], w.high);
        if (w.low) atomicAdd(&of.low[bin][copy], w.low);
    });
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS) {
        const uint32_t n = of.count[i][0] + of.count[i][1];
        if (n == 0) continue;
        atomicAdd(&to->count[i], n);
        if (!WEIGHTS) continue;
        const uint64_t w = (((uint64_t)of.high[i][0] + of.high[i][1]) << 20) +
                           ((uint64_t)of.low[i][0] + of.low[i][1]);
        if (w) atomicAdd((unsigned long long *)&to->weight[i], (unsigned long long)w);
    }
}

/* What a prefix must weigh, of candidates that weigh so much. */
__device__ __forceinline__ uint64_t top_p_needs(const job &j, uint64_t all) {
    const uint64_t need = __umul64hi(all, j.how.top_p) + (all * j.how.top_p != 0);
    return need ? need : 1;
}

/* The bin in which the sum from the first on reaches *need, which becomes what is left of it there;
 * -1: it is more than all.  need 0: as top-p has it, from the sum of all. */
template <bool WEIGHTS>
__device__ __forceinline__ int find_bin(job &j, const kk_cu_sample_bins *of, uint64_t *need,
                                        int *count) {
    uint64_t sum[PER_THREAD], own = 0, all;
    uint32_t n[PER_THREAD];
    const int first = (int)threadIdx.x * PER_THREAD;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        n[i] = __ldcg(&of->count[first + i]);
        sum[i] = WEIGHTS ? __ldcg(&of->weight[first + i]) : n[i];
        own += sum[i];
    }
    uint64_t before = block_scan(j.mem, own, &all);
    if (*need == 0) *need = top_p_needs(j, all);
    if (*need > all) return -1;
    if (before < *need && *need <= before + own) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (before < *need && *need <= before + sum[i]) {
                j.mem->found[0] = (uint64_t)(first + i);
                j.mem->found[1] = *need - before;
                j.mem->found[2] = n[i];
            }
            before += sum[i];
        }
    }
    __syncthreads();
    const int bin = (int)j.mem->found[0];
    *need = j.mem->found[1];
    *count = (int)j.mem->found[2];
    __syncthreads();
    return bin;
}

/* Lists those of the interval's bins first to last that stayed; the list holds them.  Complete
 * after the next team_sync. */
__device__ __forceinline__ void list_bins(job &j, const kk_rank_interval &in, int first, int last,
                                          uint64_t cut, kk_cu_sample_list *to) {
    each_id(j, [&](int i) {
        const uint32_t key = kk_rank_key(j.v[i]);
        const uint64_t c = kk_rank_candidate(key, j.first + i);
        if (key < in.low || key > in.high || c < cut) return;
        const int bin = kk_rank_bin(&in, key);
        if (bin < first || bin > last) return;
        const unsigned at = atomicAdd(&to->n, 1u);
        if (at < KK_RANK_LIST) to->candidate[at] = c;
    });
}

__device__ __forceinline__ int read_list(job &j, const kk_cu_sample_list *from) {
    const int n = min((int)__ldcg(&from->n), (int)KK_RANK_LIST);
    __syncthreads();
    if ((int)threadIdx.x < n)
        j.mem->list.candidate[threadIdx.x] = __ldcg(&from->candidate[threadIdx.x]);
    __syncthreads();
    return n;
}

/* The candidate of the list at which what is before it, and itself, come to need. */
template <bool WEIGHTS>
__device__ __forceinline__ uint64_t cut_of_list(job &j, const kk_cu_sample_list *from, float m,
                                                uint64_t need) {
    const int n = read_list(j, from);
    const uint64_t own = j.mem->list.candidate[threadIdx.x % KK_RANK_LIST];
    const float v = kk_rank_value((uint32_t)(own >> 32));
    const uint64_t w = WEIGHTS ? kk_rank_weight(v, m, 1) : 1;
    if (WEIGHTS && (int)threadIdx.x < n) j.mem->list.weight[threadIdx.x] = w;
    __syncthreads();
    if ((int)threadIdx.x < n) {
        uint64_t before = 0;
#pragma unroll 4
        for (int i = 0; i < n; i++) {
            const uint64_t more = WEIGHTS ? j.mem->list.weight[i] : 1;
            before += j.mem->list.candidate[i] > own ? more : 0;
        }
        if (before < need && need <= before + w) j.mem->found[3] = own;
    }
    __syncthreads();
    const uint64_t cut = j.mem->found[3];
    __syncthreads();
    return cut;
}

/* The candidate that is the nth, from 1 on, of those with one key, by id. */
__device__ __forceinline__ uint64_t cut_of_ties(job &j, uint32_t key, uint64_t cut, uint64_t nth,
                                                int list) {
    uint64_t mine = 0, all;
    each_id(j, [&](int i) {
        mine += kk_rank_key(j.v[i]) == key && kk_rank_candidate(key, j.first + i) >= cut;
    });
    mine = block_reduce<true>(j.mem, mine);
    kk_cu_sample_list *of = &j.team->list[list];
    if (threadIdx.x == 0) of->part[j.block] = mine;
    team_sync(j);
    const uint64_t part = (int)threadIdx.x < j.a.blocks ? __ldcg(&of->part[threadIdx.x]) : 0;
    const uint64_t before = block_scan(j.mem, part, &all);
    if ((int)threadIdx.x == j.block) j.mem->found[3] = before;
    __syncthreads();
    const uint64_t from = j.mem->found[3];
    if (from < nth && nth <= from + mine && warp_of() == 0) { /* one warp walks the block's ids */
        uint64_t left = nth - from;
        for (int i = lane_of(); i < (j.n + 31) / 32 * 32; i += KK_WARP) {
            const uint64_t c = kk_rank_candidate(key, j.first + i);
            const bool is = i < j.n && kk_rank_key(j.v[i]) == key && c >= cut;
            const unsigned lanes = __ballot_sync(0xffffffffu, is);
            const uint64_t rank = __popc(lanes & (0xffffffffu >> (31 - lane_of())));
            if (is && rank == left) of->cut = c;
            if ((uint64_t)__popc(lanes) >= left) break;
            left -= __popc(lanes);
        }
    }
    team_sync(j);
    return __ldcg(&of->cut);
}

/* Of those that stayed so far, the shortest prefix of the rank that counts, or weighs, p.need; all
 * of them where they are fewer. */
template <bool WEIGHTS> __device__ __forceinline__ void find_cut(job &j, float m, prefix &p) {
    kk_rank_interval in = kk_rank_all(m);
    uint64_t need = p.need;
    int count = 0;
    kk_cu_sample_list *list = &j.team->list[j.lists];
    for (int step = 0; step < KK_RANK_STEPS; step++) {
        kk_cu_sample_bins *of = &j.team->bins[j.steps++];
        fill_bins<WEIGHTS>(j, in, p.cut, of);
        team_sync(j);
        const int bin = find_bin<WEIGHTS>(j, of, &need, &count);
        if (bin < 0) return;
        if (count <= KK_RANK_LIST) {
            p.listed = !WEIGHTS && step == 0 && p.need - need + (uint64_t)count <= KK_RANK_LIST;
            list_bins(j, in, p.listed ? 0 : bin, bin, p.cut, list);
            team_sync(j);
            if (!p.listed) p.cut = cut_of_list<WEIGHTS>(j, list, m, need);
            j.lists++;
            return;
        }
        in = kk_rank_within(&in, bin);
        if (in.low == in.high) break;
    }
    const float v = kk_rank_value(in.low);
    const uint64_t nth = WEIGHTS ? kk_rank_ties(need, kk_rank_weight(v, m, 1)) : need;
    p.cut = cut_of_ties(j, in.low, p.cut, nth, j.lists++);
}

/* ---- log-probabilities ---------------------------------------------------------------------- */

/* ln x, the sequence of kk_log. */
__device__ __forceinline__ float natural_log(float x) {
    const uint32_t above = __float_as_uint(x) - 0x3f3504f3u;
    const float n = (float)((int32_t)above >> 23);
    const float f = __uint_as_float((above & 0x7fffffu) + 0x3f3504f3u);
    const float s = __fdiv_rn(__fsub_rn(f, 1.0f), __fadd_rn(f, 1.0f)), z = __fmul_rn(s, s);
    float p = 1.0f / 9;
    p = __fmaf_rn(p, z, 1.0f / 7);
    p = __fmaf_rn(p, z, 1.0f / 5);
    p = __fmaf_rn(p, z, 1.0f / 3);
    const float odd = __fmul_rn(__fmul_rn(s, z), __fmul_rn(p, 2.0f));
    const float rest = __fmaf_rn(n, -2.12194440054690583e-4f, odd);
    return __fmaf_rn(n, 0.693359375f, __fadd_rn(__fmul_rn(s, 2.0f), rest));
}

__device__ __forceinline__ float logprob(const job &j, float v) {
    const float m = j.x[kk_rank_id(__ldcg(&j.head->raw))]; /* with the sign of its zero */
    const float z = __fmul_rn(__ull2float_rn(__ldcg(&j.head->z)), 0x1p-40f);
    return __fsub_rn(__fsub_rn(v, m), natural_log(z));
}

/* The row's place in the rings. */
__device__ __forceinline__ size_t place_of(const job &j) {
    return (size_t)*j.a.slot * KK_CU_CHOOSE_ROWS + (size_t)j.row;
}

/* Of the raw logits, which the block still holds: Z, and the best. */
__device__ __forceinline__ void find_logprobs(job &j) {
    find_first(j, &j.head->raw, false);
    team_sync(j);
    const uint32_t key = (uint32_t)(__ldcg(&j.head->raw) >> 32);
    if (!kk_rank_finite(key)) return; /* the row is broken, and nobody looks */
    const float m = kk_rank_value(key);
    uint64_t z = 0;
    each_id(j, [&](int i) { z += kk_rank_weight(j.v[i], m, 1); });
    z = block_reduce<true>(j.mem, z);
    if (threadIdx.x == 0) atomicAdd((unsigned long long *)&j.head->z, (unsigned long long)z);
    const int n_best = min(j.how.n_best, j.a.dim);
    kk_cu_logprobs *to = j.a.logprobs + place_of(j);
    if (j.block == 0 && threadIdx.x == 0) to->n_best = n_best;
    if (n_best == 0) {
        team_sync(j); /* Z is complete */
        return;
    }
    prefix p = {0, (uint64_t)n_best, false};
    find_cut<false>(j, m, p);
    if (!p.listed) {
        list_bins(j, kk_rank_all(m), 0, BINS - 1, p.cut, &j.team->list[j.lists++]);
        team_sync(j);
    }
    const int n = read_list(j, &j.team->list[j.lists - 1]);
    if (j.block != 0 || (int)threadIdx.x >= n) return;
    const uint64_t own = j.mem->list.candidate[threadIdx.x];
    int rank = 0;
    for (int i = 0; i < n; i++) rank += j.mem->list.candidate[i] > own;
    if (rank >= n_best) return;
    to->best[rank].id = kk_rank_id(own);
    to->best[rank].logprob = logprob(j, j.x[kk_rank_id(own)]);
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* By one thread of one block. */
__device__ __forceinline__ void publish(const job &j, int token) {
    kk_cu_pick *to = j.a.ring + place_of(j);
    j.a.token[j.row] = token;
    to->token = token;
    to->broken = (int)__ldcg(&j.head->broken);
    to->digest = kk_digest_end(__ldcg(&j.head->digest), (uint64_t)j.a.dim);
    if (j.how.logprobs && token >= 0 && kk_rank_finite((uint32_t)(__ldcg(&j.head->raw) >> 32))) {
        kk_cu_logprob *chosen = &j.a.logprobs[place_of(j)].chosen;
        chosen->id = token;
        chosen->logprob = logprob(j, j.x[token]);
    }
}

/* What an id adds to the draw. */
__device__ __forceinline__ uint64_t share_of(const job &j, int i, float m, uint64_t cut) {
    const float v = j.v[i];
    if (cut && kk_rank_candidate(kk_rank_key(v), j.first + i) < cut) return 0;
    if (j.how.min_weight && kk_rank_weight(v, m, 1) < j.how.min_weight) return 0;
    return kk_rank_weight(v, m, j.how.temp);
}

/* The warp in whose range the sum of shares exceeds `left` finds where. */
__device__ __forceinline__ void walk(job &j, float m, uint64_t cut, uint64_t left) {
    const int from = warp_of() * j.a.warp_ids, to = min(from + j.a.warp_ids, j.n);
    const int per = j.a.warp_ids / KK_WARP, first = from + lane_of() * per;
    const int last = min(first + per, to);
    uint64_t mine = 0;
    for (int i = first; i < last; i++) mine += share_of(j, i, m, cut);
    const uint64_t before = warp_scan(mine) - mine;
    if (left < before || left >= before + mine) return;
    left -= before;
    for (int i = first; i < last; i++) {
        const uint64_t share = share_of(j, i, m, cut);
        if (left < share) {
            publish(j, j.first + i);
            return;
        }
        left -= share;
    }
}

/* The same from the list of the first in rank, by one block: with so few there is no need of the
 * others. */
__device__ __forceinline__ void choose_listed(job &j, float m) {
    const int n = read_list(j, &j.team->list[j.lists - 1]), t = (int)threadIdx.x;
    auto &list = j.mem->list;
    const uint64_t own = t < n ? list.candidate[t] : 0;
    const float v = kk_rank_value((uint32_t)(own >> 32));
    const uint64_t w = t < n ? kk_rank_weight(v, m, 1) : 0;
    int rank = 0;
    for (int i = 0; i < n; i++) rank += list.candidate[i] > own;
    bool stays = t < n && rank < j.how.top_k;
    if (j.how.cuts_p) {
        if (t < n) list.weight[t] = stays ? w : 0;
        const uint64_t need = top_p_needs(j, block_reduce<true>(j.mem, stays ? w : 0));
        uint64_t before = 0;
        for (int i = 0; i < n; i++) before += list.candidate[i] > own ? list.weight[i] : 0;
        stays = stays && before < need;
        __syncthreads();
    }
    stays = stays && w >= j.how.min_weight;
    const uint64_t share = stays ? kk_rank_weight(v, m, j.how.temp) : 0;
    if (t < n) list.weight[t] = share;
    const uint64_t at = __umul64hi(j.how.bits, block_reduce<true>(j.mem, share));
    uint64_t before = 0; /* of lower ids */
    for (int i = 0; i < n; i++)
        before += kk_rank_id(list.candidate[i]) < kk_rank_id(own) ? list.weight[i] : 0;
    if (before <= at && at < before + share) publish(j, kk_rank_id(own));
}

__device__ __forceinline__ void draw(job &j, float m, uint64_t cut) {
    uint64_t mine = 0, all;
    each_id(j, [&](int i) { mine += share_of(j, i, m, cut); });
    mine = warp_sum(mine);
    const uint64_t of_warp = mine;
    mine = block_reduce<true>(j.mem, lane_of() == 0 ? mine : 0);
    if (threadIdx.x == 0) j.team->part[j.block] = mine;
    team_sync(j);
    const uint64_t part = (int)threadIdx.x < j.a.blocks ? __ldcg(&j.team->part[threadIdx.x]) : 0;
    const uint64_t before = block_scan(j.mem, part, &all);
    if ((int)threadIdx.x == j.block) j.mem->found[0] = before;
    __syncthreads();
    const uint64_t from = j.mem->found[0], at = __umul64hi(j.how.bits, all);
    if (at < from || at >= from + mine) return;
    uint64_t left = at - from, unused;
    const uint64_t until = block_scan(j.mem, lane_of() == 0 ? of_warp : 0, &unused);
    const uint64_t start = __shfl_sync(0xffffffffu, until, 0);
    if (left < start || left >= start + of_warp) return;
    walk(j, m, cut, left - start);
}

/* The team's scratch for one row: no other is at work on it. */
__device__ __forceinline__ void clear_team(job &j) {
    uint4 *at = (uint4 *)j.team->bins;
    const int n = (int)(sizeof j.team->bins / sizeof *at);
    for (int i = j.block * THREADS + (int)threadIdx.x; i < n; i += j.a.blocks * THREADS)
        at[i] = make_uint4(0, 0, 0, 0);
    if (j.block == 0 && threadIdx.x < KK_CU_SAMPLE_LISTS) j.team->list[threadIdx.x].n = 0;
}

__device__ __forceinline__ void choose_token(job &j) {
    const bool changed = j.how.n_bias || j.how.penalises || j.mask;
    clear_team(j);
    load_values(j, true);
    if (j.how.logprobs) {
        find_logprobs(j);
        __syncthreads();
    }
    if (j.how.n_bias) add_bias(j);
    if (j.how.penalises) add_penalties(j);
    if (j.mask) add_mask(j);
    if (changed || !j.how.logprobs) { /* else it is known */
        find_first(j, &j.head->best, changed);
        team_sync(j);
    }
    const uint64_t best = __ldcg(changed || !j.how.logprobs ? &j.head->best : &j.head->raw);
    const uint32_t key = (uint32_t)(best >> 32);
    if (j.how.temp == 0 || !kk_rank_finite(key)) {
        if (j.block == 0 && threadIdx.x == 0) publish(j, key ? kk_rank_id(best) : -1);
        return;
    }
    const float m = kk_rank_value(key);
    prefix p = {0, 0, false};
    if (j.how.top_k > 0 && j.how.top_k < j.a.dim) {
        p.need = (uint64_t)j.how.top_k;
        find_cut<false>(j, m, p);
        if (p.listed) {
            if (j.block == 0) choose_listed(j, m);
            return;
        }
    }
    if (j.how.cuts_p) {
        p.need = 0;
        find_cut<true>(j, m, p);
    }
    draw(j, m, p.cut);
}

/* PER_SM: blocks that a multiprocessor takes.  One is faster for a single row; of two, more rows
 * are chosen at once. */
template <int PER_SM>
__global__ void __launch_bounds__(THREADS, PER_SM)
    sample_kernel(const __grid_constant__ kk_cu_sample a) {
    extern __shared__ __align__(16) uint8_t memory[];
    const int team = (int)blockIdx.x / a.blocks, block = (int)blockIdx.x % a.blocks;
    const int first = block * WARPS * a.warp_ids;
    unsigned target = 0;
    kk_next();
    kk_wait();
    kk_cu_sample_team *own = &a.scratch->team[team];
    for (int row = team; row < a.n_rows; row += a.teams) {
        const kk_cu_sample_row how = a.rows[row];
        job j = {a,
                 how,
                 own,
                 &a.scratch->head[row],
                 (block_memory *)memory,
                 (float *)(memory + sizeof(block_memory)),
                 a.x + (size_t)row * (size_t)a.dim,
                 how.mask ? (const uint32_t *)(a.data + how.mask) : nullptr,
                 row,
                 block,
                 first,
                 max(0, min(WARPS * a.warp_ids, a.dim - first)),
                 0,
                 0,
                 target};
        choose_token(j);
        if (row + a.teams < a.n_rows) team_sync(j);
    }
    /* The last block to leave clears what the next launch adds to. */
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&own->left, 1u) == (unsigned)a.blocks - 1;
    }
    __syncthreads();
    if (!last) return;
    for (int row = team + (int)threadIdx.x * a.teams; row < a.n_rows; row += THREADS * a.teams)
        a.scratch->head[row] = kk_cu_sample_head{};
    if (threadIdx.x == 0) own->arrived = own->left = 0;
}

size_t shared_bytes(int warp_ids) {
    return sizeof(block_memory) + (size_t)WARPS * (size_t)warp_ids * sizeof(float);
}

template <int PER_SM> cudaError_t setup(int32_t sms, int32_t *resident) {
    int per_sm = 0;
    const size_t most = shared_bytes(KK_CU_SAMPLE_WARP_IDS);
    cudaError_t e = cudaFuncSetAttribute(sample_kernel<PER_SM>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most);
    if (e != cudaSuccess) return e;
    e = cudaFuncSetAttribute(sample_kernel<PER_SM>, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess) return e;
    e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, sample_kernel<PER_SM>, THREADS,
                                                      most);
    *resident = per_sm * sms;
    return e;
}

} // namespace

cudaError_t kk_cu_setup_sample(int32_t sms, int32_t resident[2]) {
    const cudaError_t e = setup<1>(sms, &resident[0]);
    return e == cudaSuccess ? setup<2>(sms, &resident[1]) : e;
}

cudaError_t kk_cu_run_sample(kk_cu_at at, const kk_cu_sample *given, const int32_t resident[2]) {
    kk_cu_sample a = *given;
    const bool one = a.n_rows == 1;
    const int fit = resident[one ? 0 : 1];
    a.blocks = fit < KK_CU_SAMPLE_BLOCKS ? fit : KK_CU_SAMPLE_BLOCKS;
    if (a.n_rows < 1 || a.n_rows > KK_CU_CHOOSE_ROWS || a.blocks < 1) return cudaErrorInvalidValue;
    a.teams = fit / a.blocks;
    if (a.teams > a.n_rows) a.teams = a.n_rows;
    if (a.teams > KK_CU_SAMPLE_TEAMS) a.teams = KK_CU_SAMPLE_TEAMS;
    const int ids = (a.dim + a.blocks * WARPS - 1) / (a.blocks * WARPS);
    a.warp_ids = (ids + 31) / 32 * 32;
    if (a.warp_ids > KK_CU_SAMPLE_WARP_IDS) return cudaErrorInvalidValue;
    return kk_launch(at, one ? sample_kernel<1> : sample_kernel<2>, a,
                     (unsigned)(a.teams * a.blocks), THREADS, shared_bytes(a.warp_ids));
}
