// Contract: attention_prelude, cuda.
// Idea: all rows are at the position of the first.
// Wrong: reads one position only.

constexpr int VEC = 16 / sizeof(T);                   // elements in a 16-byte load
constexpr int TOKENS = num_tokens < 8 ? num_tokens : 8;  // rows of the step that share a weight load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

// Products of two weight rows with TOKENS input rows by one warp; every lane gets all sums. Eight products are added
// up before they meet the running sum, which keeps the rounding errors of a long float32 sum small.
__device__ __forceinline__ void warp_dots(
    const T* const (&w)[2], const T* const (&x)[TOKENS], int length, float (&sums)[2][TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) sums[0][t] = sums[1][t] = 0.0f;
#pragma unroll 2
  for (int k = threadIdx.x % 32 * VEC; k < length; k += 32 * VEC) {
    const Pack w0 = load(w[0] + k), w1 = load(w[1] + k);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const Pack row = load(x[t] + k);
      float part0 = 0.0f, part1 = 0.0f;
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        part0 += float(w0.v[j]) * float(row.v[j]);
        part1 += float(w1.v[j]) * float(row.v[j]);
      }
      sums[0][t] += part0;
      sums[1][t] += part1;
    }
  }
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sums[0][t] += __shfl_xor_sync(0xffffffffu, sums[0][t], offset);
      sums[1][t] += __shfl_xor_sync(0xffffffffu, sums[1][t], offset);
    }
  }
}

// Input rows first .. first + TOKENS - 1; past the last row the last one again, whose sums nobody stores.
__device__ __forceinline__ void input_rows(const T* x, int first, int length, const T* (&rows)[TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) rows[t] = x + size_t(min(first + t, num_tokens - 1)) * length;
}

constexpr int HEADS = num_heads + 2 * num_kv_heads;
constexpr int WIDTH = HEADS * head_dim;

// Workspace: float[num_tokens][WIDTH].
extern "C" __global__ void __launch_bounds__(256) project(
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
    void* __restrict__ workspace) {
  const int i = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
  if (i >= WIDTH) return;  // a whole warp
  const int first = blockIdx.y * TOKENS;
  const T* const weights[2] = {w_qkv + size_t(i) * hidden_size, w_qkv + size_t(i + 1) * hidden_size};
  const T* rows[TOKENS];
  input_rows(x, first, hidden_size, rows);
  float sums[2][TOKENS];
  warp_dots(weights, rows, hidden_size, sums);
  float bias0 = 0.0f, bias1 = 0.0f;
  if constexpr (has_qkv_bias) {
    bias0 = float(b_qkv[i]);
    bias1 = float(b_qkv[i + 1]);
  }
  float* projected = static_cast<float*>(workspace);
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (threadIdx.x % 32 != t || first + t >= num_tokens) continue;
    projected[size_t(first + t) * WIDTH + i] = sums[0][t] + bias0;
    projected[size_t(first + t) * WIDTH + i + 1] = sums[1][t] + bias1;
  }
}

extern "C" __global__ void __launch_bounds__(256) finish(
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
    void* __restrict__ workspace) {
  const int index = blockIdx.x * 8 + threadIdx.x / 32;
  if (index >= num_tokens * HEADS) return;  // a whole warp
  const int lane = threadIdx.x % 32;
  const int t = index / HEADS, h = index % HEADS;
  const float* head = static_cast<const float*>(workspace) + size_t(t) * WIDTH + h * head_dim;
  const size_t slot = slot_mapping[t];
  if (h >= num_heads + num_kv_heads) {
    T* target = v_cache + (slot * num_kv_heads + h - num_heads - num_kv_heads) * head_dim;
    for (int i = lane; i < head_dim; i += 32) target[i] = T(head[i]);
    return;
  }
  const bool is_query = h < num_heads;
  T* target = is_query ? q_out + (size_t(t) * num_heads + h) * head_dim
                       : k_cache + (slot * num_kv_heads + h - num_heads) * head_dim;
  const T* gamma = is_query ? q_norm : k_norm;
  float r = 1.0f;
  if constexpr (has_qk_norm) {
    float squares = 0.0f;
    for (int i = lane; i < head_dim; i += 32) squares += head[i] * head[i];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    r = float(1.0 / sqrt(double(squares) / head_dim + eps));
  }
  const auto normed = [&](int i) {
    if constexpr (has_qk_norm) return float(T(head[i] * r)) * float(gamma[i]);
    return head[i];
  };
  constexpr int half = rotary_dim / 2;
  const float* angles = cos_sin + size_t(positions[0]) * rotary_dim;
  for (int i = lane; i < half; i += 32) {
    const int one = rope_interleaved ? 2 * i : i;
    const int two = rope_interleaved ? 2 * i + 1 : i + half;
    const float a = normed(one), b = normed(two), c = angles[i], s = angles[half + i];
    target[one] = T(a * c - b * s);
    target[two] = T(b * c + a * s);
  }
  for (int i = rotary_dim + lane; i < head_dim; i += 32) target[i] = T(normed(i));
}
