"""Long solves that go on where they were ended: x and the residuals so far, written by each rank for itself.

A generation of files is written beside the last one; a small file that names it takes the place of its
predecessor when all ranks have theirs on the disk. So whenever a job ends, one whole generation is there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dasp import _arrays
from dasp.distributed.engine import Engine, agree, total
from dasp.io.files import MatrixFileError, one_line_errors, replacing
from dasp.solvers.stats import Stats

FORMAT = 1
"""Of the folder."""

NAME = "checkpoint.json"


def resume(
    method: Callable[..., tuple[Any, Stats]],
    A: Any,
    b: Any,
    folder: Any,
    *,
    seconds: float = 600.0,
    check_every: int = 50,
    **options: Any,
) -> tuple[Any, Stats]:
    """Solve A x = b from where an earlier solve into the same folder was ended, and write checkpoints.

    All ranks call it; on one rank it takes any matrix.

    Parameters
    ----------
    method : callable
        Of `dasp.solvers`, with a `callback`: such as `dasp.solvers.cg`.
    A : SpMatrix
        Distributed, or on one rank any matrix that the method takes.
    b : array, shape (rows of this rank,)
    folder : path
        Made if it is not there.
    seconds : float
        Between two checkpoints, at least; 0 writes one at every check.
    check_every : int
        Iterations between two looks at the clock.
    **options
        For the method.

    Returns
    -------
    x, stats
        Those of the method; `stats` counts the iterations and seconds, and has the residuals, of the earlier
        solves too, up to their last checkpoints.

    Raises
    ------
    TypeError, ValueError, RankError
        What the method raises; on all ranks the same if the folder holds a checkpoint of another system, or
        cannot be read or written.

    Notes
    -----
    A checkpoint costs a product, for the true residual, and x on the disk. What an iteration carries along is
    not kept: the method starts anew from x.
    """
    keeper = _Keeper(A, b, Path(folder), float(seconds), int(check_every))
    x0, before = keeper.read()
    x, stats = method(A, b, x0, callback=keeper, check_every=check_every, **options)
    whole = stats if before is None else stats.after(before)
    keeper.write(x, whole.iterations, whole.residuals, whole.residual)
    return x, whole


class _Keeper:
    """The callback of a solve."""

    def __init__(self, A: Any, b: Any, folder: Path, seconds: float, every: int) -> None:
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds}; a number of at least 0 is needed")
        self._A, self._b, self._folder, self._seconds, self._every = A, b, folder, seconds, every
        self._engine: Engine | None = getattr(A, "engine", None)
        self._rank = 0 if self._engine is None else self._engine.rank
        self._ranks = 1 if self._engine is None else self._engine.size
        self._last = self._began = time.monotonic()
        self._generation, self._made, self._spent = 0, 0, 0.0
        self._residuals: list[float] = []

    def __call__(self, x: Any) -> None:
        """Write a checkpoint if it is time for one: rank 0 says so."""
        self._made += self._every
        due = time.monotonic() - self._last >= self._seconds
        if self._engine is not None:
            due = self._engine.gather(due)[0]
        if due:
            residual = self._norm(self._b - self._A @ x)
            self.write(x, self._made, [*self._residuals, residual], residual)

    def _norm(self, r: Any) -> float:
        square = float((abs(r) ** 2).sum())
        return float(np.sqrt(square if self._engine is None else total(self._engine, square)))

    def _together(self, work: Callable[[], Any], alike: Any = None) -> Any:
        return work() if self._engine is None else agree(self._engine, work, alike)

    def _file(self, generation: int) -> Path:
        return self._folder / f"x-{generation:06}-rank-{self._rank:05}.npy"

    def read(self) -> tuple[Any, Stats | None]:
        """Return x and the stats of the last checkpoint, if there is one."""

        def find() -> tuple[Any, Any]:
            path = self._folder / NAME
            if not path.exists():
                return None, None
            with one_line_errors(path):
                told = json.loads(path.read_text(encoding="utf-8"))
                self._hold(told)
                x = np.load(self._file(told["generation"]), allow_pickle=False)
            size = int(getattr(self._A, "local_shape", self._A.shape)[1])
            if x.shape != (size,):
                raise MatrixFileError(
                    f"{self._folder} has {x.shape} numbers for rank {self._rank}, "
                    f"which has {size}; name another folder"
                )
            return x, told

        x, told = self._together(find, lambda found: {"checkpoint": json.dumps(found[1])})
        if told is None:
            return None, None
        self._generation, self._made = told["generation"], told["iterations"]
        self._residuals, self._spent = told["residuals"], told["seconds"]
        made = self._made
        before = Stats(False, made, told["residuals"], told["residual"], "ended early", told["seconds"], made)
        namespace = _arrays.namespace(self._b)
        return namespace.asarray(x), before

    def _hold(self, told: dict[str, Any]) -> None:
        """Hold that a checkpoint is of this system, as far as that is seen."""
        wanted = {"format": FORMAT, "ranks": self._ranks, "shape": list(self._A.shape)}
        for name, value in wanted.items():
            if told[name] != value:
                raise MatrixFileError(
                    f"{self._folder} holds a checkpoint with {name} {told[name]}; this solve has {value}; "
                    "name another folder"
                )

    def write(self, x: Any, iterations: int, residuals: list[float], residual: float) -> None:
        """Write a generation, and let it count when all ranks have theirs."""
        old, new = self._file(self._generation), self._generation + 1

        def save() -> None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._file(new)) as file:
                np.save(file, _arrays.to_host(x).reshape(-1))

        self._together(save)
        seconds = self._spent + time.monotonic() - self._began
        told = {
            "format": FORMAT, "ranks": self._ranks, "shape": list(self._A.shape), "generation": new,
            "iterations": iterations, "residuals": residuals, "residual": residual, "seconds": seconds,
        }  # fmt: skip

        def name_it() -> None:
            if self._rank == 0:
                with replacing(self._folder / NAME) as file:
                    file.write(json.dumps(told).encode())

        self._together(name_it)
        with contextlib.suppress(OSError):
            old.unlink()
        self._generation, self._last, self._residuals = new, time.monotonic(), residuals
