"""Many matrices, one after another: load, skip what the file already has, measure, keep the row."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasp.bench import results
from dasp.bench.device import BenchDevice
from dasp.bench.sparse import Operator, measure, plan_with, warm_up

POLICIES = ("auto", "slices", "published")


@dataclass(frozen=True)
class Settings:
    """How every matrix of a session is measured.

    Attributes
    ----------
    policy : str
        One of POLICIES: the layout of a policy whose other choices are the default ones.
    dtype : str
        `float64` or `float32`.
    seed : int
        Seed of the generated matrices and of x.
    samples : int or None
        Timed samples of each candidate.
    baselines : collection of str or None
        Which baselines; None for all.
    csv : pathlib.Path or None
        Where rows are kept, and looked up.
    """

    policy: str = "auto"
    dtype: str = "float64"
    seed: int = 0
    samples: int | None = None
    baselines: Collection[str] | None = None
    csv: Path | None = None


def planner(device: BenchDevice, policy: str) -> Callable[[Any], Operator]:
    """The planner of a policy's name.

    Raises
    ------
    ValueError
        If there is no policy of that name.
    """
    if policy not in POLICIES:
        raise ValueError(f"the policy is {policy!r}; one of {', '.join(POLICIES)} is needed")
    from dasp.preprocess import Policy

    return plan_with(device.kind, Policy(layout=policy))


def progress(specs: Sequence[str]) -> Iterator[str]:
    """The same names, with a progress bar on a terminal's standard error where tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from specs
        return
    with tqdm(specs, unit="matrix", file=sys.stderr, disable=None) as bar:
        for spec in bar:
            bar.set_description(spec)
            yield spec


def run(
    specs: Sequence[str],
    device: BenchDevice,
    settings: Settings,
    *,
    load: Callable[[str, int], Any] | None = None,
    plan: Callable[[Any], Operator] | None = None,
    resume: bool = False,
) -> list[dict[str, str]]:
    """Measure every matrix and return one row for each, in the given order.

    Parameters
    ----------
    specs : sequence of str
        Files, names or models, as `dasp.io.matrices.load_matrix` takes them.
    device : BenchDevice
        Where to run.
    settings : Settings
        How to run.
    load : callable, optional
        Makes a matrix of a name and a seed; `dasp.io.matrices.load_matrix` by default.
    plan : callable, optional
        Makes an operator of a CSR matrix; by default what the policy says.
    resume : bool
        Take a row from the file where it was measured by the same commit on the same machine.
    """
    load = load or _load
    plan = plan or planner(device, settings.policy)
    where = device.columns()
    wanted = {"dtype": settings.dtype, "device": device.kind, "policy": settings.policy, **where}
    done = {results.key(row): row for row in results.read(settings.csv)} if resume and settings.csv else {}
    rows: list[dict[str, str]] = []
    ready = False
    for spec in progress(specs):
        name = short_name(spec)
        known = done.get(results.key({"matrix": name, **wanted}))
        if known is not None:
            rows.append(known)
            continue
        csr = load(spec, settings.seed)
        if not ready:
            warm_up(plan, device, np.dtype(settings.dtype))
            ready = True
        result = measure(
            name,
            csr,
            device,
            plan=plan,
            policy=settings.policy,
            dtype=np.dtype(settings.dtype),
            seed=settings.seed,
            samples=settings.samples,
            baselines=settings.baselines,
            machine=where,
        )
        rows.append({**result.row(), "seed": str(settings.seed), "date": time.strftime("%Y-%m-%d")})
        if settings.csv:
            results.append(settings.csv, rows[-1])
    return rows


def _load(spec: str, seed: int) -> Any:
    from dasp.io.matrices import load_matrix

    return load_matrix(spec, seed=seed)


def short_name(spec: str) -> str:
    """A file's name without folder and suffix; a model's specification as it is.

    Examples
    --------
    >>> short_name("/data/cant.mtx.gz"), short_name("poisson3d:100")
    ('cant', 'poisson3d:100')
    """
    name = Path(spec).name
    for suffix in (".gz", ".mtx", ".npz"):
        name = name.removesuffix(suffix)
    return name


def verified(rows: Iterable[dict[str, str]]) -> bool:
    """Whether the product of every matrix was right."""
    return all(row.get("verified") == "yes" for row in rows)
