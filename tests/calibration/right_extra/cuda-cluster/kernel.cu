// Contract: gated_mlp_down, cuda.
// Idea: four blocks of a cluster share the rows of a block and take a quarter of the products each; the first reads
//       the others' sums from their shared memory, in order, and adds into the residual.
// Bound by: memory bandwidth of the weights for few rows, then by the loads of x from L1.

constexpr int VEC = 16 / sizeof(T);                   // elements in a 16-byte load
constexpr int TOKENS = num_tokens < 8 ? num_tokens : 8;  // rows of the step that share a weight load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

// Products begin .. end of two weight rows with TOKENS input rows by one warp; every lane gets all sums. Eight
// products are added up before they meet the running sum, which keeps the rounding errors of a long sum small.
__device__ __forceinline__ void warp_dots(
    const T* const (&w)[2], const T* const (&x)[TOKENS], int begin, int end,
    float (&sums)[2][TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) sums[0][t] = sums[1][t] = 0.0f;
#pragma unroll 2
  for (int k = begin + threadIdx.x % 32 * VEC; k < end; k += 32 * VEC) {
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

constexpr int SPLITS = 4;
constexpr int SLICE = (intermediate_size / 8 + SPLITS - 1) / SPLITS * 8;  // products of a block, a multiple of 8

__device__ __forceinline__ unsigned rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

// What the same variable holds in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ float read_from(const float* shared, unsigned rank) {
  const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  unsigned there;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}

extern "C" __global__ void __launch_bounds__(256) gated_mlp_down(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  __shared__ float parts[8][2][TOKENS];
  const unsigned rank = rank_in_cluster();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int i = (blockIdx.x / SPLITS * 8 + warp) * 2;
  const int first = blockIdx.y * TOKENS;
  if (i < hidden_size) {  // a whole warp; nobody may leave before the barriers
    const T* const weights[2] = {w_down + size_t(i) * intermediate_size, w_down + size_t(i + 1) * intermediate_size};
    const T* rows[TOKENS];
    input_rows(x, first, intermediate_size, rows);
    float sums[2][TOKENS];
    const int begin = int(rank) * SLICE;
    warp_dots(weights, rows, begin, min(begin + SLICE, intermediate_size), sums);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (lane != t) continue;
      parts[warp][0][t] = sums[0][t];
      parts[warp][1][t] = sums[1][t];
    }
  }
  cluster_barrier();
  if (rank == 0 && i < hidden_size && lane < 2 * TOKENS) {  // a lane for a sum
    const int t = lane / 2, r = lane % 2;
    float sum = 0.0f;
    for (unsigned other = 0; other < SPLITS; ++other) sum += read_from(&parts[warp][r][t], other);
    if (first + t < num_tokens) {
      T* target = residual + size_t(first + t) * hidden_size + i + r;
      *target = T(float(*target) + float(T(sum)));  // the product is rounded before it is added
    }
  }
  cluster_barrier();  // the others' shared memory must outlive its last reader
}
