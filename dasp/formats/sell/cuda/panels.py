"""How the kernels by several columns cut X, and from when on each way pays.

The tile sizes belong to the kernels as those of a matrix product do. All were measured on an H200, among
panels of 32 to 256 bytes (benchmarks/lab_book.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Panels(NamedTuple):
    """How several columns are multiplied at a time; kernels/spmv/slices_columns.cu.

    Attributes
    ----------
    panel : int
        Bytes of a row of X, or of its sums if those take more, that a warp multiplies.
    lane : int
        Bytes of it that one lane reads.
    steps : int
        Steps, at most, that are loaded before the first is multiplied.
    loads : int
        Loads of X that a lane has in flight.
    registers : int
        Of a thread.
    warps : int
        Slices of a block: neighbouring ones meet the same rows of X.
    share : int
        Warps that share a slice, at most as many as lanes share an entry; if more than 1, a block has one
        slice.
    """

    panel: int
    lane: int
    steps: int
    loads: int
    registers: int
    warps: int
    share: int = 1


class LongRows(NamedTuple):
    """Which rows of X a warp reads in one launch, a panel as long as a row or nearly so.

    Attributes
    ----------
    item : int
        Bytes of a number.
    least, most : int
        Columns.
    reads : float
        Times that a row of X is read, at most.
    steps : int
        Of most slices, at least; 0 if these need not be alike.
    panels : Panels
    """

    item: int
    least: int
    most: int
    reads: float
    steps: int
    panels: Panels


@dataclass(frozen=True, kw_only=True)
class PanelTable:
    """Panels for each kind of X, and where each pays.

    Attributes
    ----------
    rows_of_x, narrow_rows_of_x : tuple of Panels
        Where the columns of X lie beside each other; the second for numbers of less than 8 bytes.
    long_rows_of_x : tuple of LongRows
        Where rows of X are aligned: registers and lanes without a column, against a second launch and cut
        lines. Popular rows stay in the first-level cache however they are cut.
    lone_rows_of_x : tuple of Panels
        For 3, 5, 6 or 7 columns that a lane has alone: no exchange, against lines.
    lone_sectors : (float, float)
        Sectors for each entry that slices read of a vector, below which lanes do so: with up to 6 columns,
        and with 7.
    far_row_of_x : Panels
        For rows of X of 32 bytes: half as many lines a load, against twice the slots.
    far_sectors : float
        Sectors for each entry that slices read of a vector, at least, there.
    columns_of_x : tuple of Panels
        Where each column of X lies in one run.
    column_bytes : float
        What a number of a column of X costs to gather, at least, where one of a row costs 8.
    shared_steps : int
        Steps that slices have on average, at least, where several warps share one: more loads in flight,
        against what each warp begins and ends with.
    shared_segments : float
        Share of the slices that are segments of long rows, or are not, at most, there: warps of a segment
        wait for each other.
    crowded_slices : int
        Slices from which no warps share one to read rows of X of 128 bytes, if columns lie far and rows of X
        are read often: each warp loads fewer steps of more slots.
    crowded_reads : float
        Times that a row of X is read, at least, there.
    copy_passes, copy_bytes : float
        What it costs to copy X and Y in columns to rows, and Y back: passes over both, and bytes that are
        moved in the time of the launches.
    evening_bytes : float
        Bytes gathered less for a row of X, in float64, from which on rows of X that loads cannot read at once
        are copied to where they can.
    octets_of_x, narrow_octets_of_x : tuple of Panels
        Where rows are multiplied by eights, on tensor cores; steps are quads. The second for numbers of less
        than 8 bytes.
    octet_entries, narrow_octet_entries : tuple of (columns, entries a quad)
        From so many columns on, how full the 32 slots of a quad must be for rows to be multiplied by eights:
        rows of X read once for several of A, against slots without an entry.
    """

    rows_of_x: tuple[Panels, ...]
    narrow_rows_of_x: tuple[Panels, ...]
    long_rows_of_x: tuple[LongRows, ...]
    lone_rows_of_x: tuple[Panels, ...]
    lone_sectors: tuple[float, float]
    far_row_of_x: Panels
    far_sectors: float
    columns_of_x: tuple[Panels, ...]
    column_bytes: float
    shared_steps: int
    shared_segments: float
    crowded_slices: int
    crowded_reads: float
    copy_passes: float
    copy_bytes: float
    evening_bytes: float
    octets_of_x: tuple[Panels, ...]
    narrow_octets_of_x: tuple[Panels, ...]
    octet_entries: tuple[tuple[int, float], ...]
    narrow_octet_entries: tuple[tuple[int, float], ...]


PANELS = PanelTable(
    rows_of_x=(
        Panels(256, 32, 8, 8, 128, 4, 2),
        Panels(256, 32, 4, 8, 168, 4),
        Panels(128, 32, 4, 8, 128, 4),
        Panels(64, 16, 8, 8, 72, 4, 2),
        Panels(64, 16, 4, 4, 72, 4),
        Panels(32, 8, 8, 8, 64, 4, 2),
        Panels(32, 32, 4, 8, 64, 4),
    ),
    narrow_rows_of_x=(
        Panels(128, 16, 8, 8, 64, 4, 4),
        Panels(128, 16, 2, 8, 96, 4),
        Panels(64, 16, 8, 8, 72, 4, 2),
        Panels(64, 16, 4, 4, 72, 4),
        Panels(32, 4, 8, 8, 64, 4, 2),
        Panels(16, 4, 8, 8, 64, 4, 2),
        Panels(32, 32, 4, 8, 64, 4),
    ),
    long_rows_of_x=(
        LongRows(4, 97, 112, float("inf"), 0, Panels(512, 16, 8, 8, 96, 4, 4)),
        LongRows(4, 33, 48, 80.0, 6, Panels(256, 32, 8, 8, 80, 4, 4)),
        LongRows(8, 97, 112, 5.0, 0, Panels(1024, 32, 8, 8, 96, 4, 8)),
    ),
    lone_rows_of_x=(Panels(32, 32, 4, 8, 64, 4), Panels(64, 64, 4, 8, 96, 4)),
    lone_sectors=(0.6, 0.4),
    far_row_of_x=Panels(32, 16, 4, 8, 64, 4),
    far_sectors=0.5,
    columns_of_x=(Panels(128, 128, 4, 16, 128, 4), Panels(64, 64, 4, 16, 96, 4)),
    shared_steps=6,
    shared_segments=0.125,
    crowded_slices=4500,
    crowded_reads=5.0,
    column_bytes=10.0,
    copy_passes=2.8,
    copy_bytes=25e6,
    evening_bytes=400.0,
    octets_of_x=(Panels(256, 32, 2, 2, 64, 8), Panels(128, 16, 4, 4, 72, 4), Panels(64, 8, 4, 4, 56, 4)),
    narrow_octets_of_x=(Panels(128, 16, 3, 3, 72, 4), Panels(64, 8, 4, 4, 64, 4)),
    octet_entries=((16, 6.0), (8, 8.5)),
    narrow_octet_entries=((32, 10.0), (16, 8.5)),
)
