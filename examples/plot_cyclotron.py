"""
An electron in a magnetic field: complex products
=================================================

On a grid, a magnetic field turns the phase of an electron that hops from one point to
the next, so the Hamiltonian H is a complex Hermitian matrix. Its motion, psi(t) =
exp(-i t H) psi(0), is a sum of Chebyshev polynomials of H (Tal-Ezer and Kosloff, 1984):
nothing but products, two vectors, and no error that grows.
"""

# %%
# Atomic units throughout: lengths in Bohr radii, times in 24 attoseconds. The hops
# carry the phase of the vector potential (Peierls, 1933), here that of a uniform field
# B in the symmetric gauge.

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse
from scipy.special import jv

import dasp

n, h, B = 160, 0.1, 1.0
x, y = ((np.indices((n, n))[::-1] - (n - 1) / 2) * h).reshape(2, -1)
number = np.arange(n * n).reshape(n, n)


def hops(start, end):
    """Return the entries of the hops from one set of points to their neighbours."""
    start, end = start.ravel(), end.ravel()
    middle_x, middle_y = (x[start] + x[end]) / 2, (y[start] + y[end]) / 2
    potential = (
        B / 2 * (-middle_y * (x[end] - x[start]) + middle_x * (y[end] - y[start]))
    )
    return end, start, -0.5 / h**2 * np.exp(1j * potential)


parts = [hops(number[:, :-1], number[:, 1:]), hops(number[:-1], number[1:])]
row, column, value = (np.concatenate(each) for each in zip(*parts, strict=True))
H = scipy.sparse.coo_array((value, (row, column)), shape=(n * n, n * n))
H = (H + H.conj().T + 2 / h**2 * scipy.sparse.eye_array(n * n)).tocsr()

# %%
# All eigenvalues of H lie between 0 and 4 / h^2. The polynomials want them between -1
# and 1.

radius = 2 / h**2
A = dasp.SpMatrix((H / radius - scipy.sparse.eye_array(n * n)).tocsr(), device="cpu")
print(A)


def propagate(psi, t):
    """Return exp(-i t H) psi by some more than radius * t terms, a product each."""
    terms = int(radius * t + 20 + 5 * (radius * t) ** (1 / 3))
    order = np.arange(terms)
    weights = 2 * (-1j) ** order * jv(order, radius * t)
    before, now = psi.copy(), A @ psi
    total = weights[0] / 2 * before + weights[1] * now
    for weight in weights[2:]:
        # T_k = 2 A T_(k-1) - T_(k-2), in place
        A.matvec(now, out=before, alpha=2.0, beta=-1.0)
        before, now = now, before
        total += weight * now
    return np.exp(-1j * radius * t) * total


# %%
# A wave packet at the left, moving up. In a uniform field its centre must go round as a
# classical particle does (Ehrenfest), with a radius of momentum / B, and be back after
# 2 pi / B. On a grid it is a little late: kinetic energy is (1 - cos k h) / h^2 there,
# not k^2 / 2.

momentum = 2.0
x0 = -momentum / B
psi = np.exp(-B * ((x - x0) ** 2 + y**2) / 4 + 1j * (momentum + B / 2 * x0) * y)
psi /= np.linalg.norm(psi)

frames = 32
t = 2 * np.pi / B / frames
pictures, centre, norms = [np.abs(psi) ** 2], [], []
for frame in range(1, frames + 1):
    psi = propagate(psi, t)
    density = np.abs(psi) ** 2
    centre.append((density @ x, density @ y))
    norms.append(abs(density.sum() - 1))
    if frame % (frames // 4) == 0 and frame < frames:
        pictures.append(density)
centre = np.array(centre)

angle = np.pi - B * t * np.arange(1, frames + 1)
circle = momentum / B * np.stack([np.cos(angle), np.sin(angle)], axis=1)
away = np.linalg.norm(centre - circle, axis=1) / (momentum / B)
print(
    f"away from the circle by {away.max():.1%} of its radius at most; "
    f"the norm drifts by {max(norms):.0e}"
)
assert away.max() < 0.05
assert max(norms) < 1e-10

# %%
figure, (plane, drift) = plt.subplots(
    1, 2, figsize=(6.6, 3.3), layout="constrained", width_ratios=[5, 4]
)
edge = n * h / 2

plane.imshow(
    sum(pictures).reshape(n, n),
    extent=(-edge, edge, -edge, edge),
    origin="lower",
    cmap="magma",
)
plane.plot(
    *np.concatenate([circle, circle[:1]]).T,
    color="white",
    linewidth=0.8,
    label="classical",
)
plane.plot(*centre.T, "o", color="#56B4E9", markersize=3, label="centre of the packet")
plane.set(xlim=(-6, 6), ylim=(-6, 6), xlabel="x (Bohr radii)", ylabel="y (Bohr radii)")
plane.set_title("density at four times")
plane.legend(loc="lower right", fontsize=8)
time = t * np.arange(1, frames + 1)
drift.semilogy(time, np.maximum(norms, 1e-17), color="#D55E00", label="norm")
drift.semilogy(time, away, color="#0072B2", label="centre / radius")
drift.set(xlabel="time (atomic units)", ylabel="deviation", ylim=(1e-17, 1))
drift.legend(frameon=False)
plt.show()
