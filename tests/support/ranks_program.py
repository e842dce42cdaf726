"""The program that distributed/test_ranks.py starts: `mpi`, `gloo RANK SIZE PORT`, or a test of a rank's end.

`gloo,nccl RANK SIZE PORT` runs all cases again with an NCCL group, which needs a GPU for each rank and sends
between GPUs by NCCL. The second run reuses the kernels that the first has compiled.

With DASP_RANKS_DEVICE=cuda each rank has a GPU. DASP_RANKS_CASES names the cases to run, DASP_RANKS_TEAM=2/4
takes the second of every four, and DASP_RANKS_SIZES gives the numbers of ranks. After DASP_RANKS_SECONDS a
process prints its stacks and ends.

It prints a line for each case that failed on a rank or that rank 0 has ended, and at last how many failed.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

import dasp
from dasp import solvers
from dasp.distributed import RankError, SpMatrix, find_communicator, mpi, peers, preconditioners
from dasp.distributed.launch import TRANSPORT_VARIABLE, find_rank_device, find_transport
from dasp.models import generate
from tests.support import gallery, reference

DEVICE = os.environ.get("DASP_RANKS_DEVICE", "cpu")
SIZES = (2, 3) if DEVICE == "cpu" else (1, 2, 3, 4)
SIZES = tuple(map(int, os.environ.get("DASP_RANKS_SIZES", ",".join(map(str, SIZES))).split(",")))


def there(array: Any) -> Any:
    """Return an array on the device that multiplies."""
    if DEVICE == "cpu":
        return array
    import cupy

    return cupy.asarray(array)


def here(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


def transport_of(comm: Any) -> Any:
    """Return the transport between GPUs, or None on the CPU."""
    return None if DEVICE == "cpu" else find_transport(comm, find_rank_device(comm, DEVICE))


def agreed_bits(D: SpMatrix, x: Any) -> bool:
    first = here(D @ x)
    return all(here(D @ x).tobytes() == first.tobytes() for _ in range(3))


def check_product(comm: Any, matrix: Any) -> None:
    """Hold every row to its bound, and repeated products to the same bits."""
    root = comm.size - 1
    D = SpMatrix.from_scipy(matrix if comm.rank == root else None, comm, root=root, device=DEVICE)
    x = np.random.default_rng(1).standard_normal(matrix.shape[1])
    mine = x[D.columns.first : D.columns.first + D.columns.count]
    given = there(mine)
    y = here(D @ given)
    assert agreed_bits(D, given)
    first, end = D.rows.first, D.rows.first + D.rows.count
    local = matrix[first:end]
    want, size = reference.product(local, x)
    bound = reference.gamma(np.diff(local.indptr) + 3, np.float64) * size
    assert (abs(y - want) <= bound).all()
    out = there(np.full(D.local_shape[0], np.nan))
    assert here(D.matvec(given, out=out)).tobytes() == y.tobytes()
    two = np.stack([mine, -mine], axis=1)
    block = here(D @ there(two))
    single = here(D @ there(mine.astype(np.float32)))
    rounded = mine.astype(np.float32).astype(float)
    near, far = reference.product(local, np.concatenate(comm.gather(rounded)))
    assert (abs(single - near) <= reference.gamma(np.diff(local.indptr) + 3, np.float64) * far).all()
    for kind in ("?", "i1", "u8"):
        integers = np.arange(len(mine)).astype(kind)
        floats = here(D @ there(integers.astype(np.float64)))
        assert here(D @ there(integers)).tobytes() == floats.tobytes(), kind
    if DEVICE != "cpu":
        check_graph(D, given, y)
    assert (abs(block[:, 1] + want) <= bound).all()


def check_graph(D: SpMatrix, x: Any, want: Any) -> None:
    """Hold a captured product, with its messages inside, to the same bits, also for another x."""
    import cupy

    out, given = cupy.zeros(len(want)), x.copy()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        D.matvec(given, out=out)
        stream.begin_capture()
        for _ in range(3):
            D.matvec(given, out=out)
        graph = stream.end_capture()
        for factor in (1.0, -4.0):
            given[...] = factor * x
            out.fill(np.nan)
            graph.launch(stream)
            stream.synchronize()
            assert (factor * want).tobytes() == here(out).tobytes() or (factor * want == here(out)).all()


def check_solver(comm: Any) -> None:
    """Hold the true residual of the whole system, by SciPy's product, to `rtol`."""
    A = generate("poisson2d:20")
    D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device=DEVICE)
    b = there(np.ones(D.local_shape[0]))
    M = preconditioners.jacobi(D)
    for hidden, given in ((False, M), (False, None), (True, None)):
        D.hidden_sums = hidden
        x, stats = solvers.cg(D, b, rtol=1e-8, M=given)
        again, _ = solvers.cg(D, b, rtol=1e-8, M=given)
        x, again = here(x), here(again)
        whole = np.concatenate(comm.gather(x))
        assert stats.converged
        assert np.linalg.norm(1.0 - A @ whole) <= 1.0001e-8 * 20
        assert again.tobytes() == x.tobytes()
        assert len(set(comm.gather((stats.iterations, stats.residual)))) == 1


def check_type(comm: Any, dtype: str) -> None:
    """Hold products in a type to their bounds, also with other values and of transposes, and every method."""
    side = 12
    phases = sp.diags_array(np.exp(0.7j * np.arange(side**2)))
    rng = np.random.default_rng(9)
    is_complex = np.dtype(dtype).kind == "c"
    A = sp.csr_array(generate(f"poisson2d:{side}") * rng.uniform(0.5, 1.0))
    if is_complex:
        A = sp.csr_array(phases @ A @ phases.conj())
    A = A.astype(dtype)
    D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device=DEVICE)
    first, end = D.rows.first, D.rows.first + D.rows.count
    x = rng.standard_normal((side**2, 3)).astype(dtype)
    if is_complex:
        x += np.asarray(1j * rng.standard_normal(x.shape), dtype)
    other = sp.csr_array((rng.standard_normal(A.nnz).astype(dtype), A.indices, A.indptr), shape=A.shape)
    mine = slice(*A.indptr[[first, end]])
    for matrix, of_ranks in ((A, D), (other, D.with_values(there(other.data[mine])))):
        for op, whole in (("", matrix), ("T", matrix.T), ("H", matrix.conj().T)):
            operator = getattr(of_ranks, op) if op else of_ranks
            local = sp.csr_array(sp.csr_array(whole)[first:end])
            block = here(operator @ there(np.ascontiguousarray(x[first:end])))
            assert block.dtype == np.dtype(dtype)
            for k in range(3):
                y = here(operator @ there(np.ascontiguousarray(x[first:end, k])))
                want, size = reference.product(local, x[:, k])
                terms = 2 * np.diff(local.indptr) + 3
                bound = reference.gamma(terms, dtype) * size
                for got in (y, block[:, k]):
                    assert (abs(got.real - want.real) <= bound.real).all(), (dtype, op, k)
                    assert (abs(got.imag - want.imag) <= bound.imag).all(), (dtype, op, k)
    rtol = 1e-9 if np.dtype(dtype).itemsize == (16 if is_complex else 8) else 1e-4
    b = there(np.ascontiguousarray(x[first:end, 0]))
    for method in ("cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr"):
        for M in (None, preconditioners.jacobi(D)) if method[:2] != "ls" else (None,):
            more = {} if M is None else {"M": M}
            found, stats = getattr(solvers, method)(D, b, rtol=rtol, **more)
            again, _ = getattr(solvers, method)(D, b, rtol=rtol, **more)
            assert stats.converged, (dtype, method, stats)
            assert here(again).tobytes() == here(found).tobytes(), (dtype, method)
            solution = np.concatenate(comm.gather(here(found))).astype(complex)
            rounding = abs(A) @ abs(solution) + abs(x[:, 0])
            rounding = float(reference.gamma(2 * np.diff(A.indptr).max() + 3, dtype)) * rounding
            left = np.linalg.norm(x[:, 0] - A.astype(complex) @ solution)
            allowed = rtol * np.linalg.norm(x[:, 0]) + np.linalg.norm(rounding)
            assert left <= allowed, (dtype, method, left, allowed)


def check_pieces(comm: Any) -> None:
    """Hold messages that are too large for MPI's counts to arrive as they were sent."""
    comm.mpi.Barrier()  # no rank may read in other pieces than another one sends
    whole, mpi.MOST_BYTES = mpi.MOST_BYTES, 40
    try:
        check_product(comm, gallery.from_lengths(np.full(40, 30), 40, seed=3))
        comm.mpi.Barrier()
    finally:
        mpi.MOST_BYTES = whole


def check_many(comm: Any) -> None:
    """Multiply by several matrices in turn, while new ones replace old ones."""
    kept, rng = {}, np.random.default_rng(10)
    for turn in range(12):
        A = gallery.from_lengths(rng.integers(0, 12, 60), 60, seed=turn)
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device=DEVICE)
        kept[turn % 4] = A, D
        x = rng.standard_normal(60)
        for matrix, of_ranks in kept.values():
            part = slice(of_ranks.columns.first, of_ranks.columns.first + of_ranks.columns.count)
            y = np.concatenate(comm.gather(here(of_ranks @ there(x[part]))))
            want, size = reference.product(matrix, x)
            assert (abs(y - want) <= reference.gamma(np.diff(matrix.indptr) + 3, np.float64) * size).all()


def check_bytes(comm: Any) -> None:
    """Hold the transport's bytes to at most twice their first peak, after many matrices."""
    rng, kept = np.random.default_rng(11), []
    for turn in range(24):
        n = int(rng.integers(2, 60_000))
        A = sp.csr_array((np.ones(2), ([0, n - 1], [n - 1, 0])), shape=(n, n)) if turn % 2 else (
            sp.csr_array(sp.diags_array([np.ones(n), np.ones(n)], offsets=[0, n // 2], shape=(n, n)))
        )  # fmt: skip
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device=DEVICE)
        x = there(rng.standard_normal((n, 8))[D.rows.first : D.rows.first + D.rows.count])
        assert here(D @ x).shape == x.shape
        del D
        gc.collect()
        kept.append(getattr(transport_of(comm), "nbytes", 0))
    assert kept[-1] <= 2 * max(kept[:6]), kept


def check_freed(comm: Any, raw: Any) -> None:
    """Hold that freed communicators leave nothing in `peers.LEFT` but the last one's entries."""
    by_mpi = isinstance(comm, mpi.MpiCommunicator)
    if not by_mpi:
        import torch.distributed as dist

        if comm.size < dist.get_world_size():
            return  # all processes have to make a group
    A, left = generate("poisson2d:12"), set()
    for _ in range(4):
        own = raw.Dup() if by_mpi else dist.new_group(list(range(comm.size)))
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, own, device=DEVICE)
        x = there(np.ones(D.local_shape[1]))
        assert np.isfinite(here(D @ x)).all()
        left.add(len(peers.LEFT))
        own.Free() if by_mpi else dist.destroy_process_group(own)
    assert max(left) <= 2, left
    find_communicator(raw)  # the next call drops torch's destroyed groups
    if by_mpi:
        told = "nothing was raised"
        try:
            find_communicator(own)
        except ValueError as error:
            told = str(error)
        assert "comm is MPI.COMM_NULL" in told, told
    by_nccl = getattr(transport_of(comm), "name", "") == "nccl"  # which needs no group of the host
    if D.neighbours and not by_nccl:
        told = "nothing was raised"
        try:
            D @ x
        except RankError as error:
            told = str(error)
        assert "has been freed" in told, told


class GivesUp:
    """A stand-in for the transport between GPUs, which a rank may give up."""

    count, gave_up = 0, False

    def check(self) -> None:
        if self.gave_up:
            raise RankError("given up")

    def give_up(self) -> None:
        self.gave_up = True


def check_meet_again(comm: Any) -> None:
    """Hold that ranks end all calls, though they give up in different ones, some long before others."""
    comm.transports["for this case"] = transport = GivesUp()
    raised = 0
    comm.gather(None)
    time.sleep(0.2 * comm.rank)
    for turn in range(8):
        try:
            with comm.call:
                transport.check()
                transport.count += 1
        except RankError:
            raised += 1
        if turn == comm.rank:
            transport.give_up()
    comm.transports.clear()
    assert raised >= 7 - comm.rank, raised
    assert comm.gather(comm.rank) == list(range(comm.size))


def levels(A: Any, least: int) -> Any:
    """Return a hierarchy by smoothed aggregation that joins three consecutive rows on each level."""
    found = []
    while A.shape[0] > least:
        n = A.shape[0]
        whole = sp.csr_array((np.ones(n), (np.arange(n), np.arange(n) // 3)), shape=(n, -(-n // 3)))
        P = whole - 0.6 * (sp.diags_array(1 / A.diagonal()) @ (A @ whole))
        found.append(SimpleNamespace(A=A, P=P.tocsr(), R=P.T.tocsr()))
        A = (P.T @ A @ P).tocsr()
    return SimpleNamespace(levels=[*found, SimpleNamespace(A=A)])


def check_multigrid(comm: Any) -> None:
    """Hold a cycle over ranks to the same cycle on one, and cg with it to the true residual."""
    from dasp.preconditioners import multigrid

    A = generate("poisson3d:14")
    D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device=DEVICE)
    b = np.random.default_rng(8).standard_normal(A.shape[0])
    mine = b[D.rows.first : D.rows.first + D.rows.count]
    ml, least, preconditioners.LEAST_ROWS = levels(A, 100), preconditioners.LEAST_ROWS, 100
    try:
        M = preconditioners.multigrid(D, ml if comm.rank == 0 else None)
    finally:
        preconditioners.LEAST_ROWS = least
    cycle = np.concatenate(comm.gather(here(M @ there(mine))))
    want = here(multigrid(ml, device=DEVICE) @ there(b))
    assert np.linalg.norm(cycle - want) <= 1e-11 * np.linalg.norm(want)
    plain = solvers.cg(D, there(mine), rtol=1e-9)[1].iterations
    x, stats = solvers.cg(D, there(mine), rtol=1e-9, M=M)
    whole = np.concatenate(comm.gather(here(x)))
    assert stats.converged, stats
    assert stats.iterations < plain
    assert np.linalg.norm(b - A @ whole) <= 1.0001e-9 * np.linalg.norm(b)


def check_goes_on(comm: Any) -> None:
    """Hold that a failure on one rank ends the call on all at once, and that products are right after it."""
    A, odd = generate("poisson2d:20"), comm.rank == comm.size - 1
    D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device=DEVICE)
    part = slice(D.rows.first, D.rows.first + D.rows.count)
    b, M, polynomial = (
        there(np.ones(D.local_shape[0])),
        preconditioners.jacobi(D),
        preconditioners.chebyshev(D),
    )

    def fail(x: Any) -> None:
        if odd:
            raise KeyError("of a callback")

    def one(of_last: Any, of_others: Any) -> Any:
        return of_last if odd else of_others

    cases: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
        "callback": (RankError, lambda: solvers.cg(D, b, callback=fail)),
        "product in a callback": (RankError, lambda: solvers.cg(D, b, callback=lambda x: one(D, M) @ x)),
        "preconditioner": (ValueError, lambda: solvers.cg(D, b, M=one(None, M))),
        "method": (ValueError, lambda: one(solvers.cg, solvers.bicgstab)(D, b)),
        "products and sums": (RankError, lambda: one(solvers.cg, solvers.chebyshev)(D, b)),
        "rtol": (ValueError, lambda: solvers.gmres(D, b, rtol=one(-1, 1e-3))),
        "nan": (ValueError, lambda: solvers.lsqr(D, b, rtol=one(np.nan, 1e-3))),
        "maxiter": (ValueError, lambda: solvers.minres(D, b, maxiter=one(0, 9))),
        "restart": (ValueError, lambda: solvers.gmres(D, b, restart=one(0, 9))),
        "x": (ValueError, lambda: D @ np.ones(D.local_shape[1] + odd)),
        "out": (ValueError, lambda: D.matvec(b, out=np.ones(D.local_shape[0] + odd))),
        "set-up": (RankError, lambda: preconditioners.of_blocks(D, lambda block, device: {}[one(0, "")])),
        "name": (TypeError, lambda: solvers.cg(D, b, **one({"tol": 1e-3}, {"rtol": 1e-3}))),
        "name of a product": (TypeError, lambda: D.matvec(b, **one({"y": b}, {}))),
        "dasp.solve": (ValueError, lambda: dasp.solve(D, b, method=one("cgs", "cg"))),
        "polynomial": (ValueError, lambda: polynomial @ np.ones(D.local_shape[1] + odd)),
        "update": (TypeError, lambda: polynomial.update(one(A, D))),
        "type": (RankError, lambda: D @ np.ones(D.local_shape[1], one(np.float16, np.float64))),
        "transpose": (RankError, lambda: one(D.T, D) @ b),
        "values": (ValueError, lambda: D.with_values(np.ones(one(3, len(D._own))))),
        "type of values": (
            ValueError,
            lambda: D.with_values(np.ones(len(D._own), one(np.float32, np.float64))),
        ),
    }
    if comm.size > 2 and not isinstance(comm, mpi.MpiCommunicator):
        del cases["type"], cases["transpose"]  # in other calls torch may wait until the group times out
    want, size = reference.product(A, np.ones(A.shape[0]))
    bound = reference.gamma(np.diff(A.indptr) + 3, np.float64) * size
    assert (abs(D @ b - want[part]) <= bound[part]).all()
    for name, (kind, case) in cases.items():
        problem: Any = None
        try:
            case()
        except (RankError, KeyError, TypeError, ValueError) as error:
            problem = error
        waits = dict.fromkeys(("x", "polynomial", "type", "transpose"), comm.size - 1 in D.neighbours)
        waits |= {"out": False, "name of a product": comm.size - 1 in D.neighbours}  # others may have all
        if odd or waits.get(name, True):
            assert isinstance(problem, (kind, KeyError) if odd else kind), (name, problem)
        for _ in range(2):
            assert (abs(D @ b - want[part]) <= bound[part]).all(), name
    assert solvers.cg(D, b)[1].converged


def check_all(comm: Any, raw: Any) -> int:
    """Run every case and return how many failed on this rank."""
    every: dict[str, Any] = {"all to all": gallery.from_lengths(np.full(40, 30), 40, seed=3)}
    if DEVICE != "cpu":  # on CPUs, the tests of ranks in threads multiply by these
        every |= {
            "banded": generate("poisson2d:12"),
            "block diagonal": gallery.from_lengths(np.zeros(30, int), 30),
            "fewer rows than ranks": gallery.from_lengths([2, 0, 3], 3),
            "wide": gallery.from_lengths(np.tile([0, 9], 10), 57, seed=4),
        }
    cases: dict[str, Callable[[], None]] = {
        name: partial(check_product, comm, matrix) for name, matrix in every.items()
    }
    if isinstance(comm, mpi.MpiCommunicator):
        cases["in pieces"] = lambda: check_pieces(comm)
    cases["solver"] = lambda: check_solver(comm)
    if DEVICE != "cpu":  # where each type has its own kernels, and ranks write into each other's memory
        for dtype in ("f4", "f8", "c8", "c16"):
            cases[f"type {dtype}"] = partial(check_type, comm, dtype)
        cases["multigrid"] = lambda: check_multigrid(comm)
        cases["many"] = lambda: check_many(comm)
        cases["bytes"] = lambda: check_bytes(comm)
    else:
        cases["meet again"] = lambda: check_meet_again(comm)
        if comm.size > 1:
            cases["goes on"] = lambda: check_goes_on(comm)
    cases["freed"] = lambda: check_freed(comm, raw)
    if DEVICE != "cpu":
        transport = transport_of(comm)
        if comm.rank == 0:
            print(f"{comm.size} ranks, transport by {transport.name}", flush=True)
    failed, wanted = 0, os.environ.get("DASP_RANKS_CASES", ",".join(cases)).split(",")
    team, teams = map(int, os.environ.get("DASP_RANKS_TEAM", "1/1").split("/"))
    for name in wanted[team - 1 :: teams]:
        case, problem, began = cases[name], "", time.monotonic()
        try:
            case()
        except Exception:
            problem = traceback.format_exc()
        if problem:
            print(f"FAILED {name} on rank {comm.rank} of {comm.size}: {problem}", flush=True)
            failed += 1
        elif comm.rank == 0:
            print(f"{name} on {comm.size} ranks: {time.monotonic() - began:.2f} s", flush=True)
    return failed


def run_mpi() -> int:
    """Run all cases on communicators of several sizes, made of the ranks of one job."""
    from mpi4py import MPI

    world, failed = MPI.COMM_WORLD, 0
    sizes = [one for one in SIZES if one <= world.size]
    for size in sizes:
        part = world.Split(0 if world.rank < size else 1, world.rank)
        if world.rank < size:
            failed += check_all(find_communicator(part, timeout=60), part)
    total = world.allreduce(failed)
    if world.rank == 0:
        print(f"{len(sizes)} sizes, {total} failed", flush=True)
    return int(total > 0)


def run_group(backends: list[str], rank: int, size: int, port: int) -> int:
    """Run all cases on groups of several sizes, of each backend."""
    from datetime import timedelta

    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    failed = 0
    sizes = [one for one in SIZES if one <= size]
    for backend in backends:
        if backend == "nccl":
            import torch

            torch.cuda.set_device(rank % torch.cuda.device_count())
            os.environ[TRANSPORT_VARIABLE] = "nccl"
        for one in sizes:
            # A group of NCCL alone must hold all processes.
            both = "cpu:gloo,cuda:nccl" if backend == "nccl" and one < size else backend
            group = dist.new_group(list(range(one)), backend=both)
            if rank < one:
                failed += check_all(find_communicator(group), group)
    dist.barrier()
    if rank == 0:
        print(f"{len(sizes)} sizes, {failed} failed", flush=True)
    dist.destroy_process_group()
    return int(failed > 0)


def endless(comm: Any, ends: Callable[[], None], rank: int) -> int:
    """Solve for ever until rank 1 ends; on the other ranks, return once they notice."""
    A = generate("poisson2d:12")
    D = SpMatrix.from_scipy(A if rank == 0 else None, comm, device=DEVICE, timeout=60)
    x = there(np.ones(D.local_shape[1]))
    solvers.cg(D, x, rtol=1e-8)
    D.comm.timeout = 3.0  # now that no rank compiles any more
    began = time.monotonic()
    try:
        for turn in range(10**9):
            solvers.cg(D, x, rtol=1e-8)
            if rank == 1 and turn == 2:
                print("rank 1 ends", flush=True)
                ends()
                return 0
    except RankError as error:
        print(f"rank {rank} noticed after {time.monotonic() - began:.1f} s: {error}", flush=True)
    return 3


def main(words: list[str]) -> int:
    """Run the cases that the command line names."""
    if "DASP_RANKS_SECONDS" in os.environ:
        faulthandler.dump_traceback_later(float(os.environ["DASP_RANKS_SECONDS"]), exit=True)
    if words[0] == "mpi":
        return run_mpi()
    if words[0] in ("gloo", "gloo,nccl"):
        return run_group(words[0].split(","), *map(int, words[1:]))
    ends = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "leaves": lambda: None}[words[1]]
    if words[0] == "mpi-rank":
        from mpi4py import MPI

        return endless(MPI.COMM_WORLD, ends, MPI.COMM_WORLD.rank)
    from datetime import timedelta

    import torch.distributed as dist

    rank, size, port = map(int, words[2:])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=5))
    status = endless(dist.group.WORLD, ends, rank)
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
