"""
A graph network, with gradients by PyTorch
==========================================

A graph convolution is a sparse matrix times a tall one: every vertex takes a mean of
its neighbours' features, and a small dense matrix mixes them. Training needs the
product with the transpose as well, for the gradient. Both are ``A @ X``, with one plan
for thousands of products. ``dasp.interop.torch.matmul`` is that product inside PyTorch,
with gradients for X and for the entries of A.
"""

# %%
# A graph with four communities that are hard to see: of the links of a vertex some four
# in ten stay among those drawn from its own community. Its features are the label of
# its community, mostly hidden by noise; a tenth of the labels are known.

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize
import scipy.sparse

import dasp

try:
    import torch

    from dasp.interop.torch import matmul
except ImportError:  # the gradients below are written by hand as well
    torch = None

rng = np.random.default_rng(2)
n, kinds, links = 6000, 4, 12
label = rng.integers(0, kinds, n)
members = [np.flatnonzero(label == kind) for kind in range(kinds)]
i = np.repeat(np.arange(n), links // 2)
inside = rng.random(len(i)) < 0.4
j = np.where(
    inside, [rng.choice(members[label[v]]) for v in i], rng.integers(0, n, len(i))
)
adjacency = scipy.sparse.coo_array((np.ones(len(i)), (i, j)), shape=(n, n)).tocsr()
adjacency = ((adjacency + adjacency.T) > 0).astype(float) + scipy.sparse.eye_array(n)
scale = scipy.sparse.diags_array(1 / np.sqrt(adjacency.sum(axis=1)))
csr = (scale @ adjacency @ scale).tocsr()
A = dasp.SpMatrix.from_scipy(csr, device="cpu")

features = np.eye(kinds)[label] + rng.normal(0, 2.0, (n, kinds))
features = np.concatenate([features, rng.normal(0, 1.0, (n, 12))], axis=1)
known = rng.random(n) < 0.1

# %%
# Two layers, softmax, cross-entropy over the known labels. In PyTorch a layer is a
# line, and ``backward`` does the rest. The gradient for X of ``A @ X`` is a product
# with the transpose, which dasp plans once; a symmetric matrix needs no second plan.


def by_torch(W1, W2):
    """Return the loss, its gradients, and the last layer before the softmax."""
    W1, W2 = (torch.tensor(W, requires_grad=True) for W in (W1, W2))
    H = torch.relu(matmul(A, torch.from_numpy(features) @ W1))
    Z = matmul(A, H @ W2)
    loss = torch.nn.functional.cross_entropy(Z[known], torch.from_numpy(label[known]))
    loss.backward()
    return loss.item(), (W1.grad.numpy(), W2.grad.numpy()), Z.detach().numpy()


# %%
# The same by hand, without PyTorch: each line of the forward pass has its line in the
# backward pass.


def by_hand(W1, W2):
    """Return the loss and its gradients, as `by_torch` does."""
    H = np.maximum(A @ (features @ W1), 0)
    Z = A @ (H @ W2)
    logarithms = Z - scipy.special.logsumexp(Z, axis=1, keepdims=True)
    loss = -logarithms[known, label[known]].mean()

    dZ = (
        np.where(known[:, None], np.exp(logarithms) - np.eye(kinds)[label], 0)
        / known.sum()
    )
    back = A.T @ dZ
    dH = A.T @ np.where(H > 0, back @ W2.T, 0)
    return loss, (features.T @ dH, H.T @ back), Z


# %%
# Gradients are checked before they are used: against differences of the loss, and
# against each other.

hidden, decay = 16, 1e-2
start = [
    rng.normal(0, a**-0.5, (a, b))
    for a, b in ((features.shape[1], hidden), (hidden, kinds))
]
bump = rng.standard_normal(start[0].shape)
plus, minus = (by_hand(start[0] + sign * 1e-6 * bump, start[1])[0] for sign in (1, -1))
assert np.isclose(
    (plus - minus) / 2e-6, (by_hand(*start)[1][0] * bump).sum(), rtol=1e-4
)

gradients = by_torch if torch else by_hand
for ours, theirs in zip(by_hand(*start)[1], gradients(*start)[1], strict=True):
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
print(
    "gradients by",
    "PyTorch " + torch.__version__ if torch else "hand: PyTorch is not installed",
)

# %%
# Training: the weights as one vector, a little decay, and SciPy's quasi-Newton method.

shapes = [W.shape for W in start]
cut = start[0].size


def unpacked(weights):
    """Return the two matrices of weights that a vector holds."""
    return weights[:cut].reshape(shapes[0]), weights[cut:].reshape(shapes[1])


def objective(weights):
    """Return loss and gradient for a vector of weights, with decay."""
    loss, slopes, _ = gradients(*unpacked(weights))
    gradient = np.concatenate([slope.ravel() for slope in slopes])
    return loss + decay / 2 * weights @ weights, gradient + decay * weights


losses, known_right, others_right = [], [], []


def note(weights):
    """Keep the numbers of an iteration that are drawn."""
    loss, _, Z = gradients(*unpacked(weights))
    right = Z.argmax(axis=1) == label
    losses.append(loss)
    known_right.append(right[known].mean())
    others_right.append(right[~known].mean())


found = scipy.optimize.minimize(
    objective,
    np.concatenate([W.ravel() for W in start]),
    jac=True,
    method="L-BFGS-B",
    callback=note,
    options={"maxiter": 60},
)
alone = (features[:, :kinds].argmax(axis=1) == label)[~known].mean()
print(
    f"labels that were not known: {others_right[-1]:.1%} right; "
    f"from a vertex's own features {alone:.1%}"
)
assert others_right[-1] > alone + 0.15

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
left.plot(losses, color="#0072B2")
left.set(
    xlabel="iteration",
    ylabel="cross-entropy (nats)",
    title="loss over the known labels",
)
right.plot(known_right, color="#E69F00", label="known labels")
right.plot(others_right, color="#0072B2", label="the others")
right.axhline(alone, color="black", linestyle=":", label="own features alone")
right.set(
    xlabel="iteration", ylabel="share that is right", ylim=(0, 1), title="communities"
)
right.legend(frameon=False, loc="lower right")
plt.show()

# %%
# The entries of A have gradients, too: ``matmul(A, X, values)`` takes other values for
# them. Should the loss fall, which links ought to be weaker? Those between communities,
# although no link says that it is one.

if torch:
    values = torch.tensor(csr.data, requires_grad=True)
    W1, W2 = map(torch.from_numpy, unpacked(found.x))
    H = torch.relu(matmul(A, torch.from_numpy(features) @ W1, values))
    Z = matmul(A, H @ W2, values)
    torch.nn.functional.cross_entropy(
        Z[known], torch.from_numpy(label[known])
    ).backward()
    rows, columns = (np.from_dlpack(where) for where in A.coordinates())
    of_link = (rows != columns) & known[rows]
    between = label[rows] != label[columns]
    slopes = values.grad.numpy()
    apart, together = (
        slopes[of_link & between].mean(),
        slopes[of_link & ~between].mean(),
    )
    print(
        f"mean gradient of a link's weight: {apart:+.1e} between communities, "
        f"{together:+.1e} within one"
    )
    assert together < apart
