// Dot products of y with other vectors, made while y is: each block leaves a sum, and the last one of a group adds
// those of the group.
//
// w (m): the vector that y is multiplied with; with DASP_DOTS 2 the square of y's norm comes second.
// parts (DASP_DOTS * blocks): the sums of blocks. arrived (groups): 0 before and after each launch; blocks of a group
//     that have left their sum. sums (DASP_DOTS * groups): the result, which whoever reads it adds up.
// group: blocks of a group; with 1 there is no second stage, and parts and arrived are not used.
// Deterministic: which block is last is chance, but the order in which sums are added is not.
#pragma once

#include "../warp.cuh"

struct Dots {
    const X* w;
    double* parts;
    unsigned* arrived;
    double* sums;
    int group;

    // Every thread of the block calls this once, with the element of y that it stored in a row, PAD for none.
    // block: the number of the block; equal inputs give every number the same rows.
    __device__ __forceinline__ void leave(unsigned block, Index row, double y) const
    {
        constexpr int WARPS = DASP_THREADS / 32;
        __shared__ double of_warps[DASP_DOTS][WARPS];
        __shared__ bool is_last;
        double dot[DASP_DOTS];
        dot[0] = row >= 0 ? y * double(load_result(w + row)) : 0;
        if (DASP_DOTS > 1) dot[DASP_DOTS - 1] = row >= 0 ? y * y : 0;
#pragma unroll
        for (int k = 0; k < DASP_DOTS; ++k) {
            const double sum = warp_sum(dot[k]);
            if (lane_id() == 0) of_warps[k][threadIdx.x / 32] = sum;
        }
        __syncthreads();
        const unsigned mine = block / group, first = mine * group, blocks = gridDim.x;
        const unsigned size = min(unsigned(group), blocks - first), groups = (blocks + group - 1) / group;
        if (threadIdx.x < DASP_DOTS) {
            double sum = 0;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) sum += of_warps[threadIdx.x][warp];
            if (group == 1)
                sums[threadIdx.x * blocks + block] = sum;
            else
                parts[threadIdx.x * blocks + block] = sum;
        }
        if (group == 1 || threadIdx.x >= 32) return;
        __threadfence();
        __syncwarp();
        if (threadIdx.x == 0) is_last = atomicInc(arrived + mine, size - 1) == size - 1;
        __syncwarp();
        if (!is_last) return;
        __threadfence();
#pragma unroll
        for (int k = 0; k < DASP_DOTS; ++k) {
            double sum = 0;
            for (unsigned b = lane_id(); b < size; b += 32) sum += __ldcg(parts + k * blocks + first + b);
            sum = warp_sum(sum);
            if (lane_id() == 0) sums[k * groups + mine] = sum;
        }
    }
};
