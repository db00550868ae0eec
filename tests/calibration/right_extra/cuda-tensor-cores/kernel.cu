// Contract: gated_mlp_down, cuda.
// Idea: the weights are the 16 rows of an MMA and eight rows of the step its columns. A lane loads 16 bytes of a
//       row, which serve two MMAs: the order of k is permuted alike on both sides. Eight warps split k and meet in
//       shared memory, in order. float32 has no MMA that keeps its bits: a lane's four sums on CUDA cores.
// Bound by: memory bandwidth of the weights.

constexpr int WARPS = 8;
constexpr int STEP = 32;  // elements of k that a warp takes at a time: two MMAs

struct alignas(16) Words {
  unsigned v[4];  // eight elements of two bytes
};

// c += a @ b for a tile of 16 x 16 and 16 x 8; the last argument says of which type a and b are.
__device__ __forceinline__ void multiply(
    float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Eight elements from k on; zeros past the end, which lies on a multiple of eight.
__device__ __forceinline__ Words load(const void* row, int k) {
  if (k >= intermediate_size) return {};
  return *reinterpret_cast<const Words*>(static_cast<const char*>(row) + size_t(k) * 2);
}

// This warp's share of the tile with weight rows first_row .. + 15 and rows first_token .. + 7 of the step. A lane
// holds rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the one after it. Past the last row or column the last
// one is read again; its sums are not stored.
template <class S>
__device__ __forceinline__ void tile_sums(
    const S* x, const S* w, int first_row, int first_token, int warp, float (&c)[4]) {
  const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const S* upper = w + size_t(min(first_row + group, hidden_size - 1)) * intermediate_size;
  const S* lower = w + size_t(min(first_row + group + 8, hidden_size - 1)) * intermediate_size;
  if constexpr (sizeof(S) == 2) {
    const S* row = x + size_t(min(first_token + group, num_tokens - 1)) * intermediate_size;
    for (int k0 = warp * STEP; k0 < intermediate_size; k0 += WARPS * STEP) {
      const int k = k0 + member * 8;
      const Words u = load(upper, k), l = load(lower, k), r = load(row, k);
      const unsigned a0[4] = {u.v[0], l.v[0], u.v[1], l.v[1]}, b0[2] = {r.v[0], r.v[1]};
      const unsigned a1[4] = {u.v[2], l.v[2], u.v[3], l.v[3]}, b1[2] = {r.v[2], r.v[3]};
      multiply(c, a0, b0, S());
      multiply(c, a1, b1, S());
    }
  } else {
    const S* left = x + size_t(min(first_token + member * 2, num_tokens - 1)) * intermediate_size;
    const S* right = x + size_t(min(first_token + member * 2 + 1, num_tokens - 1)) * intermediate_size;
    for (int k0 = warp * STEP; k0 < intermediate_size; k0 += WARPS * STEP) {
      float part[4] = {};
      for (int k = k0; k < min(k0 + STEP, intermediate_size); ++k) {
        part[0] += upper[k] * left[k];
        part[1] += upper[k] * right[k];
        part[2] += lower[k] * left[k];
        part[3] += lower[k] * right[k];
      }
      for (int j = 0; j < 4; ++j) c[j] += part[j];
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) gated_mlp_down(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  __shared__ float parts[WARPS][16][8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const int first_row = blockIdx.x * 16, first_token = blockIdx.y * 8;
  float c[4] = {};
  tile_sums(x, w_down, first_row, first_token, warp, c);
  parts[warp][group][member * 2] = c[0];
  parts[warp][group][member * 2 + 1] = c[1];
  parts[warp][group + 8][member * 2] = c[2];
  parts[warp][group + 8][member * 2 + 1] = c[3];
  __syncthreads();
  const int i = threadIdx.x % 16, t = threadIdx.x / 16;  // the first half of the block: a thread for a sum
  if (t >= 8 || first_row + i >= hidden_size || first_token + t >= num_tokens) return;
  float sum = 0.0f;
  for (int j = 0; j < WARPS; ++j) sum += parts[j][i][t];
  T* target = residual + size_t(first_token + t) * hidden_size + first_row + i;
  *target = T(float(*target) + float(T(sum)));  // the product is rounded before it is added
}
