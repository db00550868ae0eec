// Contract: gated_mlp_down, cuda. Made from a template.
// Idea: gemv + tensor_gemm, in 2 launches at most; which of them run follows from the dims.
// Bound by: the read of the weights for few rows.

// COUNT neighbouring elements, moved as 16 bytes at once where they fill them.
template <class S, int COUNT>
struct alignas(COUNT * sizeof(S) < 16 ? COUNT * sizeof(S) : 16) Pack {
  S v[COUNT];
};

// 16 bytes of a weight, read once by the whole device: they need not stay in L1.
template <class S>
__device__ __forceinline__ Pack<S, 16 / sizeof(S)> stream(const S* p) {
  Pack<unsigned, 4> raw;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(raw.v[0]), "=r"(raw.v[1]), "=r"(raw.v[2]), "=r"(raw.v[3])
      : "l"(p));
  return *reinterpret_cast<const Pack<S, 16 / sizeof(S)>*>(&raw);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Products of ROWS weight rows with TOKENS rows of x, over the 16-byte packs that lane `lane` of LANES owns. A round is
// UNROLL packs of each weight row, on their way before the first is used; with AHEAD the next round's are too. Few
// products are added up before they meet the running sum, which keeps the rounding errors of a long float32 sum small.
// LENGTH is whole packs.
template <int LENGTH, int LANES, int UNROLL, bool AHEAD, int ROWS, int TOKENS, class S>
struct Dots {
  static constexpr int VEC = 16 / sizeof(S);
  static constexpr int STEP = LANES * VEC;
  static constexpr int STEPS = (LENGTH + STEP - 1) / STEP;
  static constexpr int ROUNDS = LENGTH / STEP / UNROLL;
  static constexpr int REST = STEPS - ROUNDS * UNROLL;

  template <int COUNT, bool GUARD>
  static __device__ __forceinline__ void fetch(
      const S* const (&w)[ROWS], int k, Pack<S, VEC> (&weights)[COUNT][ROWS]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (!GUARD || k + i * STEP < LENGTH) weights[i][r] = stream(w[r] + k + i * STEP);
  }

  template <int COUNT, bool GUARD>
  static __device__ __forceinline__ void accumulate(
      const Pack<S, VEC> (&weights)[COUNT][ROWS], const S* const (&x)[TOKENS], int k, float (&sums)[ROWS][TOKENS]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (GUARD && k + i * STEP >= LENGTH) continue;
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        const Pack<S, VEC> row = *reinterpret_cast<const Pack<S, VEC>*>(x[t] + k + i * STEP);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          float part = 0.0f;
#pragma unroll
          for (int j = 0; j < VEC; ++j) part += float(weights[i][r].v[j]) * float(row.v[j]);
          sums[r][t] += part;
        }
      }
    }
  }

  static __device__ __forceinline__ void run(
      const S* const (&w)[ROWS], const S* const (&x)[TOKENS], int lane, float (&sums)[ROWS][TOKENS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) sums[r][t] = 0.0f;
    int k = lane * VEC;
    Pack<S, VEC> last[REST > 0 ? REST : 1][ROWS];
    if constexpr (AHEAD && ROUNDS > 0) {
      Pack<S, VEC> now[UNROLL][ROWS], next[UNROLL][ROWS];
      fetch<UNROLL, false>(w, k, now);
#pragma unroll 2
      for (int i = 1; i < ROUNDS; ++i, k += UNROLL * STEP) {
        fetch<UNROLL, false>(w, k + UNROLL * STEP, next);
        accumulate<UNROLL, false>(now, x, k, sums);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
          for (int r = 0; r < ROWS; ++r) now[u][r] = next[u][r];
      }
      if constexpr (REST > 0) fetch<REST, true>(w, k + UNROLL * STEP, last);
      accumulate<UNROLL, false>(now, x, k, sums);
      k += UNROLL * STEP;
    } else {
#pragma unroll 1
      for (int i = 0; i < ROUNDS; ++i, k += UNROLL * STEP) {
        Pack<S, VEC> now[UNROLL][ROWS];
        fetch<UNROLL, false>(w, k, now);
        accumulate<UNROLL, false>(now, x, k, sums);
      }
      if constexpr (REST > 0) fetch<REST, true>(w, k, last);
    }
    if constexpr (REST > 0) accumulate<REST, true>(last, x, k, sums);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) sums[r][t] = warp_sum(sums[r][t]);
  }
};

// A dependent launch may have begun before its predecessor ended: nothing is read before this returns.
__device__ __forceinline__ void after_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks L2 for neighbouring elements that will be read soon. It takes no register and no shared memory, and a block that
// waits for its predecessor has nothing better to do. Nothing happens where they do not lie on 16 bytes.
template <class S>
__device__ __forceinline__ void into_l2(const S* from, size_t count) {
#if __CUDA_ARCH__ >= 900
  const size_t bytes = count * sizeof(S);
  if (reinterpret_cast<size_t>(from) % 16 == 0 && bytes % 16 == 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(unsigned(bytes)) : "memory");
#endif
}

// 16 bytes from device to shared memory, past L1; zeros where not `inside` (nothing is read then).
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

template <class S>
struct IsHalf {
  static constexpr bool value = false;
};
template <>
struct IsHalf<__half> {
  static constexpr bool value = true;
};

// Four 8x8 matrices of 2-byte elements from shared memory; lane i gives the address of row i.
__device__ __forceinline__ void load_matrices(const void* row, unsigned (&m)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// sums (16x8, float32) += a (16x16) * b (16x8), elements of type S.
template <class S>
__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (IsHalf<S>::value) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// A float of the shared memory of block `rank` of the cluster, at the address `mine` has here.
__device__ __forceinline__ float read_remote(const float* mine, unsigned rank) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  unsigned remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}

extern "C" __global__ void __launch_bounds__(256) few_rows(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  constexpr int M = num_tokens;
  constexpr int N = hidden_size, K = intermediate_size, PARTS = 1;
  constexpr int WARPS = 8, ROWS = 1, UNROLL = 4;
  constexpr bool AHEAD = false;  // a round of loads ahead
  constexpr int TOKENS = M < 1 ? 1 : M < 4 ? M : 4;  // rows of x that share a read
  constexpr int SPLIT = N < 6 * num_sms ? 8 : K % 2048 == 0 && K <= 4096 ? 8 : N < 12 * num_sms || K >= 12288 ? 4 : 2;  // warps that share a row's contraction
  constexpr int GROUPS = WARPS / SPLIT;
  __shared__ float shared_sums[WARPS][PARTS * ROWS][TOKENS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0 && blockIdx.x * GROUPS * ROWS < N) {
    into_l2(w_down + size_t(blockIdx.x * GROUPS * ROWS) * K, size_t(min(GROUPS * ROWS, N - int(blockIdx.x * GROUPS * ROWS))) * K);
  }
  after_predecessor();
  const int first_row = (blockIdx.x * GROUPS + warp / SPLIT) * ROWS, first_token = blockIdx.y * TOKENS;
  if (first_row < N && first_token < M) {
    const T* w_rows[PARTS * ROWS];
    const T* x_rows[TOKENS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      w_rows[0 * ROWS + r] = w_down + size_t(min(first_row + r, N - 1)) * K;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) x_rows[t] = x + size_t(min(first_token + t, M - 1)) * K;
    float sums[PARTS * ROWS][TOKENS];
    Dots<K, 32 * SPLIT, UNROLL, AHEAD, PARTS * ROWS, TOKENS, T>::run(w_rows, x_rows, warp % SPLIT * 32 + lane, sums);
    if (lane == 0)
#pragma unroll
      for (int r = 0; r < PARTS * ROWS; ++r)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) shared_sums[warp][r][t] = sums[r][t];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < GROUPS * ROWS * TOKENS; e += WARPS * 32) {
    const int j = e % (GROUPS * ROWS), t = e / (GROUPS * ROWS);
    const int column = blockIdx.x * GROUPS * ROWS + j, row = first_token + t;
    if (column >= N || row >= M) continue;
    float v_acc0 = 0.0f;
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) v_acc0 += shared_sums[j / ROWS * SPLIT + s][0 * ROWS + j % ROWS][t];
    const float v_residual = float(residual[size_t(row) * hidden_size + size_t(column)]);
    const float v_y = float(T(v_acc0));
    const float v_sum = v_y + v_residual;
    residual[size_t(row) * hidden_size + size_t(column)] = T(v_sum);
  }
}

extern "C" __global__ void __launch_bounds__(128) many_rows(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  using S = T;
  constexpr int M = num_tokens;
  constexpr int N = hidden_size, K = intermediate_size, PARTS = 1;
  constexpr int TILE_M = (8 + 8 * (num_tokens > 8) + 16 * (num_tokens > 16) + 32 * (num_tokens > 32)), TILE_N = 64, TILE_K = 64;
  constexpr int STAGES = 6, WARPS = 4, SPLIT = 8;
  constexpr int THREADS = WARPS * 32, CHUNKS = TILE_K / 8, WARP_TILES = TILE_N / WARPS / 16;
  constexpr int STAGE = (PARTS * TILE_N + TILE_M) * TILE_K;  // elements of a stage
  constexpr int PITCH = TILE_N + 4;  // floats from one row of sums to the next
  extern __shared__ __align__(128) unsigned char shared[];
  float* const shared_sums = reinterpret_cast<float*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = cluster_rank();
  const int first_column = blockIdx.x * TILE_N, first_row = blockIdx.z * TILE_M;
  const S* const weight_rows = w_down;
  const S* const x_rows = x;
  const auto start_of = [&](int p) -> size_t { return 0; };  // first row of the weight of part p
  static_assert(K % 8 == 0, "rows of x and of the weight start on 16 bytes");
  if constexpr (sizeof(S) == 2) {
    S* const stages = reinterpret_cast<S*>(shared);
    constexpr int TILES = (K + TILE_K - 1) / TILE_K;
    const int first_tile = TILES * rank / SPLIT, last_tile = TILES * (rank + 1) / SPLIT;
    const auto fill = [&](int slot, int tile) {
      S* const to_w = stages + slot * STAGE;
      S* const to_x = to_w + PARTS * TILE_N * TILE_K;
#pragma unroll
      for (int i = threadIdx.x; i < PARTS * TILE_N * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS, k = tile * TILE_K + c * 8;
        const int column = first_column + r % TILE_N;
        const bool inside = column < N && k < K;
        const S* from = weight_rows + (inside ? (start_of(r / TILE_N) + column) * K + k : 0);
        copy_async(to_w + r * TILE_K + (c ^ r % 8) * 8, from, inside);
      }
#pragma unroll
      for (int i = threadIdx.x; i < TILE_M * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS, k = tile * TILE_K + c * 8;
        const bool inside = first_row + r < M && k < K;
        copy_async(to_x + r * TILE_K + (c ^ r % 8) * 8, x_rows + (inside ? size_t(first_row + r) * K + k : 0), inside);
      }
    };
    float sums[PARTS][WARP_TILES][TILE_M / 8][4] = {};
    const auto use = [&](int slot) {
      const S* const of_w = stages + slot * STAGE;
      const S* const x_tile = of_w + PARTS * TILE_N * TILE_K;
#pragma unroll
      for (int c = 0; c < CHUNKS; c += 4) {  // 32 deep: two products
        unsigned b[TILE_M / 8][4];
#pragma unroll
        for (int n = 0; n < TILE_M / 8; ++n) {
          const int r = n * 8 + lane % 8;
          load_matrices(x_tile + r * TILE_K + ((c + lane / 8) ^ r % 8) * 8, b[n]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) {
              const int r = p * TILE_N + (warp * WARP_TILES + m) * 16 + lane % 16;
              unsigned a[4];
              load_matrices(of_w + r * TILE_K + ((c + 2 * half + lane / 16) ^ r % 8) * 8, a);
#pragma unroll
              for (int n = 0; n < TILE_M / 8; ++n) multiply<S>(sums[p][m][n], a, b[n][2 * half], b[n][2 * half + 1]);
            }
      }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      if (first_tile + s < last_tile) fill(s, first_tile + s);
      commit_copies();
    }
    for (int tile = first_tile; tile < last_tile; ++tile) {
      wait_copies<STAGES - 2>();
      __syncthreads();  // this tile is there for everyone, and everyone is done with the one before it
      const int next = tile + STAGES - 1;
      if (next < last_tile) fill((next - first_tile) % STAGES, next);
      commit_copies();
      use((tile - first_tile) % STAGES);
    }
    wait_copies<0>();
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int m = 0; m < WARP_TILES; ++m)
#pragma unroll
        for (int n = 0; n < TILE_M / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int j = (warp * WARP_TILES + m) * 16 + lane / 4 + i / 2 * 8, t = n * 8 + lane % 4 * 2 + i % 2;
            shared_sums[(p * TILE_M + t) * PITCH + j] = sums[p][m][n][i];
          }
  } else {
    for (int j = warp; j < TILE_N && first_column + j < N; j += WARPS) {
      const S* w_rows[PARTS];
#pragma unroll
      for (int p = 0; p < PARTS; ++p) w_rows[p] = weight_rows + (start_of(p) + first_column + j) * K;
      for (int t0 = 0; t0 < TILE_M && first_row + t0 < M; t0 += 8) {
        const S* some_rows[8];
#pragma unroll
        for (int t = 0; t < 8; ++t) some_rows[t] = x_rows + size_t(min(first_row + t0 + t, M - 1)) * K;
        float sums[PARTS][8];
        Dots<K, 32 * SPLIT, 2, false, PARTS, 8, S>::run(w_rows, some_rows, rank * 32 + lane, sums);
        if (lane == 0)
#pragma unroll
          for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int t = 0; t < 8; ++t) shared_sums[(p * TILE_M + t0 + t) * PITCH + j] = sums[p][t];
      }
    }
  }
  cluster_barrier();
  for (int e = rank * THREADS + threadIdx.x; e < TILE_M * TILE_N; e += SPLIT * THREADS) {
    const int t = e / TILE_N, j = e % TILE_N;
    const int row = first_row + t, column = first_column + j;
    if (row >= M || column >= N) continue;
    float v_acc0 = 0.0f;
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) v_acc0 += read_remote(shared_sums + (0 * TILE_M + t) * PITCH + j, s);
    const float v_residual = float(residual[size_t(row) * hidden_size + size_t(column)]);
    const float v_y = float(T(v_acc0));
    const float v_sum = v_y + v_residual;
    residual[size_t(row) * hidden_size + size_t(column)] = T(v_sum);
  }
  cluster_barrier();  // no block leaves while another reads its shared memory
}
