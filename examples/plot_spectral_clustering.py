"""
Spectral clustering: eigenvectors of a graph
============================================

Two spirals and a blob: no line parts them, and k-means on the coordinates cannot. On
the graph of near neighbours they hardly touch, and the first eigenvectors of its
Laplacian say which is which. :func:`~dasp.solvers.lobpcg` finds them by products, and
multigrid makes it quick.
"""

# %%
# The points, and each one's ten nearest neighbours with weights that fall with
# distance.

import matplotlib.pyplot as plt
import numpy as np
import pyamg
import scipy.sparse
from scipy.cluster.vq import kmeans2
from scipy.spatial import cKDTree

import dasp

rng = np.random.default_rng(3)
each = 2500
turn = np.sqrt(rng.uniform(0.05, 1, each)) * 3.2 * np.pi
spiral = np.stack([turn * np.cos(turn), turn * np.sin(turn)], axis=1)
blob = rng.normal((16, 0), 1.2, (each // 2, 2))
points = np.concatenate([spiral, -spiral, blob]) + rng.normal(
    0, 0.25, (2 * each + each // 2, 2)
)
truth = np.repeat([0, 1, 2], [each, each, each // 2])

distance, neighbour = cKDTree(points).query(points, k=11)
width = np.median(distance[:, -1])
weights = np.exp(-((distance[:, 1:] / width) ** 2)).ravel()
i = np.repeat(np.arange(len(points)), 10)
graph = scipy.sparse.coo_array(
    (weights, (i, neighbour[:, 1:].ravel())), shape=(len(points),) * 2
).tocsr()
graph = graph.maximum(graph.T).tocsr()  # neighbours of each other

# %%
# The normalised Laplacian I - D^-1/2 W D^-1/2. Its least eigenvalues lie close
# together, as those of any large graph do, so plain iterations are slow. A multigrid
# cycle approximates the inverse. A small shift makes the inverse exist, and the
# eigenvalues are still those of the Laplacian itself.

scale = scipy.sparse.diags_array(1 / np.sqrt(graph.sum(axis=1)))
eye = scipy.sparse.eye_array(len(points))
laplacian = (eye - scale @ graph @ scale).tocsr()
A = dasp.SpMatrix.from_scipy(laplacian, device="cpu")
hierarchy = pyamg.smoothed_aggregation_solver(
    scipy.sparse.csr_matrix(laplacian + 1e-4 * eye)
)
M = dasp.preconditioners.multigrid(hierarchy, device="cpu")
start = rng.standard_normal((A.shape[0], 5))
for name, preconditioner in (("plain", None), ("multigrid", M)):
    values, vectors, stats = dasp.solvers.lobpcg(
        A, start, largest=False, rtol=1e-4, maxiter=60, M=preconditioner
    )
    print(
        f"{name:10}{stats.iterations:>4} iterations, "
        f"largest residual {stats.residual:.1e}"
    )
assert stats.converged, stats
print(f"{A.shape[0]:,} points, {A.nnz:,} entries; eigenvalues", np.round(values, 5))

# %%
# Points of one cluster have equal rows in the first three vectors, up to a length, so
# k-means now has an easy task.

rows = vectors[:, :3] / np.linalg.norm(vectors[:, :3], axis=1, keepdims=True)
_, found = kmeans2(rows, 3, minit="++", seed=2)
_, by_place = kmeans2(points, 3, minit="++", seed=2)


def agreement(labels):
    """Return the share of points that lie with most of their cluster."""
    table = np.zeros((3, 3))
    np.add.at(table, (truth, labels), 1)
    return table.max(axis=0).sum() / len(labels)


print(
    f"right: {agreement(found):.1%} by the graph, "
    f"{agreement(by_place):.1%} by the coordinates"
)
assert agreement(found) > 0.98 > agreement(by_place)

# %%
# The clusters of k-means, from the coordinates and from the eigenvectors.

colours = np.array(["#0072B2", "#E69F00", "#009E73"])
figure, panels = plt.subplots(
    1, 2, figsize=(6.4, 3.4), layout="constrained", sharey=True
)
for axes, labels, title in zip(
    panels, (by_place, found), ("by coordinates", "by eigenvectors"), strict=True
):
    axes.scatter(*points.T, s=1, c=colours[labels], linewidths=0)
    axes.set(
        title=f"{title}: {agreement(labels):.0%} right", xlabel="x", aspect="equal"
    )
panels[0].set_ylabel("y")
plt.show()
