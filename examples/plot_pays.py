"""
Does a plan pay for your matrix?
================================

A plan costs as much as some products. This example measures on the machine that runs
it: how long planning takes, how long a product takes by SciPy and by dasp, and from how
many products on the plan has paid.
"""

# %%
# Each time is the best of several, after a first call that compiles. SciPy's product
# runs on one thread, so ours gets one too; leave the line out to use all threads.

import time

import matplotlib.pyplot as plt
import numpy as np

import dasp

dasp.set_num_threads(1)


def seconds(call, repeats=7):
    """Return the least time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


names = ("poisson3d:40", "fem3:16", "rmat:14", "random:30000:30000:0.0003")
found = {}
for name in names:
    csr = dasp.models.generate(name)
    A = dasp.SpMatrix.from_scipy(csr, device="cpu")
    x = np.random.default_rng(0).standard_normal(A.shape[1])
    y = A @ x
    gamma = 2 * np.diff(csr.indptr) * np.finfo(float).eps
    assert (np.abs(y - csr @ x) <= gamma * (abs(csr) @ np.abs(x))).all()
    plan = seconds(lambda csr=csr: dasp.SpMatrix.from_scipy(csr, device="cpu"), 3)
    found[name] = (
        plan,
        seconds(lambda A=A, x=x: A @ x),
        seconds(lambda csr=csr, x=x: csr @ x),
    )

print(f"{'matrix':28}{'plan':>10}{'SciPy':>10}{'dasp':>10}{'pays after':>12}")
for name, (plan, ours, theirs) in found.items():
    pays = f"{plan / (theirs - ours):,.0f}" if ours < theirs else "never"
    print(
        f"{name:28}{1e3 * plan:>7.1f} ms{1e6 * theirs:>7.0f} us"
        f"{1e6 * ours:>7.0f} us{pays:>12}"
    )

# %%
# All that matters in one picture: the total time over the number of products. Where the
# lines cross, the plan has paid.

figure, panels = plt.subplots(2, 2, figsize=(6.4, 5.2), layout="constrained")
counts = np.geomspace(1, 1e4, 200)
for axes, (name, (plan, ours, theirs)) in zip(panels.flat, found.items(), strict=True):
    axes.loglog(counts, 1e3 * theirs * counts, color="#D55E00", label="SciPy")
    axes.loglog(
        counts,
        1e3 * (plan + ours * counts),
        color="#0072B2",
        label="dasp, plan included",
    )
    if ours < theirs:
        axes.axvline(plan / (theirs - ours), color="0.5", linewidth=0.8, linestyle="--")
    axes.set_title(name)
for axes in panels[-1]:
    axes.set_xlabel("products")
for axes in panels[:, 0]:
    axes.set_ylabel("total time (ms)")
panels[0, 0].legend(frameon=False)
plt.show()

dasp.set_num_threads(None)  # as it was
