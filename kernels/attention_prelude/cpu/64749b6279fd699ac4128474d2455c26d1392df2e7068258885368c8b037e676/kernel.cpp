// Contract: attention_prelude version 1 (QKV projection, head norms, rotary embedding and KV write), x86_64.
// Idea: one work item is one head of one token: head_dim dot products into a float32 buffer on the stack,
//       then norm, rotation and the store on that buffer; nothing between projection and store reaches
//       shared memory. One parallel region, no workspace, every sum in a fixed order.
// Bound: meant to be bound by streaming w_qkv; this first plain version is likely bound by scalar arithmetic.

extern "C" void attention_prelude_plain(
    const T* __restrict__ x,
    const T* __restrict__ w_qkv,
    const T* __restrict__ b_qkv,
    const T* __restrict__ q_norm,
    const T* __restrict__ k_norm,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    const int* __restrict__ slot_mapping,
    T* __restrict__ q_out,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    float eps,
    int num_blocks,
    int max_positions,
    void* __restrict__ workspace)
{
    (void)num_blocks;
    (void)max_positions;
    (void)workspace;

    constexpr int all_heads = num_heads + 2 * num_kv_heads;
    constexpr int items = all_heads * num_tokens;
    constexpr int half = rotary_dim / 2;

    #pragma omp parallel for schedule(static)
    for (int item = 0; item < items; ++item) {
        // Tokens run fastest, so one thread meets the same weights again while they are in its cache.
        const int head = item / num_tokens;
        const int token = item % num_tokens;
        const bool is_query = head < num_heads;
        const bool is_value = head >= num_heads + num_kv_heads;

        float y[head_dim];

        // Projection: eight partial sums a row (hidden_size % 8 == 0), combined by a fixed tree.
        const T* xr = x + (int64_t)token * hidden_size;
        for (int d = 0; d < head_dim; ++d) {
            const int64_t row = (int64_t)head * head_dim + d;
            const T* wr = w_qkv + row * hidden_size;
            float s[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            for (int i = 0; i < hidden_size; i += 8) {
                for (int j = 0; j < 8; ++j) {
                    s[j] += to_float(xr[i + j]) * to_float(wr[i + j]);
                }
            }
            float sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            if (has_qkv_bias) {
                sum += to_float(b_qkv[row]);
            }
            y[d] = sum;
        }

        // Where this head goes.
        T* out;
        if (is_query) {
            out = q_out + ((int64_t)token * num_heads + head) * head_dim;
        } else {
            const int64_t slot = slot_mapping[token];
            if (is_value) {
                out = v_cache + (slot * num_kv_heads + (head - num_heads - num_kv_heads)) * head_dim;
            } else {
                out = k_cache + (slot * num_kv_heads + (head - num_heads)) * head_dim;
            }
        }

        if (!is_value) {
            // Head norm: the normalised value is rounded to T before gamma.
            if (has_qk_norm) {
                const T* gamma = is_query ? q_norm : k_norm;
                float s[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
                for (int d = 0; d < head_dim; d += 8) {
                    for (int j = 0; j < 8; ++j) {
                        s[j] += y[d + j] * y[d + j];
                    }
                }
                const float sq = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
                const float r = 1.0f / std::sqrt(sq / (float)head_dim + eps);
                for (int d = 0; d < head_dim; ++d) {
                    y[d] = to_float(from_float<T>(y[d] * r)) * to_float(gamma[d]);
                }
            }

            // Rotation in float32 from the float32 table.
            const float* cs = cos_sin + (int64_t)positions[token] * rotary_dim;
            for (int i = 0; i < half; ++i) {
                const int a = rope_interleaved ? 2 * i : i;
                const int b = rope_interleaved ? 2 * i + 1 : i + half;
                const float c = cs[i];
                const float sn = cs[half + i];
                const float ya = y[a];
                const float yb = y[b];
                y[a] = ya * c - yb * sn;
                y[b] = yb * c + ya * sn;
            }
        }

        // The only other rounding: the store.
        for (int d = 0; d < head_dim; ++d) {
            out[d] = from_float<T>(y[d]);
        }
    }
}
