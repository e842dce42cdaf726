"""Attack on the GPU's kernels: an emulator runs blocks, warps and lanes in random order; seeded.

    python -m tests.attack.blocks --seconds 600 --seed 7

The CUDA kernels multiply matrices of random rows and values in the emulator of `tests/simt`, which ends a
kernel that races or reads unwritten memory. A product in random order must have the bits of one in order, and
each row must be within its bound. The attack `plans` does the same to the kernels that plan.
"""

from __future__ import annotations

import random
import sys

import numpy as np
from scipy.sparse import csr_array

from tests.attack._cases import Counts, attack_by_command, attack_with
from tests.support.executors import emulate
from tests.support.gallery import LENGTHS, from_lengths
from tests.support.planned import Tuned, plan_of
from tests.support.reference import assert_close

SCALES = (1.0, 0.0), (1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (0.5, -3.0), (0.0, 2.0)


def draw_matrix(rng: random.Random) -> csr_array:
    """Draw a matrix whose rows have few lengths or many, and values that some compression holds."""
    lengths = rng.choices(rng.sample(LENGTHS, rng.randint(1, 6)), k=rng.choice((0, 1, 7, 33, 64, 150)))
    if rng.random() < 0.3:
        lengths += [rng.randint(300, 3000)] * rng.randint(1, 3)
        rng.shuffle(lengths)
    matrix = from_lengths(lengths, rng.choice((1, 7, 40, 300, 5000)), rng.getrandbits(32))
    kind = rng.choice(("any", "any", "few", "equal", "small", "halves", "wide"))
    if kind == "few":
        matrix.data = np.round(2 * matrix.data)
    elif kind == "equal":
        matrix.data[...] = rng.uniform(-9, 9)
    elif kind == "small":
        matrix.data = np.trunc(50 * matrix.data)
    elif kind == "halves":
        matrix.data = matrix.data.astype(np.float16).astype(float)
    elif kind == "wide":
        matrix.data *= 10.0 ** np.random.default_rng(rng.getrandbits(32)).integers(-9, 9, matrix.nnz)
    if rng.random() < 0.5:
        matrix.sort_indices()
    return matrix.astype(rng.choice((np.float64, np.float64, np.float32)))


def product(rng: random.Random, counts: Counts) -> None:
    """Multiply in order and in a random order."""
    matrix, layout = draw_matrix(rng), rng.choice(("sell", "sell", "dasp"))
    choices = {"narrow": rng.random() < 0.8} if layout == "sell" else {"long_row": rng.choice((4, 64, 256))}
    plan = plan_of(matrix, Tuned(layout, **choices))
    numbers = np.random.default_rng(rng.getrandbits(32))
    x, y = (numbers.standard_normal(size).astype(matrix.dtype) for size in matrix.shape[::-1])
    alpha, beta = rng.choice(SCALES)
    results = []
    for seed in (None, rng.getrandbits(31)):
        results.append(np.full_like(y, np.nan) if beta == 0 else y.copy())
        emulate(plan, x, results[-1], alpha, beta, seed=seed)
    assert_close(results[1], matrix, x, alpha, beta, y)
    np.testing.assert_array_equal(*(result.view(np.uint8) for result in results))
    counts[f"products, {layout}"] += 1


if __name__ == "__main__":
    sys.exit(attack_by_command("blocks", __doc__, attack_with([(product, 1.0)])))
