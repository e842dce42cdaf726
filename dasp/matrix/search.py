"""The policy that is fastest for a matrix, found by timing a few."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dasp.matrix.matrix import SpMatrix
from dasp.matrix.policy import Policy
from dasp.runtime.cpu.timing import Candidate, time_host
from dasp.runtime.cuda.timing import time_cuda

GAIN = 1.02
"""A policy is taken if it is faster than the best one so far by this factor: less is noise."""

FORMATS = ("sell", "dasp")
WINDOWS = (0, 128, 1024, 2**31)
STEPS = (8, 16, 32, 64)
WARPS = (4, 8, 16)
"""The values of each choice that are tried; the last window sorts all rows."""


def find_policy(A: Any, *, device: str = "auto", seconds: float = 0.1, **choices: Any) -> Policy:
    """Return the policy that was fastest for a matrix on a device, of a dozen that are planned and timed.

    Parameters
    ----------
    A : scipy.sparse array or matrix, shape (m, n)
    device : {"auto", "cpu", "cuda", "cuda:N"}
        As in `SpMatrix.from_scipy`.
    seconds : float
        Time for the samples of each candidate on the CPU; a GPU multiplies seven times twenty times.
    **choices
        Of the policy, which hold for every candidate.

    Returns
    -------
    Policy
        The default, unless another one was faster by 2%.

    Notes
    -----
    Takes as long as planning the matrix a dozen times and some hundred products. One choice after the other
    is tried, each with the best of those before it.

    Examples
    --------
    >>> import dasp
    >>> A = dasp.models.generate("stencil27:12")
    >>> best = dasp.find_policy(A, device="cpu", seconds=0.001)
    >>> dasp.SpMatrix.from_scipy(A, policy=best, device="cpu").nnz == A.nnz
    True
    """
    policy = Policy(**choices)
    best = SpMatrix.from_scipy(A, policy=policy, device=device)
    there = _on_gpu(A, best)
    chosen = best.plan.format
    tried: list[tuple[str, tuple[Any, ...]]] = []
    if policy.format == "auto":
        tried.append(("format", tuple(other for other in FORMATS if other != chosen)))
    tried += [("window", WINDOWS), ("steps", STEPS)]
    if best.device != "cpu":
        tried.append(("warps", WARPS))
    for name, values in tried:
        if name != "format" and (getattr(policy, name) is not None or best.plan.format != FORMATS[0]):
            continue
        for value in values:
            try:
                rival = dataclasses.replace(policy, **{name: value})
            except ValueError:  # a choice that the user made is of another format
                continue
            if there is None or rival.format == "dasp":
                other = SpMatrix.from_scipy(A, policy=rival, device=device)
            else:
                other = SpMatrix.from_cupy(there, policy=rival)
            before, after = times(best, other, seconds)
            if GAIN * after < before:
                best, policy = other, rival
    return policy


def _on_gpu(A: Any, planned: SpMatrix) -> Any:
    """Return a CSR matrix as CuPy's, where its plan is, so that it goes there once; None on the CPU."""
    if planned.device == "cpu" or A.format != "csr":
        return None
    import cupy
    import cupyx.scipy.sparse

    with cupy.cuda.Device(int(planned.device.partition(":")[2])):
        return cupyx.scipy.sparse.csr_matrix(A.astype(planned.dtype))


def times(one: SpMatrix, other: SpMatrix, seconds: float) -> tuple[float, float]:
    """Return the microseconds of a product of each of two plans of one matrix, on one device."""
    x = np.random.default_rng(0).standard_normal(one.shape[1]).astype(one.dtype)
    if one.device != "cpu":
        import cupy

        with cupy.cuda.Device(int(one.device.partition(":")[2])):
            measured = time_cuda(_candidates(one, other, cupy.asarray(x), cupy))
    else:
        measured = time_host(_candidates(one, other, x, np), seconds=seconds)
    return measured["one"].best_us, measured["other"].best_us


def _candidates(one: SpMatrix, other: SpMatrix, x: Any, library: Any) -> list[Candidate]:
    y = library.empty(one.shape[0], one.dtype)

    def candidate(name: str, matrix: SpMatrix) -> Candidate:
        return Candidate(name, lambda: matrix.matvec(x, out=y), result=lambda: y)

    return [candidate("one", one), candidate("other", other)]
