"""Sizes on which the host and kernels/pack/ agree."""

from __future__ import annotations

from dasp.formats.sell.choose import TILE_ROWS

SLOTS, VALUE_THREADS = 2048, 1024
"""Most slots of the table of distinct values, and threads of a block that counts them."""

VALUES_AT_ONCE = 4096
"""Values that such a block counts at once."""

BLOCKS = 528
"""Most blocks of a launch whose threads go through an array a grid apart: four to a multiprocessor."""

SORT_THREADS, SORT_TILE, CHUNK, CHUNKS = 1024, TILE_ROWS, 128, 64
"""Threads of a block that sorts, its elements, and elements that it counts at once: kernels/csr/sort.cuh."""

CUT_THREADS, CUT_TILE, ENTRIES = 512, 2048, 32
"""Threads of a block that cuts, its positions, and those at which a chain of slices can enter them:
kernels/pack/cut.cuh."""

PLACES, SHARED_SLOTS = 24, 20_480
"""Places in a sample, and most words of a table in shared memory, of which a multiprocessor has two:
kernels/pack/sectors.cu."""

LONG_TILE, LONG_COUNTS = 2048, 3
"""Rows of a block in segments.cu, and what is counted of the long ones: kernels/pack/segments.cuh."""

SLICE_TILE, ROW_TILE = 64, 2048
"""Slices and rows of a block in columns.cu and unpack.cu."""

TOTALS, NUMBERS = 3, 7
"""Numbers of a candidate, those of all its slices first: kernels/pack/candidates.cuh."""
