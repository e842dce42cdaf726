"""
A bracket under load: elasticity with multigrid
===============================================

A steel plate with two holes is clamped at its left edge and pulled down at its right
one. Plane stress, bilinear elements, two unknowns a node. Systems of elasticity are ill
conditioned, and their slow modes are the motions of a rigid body. Multigrid needs these
motions as input.
"""

# %%
# The mesh is a grid of square elements from which the holes are left out. All elements
# are equal, so there is one stiffness matrix, integrated by 2 x 2 Gauss points.

import matplotlib.pyplot as plt
import numpy as np
import pyamg
import scipy.sparse

import dasp

columns, rows = 240, 80  # elements
side = 1.2 / columns  # metres
thickness, young, poisson = 0.01, 210e9, 0.3  # metres, Pa
load = 2000.0  # newtons

elasticity = (
    np.array([[1, poisson, 0], [poisson, 1, 0], [0, 0, (1 - poisson) / 2]])
    * young
    / (1 - poisson**2)
)
corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])


def strains(xi, eta):
    """Return the matrix from displacements to strains at a point of [-1, 1]^2."""
    slopes = corners * (1 + corners[:, ::-1] * [eta, xi]) / (2 * side)
    matrix = np.zeros((3, 8))
    matrix[0, ::2] = matrix[2, 1::2] = slopes[:, 0]
    matrix[1, 1::2] = matrix[2, ::2] = slopes[:, 1]
    return matrix


points = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) / np.sqrt(3)
stiffness = (
    sum(strains(*p).T @ elasticity @ strains(*p) for p in points)
    * thickness
    * side**2
    / 4
)

x, y = np.meshgrid(np.arange(columns) + 0.5, np.arange(rows) + 0.5)
solid = np.ones((rows, columns), bool)
for middle in (0.33, 0.67):
    solid &= (x - middle * columns) ** 2 + (y - rows / 2) ** 2 > (0.28 * rows) ** 2
j, i = np.nonzero(solid)
element = np.stack([j, j, j + 1, j + 1]) * (columns + 1) + np.stack(
    [i, i + 1, i + 1, i]
)

# %%
# The system has all nodes except those that are clamped, and those that no element
# touches.

touched = np.unique(element)
free = touched[touched % (columns + 1) > 0]
number = np.full((rows + 1) * (columns + 1), -1)
number[free] = np.arange(len(free))

unknowns = 2 * np.repeat(number[element], 2, axis=0) + np.tile([0, 1], 4)[:, None]
unknowns[np.repeat(number[element], 2, axis=0) < 0] = -1
row = np.broadcast_to(unknowns[:, None], (8, 8, unknowns.shape[1]))
column = np.broadcast_to(unknowns[None], row.shape)
values = np.broadcast_to(stiffness[:, :, None], row.shape)
kept = (row >= 0) & (column >= 0)
size = 2 * len(free)
csr = scipy.sparse.csr_array(
    (values[kept], (row[kept], column[kept])), shape=(size, size)
)

b = np.zeros(csr.shape[0])
right = number[free[free % (columns + 1) == columns]]
b[2 * right + 1] = -load / len(right)
print(f"{csr.shape[0]:,} unknowns, {csr.nnz:,} entries")

# %%
# The rigid motions of the plane are two translations and a rotation. Smoothed
# aggregation with them, without them, and no preconditioner at all. The set-up of
# multigrid is not in the times. With it, multigrid takes about as long as SciPy's
# ``splu``, because the mesh has two dimensions; in three ``splu`` takes far longer.

place = side * np.stack([free % (columns + 1), free // (columns + 1)], axis=1)
rigid = np.zeros((csr.shape[0], 3))
rigid[::2, 0] = rigid[1::2, 1] = 1
rigid[::2, 2], rigid[1::2, 2] = -place[:, 1], place[:, 0]

A = dasp.SpMatrix.from_scipy(csr, device="cpu")
# Tells PyAMG which unknowns share a node
blocks = scipy.sparse.csr_matrix(csr).tobsr(blocksize=(2, 2))
preconditioners = {
    "none": None,
    "multigrid": dasp.preconditioners.multigrid(
        pyamg.smoothed_aggregation_solver(csr), device="cpu"
    ),
    "multigrid that knows rigid motions": dasp.preconditioners.multigrid(
        pyamg.smoothed_aggregation_solver(blocks, B=rigid), device="cpu"
    ),
}
histories = {}
for name, M in preconditioners.items():
    # Compiles, so that the next line times the solve alone
    dasp.solvers.cg(A, b, M=M, maxiter=1)
    u, stats = dasp.solvers.cg(A, b, rtol=1e-8, M=M, check_every=1, maxiter=20_000)
    assert stats.converged, stats
    histories[name] = np.array(stats.residuals) / np.linalg.norm(b)
    print(f"{name:36}{stats.iterations:>6} iterations {stats.seconds:8.2f} s")

# %%
# The answer holds itself up: the force at the clamp balances the load.

full = np.zeros(2 * (rows + 1) * (columns + 1))
full.reshape(-1, 2)[free] = u.reshape(-1, 2)
displaced = full.reshape(-1, 2)[element]  # (4, elements, 2)
forces = np.einsum("ab,be->ae", stiffness, displaced.transpose(0, 2, 1).reshape(8, -1))
clamped = element % (columns + 1) == 0
assert np.isclose(forces[1::2][clamped].sum(), load, rtol=1e-6)

# %%
# Stress in the middle of each element (von Mises), drawn on the plate as it bends,
# enlarged.

stress = elasticity @ strains(0, 0) @ displaced.transpose(0, 2, 1).reshape(8, -1)
mises = np.sqrt(
    stress[0] ** 2 - stress[0] * stress[1] + stress[1] ** 2 + 3 * stress[2] ** 2
)
enlarged = 0.08 / np.abs(u).max()
outline = (
    np.stack([element % (columns + 1), element // (columns + 1)], axis=2) * side
    + enlarged * displaced
)

figure, (plate, history) = plt.subplots(
    2, 1, figsize=(6.4, 5.6), layout="constrained", height_ratios=[3, 2]
)
drawn = plate.scatter(
    *outline.mean(axis=0).T,
    c=mises / 1e6,
    s=5,
    marker="s",
    cmap="viridis",
    linewidths=0,
)
plate.set(
    xlabel="x (m)",
    ylabel="y (m)",
    aspect="equal",
    title=f"displacements enlarged {enlarged:,.0f} times",
)
figure.colorbar(drawn, ax=plate, label="von Mises stress (MPa)")
for (name, residuals), colour in zip(
    histories.items(), ("#D55E00", "#E69F00", "#0072B2"), strict=True
):
    history.semilogy(np.arange(len(residuals)) + 1, residuals, color=colour, label=name)
history.set(xlabel="iterations", ylabel="residual / load", xscale="log")
history.legend(frameon=False)
plt.show()
