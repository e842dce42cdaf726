"""Products over GF(2^8), the field of bytes (0x11D), and the Reed-Solomon erasure codes made of them.

    parity = gf256.matmul(coefficients, data)          # (m, k) times (k, n), NumPy or CuPy
    code = gf256.ReedSolomon(10, 4)                    # any 4 of 14 shards may be lost
    shards = [*data, *code.encode(data)]

`kernels(device)` lists the ladder of kernels that multiply, slowest first; `field` holds the tables and
small matrices.
"""

from __future__ import annotations

from dasp.dense.gf256.field import Kernel
from dasp.dense.gf256.product import kernels, matmul
from dasp.dense.gf256.reed_solomon import ReedSolomon

__all__ = ["Kernel", "ReedSolomon", "kernels", "matmul"]
