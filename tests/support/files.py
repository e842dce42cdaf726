"""Files of matrices and plans for tests, and the refusals of bad ones."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import coo_array, csr_array

from dasp.formats.plan import Plan
from dasp.io import MatrixFileError, load_matrix
from dasp.models import generate
from tests.support.planned import Tuned
from tests.support.planned import plan_of as planned

HEADER = "%%MatrixMarket matrix coordinate real general\n"


GOOD = HEADER + "3 4 3\n1 1 1.5\n3 4 -2\n2 2 0\n"


def refusal(spec: object) -> str:
    """Return the message by which load_matrix refuses something; it must be one line."""
    with pytest.raises(MatrixFileError) as caught:
        load_matrix(str(spec))
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 900
    return message


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def same(a: csr_array, b: csr_array) -> bool:
    """Return True if two matrices have the same entries in the same order; all NaNs are equal."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("indptr", "indices"))
        and np.array_equal(a.data, b.data, equal_nan=a.dtype.kind == "f")
    )


FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


@st.composite
def matrices(draw: st.DrawFn) -> coo_array:
    m, n = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    count = draw(st.integers(0, 30)) if m and n else 0
    dtype = draw(st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.bool_]))
    row = draw(arrays.arrays(np.int32, count, elements=st.integers(0, max(m - 1, 0))))
    column = draw(arrays.arrays(np.int32, count, elements=st.integers(0, max(n - 1, 0))))
    data = draw(arrays.arrays(dtype, count, elements=arrays.from_dtype(np.dtype(dtype), allow_nan=False)))
    return coo_array((data, (row, column)), shape=(m, n))


def npz(**members: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **members)
    return buffer.getvalue()


CSR = {
    "format": b"csr",
    "shape": np.array([2, 3]),
    "data": np.ones(2),
    "indices": np.array([0, 2], dtype=np.int32),
    "indptr": np.array([0, 1, 2], dtype=np.int32),
}


def npy(array: object, said: tuple[int, ...] | None = None) -> bytes:
    """Return an array as the bytes of a file, with the shape `said` in its head, if given."""
    array = np.asarray(array)
    buffer = io.BytesIO()
    head = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape if said is None else said}
    np.lib.format.write_array_header_1_0(buffer, head)
    return buffer.getvalue() + array.tobytes()


def plan_of(matrix: csr_array, **choices: Any) -> Plan:
    return planned(matrix, Tuned(**choices) if choices else None)


def dasp_plan() -> Plan:
    return plan_of(generate("spikes:300:2:290"), format="dasp", long_row=100)
