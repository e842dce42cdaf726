"""Plans saved and loaded: round trips, and one clear line for whatever can be wrong with one."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_origin, get_type_hints

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from scipy.sparse import csr_array

from dasp.formats import find, list_names
from dasp.formats.plan import PAD, Plan
from dasp.formats.sell.pattern import PAD_8, Coding, Width, unpack_shape
from dasp.io import MatrixFileError, load_plan, save_plan
from dasp.io.plans import pack_plan, unpack_plan
from dasp.models import generate
from dasp.runtime.dtypes import TABLE
from tests.support.files import dasp_plan, plan_of, refusal, write
from tests.support.planned import unpacked

Change = Callable[[dict[str, np.ndarray], dict[str, object]], None]


VALUES = {
    Coding.PLAIN: np.random.default_rng(1).standard_normal,
    Coding.SINGLE: lambda count: np.random.default_rng(2).standard_normal(count).astype(np.float32),
    Coding.BYTE: lambda count: np.random.default_rng(3).integers(-128, 128, count),
    Coding.DICTIONARY: lambda count: np.random.default_rng(4).integers(0, 50, count) / 2,
    Coding.EQUAL: lambda count: np.full(count, 0.1),
}
"""Values that are stored in each coding."""


def sliced_plan(coding: Coding = Coding.DICTIONARY) -> Plan:
    """A plan whose slices have every array, segments, 1 to 32 lanes to a row and all widths but the last."""
    matrix = generate("spikes:300:2:290")
    matrix.data = VALUES[coding](matrix.nnz).astype(float)
    plan = plan_of(matrix, format="sell", steps=2, window=128)
    assert plan.values.coding == coding
    return plan


def assert_comes_back(plan: Plan, path: Path) -> None:
    save_plan(path, plan)
    loaded = load_plan(path)
    before, after = pack_plan(plan), pack_plan(loaded)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.dtype == after[name].dtype, name
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    assert (loaded.format, loaded.shape, loaded.dtype) == (plan.format, plan.shape, plan.dtype)
    assert loaded.pattern.index_dtype == plan.pattern.index_dtype
    for one, other in zip(unpacked(plan), unpacked(loaded), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


PLANS = ["rmat:8", "poisson2d:9", "short:400", "spikes:300:2:290", "random:40:30:0.2", "dense:9"]


@pytest.mark.parametrize("coding", VALUES)
@pytest.mark.parametrize("name", [name for name in TABLE if name not in ("float64", "float32")])
def test_a_plan_of_every_type_comes_back(tmp_path: Path, name: str, coding: Coding) -> None:
    matrix, dtype = generate("spikes:300:2:290"), TABLE[name].dtype
    values = VALUES[coding](matrix.nnz).astype(dtype)
    matrix = csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert_comes_back(plan_of(matrix, format="sell"), tmp_path / "p.npz")


@pytest.mark.parametrize("spec", PLANS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_a_plan_comes_back_bit_for_bit(tmp_path: Path, spec: str, dtype: type, layout: str) -> None:
    plan = plan_of(
        generate(spec).astype(dtype),
        format=layout,
        **({"steps": 2} if layout == "sell" else {"long_row": 100}),
    )
    assert_comes_back(plan, tmp_path / "p.npz")


@pytest.mark.parametrize("coding", VALUES)
def test_slices_of_every_coding_come_back(tmp_path: Path, coding: Coding) -> None:
    assert_comes_back(sliced_plan(coding), tmp_path / "p.npz")


def test_slices_of_every_width_come_back(tmp_path: Path) -> None:
    columns = np.concatenate([np.arange(32), np.arange(32) * 3, np.arange(32) * 999, np.arange(32) * 99_999])
    matrix = csr_array((np.ones(128), (np.arange(128), columns)), shape=(128, 4_000_000))
    plan = plan_of(matrix, format="sell")
    assert sorted(unpack_shape(plan.pattern.headers[:, 3])[3]) == list(Width)
    assert_comes_back(plan, tmp_path / "p.npz")


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (3, 3)])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_an_empty_plan_comes_back(tmp_path: Path, shape: tuple[int, int], layout: str) -> None:
    save_plan(tmp_path / "p.npz", plan_of(csr_array(shape), format=layout))
    assert load_plan(tmp_path / "p.npz").shape == shape


def test_only_plans_are_saved(tmp_path: Path) -> None:
    for thing in (generate("poisson2d:4"), None, "plan.npz"):
        with pytest.raises(TypeError, match="a dasp plan is needed"):
            save_plan(tmp_path / "p.npz", thing)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def broken(tmp_path: Path, plan: Plan | None = None, **changes: object) -> str:
    """Save a plan with some arrays replaced (None removes one), and return how it is refused."""
    packed: dict[str, object] = dict(pack_plan(plan or dasp_plan()))
    for name, value in changes.items():
        packed[name.replace("__", ".")] = value
    path = tmp_path / "p.npz"
    with open(path, "wb") as file:
        np.savez(file, **{name: value for name, value in packed.items() if value is not None})
    with pytest.raises(MatrixFileError) as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    for version in (0, 5, 7, "6", None):
        head = np.frombuffer(json.dumps({"version": version, "fields": {}}).encode(), dtype=np.uint8)
        assert "version" in broken(tmp_path, dasp_plan=head)
    assert "p.npz" in broken(tmp_path, dasp_plan=np.frombuffer(b"no json", dtype=np.uint8))
    assert "p.npz" in broken(tmp_path, dasp_plan=np.frombuffer(b"[1]", dtype=np.uint8))
    assert "holds no plan" in broken(tmp_path, dasp_plan=None)


def array_fields(kind: type, prefix: str = "") -> list[str]:
    """The paths of all arrays of a plan, by its types alone, so that collecting tests compiles nothing."""
    hints = get_type_hints(kind)
    names: list[str] = []
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            names += array_fields(hints[field.name], f"{prefix}{field.name}.")
        elif get_origin(hints[field.name]) is np.ndarray:
            names.append(prefix + field.name)
    return names


ARRAYS = [
    (layout, name)
    for layout in list_names()
    for name in array_fields(find(layout).pattern, "pattern.") + array_fields(find(layout).values, "values.")
]
assert {"pattern.headers", "values.codes", "pattern.long.rows"} <= {name for _, name in ARRAYS}


@pytest.mark.parametrize(("layout", "name"), ARRAYS)
def test_no_array_of_a_plan_can_be_wrong(tmp_path: Path, layout: str, name: str) -> None:
    plan = sliced_plan() if layout == "sell" else dasp_plan()
    good = pack_plan(plan)[name]
    key = name.replace(".", "__")
    assert name in broken(tmp_path, plan, **{key: None})
    broken(tmp_path, plan, **{key: good.reshape(1, -1)})
    if name != "values.table":  # it may be longer than its codes need
        one = np.ones((1, *good.shape[1:]), good.dtype)
        broken(tmp_path, plan, **{key: np.concatenate([good, one])})
    broken(tmp_path, plan, **{key: good.astype(np.int16)})
    if good.size and good.dtype.kind == "i":
        for value in (PAD, -2, 10**6):
            wrong = good.copy()
            wrong[-1] = value
            if value != good.flat[-1]:
                broken(tmp_path, plan, **{key: wrong})


def header(place: int, column: int, value: int, shift: int = 0, bits: int = 32) -> Change:
    """Write a number of `bits` bits into the header of the slice at `place`, from bit `shift` on."""

    def change(arrays: dict[str, np.ndarray], fields: dict[str, object]) -> None:
        headers = arrays["pattern.headers"] = arrays["pattern.headers"].copy()
        kept = int(headers[place, column]) & ~((1 << bits) - 1 << shift)
        headers[place, column] = kept | value << shift

    return change


def field(name: str, value: object) -> Change:
    """Write a number that is no array."""
    return lambda arrays, fields: fields.update({name: value})


def array(name: str, change: Callable[[np.ndarray], object]) -> Change:
    """Change a copy of an array in place, or return another one."""

    def changed(arrays: dict[str, np.ndarray], fields: dict[str, object]) -> None:
        path = ("values." if name in ("codes", "table") else "pattern.") + name
        copy = arrays[path].copy()
        other = change(copy)
        arrays[path] = other if isinstance(other, np.ndarray) else copy

    return changed


# What may be wrong with the slices of `sliced_plan`, and how it is named.
SLICE_FAULTS: dict[str, tuple[Change, str]] = {
    "a step later": (header(5, 0, 9999), "steps do not follow"),
    "a step twice": (header(1, 0, 0), "steps do not follow"),
    "no steps": (header(-1, 3, 0, 0, 12), "more full steps|steps do not follow"),
    "many steps": (header(-1, 3, 4095, 0, 12), "steps do not follow"),
    "many full steps": (header(-1, 3, 4095, 12, 12), "more full steps"),
    "full steps with pads": (header(-1, 3, 1, 12, 12), "a full step has a pad"),
    "64 lanes": (header(-1, 3, 6, 24, 3), "more than 32 lanes"),
    "other lanes": (header(-1, 3, 5, 24, 3), "positions"),
    "a segment of 16 lanes": (header(0, 3, 4, 24, 3), "fewer than 32 lanes"),
    "a wider width": (header(-1, 3, 3, 27, 2), "deltas do not follow"),
    "no width": (header(-1, 3, 0, 27, 2), "deltas do not follow"),
    "an unknown bit": (header(-1, 3, 1, 29, 1), "unknown bits"),
    "deltas elsewhere": (header(3, 2, 2**32 - 1), "deltas do not follow"),
    "a position later": (header(-1, 1, 10**6), "positions do not follow"),
    "a segment twice": (header(0, 1, 1), "do not cover the long rows"),
    "segments in another order": (
        array("headers", lambda a: a.__setitem__((slice(0, 2), 1), a[1::-1, 1])),
        "segments of a row do not follow",
    ),
    "a segment of another row": (
        array("segment_rows", lambda a: a.__setitem__(0, 1)),
        "segment_rows does not",
    ),
    "a base below": (array("bases", lambda a: a.__setitem__(0, -1)), "bases are out of range"),
    "a base beyond": (array("bases", lambda a: a.__setitem__(0, 300)), "bases are out of range"),
    "a column beyond": (array("bases", lambda a: a.__setitem__(0, 299)), "columns of slices are out of"),
    "all pads": (array("deltas", lambda a: a.fill(255)), "pad|entries"),
    "no pads": (array("deltas", lambda a: a.fill(0)), "without a row|entries"),
    "fewer deltas": (array("deltas", lambda a: a[:-32]), "deltas do not follow"),
    "odd deltas": (array("deltas", lambda a: a[:-1]), "whole number of blocks"),
    "fewer values": (array("codes", lambda a: a[:-32]), "codes has"),
    "a code beyond": (array("codes", lambda a: a.__setitem__(0, 255)), "a code is 255"),
    "pads with a code": (array("codes", lambda a: a.fill(1)), "a pad's code is not 0"),
    "a short table": (array("table", lambda a: a[:3]), "a code is"),
    "no table": (array("table", lambda a: a[:0]), "table has 0 values"),
    "a long table": (array("table", lambda a: np.resize(a, 257)), "table has 257 values"),
    "a row twice": (array("rows", lambda a: a.__setitem__(0, a[1])), "a row occurs twice"),
    "no rows": (array("rows", lambda a: a[:0]), "a row occurs twice"),
    "a long row twice": (array("long_rows", lambda a: a.__setitem__(0, a[1])), "a row occurs twice"),
    "a row without segments": (
        array("segment_offsets", lambda a: a.__setitem__(1, 0)),
        "a long row has no segment",
    ),
    "other segments": (array("segment_offsets", lambda a: a.__setitem__(1, 1)), "segment_rows does not"),
    "the first segment later": (array("segment_offsets", lambda a: a.__setitem__(0, 1)), "from 0 to"),
    "more entries": (field("pattern.entries", 10**6), "says 1000000 entries"),
    "no coding": (field("values.coding", 60), "no Coding has that number"),
    "a coding in words": (field("values.coding", "PLAIN"), "no Coding has that number"),
    "plain codes": (field("values.coding", 0), "codes is uint8, not float64"),
    "equal codes": (field("values.coding", 4), "codes has"),
    "no warps": (field("pattern.choice.warps", 0), "warps is 0"),
    "many warps": (field("pattern.choice.warps", 17), "warps is 17"),
    "negative segments": (field("pattern.segments", -1), "-1 of"),
    "many segments": (field("pattern.segments", 10**6), "1000000 of"),
    "fewer segments": (field("pattern.segments", 1), "segment_offsets"),
    "fewer positions": (field("pattern.positions", 1), "positions"),
    "more positions": (field("pattern.positions", 10**6), "positions"),
}


@pytest.mark.parametrize("fault", SLICE_FAULTS)
def test_slices_cannot_be_wrong(tmp_path: Path, fault: str) -> None:
    change, words = SLICE_FAULTS[fault]
    plan = sliced_plan()
    arrays = pack_plan(plan)
    head = json.loads(arrays["dasp_plan"].tobytes())
    change(arrays, head["fields"])
    arrays["dasp_plan"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    message = broken(tmp_path, plan, **{name.replace(".", "__"): value for name, value in arrays.items()})
    assert re.search(words, message), message


def test_lanes_without_a_row_hold_pads(tmp_path: Path) -> None:
    plan = plan_of(generate("poisson2d:3"), format="sell", window=0)
    arrays = pack_plan(plan)
    deltas = arrays["pattern.deltas"].copy()
    assert deltas[31] == PAD_8
    deltas[31] = 0
    head = json.loads(arrays["dasp_plan"].tobytes())
    head["fields"]["pattern.entries"] += 1
    text = np.frombuffer(json.dumps(head).encode(), np.uint8)
    assert "a lane without a row" in broken(tmp_path, plan, pattern__deltas=deltas, dasp_plan=text)


def test_unknown_and_mistyped_fields_are_refused(tmp_path: Path) -> None:
    assert "unknown field extra" in broken(tmp_path, extra=np.ones(2))
    head = json.loads(pack_plan(dasp_plan())["dasp_plan"].tobytes())
    for field, value in (
        ("pattern.long.entries", 1),
        ("pattern.long.entries", "many"),
        ("pattern.mma", 1),
        ("pattern.index_dtype", "int16"),
        ("pattern.long.segment", 0),
        ("pattern.medium.count", 1),
        ("pattern.medium.blocks_per_warp", 3),
        ("pattern.medium.regular.rows", 1),
        ("pattern.short.singles", -1),
        ("pattern.short.fours", 0),
    ):
        changed = json.dumps({**head, "fields": {**head["fields"], field: value}}).encode()
        broken(tmp_path, dasp_plan=np.frombuffer(changed, dtype=np.uint8))
    for field, value in (
        ("dtype", "float32"),
        ("dtype", "no type"),
        ("dtype", None),
        ("shape", [300]),
        ("shape", [299, 300]),
        ("shape", [300, -1]),
        ("shape", None),
        ("format", "sell"),
        ("format", "nosuch"),
        ("format", 3),
        ("fields", []),
        ("fields", None),
    ):
        changed = json.dumps({**head, field: value}).encode()
        broken(tmp_path, dasp_plan=np.frombuffer(changed, dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "not a zip file"), (b"hello", "not a zip file"), (b"PK\x03\x04", "")],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(MatrixFileError, match=rf"p\.npz.*{words}"):
        load_plan(write(tmp_path / "p.npz", content))


def test_other_things_are_no_plans(tmp_path: Path) -> None:
    with pytest.raises(MatrixFileError, match="cannot be read"):
        load_plan(tmp_path / "nosuch.npz")
    with pytest.raises(MatrixFileError, match="folder"):
        load_plan(tmp_path)
    scipy.sparse.save_npz(tmp_path / "m.npz", generate("poisson2d:3"))
    with pytest.raises(MatrixFileError, match="holds no plan"):
        load_plan(tmp_path / "m.npz")
    save_plan(tmp_path / "p.npz", plan_of(generate("poisson2d:3")))
    assert "load_plan" in refusal(tmp_path / "p.npz")
    with zipfile.ZipFile(tmp_path / "p.npz") as archive:
        assert "dasp_plan.npy" in archive.namelist()


def test_a_plan_is_read_only_after_loading() -> None:
    plan = unpack_plan(pack_plan(plan_of(generate("poisson2d:5"))))
    with pytest.raises(ValueError, match="read-only"):
        plan.values.codes[:1] = 0
