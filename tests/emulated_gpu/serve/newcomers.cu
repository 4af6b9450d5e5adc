// First programs in CUDA C++, each with a mistake that MENDED takes out. Above each: what is found, as class or note of the
// emulator's, and the launch. `in` has 4096 floats, `out` 512.

extern "C" {

// race <<<1, 256>>>
__global__ void sums_in_steps(float* out, const float* in) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = in[t];
    __syncthreads();
    for (int d = 128; d; d /= 2) {
        if (t < d) part[t] += part[t + d];
        if (MENDED) __syncthreads();
    }
    if (t == 0) out[0] = part[0];
}

// race <<<1, 256>>>
__global__ void histogram(float* out, const float* in) {
    int* bin = (int*)out + (int)in[threadIdx.x] % 8;
    if (MENDED) atomicAdd(bin, 1);
    else *bin += 1;
}

// race <<<1, 256>>>
__global__ void prefix_sums(float* out, const float* in) {
    __shared__ float sum[256];
    int t = threadIdx.x;
    sum[t] = in[t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        float before = t < d ? 0 : sum[t - d];
        if (MENDED) __syncthreads();
        sum[t] += before;
        __syncthreads();
    }
    out[t] = sum[t];
}

// race uninitialized-read <<<1, 256>>>
__global__ void transpose(float* out, const float* in) {
    __shared__ float tile[16][17];
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    tile[y][x] = in[threadIdx.x];
    if (MENDED) __syncthreads();
    out[threadIdx.x] = tile[x][y];
}

// race <<<1, 256>>>
__global__ void product(float* out, const float* in) {
    __shared__ float a[16][16], b[16][16];
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    float sum = 0;
    for (int k = 0; k < 64; k += 16) {
        a[y][x] = in[y * 64 + k + x];
        b[y][x] = in[(k + y) * 16 + x];
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += a[y][j] * b[j][x];
        if (MENDED) __syncthreads();
    }
    out[threadIdx.x] = sum;
}

// race <<<1, 256>>>
__global__ void softmax(float* out, const float* in) {
    __shared__ float shared[8];
    int t = threadIdx.x;
    float most = in[t];
    for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    if (t % 32 == 0) shared[t / 32] = most;
    __syncthreads();
    for (int w = 0; w < 8; w++) most = fmaxf(most, shared[w]);
    float e = __expf(in[t] - most), sum = e;
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (MENDED) __syncthreads();
    if (t % 32 == 0) shared[t / 32] = sum;
    __syncthreads();
    for (int w = sum = 0; w < 8; w++) sum += shared[w];
    out[t] = e / sum;
}

// race <<<1, 256>>>
__global__ void largest(float* out, const float* in) {
    __shared__ int most;
    int t = threadIdx.x;
    if (t == 0) most = 0;
    __syncthreads();
    if (MENDED) atomicMax(&most, (int)in[t]);
    else if (in[t] > most) most = in[t];
    __syncthreads();
    out[t] = most;
}

// uninitialized-read <<<1, 256>>>
__global__ void counts_from_nothing(float* out, const float* in) {
    __shared__ int count;
    if (MENDED) {
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
    }
    if (in[threadIdx.x] > 9) atomicAdd(&count, 1);
    __syncthreads();
    out[threadIdx.x] = count;
}

// uninitialized-read <<<1, 32>>>
__global__ void own_array(float* out, const float* in) {
    float last[8];
    for (int i = 0; i < (MENDED ? 8 : (int)in[5]); i++) last[i] = in[i];
    out[threadIdx.x] = last[threadIdx.x % 8];
}

// race <<<4, 64>>>
__global__ void stencil_in_place(float* out, const float* in) {
    int i = blockIdx.x * 64 + threadIdx.x;
    const float* from = MENDED ? in : out;
    out[i] = (from[i] + from[i + 1]) / 2 + 1;
}

// out-of-bounds <<<2, 256>>>
__global__ void one_too_far(float* out, const float* in) {
    int i = blockIdx.x * 256 + threadIdx.x + 1;
    if (!MENDED || i < 512) out[i] = in[i];
}

// misaligned <<<1, 32>>>
__global__ void four_at_once(float* out, const float* in) {
    ((float4*)out)[threadIdx.x] = *(const float4*)(in + 4 * threadIdx.x + !MENDED);
}

// race <<<4, 32>>>
__device__ unsigned finished[2];
__global__ void last_block_sums(float* out, const float* in) {
    if (threadIdx.x) return;
    out[blockIdx.x] = in[blockIdx.x];
    if (MENDED) __threadfence();
    if (atomicAdd(&finished[MENDED], 1) < gridDim.x - 1) return;
    if (MENDED) __threadfence();
    for (int b = 1; b < gridDim.x; b++) out[0] += out[b];
}

// race <<<2, 32>>>
__global__ void flag(float* out, const float* in) {
    volatile float* set = out;
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        out[1] = in[7];
        if (MENDED) __threadfence();
        *set = 1;
    } else {
        while (*set == 0) {}
        if (MENDED) __threadfence();
        out[2] = out[1];
    }
}

// race <<<4, 32>>>
__global__ void lock(float* out, const float* in) {
    int* taken = (int*)out;
    if (threadIdx.x) return;
    while (atomicCAS(taken, 0, 1)) {}
    if (MENDED) __threadfence();
    out[1] += in[blockIdx.x];
    if (MENDED) __threadfence();
    atomicExch(taken, 0);
}

// lanes-apart <<<1, 256>>>
__global__ void one_lane_for_its_warp(float* out, const float* in) {
    __shared__ float scale[8];
    int t = threadIdx.x;
    if (t % 32 == 0) scale[t / 32] = in[t];
    if (MENDED) __syncwarp();
    out[t] = scale[t / 32];
}

// lanes-apart <<<1, 32>>>
__global__ void sums_of_a_warp(float* out, const float* in) {
    __shared__ float part[64];
    int t = threadIdx.x;
    part[t] = in[t];
    part[t + 32] = 0;
    __syncwarp();
    for (int d = 16; d; d /= 2) {
        float more = part[t + d];
        if (MENDED) __syncwarp();
        part[t] += more;
        if (MENDED) __syncwarp();
    }
    out[t] = part[0];
}

// divergence <<<1, 32>>>
__global__ void shuffle_from_nobody(float* out, const float* in) {
    float x = in[threadIdx.x];
    if (threadIdx.x < 16) x = __shfl_down_sync(0xffff, x, 1, MENDED ? 16 : 32);
    out[threadIdx.x] = x;
}

// hang <<<1, 32>>>
__global__ void shuffle_of_a_half(float* out, const float* in) {
    float x = in[threadIdx.x];
    if (threadIdx.x < 16) x = __shfl_xor_sync(MENDED ? 0xffff : ~0u, x, 1);
    out[threadIdx.x] = x;
}

// race uninitialized-read <<<1, 256>>>
__global__ void barrier_in_a_branch(float* out, const float* in) {
    __shared__ float x[256];
    int t = threadIdx.x;
    x[t] = in[t];
    if (MENDED || t < 96) __syncthreads();
    out[t] = x[255 - t];
}

// non-coherent-load <<<1, 256>>>
__global__ void read_only(float* out, const float* in) {
    out[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    const float* other = out + (255 - threadIdx.x);
    float x = MENDED ? *other : __ldg(other);
    __syncthreads();
    out[threadIdx.x] = x;
}
}
