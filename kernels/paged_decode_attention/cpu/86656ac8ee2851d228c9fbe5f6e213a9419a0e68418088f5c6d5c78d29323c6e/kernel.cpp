// Contract: paged_decode_attention version 1 (x86_64, T = float, bfloat16 or float16).
// Idea: one work item is one (row, query head) pair; items are shared out statically in one parallel region.
//       Each item walks its tokens once, in order, with a float32 online softmax (maximum, sum, output).
//       No split of a sequence, no workspace, no merge: the order of every sum is fixed by the shape alone.
// Bound: scalar conversion and arithmetic in this first version, not yet the read of the cache; also at most
//        num_tokens * num_heads threads have work.
extern "C" void paged_decode_attention_simple(
    const T* __restrict__ q,
    const T* __restrict__ k_cache,
    const T* __restrict__ v_cache,
    const int* __restrict__ block_table,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    int num_blocks,
    int max_blocks_per_seq,
    void* __restrict__ workspace)
{
    (void)num_blocks;
    (void)workspace;
    constexpr int group = num_heads / num_kv_heads;
    constexpr int items = num_tokens * num_heads;

    #pragma omp parallel for schedule(static)
    for (int item = 0; item < items; ++item) {
        const int t = item / num_heads;
        const int h = item % num_heads;
        const int g = h / group;
        const size_t row = (size_t)item * head_dim;

        float qf[head_dim];
        float acc[head_dim];
        for (int d = 0; d < head_dim; ++d) {
            qf[d] = to_float(q[row + d]);
            acc[d] = 0.0f;
        }
        float m = -INFINITY;
        float sum = 0.0f;

        const int L = seq_lens[t];
        const int first = (sliding_window > 0 && L > sliding_window) ? L - sliding_window : 0;
        const int* table = block_table + (size_t)t * max_blocks_per_seq;

        for (int j = first; j < L; ++j) {
            const size_t block = (size_t)table[j / block_size];
            const size_t slot = block * block_size + (size_t)(j % block_size);
            const size_t base = (slot * num_kv_heads + g) * head_dim;
            const T* k = k_cache + base;
            const T* v = v_cache + base;

            // Eight partial sums, added in a fixed tree: head_dim is a multiple of 8.
            float part[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            for (int d = 0; d < head_dim; d += 8)
                for (int i = 0; i < 8; ++i)
                    part[i] += qf[d + i] * to_float(k[d + i]);
            const float dot = ((part[0] + part[4]) + (part[2] + part[6]))
                            + ((part[1] + part[5]) + (part[3] + part[7]));
            const float s = scale * dot;

            // A NaN score does not replace m, but makes p, and with it the row, NaN.
            if (s > m) {
                const float c = (m == -INFINITY) ? 0.0f : std::exp(m - s);
                if (m != -INFINITY) {
                    sum *= c;
                    for (int d = 0; d < head_dim; ++d)
                        acc[d] *= c;
                }
                m = s;
            }
            // Guard: minus infinity minus minus infinity would be NaN.
            const float p = (s == -INFINITY) ? 0.0f : std::exp(s - m);
            sum += p;
            for (int d = 0; d < head_dim; ++d)
                acc[d] += p * to_float(v[d]);
        }

        for (int d = 0; d < head_dim; ++d)
            out[row + d] = from_float<T>(acc[d] / sum);
    }
}
