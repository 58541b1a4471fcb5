/* mlx_pages.metal - attention of few rows over K/V pages where they lie.
 *
 * Two kernels.  The first adds up a part of what one row sees: at most 256 neighbouring positions,
 * cut at multiples of 256, so that the cuts depend on the row's position alone.  A SIMD group of 32
 * lanes does that for one query head: lane l has values l, l + 32, ... of the first half of the
 * head and those that RoPE pairs with them in the second.  The softmax is a running one: sums are
 * relative to the largest score so far.  The second kernel adds the parts of a row up in order.
 * Neither uses threadgroup memory or barriers, and nothing depends on how many rows there are.
 *
 * The text is what Metal and C++ share.  MLX compiles it on a Mac; tests/support/mlx_interpreter.cc
 * compiles the same file as C++, with the few names of Metal's that stand here, and runs it lane by
 * lane. */

enum { kk_lanes = 32, kk_keys = 4, kk_part_words = 8, kk_group = 64 };
/* The numbers of kk_kv_format. */
enum { kk_rows_bf16, kk_rows_f32, kk_rows_q8, kk_rows_q4, kk_rows_s8 };
/* Words of `sizes`. */
enum { kk_n_head, kk_n_kv_head, kk_n_rot, kk_k_off, kk_v_off, kk_scale, kk_size_words = 8 };
/* Words of a part: the row; the first of its blocks; the row in that block and the position of its
 * first key; its keys; and the rows of a block, of which a sink has fewer than a page. */
enum { kk_of_row, kk_first_block, kk_first_row, kk_position, kk_n_keys, kk_block_rows };

/* One stored row of one head, plane by plane, as core/kvformat.h lays it out. */
struct kk_stored {
    const device uchar *codes;
    const device uchar *scales;
    const device uchar *biases;
};

/* `off`: where the layer's K or V begin in a page.  In a block of fewer rows all that lies before
 * is shorter in proportion. */
template <int D, int FORMAT>
inline kk_stored kk_row_at(const device uchar *block, int off, int head, int block_rows, int row) {
    const int codes = FORMAT == kk_rows_f32    ? 4 * D
                      : FORMAT == kk_rows_bf16 ? 2 * D
                      : FORMAT == kk_rows_q4   ? D / 2
                                               : D;
    const int shared = 2 * (D / kk_group);
    const int planes = FORMAT == kk_rows_f32 || FORMAT == kk_rows_bf16 ? 0
                       : FORMAT == kk_rows_s8                          ? 1
                                                                       : 2;
    const device uchar *at =
        block + off / 64 * block_rows + head * block_rows * (codes + planes * shared);
    kk_stored r;
    r.codes = at + row * codes;
    r.scales = at + block_rows * codes + row * shared;
    r.biases = at + block_rows * (codes + shared) + row * shared;
    return r;
}

inline float kk_half_at(const device uchar *p, int i) {
    return float(as_type<half>(((const device ushort *)p)[i]));
}

template <int FORMAT> inline float kk_value(kk_stored r, int i) {
    if (FORMAT == kk_rows_bf16)
        return as_type<float>(uint(((const device ushort *)r.codes)[i]) << 16);
    if (FORMAT == kk_rows_f32) return ((const device float *)r.codes)[i];
    const int group = i / kk_group, k = i % kk_group;
    const float scale = kk_half_at(r.scales, group);
    int code = r.codes[i];
    if (FORMAT == kk_rows_s8) return float(code < 128 ? code : code - 256) * scale;
    if (FORMAT == kk_rows_q4) {
        const int two = r.codes[group * (kk_group / 2) + k % (kk_group / 2)];
        code = k < kk_group / 2 ? two & 15 : two >> 4;
    }
    return fma(float(code), scale, kk_half_at(r.biases, group));
}

/* This lane's share of q . K of one stored row.  Where K is V, K = RoPE(k_norm * V), in float32;
 * angles: those of the row's position, cosines and then sines. */
template <int D, int FORMAT, bool K_IS_V>
inline float kk_dot(const thread float *q, kk_stored k, const device float *k_norm,
                    const device float *angles, int n_rot, int lane) {
    float sum = 0;
    for (int i = lane, j = 0; i < D / 2; i += kk_lanes, j += 2) {
        float a = kk_value<FORMAT>(k, i), b = kk_value<FORMAT>(k, i + D / 2);
        if (K_IS_V) {
            a *= k_norm[i];
            b *= k_norm[i + D / 2];
            if (i < n_rot) {
                const float c = angles[i], s = angles[n_rot + i], first = a * c - b * s;
                b = b * c + a * s;
                a = first;
            }
        }
        sum += q[j] * a + q[j + 1] * b;
    }
    return sum;
}

/* sums [part][head][D], relative to tops [part][head][2]: the largest score, and the sum of the
 * weights.  at: the lane, the head, the part. */
template <int D, int FORMAT, bool K_IS_V>
inline void kk_attend_part(const device float *q, const device uchar *pages,
                           const device int64_t *blocks, const device int *parts,
                           const device int *sizes, const device float *k_norm,
                           const device float *angles, device float *sums, device float *tops,
                           uint3 at) {
    const int lane = int(at.x), head = int(at.y), n_head = sizes[kk_n_head];
    const int kv_head = head / (n_head / sizes[kk_n_kv_head]), n_rot = sizes[kk_n_rot];
    const device int *p = parts + kk_part_words * int(at.z);
    const device float *own = q + (p[kk_of_row] * n_head + head) * D;
    const int n = p[kk_n_keys], block_rows = p[kk_block_rows];
    float mine[2 * ((D / 2 + kk_lanes - 1) / kk_lanes)];
    float sum[2 * ((D / 2 + kk_lanes - 1) / kk_lanes)];
    for (int i = lane, j = 0; i < D / 2; i += kk_lanes, j += 2) {
        mine[j] = own[i];
        mine[j + 1] = own[i + D / 2];
        sum[j] = sum[j + 1] = 0;
    }
    float top = -INFINITY, total = 0;
    for (int first = 0; first < n; first += kk_keys) {
        float4 score = float4(0);
        for (int t = 0; t < kk_keys && first + t < n; t++) {
            const int r = p[kk_first_row] + first + t;
            const kk_stored k = kk_row_at<D, FORMAT>(
                pages + blocks[p[kk_first_block] + r / block_rows],
                sizes[K_IS_V ? kk_v_off : kk_k_off], kv_head, block_rows, r % block_rows);
            const device float *turn =
                K_IS_V ? angles + (p[kk_position] + first + t) * 2 * n_rot : angles;
            score[t] = kk_dot<D, FORMAT, K_IS_V>(mine, k, k_norm, turn, n_rot, lane);
        }
        score = simd_sum(score) * as_type<float>(sizes[kk_scale]);
        float higher = top;
        for (int t = 0; t < kk_keys && first + t < n; t++) higher = max(higher, score[t]);
        const float kept = exp(top - higher);
        total *= kept;
        for (int i = lane, j = 0; i < D / 2; i += kk_lanes, j += 2) {
            sum[j] *= kept;
            sum[j + 1] *= kept;
        }
        for (int t = 0; t < kk_keys && first + t < n; t++) {
            const int r = p[kk_first_row] + first + t;
            const kk_stored v = kk_row_at<D, FORMAT>(
                pages + blocks[p[kk_first_block] + r / block_rows], sizes[kk_v_off], kv_head,
                block_rows, r % block_rows);
            const float weight = exp(score[t] - higher);
            total += weight;
            for (int i = lane, j = 0; i < D / 2; i += kk_lanes, j += 2) {
                sum[j] += weight * kk_value<FORMAT>(v, i);
                sum[j + 1] += weight * kk_value<FORMAT>(v, i + D / 2);
            }
        }
        top = higher;
    }
    const int to = int(at.z) * n_head + head;
    for (int i = lane, j = 0; i < D / 2; i += kk_lanes, j += 2) {
        sums[to * D + i] = sum[j];
        sums[to * D + i + D / 2] = sum[j + 1];
    }
    if (lane == 0) {
        tops[2 * to] = top;
        tops[2 * to + 1] = total;
    }
}

/* out [row][head][D] of the parts [first, first + n) of each row.  at: the value, the head, the
 * row. */
template <int D>
inline void kk_attend_join(const device float *sums, const device float *tops,
                           const device int *rows, const device int *sizes, device float *out,
                           uint3 at) {
    const int i = int(at.x), head = int(at.y), n_head = sizes[kk_n_head];
    const int first = rows[2 * int(at.z)], n = rows[2 * int(at.z) + 1];
    float top = -INFINITY, total = 0, sum = 0;
    for (int p = first; p < first + n; p++) top = max(top, tops[2 * (p * n_head + head)]);
    for (int p = first; p < first + n; p++) {
        const int from = p * n_head + head;
        const float weight = exp(tops[2 * from] - top);
        total += weight * tops[2 * from + 1];
        sum += weight * sums[from * D + i];
    }
    out[(int(at.z) * n_head + head) * D + i] = sum / total;
}
