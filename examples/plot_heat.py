"""
Heat in a plate whose conductivity changes
==========================================

A plate is heated by a source at its centre and kept cold along its rim, and its
conductivity falls as it warms. Implicit steps in time,

    (M + dt K(u)) u_new = M u + dt f,

give a new matrix at every step, always with the same pattern. So the matrix is planned
once, and :meth:`~dasp.SpMatrix.with_values` puts in new values; conjugate gradients do
the rest.
"""

# %%
# The plate is a grid of finite volumes. The matrix couples each cell with its
# neighbours by the harmonic mean of their conductivities. Its pattern is known before
# any value is, so the assembly is written once as a function from temperatures to
# ``data``.

import time

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

import dasp

n = 150  # cells along a side
width = 0.2  # metres
cell = width / n
density_heat = 3.4e6  # J / (m^3 K): copper
dt = 0.05  # seconds

numbers = np.arange(n * n).reshape(n, n)
pairs = np.concatenate(
    [
        np.stack([numbers[:, :-1].ravel(), numbers[:, 1:].ravel()]),
        np.stack([numbers[:-1].ravel(), numbers[1:].ravel()]),
    ],
    axis=1,
)
rim = np.zeros((n, n))
for side in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
    rim[side] += 2.0  # half a cell to the wall


def conductivity(u):
    """Return W / (m K) at a temperature above the rim's, in K."""
    return 400.0 / (1.0 + 0.004 * u)


rows = np.concatenate([pairs[0], pairs[1], numbers.ravel()])
columns = np.concatenate([pairs[1], pairs[0], numbers.ravel()])


def entries(u):
    """Return the values of M + dt K(u), in the order of `rows` and `columns`."""
    k = conductivity(u)
    between = 2.0 / (1.0 / k[pairs[0]] + 1.0 / k[pairs[1]])
    diagonal = np.bincount(pairs.ravel(), np.tile(between, 2), n * n) + rim.ravel() * k
    diagonal = density_heat * cell**2 + dt * diagonal
    return np.concatenate([-dt * between, -dt * between, diagonal])


# %%
# One plan, many matrices. The values are written in place, and ``narrow=False`` keeps
# room for any value. There is no preconditioner: the diagonal varies so little that
# Jacobi takes a tenth more iterations than none, and the systems are too easy for a
# better one. Where one pays, ``M.update(A)`` gives it the new values too.

u = np.zeros(n * n)
source = np.zeros((n, n))
# W / m, in each cell
source[n // 2 - 8 : n // 2 + 8, n // 2 - 8 : n // 2 + 8] = 6.0e8 * cell**2

A = dasp.SpMatrix.from_coo(
    entries(u),
    (rows, columns),
    (n * n, n * n),
    policy=dasp.Policy(narrow=False),
    device="cpu",
)
workspace = dasp.solvers.Workspace()
mass = density_heat * cell**2

# The first calls compile; the loop below times later ones.
A.with_values(entries(u), out=A)
dasp.solvers.cg(A, dt * source.ravel(), rtol=1e-8, workspace=workspace)

seconds = {"new values": 0.0, "solve": 0.0}
hottest, iterations = [], []
lost = 0.0  # J / m, through the rim
for _ in range(60):
    start = time.perf_counter()
    A.with_values(entries(u), out=A)
    seconds["new values"] += time.perf_counter() - start

    start = time.perf_counter()
    u, stats = dasp.solvers.cg(
        A,
        mass * u + dt * source.ravel(),
        u,
        rtol=1e-8,
        workspace=workspace,
    )
    seconds["solve"] += time.perf_counter() - start
    assert stats.converged, stats
    lost += (A @ u).sum() - mass * u.sum()
    hottest.append(u.max())
    iterations.append(stats.iterations)

print(
    f"60 steps: {seconds['new values']:.2f} s for new values, "
    f"{seconds['solve']:.2f} s for the systems"
)
print(
    f"{min(iterations)} to {max(iterations)} iterations a step; "
    f"{hottest[-1]:.0f} K at the centre"
)

# %%
# No joule is lost: the heat of the source is in the plate or has left through the rim,
# to the tolerance of the solver.

given = 60 * dt * source.sum()
stored = mass * u.sum()
print(f"given {given:,.0f} J / m = stored {stored:,.0f} + lost {lost:,.0f}")
assert abs(stored + lost - given) <= 1e-6 * given

# %%
# The plate after three seconds, and the centre on the way there.

figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained")
image = left.imshow(
    u.reshape(n, n),
    extent=(0, 100 * width, 0, 100 * width),
    cmap="inferno",
    origin="lower",
)
left.set(xlabel="x (cm)", ylabel="y (cm)", title=f"after {60 * dt:.0f} s")
figure.colorbar(image, ax=left, label="K above the rim")
right.plot(dt * np.arange(1, 61), hottest, color="#0072B2")
right.set(xlabel="time (s)", ylabel="hottest cell (K above the rim)", ylim=(0, None))
plt.show()

# %%
# A matrix assembled by SciPy and planned anew at each step would give the same numbers:

again = scipy.sparse.coo_array((entries(u), (rows, columns)), shape=A.shape).tocsr()
np.testing.assert_allclose(A.with_values(entries(u)) @ u, again @ u, rtol=1e-12)
