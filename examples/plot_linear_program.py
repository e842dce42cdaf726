"""
A linear program by its first-order method
==========================================

Ship goods from depots to shops at the least cost. Linear programs too large for a
factorisation are solved by two products an iteration, one with A and one with its
transpose: that is PDLP (Applegate et al., 2021), the primal-dual hybrid gradient with
averages and restarts. Here it is in thirty lines.
"""

# %%
# Depots and shops in a plane. A variable for each pair: how much is shipped. An
# equation for each depot and each shop: what it has, or needs. All entries of A are 1,
# so its plan stores no value.

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse
from scipy.optimize import linprog

import dasp

rng = np.random.default_rng(5)
depots, shops = 40, 120
places = rng.uniform(0, 100, (depots + shops, 2))  # km
supply = rng.dirichlet(np.full(depots, 3.0))
demand = rng.dirichlet(np.full(shops, 3.0))
pair = np.arange(depots * shops)
from_depot, to_shop = pair // shops, pair % shops
# Km of each pair
c = np.linalg.norm(places[from_depot] - places[depots + to_shop], axis=1)
b = np.concatenate([supply, demand])

coords = np.concatenate([from_depot, depots + to_shop]), np.tile(pair, 2)
A = dasp.SpMatrix.from_coo(
    np.ones(2 * len(pair)), coords, (len(b), len(c)), device="cpu"
)
At = A.T  # planned once, kept
print(f"{A.shape[1]:,} variables, {A.shape[0]} equations")

# %%
# min c'x with A x = b and x >= 0; the dual is max b'y with A'y <= c. A point is judged
# by how far it is from either set, and by the gap between the two values.


def errors(x, y):
    """Return the relative errors of the primal and of the dual, and the gap."""
    primal = np.linalg.norm(A @ x - b) / (1 + np.linalg.norm(b))
    dual = np.linalg.norm(np.maximum(At @ y - c, 0)) / (1 + np.linalg.norm(c))
    gap = abs(c @ x - b @ y) / (1 + abs(c @ x) + abs(b @ y))
    return np.array([primal, dual, gap])


# %%
# Steps of 1 / norm(A), which for this A is at most the root of the longest row times
# the longest column. The weight balances primal and dual steps, and is set anew by how
# far each moved between restarts.

step = 0.99 / np.sqrt(2 * max(depots, shops))
weight = np.linalg.norm(c) / np.linalg.norm(b)
x, y = np.zeros(len(c)), np.zeros(len(b))
x_mean, y_mean, count = x.copy(), y.copy(), 0
x_last, y_last, last = x, y, np.inf
history, restarts = [], []
back = At @ y
for iteration in range(1, 40_001):
    moved = np.maximum(x - step / weight * (c - back), 0)
    y = y + step * weight * (b - A @ (2 * moved - x))
    x, back, count = moved, At @ y, count + 1
    x_mean += (x - x_mean) / count
    y_mean += (y - y_mean) / count
    if iteration % 50:
        continue
    now, mean = errors(x, y), errors(x_mean, y_mean)
    history.append((iteration, *np.minimum(now, mean)))
    if min(now.max(), mean.max()) < 0.3 * last or count > 0.4 * iteration:
        if mean.max() < now.max():
            x, y = x_mean.copy(), y_mean.copy()
            back = At @ y
        far_x, far_y = np.linalg.norm(x - x_last), np.linalg.norm(y - y_last)
        if far_x > 0 and far_y > 0:
            weight = np.exp(0.5 * np.log(far_y / far_x) + 0.5 * np.log(weight))
        x_last, y_last, last = x, y, errors(x, y).max()
        x_mean, y_mean, count = x.copy(), y.copy(), 0
        restarts.append(iteration)
        if last < 1e-5:
            break
print(f"{iteration:,} iterations, {len(restarts)} restarts, errors {errors(x, y)}")

# %%
# The simplex method agrees.

exact = linprog(c, A_eq=scipy.sparse.csr_array(A.to_scipy()), b_eq=b, method="highs")
print(f"cost {c @ x:.6f} km, by HiGHS {exact.fun:.6f} km")
assert abs(c @ x - exact.fun) <= 1e-4 * exact.fun

# %%
figure, (town, course) = plt.subplots(1, 2, figsize=(6.8, 3.5), layout="constrained")
used = np.flatnonzero(x > 1e-5)
for k in used:
    town.plot(
        *places[[from_depot[k], depots + to_shop[k]]].T,
        color="0.6",
        linewidth=60 * x[k] + 0.3,
        zorder=1,
    )
town.scatter(
    *places[:depots].T,
    s=1500 * supply,
    color="#D55E00",
    label="depots",
    zorder=2,
    linewidths=0,
)
town.scatter(
    *places[depots:].T,
    s=1500 * demand,
    color="#0072B2",
    label="shops",
    zorder=3,
    linewidths=0,
)
town.set(
    xlabel="x (km)",
    ylabel="y (km)",
    aspect="equal",
    title=f"{len(used)} of {len(c):,} routes are used",
)
iterations, *curves = np.array(history).T
for curve, name, colour in zip(
    curves, ("equations", "dual", "gap"), ("#0072B2", "#E69F00", "#009E73"), strict=True
):
    course.semilogy(iterations, np.maximum(curve, 1e-16), color=colour, label=name)
course.set(
    xlabel="iterations", ylabel="relative error", title="restarted primal-dual gradient"
)
course.legend(frameon=False)
plt.show()
