"""
Tomography: an image from its shadows
=====================================

An X-ray measures how much matter lies along its ray. Many rays from each of many
directions give a sparse least-squares problem with more rows than columns, which
:func:`~dasp.solvers.lsqr` solves by products with A and with its transpose, ``A.T``:
one plan each, the second made on first use.
"""

# %%
# The matrix: for each ray, how much of it lies in each pixel. A ray is sampled at half
# a pixel's distance and each sample shared by the four pixels around it.

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

import dasp

n = 96  # pixels along a side
width = 0.2  # metres
directions, offsets = 90, 140
angle = np.pi * np.arange(directions) / directions
offset = np.linspace(-0.7, 0.7, offsets) * n
along = np.arange(-0.71 * n, 0.71 * n, 0.5)

x = (
    np.cos(angle)[:, None, None] * offset[:, None]
    - np.sin(angle)[:, None, None] * along
    + n / 2
    - 0.5
)
y = (
    np.sin(angle)[:, None, None] * offset[:, None]
    + np.cos(angle)[:, None, None] * along
    + n / 2
    - 0.5
)
ray = np.broadcast_to(
    np.arange(directions * offsets).reshape(directions, offsets, 1), x.shape
)
left, low = np.floor(x).astype(int), np.floor(y).astype(int)
rows, columns, values = [], [], []
for right, up in ((0, 0), (0, 1), (1, 0), (1, 1)):
    share = (1 - np.abs(x - left - right)) * (1 - np.abs(y - low - up))
    inside = (left + right >= 0) & (left + right < n) & (low + up >= 0) & (low + up < n)
    rows.append(ray[inside])
    columns.append(((low + up) * n + left + right)[inside])
    values.append(share[inside] * 0.5 * width / n)  # metres
coords = np.concatenate(rows), np.concatenate(columns)
samples = scipy.sparse.coo_array(
    (np.concatenate(values), coords), shape=(directions * offsets, n * n)
)
# Samples of a ray in one pixel are added up
A = dasp.SpMatrix.from_scipy(samples.tocsr(), device="cpu")
print(f"{A.shape[0]:,} rays, {A.shape[1]:,} pixels, {A.nnz:,} entries")

# %%
# The object (absorption per metre), its shadows, and the noise of the detector.

v, u = (np.indices((n, n)) + 0.5) / n * 2 - 1
phantom = np.zeros((n, n))
for cx, cy, rx, ry, tilt, more in (
    (0.0, 0.0, 0.69, 0.88, 0.0, 20.0),
    (0.0, -0.02, 0.62, 0.82, 0.0, -12.0),
    (0.24, 0.0, 0.13, 0.34, -0.3, -5.0),
    (-0.24, 0.0, 0.17, 0.42, 0.3, -5.0),
    (0.0, 0.38, 0.22, 0.25, 0.0, 4.0),
    (0.0, -0.6, 0.06, 0.06, 0.0, 6.0),
):
    p, q = u - cx, v - cy
    p, q = p * np.cos(tilt) + q * np.sin(tilt), q * np.cos(tilt) - p * np.sin(tilt)
    phantom[(p / rx) ** 2 + (q / ry) ** 2 < 1] += more

rng = np.random.default_rng(0)
clean = A @ phantom.ravel()
noise = (
    0.01 * np.linalg.norm(clean) / np.sqrt(len(clean)) * rng.standard_normal(len(clean))
)
shadows = clean + noise

# %%
# Iterations regularise: the first ones find what all rays agree on, the last ones fit
# the noise. So the error against the object falls and then rises again. In practice one
# stops where the residual is as large as the noise.

counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
images, errors, residuals = [], [], []
workspace = dasp.solvers.Workspace()
for count in counts:
    image, stats = dasp.solvers.lsqr(
        A, shadows, rtol=0.0, atol=1e-300, maxiter=count, workspace=workspace
    )
    images.append(image)
    errors.append(np.linalg.norm(image - phantom.ravel()) / np.linalg.norm(phantom))
    residuals.append(stats.residual / np.linalg.norm(noise))
best = int(np.argmin(errors))
print(f"best after {counts[best]} iterations: error {errors[best]:.1%}")
print(f"the residual is then {residuals[best]:.2f} times the noise")
assert errors[best] < 0.3
assert errors[-1] > errors[best]

# %%
figure, panels = plt.subplots(2, 2, figsize=(6.4, 5.8), layout="constrained")
size = (0, 100 * width, 0, 100 * width)
pictures = (
    (panels[0, 0], phantom, "object"),
    (panels[1, 0], images[best].reshape(n, n), "found"),
)
for axes, picture, title in pictures:
    shown = axes.imshow(picture, extent=size, cmap="gray", vmin=0, vmax=20)
    axes.set(title=title, xlabel="x (cm)", ylabel="y (cm)")
figure.colorbar(
    shown, ax=panels[:, 0], label="absorption (1 / m)", location="left", shrink=0.7
)
panels[0, 1].imshow(
    shadows.reshape(directions, offsets),
    extent=(-14, 14, 180, 0),
    aspect="auto",
    cmap="gray",
)
panels[0, 1].set(title="shadows", xlabel="offset (cm)", ylabel="angle (degrees)")
panels[1, 1].loglog(counts, errors, "o-", color="#0072B2", label="error of the image")
panels[1, 1].loglog(counts, residuals, "s-", color="#D55E00", label="residual / noise")
panels[1, 1].axhline(1, color="black", linewidth=0.8)
panels[1, 1].set(xlabel="iterations of lsqr", title="when to stop")
panels[1, 1].legend(frameon=False)
plt.show()
