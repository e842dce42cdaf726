// Bytes in the place of others, looked up.
//
// Launch: one dimension, any number of blocks of 256 threads.
// codes, made (16 quads). to (256): what becomes of each byte, NOTHING where that has no byte.
// found (1): 0 before; becomes the number of zeros among codes, plus `NO` for each warp that has another byte which
//     becomes nothing.

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr unsigned short NOTHING = 256;
constexpr Count NO = Count(1) << 48;  // `NOT_A_BYTE` in dasp/formats/sell/cuda/pack/unpack.py

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_map_bytes(const signed char* __restrict__ codes, long long quads, const unsigned short* __restrict__ to,
               signed char* made, Count* found)
{
    __shared__ unsigned short becomes[THREADS];
    becomes[threadIdx.x] = to[threadIdx.x];
    __syncthreads();
    unsigned zeros = 0, nothing = 0;
    const auto mapped = [&](unsigned four) {
        unsigned others = 0;
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            const unsigned byte = four >> k & 0xff, other = becomes[byte];
            zeros += byte == 0;
            nothing |= byte && other == NOTHING;
            others |= (other & 0xff) << k;
        }
        return others;
    };
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < quads; i += threads) {
        const uint4 all = reinterpret_cast<const uint4*>(codes)[i];
        reinterpret_cast<uint4*>(made)[i] = make_uint4(mapped(all.x), mapped(all.y), mapped(all.z), mapped(all.w));
    }
    zeros = __reduce_add_sync(ALL_LANES, zeros);
    nothing = __reduce_or_sync(ALL_LANES, nothing);
    const Count mine = zeros + (nothing ? NO : 0);
    if (lane_id() == 0 && mine) atomicAdd(found, mine);
}
