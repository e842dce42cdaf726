"""
The sound of a room: an indefinite Helmholtz equation
=====================================================

A loudspeaker plays one tone in a room with hard walls. The pressure p obeys

    -div grad p - k^2 p = source,

whose matrix is symmetric and *indefinite*: some modes of the room lie below the
frequency played. Conjugate gradients do not apply; :func:`~dasp.solvers.minres` does,
and takes a preconditioner that is positive definite: here multigrid for the same
equation with the sign of k^2 changed.
"""

# %%
# A room of 8 m by 5 m with a pillar and a half wall, cut into square cells. Hard walls
# reflect everything: no flux through them.

import time

import matplotlib.pyplot as plt
import numpy as np
import pyamg
import scipy.sparse
import scipy.sparse.linalg

import dasp

cell = 0.04  # metres
frequency, speed = 220.0, 343.0  # hertz, metres a second
shape = (125, 200)  # cells down and across
y, x = (np.indices(shape) + 0.5) * cell
air = ~((abs(x - 5.5) < 0.3) & (abs(y - 1.6) < 0.3)) & ~(
    (abs(x - 3.0) < 0.1) & (y < 3.2)
)

number = np.full(shape, -1)
number[air] = np.arange(air.sum())
pairs = np.concatenate(
    [
        np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], axis=1),
        np.stack([number[:-1].ravel(), number[1:].ravel()], axis=1),
    ]
)
i, j = pairs[(pairs >= 0).all(axis=1)].T
n = int(air.sum())
links = scipy.sparse.coo_array(
    (np.ones(2 * len(i)), (np.r_[i, j], np.r_[j, i])), shape=(n, n)
)
laplacian = (scipy.sparse.diags_array(links.sum(axis=1)) - links).tocsr() / cell**2

k = 2 * np.pi * frequency / speed
helmholtz = (laplacian - k**2 * scipy.sparse.eye_array(n)).tocsr()
print(f"{n:,} cells, {speed / frequency / cell:.0f} of them a wavelength")

# %%
# The source is a small loudspeaker in a corner. The preconditioner saves nine
# iterations in ten, but each of its cycles costs several products. So compare the
# seconds.

loudspeaker = np.exp(-((x - 0.8) ** 2 + (y - 0.8) ** 2) / 0.08**2)[air]

A = dasp.SpMatrix.from_scipy(helmholtz, device="cpu")
positive = (laplacian + k**2 * scipy.sparse.eye_array(n)).tocsr()
M = dasp.preconditioners.multigrid(
    pyamg.ruge_stuben_solver(scipy.sparse.csr_matrix(positive)), device="cpu"
)

histories = {}
for name, preconditioner in (
    ("plain", None),
    ("multigrid for the shifted equation", M),
):
    # Compiles; the next solve is timed
    dasp.solvers.minres(A, loudspeaker, M=preconditioner, maxiter=1)
    p, stats = dasp.solvers.minres(
        A, loudspeaker, rtol=1e-6, M=preconditioner, check_every=1, maxiter=20_000
    )
    assert stats.converged, stats
    histories[name] = np.array(stats.residuals) / np.linalg.norm(loudspeaker)
    print(f"{name:36}{stats.iterations:>6} iterations {stats.seconds:7.2f} s")

# %%
# A sparse factorisation takes no iterations at all. In two dimensions its factors have
# few entries, and it is the fastest of the three. In three dimensions they soon have
# too many.

start = time.perf_counter()
factors = scipy.sparse.linalg.splu(
    helmholtz.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}
)
direct = factors.solve(loudspeaker)
seconds = time.perf_counter() - start
print(f"{'a factorisation by SciPy':36}{'no':>6} iterations {seconds:7.2f} s")
assert np.linalg.norm(p - direct) < 1e-3 * np.linalg.norm(direct)

# %%
# How indefinite is it? The matrix has a negative eigenvalue for each mode of a lower
# frequency. :func:`~dasp.solvers.lobpcg` finds the lowest modes; the first is constant,
# at 0 Hz.

K = dasp.SpMatrix.from_scipy(laplacian, device="cpu")
start = np.random.default_rng(0).standard_normal((n, 6))
squares, modes, stats = dasp.solvers.lobpcg(K, start, largest=False, M=M, rtol=1e-7)
hertz = np.sqrt(np.maximum(squares, 0)) * speed / (2 * np.pi)
print("the lowest modes:", ", ".join(f"{f:.1f} Hz" for f in hertz))
assert hertz[-1] < frequency  # so the system is indefinite indeed

# %%
# Standing waves: quiet lines between loud ones, and the half wall's shadow.

level = np.full(shape, np.nan)
level[air] = 20 * np.log10(np.abs(p) / np.abs(p).max() + 1e-4)
figure, (room, history) = plt.subplots(
    2, 1, figsize=(6.0, 6.0), layout="constrained", height_ratios=[3, 2]
)
size = (0, shape[1] * cell, 0, shape[0] * cell)
image = room.imshow(level, extent=size, origin="lower", cmap="magma", vmin=-50, vmax=0)
room.set(xlabel="x (m)", ylabel="y (m)", title=f"sound at {frequency:.0f} Hz")
figure.colorbar(image, ax=room, label="level (dB below the loudest)", shrink=0.9)
for (name, residuals), colour in zip(
    histories.items(), ("#D55E00", "#0072B2"), strict=True
):
    history.semilogy(np.arange(len(residuals)), residuals, color=colour, label=name)
history.set(xlabel="iterations of minres", ylabel="residual / source", xscale="symlog")
history.legend(frameon=False)
plt.show()
