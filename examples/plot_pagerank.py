"""
PageRank: a matrix without values
=================================

PageRank is the stationary distribution of a reader who follows a random link 85 times
in a hundred, and jumps to any page the other 15. Its matrix is that of the links, each
column divided by the number of links of its page. Divide the *vector* instead, and
every stored value is 1: then a plan stores no values at all.
"""

# %%
# A model of the web: links inside hosts, and to popular pages. Row i lists the pages
# that link to page i.

import matplotlib.pyplot as plt
import numpy as np

import dasp

links = dasp.models.generate("powerlaw:200000", seed=1)
links.data[:] = 1.0
n = links.shape[0]
out = np.bincount(links.indices, minlength=n)  # links of each page

weighted = links.copy()
weighted.data = 1.0 / out[links.indices]

A = dasp.SpMatrix.from_scipy(links, device="cpu")
B = dasp.SpMatrix.from_scipy(weighted, device="cpu")
csr = links.data.nbytes + links.indices.nbytes + links.indptr.nbytes
print(f"{n:,} pages, {links.nnz:,} links")
for name, size in (
    ("CSR", csr),
    ("plan of 1 / links", B.nbytes),
    ("plan of ones", A.nbytes),
):
    print(f"{name:20}{size / 1e6:6.1f} MB")
assert A.nbytes < csr / 2

# %%
# The power method. One product and a few passes over vectors an iteration; pages
# without links jump anywhere.

damping = 0.85
share = np.divide(1.0, out, out=np.zeros(n), where=out > 0)
dangling = out == 0

rank = np.full(n, 1 / n)
changes = []
product = np.empty(n)
while not changes or changes[-1] > 1e-10:
    A.matvec(rank * share, out=product, alpha=damping)
    product += (1 - damping * (1 - rank[dangling].sum())) / n
    changes.append(np.abs(product - rank).sum())
    rank, product = product, rank
print(f"power method: {len(changes)} iterations; the sum of ranks is {rank.sum():.12f}")

# %%
# The same as a linear system, (I - d P) r = v, for :func:`~dasp.solvers.bicgstab`.
# Anything with a shape, a dtype and ``@`` is a matrix to a solver, so the identity
# needs no plan.


class WithoutJumps:
    """I - d P, where P follows a link."""

    shape, dtype = A.shape, A.dtype

    def __matmul__(self, x):
        """Return x - d P x."""
        return x - A.matvec(x * share, alpha=damping)


solved, stats = dasp.solvers.bicgstab(WithoutJumps(), np.full(n, 1 / n), rtol=1e-10)
solved /= solved.sum()
assert stats.converged, stats
assert np.abs(solved - rank).sum() < 1e-8
print(f"bicgstab: {2 * stats.iterations} products, the power method {len(changes)}")

# %%
# Ranks fall as a power of their place, which is why a few pages are all that a search
# shows.

figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
left.loglog(np.arange(1, n + 1), np.sort(rank)[::-1], color="#0072B2")
left.set(xlabel="place of the page", ylabel="rank (share of visits)", title="PageRank")
steps = np.arange(len(changes))
right.semilogy(steps + 1, changes, color="#D55E00", label="measured")
right.semilogy(steps + 1, changes[0] * damping**steps, "k:", label="0.85 each")
right.set(xlabel="iteration", ylabel="change (1-norm)", title="power method")
right.legend(frameon=False)
plt.show()
