// How a bundle is divided, and what a slot holds.
#pragma once

// Rows of a bundle; of a group, which 8 lanes multiply together; groups of a set, a warp's; slots of each in a unit;
// units of a chunk, which has a slot for each lane.
constexpr int ROWS = 128, GROUP = 4, GROUPS = 4, SET = GROUP * GROUPS, SETS = ROWS / SET, UNIT = 4;
constexpr int CHUNK = 2, CHUNK_SLOTS = CHUNK * UNIT * GROUPS;

// A slot: where its first value lies among those of the set (18 bits), which of the bundle's columns it has (10), and
// which rows of the group have an entry there (4).
constexpr int START_BITS = 18, MOST_VALUES = 1 << START_BITS;
constexpr unsigned HERE = (1u << GROUP) - 1;

__device__ __forceinline__ unsigned slot_word(unsigned start, unsigned column, unsigned here)
{
    return start << 32 - START_BITS | column << GROUP | here;
}
__device__ __forceinline__ unsigned start_of(unsigned slot) { return slot >> 32 - START_BITS; }
__device__ __forceinline__ unsigned column_of_slot(unsigned slot)
{
    return slot >> GROUP & (1u << 32 - START_BITS - GROUP) - 1;
}
