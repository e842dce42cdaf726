"""What planning costs on a GPU: for a matrix that lies there, and for one on the host; a row of CSV each.

    python benchmarks/planning.py --csv benchmarks/results/planning_h200.csv poisson3d:128 stencil27:60

A matrix is the name of a model or a file. Times are the least and the median of several, the GPU idle before
each, from the call to the end of its last kernel. Beside them stands the time in which CuPy copies the same
matrix to the GPU, and the roofline of one product by its CSR: bytes that must move over what a copy moves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dasp
from dasp import _dtypes
from dasp.bench import machine, results, roofline
from dasp.io import load_matrix

REPEATS = 9


def milliseconds(call: Callable[[], Any], wait: Callable[[], Any]) -> tuple[float, float]:
    """The least and the median of some calls; what one returns is given back before the next."""
    taken = []
    for _ in range(REPEATS + 1):
        wait()
        start = time.perf_counter()
        call()
        wait()
        taken.append(1e3 * (time.perf_counter() - start))
    return min(taken[1:]), float(np.median(taken[1:]))


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes of CuPy's memory that a call held at once, beyond what it found taken."""
    import cupy

    class Watch(cupy.cuda.MemoryHook):  # type: ignore[misc]
        """Counts what is taken and given back."""

        name = "dasp planning"
        held = most = 0

        def malloc_postprocess(self, **given: Any) -> None:
            self.held += given["mem_size"]
            self.most = max(self.most, self.held)

        def free_postprocess(self, **given: Any) -> None:
            self.held -= given["mem_size"]

    with Watch() as watch:
        call()
    return int(watch.most)


def row_of(name: str, bandwidth: float) -> dict[str, Any]:
    """Measure one matrix."""
    import cupy
    import cupyx.scipy.sparse

    host = load_matrix(name)
    host = host.astype(_dtypes.stored(host.dtype))  # CuPy has no others
    there = cupyx.scipy.sparse.csr_matrix(host)
    wait = cupy.cuda.Device().synchronize
    planned = dasp.SpMatrix.from_cupy(there)
    (m, n), nnz, size = host.shape, host.nnz, host.dtype.itemsize
    one = 1e-3 * roofline.roofline_us(roofline.product_bytes(m, n, nnz, size), bandwidth)
    from_device, from_host = (
        milliseconds(lambda: dasp.SpMatrix.from_cupy(there), wait),
        milliseconds(lambda: dasp.SpMatrix.from_scipy(host), wait),
    )
    upload = milliseconds(lambda: cupyx.scipy.sparse.csr_matrix(host), wait)
    csr = there.data.nbytes + there.indices.nbytes + there.indptr.nbytes
    extra = peak_bytes(lambda: dasp.SpMatrix.from_cupy(there)) - planned.nbytes
    return {
        "matrix": name,
        "dtype": host.dtype.name,
        "rows": m,
        "entries": nnz,
        "roofline_ms": one,
        "device_ms": from_device[0],
        "device_median_ms": from_device[1],
        "device_products": from_device[0] / one,
        "host_ms": from_host[0],
        "host_median_ms": from_host[1],
        "upload_ms": upload[0],
        "upload_median_ms": upload[1],
        "host_over_upload": from_host[0] / upload[0],
        "plan_over_csr": planned.nbytes / csr,
        "extra_over_csr": extra / csr,
    }


def main() -> None:
    """Measure every matrix that is named, and keep the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrices", nargs="+")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    bandwidth = roofline.cuda_copy_bandwidth()
    known = machine.cuda_columns("")
    for name in options.matrices:
        row = {
            key: value if isinstance(value, str) else f"{value:.6g}"
            for key, value in row_of(name, bandwidth).items()
        }
        row["matrix"] = Path(name).stem if Path(name).is_file() else name
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        if options.csv:
            results.append(options.csv, row | known)


if __name__ == "__main__":
    main()
