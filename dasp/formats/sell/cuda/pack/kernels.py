"""Signatures of the kernels in kernels/pack/, and sizes on which they and the host agree."""

from __future__ import annotations

from dasp.formats.sell.choose import TILE_ROWS
from dasp.runtime.cuda.launch import Signature

SLOTS, VALUE_THREADS, VALUES_AT_ONCE = 2048, 1024, 4096
"""Most slots of the table of distinct values, threads of a block that counts them, and its values."""

SORT_THREADS, SORT_TILE, CHUNK, CHUNKS = 1024, TILE_ROWS, 128, 64
"""Threads of a block that sorts, its elements, and elements that it counts at once: kernels/csr/sort.cuh."""

CUT_THREADS, CUT_TILE, ENTRIES = 512, 2048, 32
"""Threads of a block that cuts, its positions, and those at which a chain of slices can enter them:
kernels/pack/cut.cuh."""

PLACES, SHARED_SLOTS = 24, 20_480
"""Places in a sample, and most words of a table in shared memory, of which a multiprocessor has two:
kernels/pack/sectors.cu."""

LONG_TILE, LONG_COUNTS, PLACE_THREADS = 2048, 3, 1024
"""Rows of a block that lists long ones, what is counted of these, and threads of the block that places
segments: kernels/pack/segments.cuh and segments.cu."""

BLOCK_SLICES = 8
"""Slices of a block of 256 threads that takes a warp for each."""

TOTALS, NUMBERS = 3, 7
"""Numbers of a candidate, those of all its slices first: kernels/pack/cut.cuh."""

_ROWS_OF_SLICES = """
    const Index*          rows
    long long             positions
    const Index*          long_rows
    const Index*          segment_offsets
    const Index*          segment_rows     [segments]
    long long             segments
    long long             slices
    const uint4*          headers          [slices]
    """
"""The first parameters of kernels that go through all entries: which rows the slices of a plan hold."""

SURVEY = Signature(
    "pack/survey.cu",
    "dasp_survey",
    """
    const Start*   indptr
    const Column*  indices        [nnz]
    long long      m
    long long      nnz
    int            steps
    int            segment_steps
    int            most_segments
    Count*         facts          [13]
    Count*         long_tiles
    """,
)

VALUE_FACTS = Signature(
    "pack/values.cu",
    "dasp_value_facts",
    """
    const Place*     order
    long long        count
    Count*           words   [4100]
    Bits*            table
    const Bits*      data    [count]
    """,
)

SORT_WINDOWS = Signature(
    "pack/windows.cu",
    "dasp_sort_windows",
    """
    const Start*  indptr       [m + 1]
    long long     m
    long long     count
    long long     longest
    long long     most
    int           bits
    long long     window
    int           left_out
    const Count*  long_tiles
    Index*        rows         [count]
    """,
)

ROW_KEYS = Signature(
    "pack/keys.cu",
    "dasp_row_keys",
    """
    const Start*  indptr    [m + 1]
    long long     m
    long long     count
    long long     width
    long long     longest
    long long     most
    long long*    keys      [m]
    Index*        elements  [count]
    """,
)

COLUMN_KEYS = Signature(
    "pack/keys.cu",
    "dasp_column_keys",
    """
    const Column*     indices
    const long long*  starts   [count]
    long long         count
    Column*           keys     [count]
    """,
)
LIST_LONG = Signature(
    "pack/segments.cu",
    "dasp_list_long",
    """
    const Start*  indptr         [m + 1]
    long long     m
    int           steps
    int           segment_steps
    int           most_segments
    const Count*  long_tiles
    Index*        long_rows      [r]
    Index*        offsets        [r + 1]
    Index*        segment_rows   [segments]
    long long*    starts         [segments]
    long long*    lengths        [segments]
    uint4*        headers        [segments]
    """,
)

CUT_TILES = Signature(
    "pack/cut.cu",
    "dasp_cut_tiles",
    """
    const Start*      indptr
    const Index*      rows
    long long         stride
    int               unmoved
    long long         positions
    int               steps
    int               even
    Count*            come
    Count*            passages
    Count*            before
    Count*            totals
    """,
)

CUT_HEADERS = Signature(
    "pack/cut.cu",
    "dasp_cut_headers",
    """
    const Start*  indptr
    const Index*  rows
    long long     positions
    int           steps
    int           even
    const Count*  before
    const uint4*  segment_headers  [segments]
    long long     segments
    long long     steps_before
    uint4*        headers
    Index*        placed         [positions]
    """,
)

COUNT_SECTORS = Signature(
    "pack/sectors.cu",
    "dasp_count_sectors",
    """
    const Start*      indptr
    const Column*     indices
    const Index*      rows
    long long         stride
    int               unmoved
    long long         positions
    int               steps
    int               even
    const Count*      before
    const long long*  segment_starts
    const long long*  segment_lengths
    long long         segments
    int               sector_shift
    int               by_slice
    int               few
    int               many
    unsigned          slots_by_slice
    unsigned          slots_few
    unsigned          slots_many
    const Count*      totals
    unsigned*         tables
    long long         table_slots
    int               shared_slots
    Count*            sampled
    """,
    shared_words="shared_slots",
)

PLACE_SEGMENTS = Signature(
    "pack/segments.cu",
    "dasp_place_segments",
    """
    const long long*  starts          [segments]
    const long long*  lengths         [segments]
    long long         segments
    const Index*      order           [segments]
    long long*        to_starts       [segments]
    long long*        to_lengths      [segments]
    uint4*            to_headers      [segments]
    """,
)

STORE_SLICES = Signature(
    "pack/store.cu",
    "dasp_store_slices",
    """
    const Start*           indptr
    const Column*          indices
    const Bits*            data
    const Place*           order
    const Bits*            table
    int                    distinct
    const Index*           rows
    long long              positions
    const long long*       segment_starts   [segments]
    const long long*       segment_lengths  [segments]
    long long              segments
    long long              slices
    uint4*                 headers          [slices]
    Index*                 bases
    Code*                  stored
    long long*             sizes
    """,
)


FILL_DELTAS = Signature(
    "pack/columns.cu",
    "dasp_fill_deltas",
    """
    const Start*      indptr
    const Column*     indices
    const Index*      rows
    long long         positions
    const long long*  segment_starts   [segments]
    const long long*  segment_lengths  [segments]
    long long         segments
    long long         slices
    uint4*            headers          [slices]
    const Index*      bases
    const long long*  blocks_before
    unsigned char*    deltas
    """,
)

COUNT_ENTRIES = Signature(
    "pack/unpack.cu",
    "dasp_count_entries",
    """
    const Index*          rows
    long long             positions
    const Index*          long_rows
    const Index*          segment_rows  [segments]
    long long             segments
    long long             slices
    const uint4*          headers       [slices]
    const unsigned char*  deltas
    Count*                lengths
    Count*                pieces        [segments]
    """,
)

FILL_ENTRIES = Signature(
    "pack/unpack.cu",
    "dasp_fill_entries",
    f"""{_ROWS_OF_SLICES.rstrip()}
    const Index*          bases
    const unsigned char*  deltas
    const Code*           codes
    const Count*          starts
    const Count*          pieces           [segments]
    Index*                to_indices
    Code*                 to_codes
    """,
)

CLEAR_PADS = Signature(
    "pack/unpack.cu",
    "dasp_clear_pads",
    """
    long long             slices
    const uint4*          headers       [slices]
    const unsigned char*  deltas
    Code*                 codes
    """,
)

REFILL = Signature(
    "pack/refill.cu",
    "dasp_refill",
    f"""{_ROWS_OF_SLICES.rstrip()}
    const unsigned char*   deltas
    const Count*           starts
    const Count*           pieces           [segments]
    const Place*           order
    const Bits*            table
    int                    distinct
    Code*                  stored
    const Bits*            data
    """,
)

HOLDS = Signature(
    "pack/holds.cu",
    "dasp_holds",
    """
    long long    count
    const Bits*  data    [count]
    Count*       misfit  [1]
    """,
)

SCATTER = Signature(
    "pack/scatter.cu",
    "dasp_scatter",
    """
    const Bits*  data   [count]
    long long    count
    const Slot*  slots
    Bits*        to
    """,
)


DECODE = Signature(
    "pack/decode.cu",
    "dasp_decode",
    """
    const Code*  codes
    const Bits*  table
    long long    count
    Bits*        data   [count]
    """,
)
