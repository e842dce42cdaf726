"""The loops that copy rows into the parts of the format of the paper, on the CPU."""

from __future__ import annotations

import numpy as np

from dasp.formats.dasp.pattern import TILE, TILE_COLUMNS, TILE_ROWS
from dasp.runtime.cpu.compile import jit

_compile = jit(nogil=True)


@_compile
def count_tiles(lengths, least):
    """Count the tiles of each row block up to the first with fewer than `least` entries."""
    tiles = np.empty(len(lengths) // TILE_ROWS, np.int64)
    for block in range(len(tiles)):
        tile = 0
        while True:
            entries = 0
            for row in range(TILE_ROWS * block, TILE_ROWS * (block + 1)):
                entries += min(max(lengths[row] - TILE_COLUMNS * tile, 0), TILE_COLUMNS)
            if entries == 0 or entries < least:
                break
            tile += 1
        tiles[block] = tile
    return tiles


@_compile
def copy_runs(indices, data, starts, lengths, slots, columns, values):
    """Copy `lengths[i]` entries from `starts[i]` on to slot `slots[i]` and what follows it."""
    for run in range(len(lengths)):
        for k in range(lengths[run]):
            columns[slots[run] + k] = indices[starts[run] + k]
            values[slots[run] + k] = data[starts[run] + k]


@_compile
def copy_tile_rows(indices, data, starts, lengths, tiles, columns, values):
    """Copy `lengths[i]` entries from `starts[i]` on to row i % 8 of the tiles of block i // 8."""
    for row in range(len(lengths)):
        first = TILE * tiles[row // TILE_ROWS] + TILE_COLUMNS * (row % TILE_ROWS)
        for k in range(lengths[row]):
            slot = first + TILE * (k // TILE_COLUMNS) + k % TILE_COLUMNS
            columns[slot] = indices[starts[row] + k]
            values[slot] = data[starts[row] + k]
