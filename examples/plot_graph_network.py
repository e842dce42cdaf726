"""
A graph network, its gradients by hand
======================================

A graph convolution is a sparse matrix times a tall one: every vertex takes the mean of its neighbours'
features, and a small dense matrix mixes them. Training needs the product with the transpose as well, for
the gradient. Both are ``A @ X``, with one plan for thousands of products.
"""

# %%
# A graph with four communities that are hard to see: of the links of a vertex some four in ten stay among
# those drawn from its own community. Its features are the label of its community, mostly hidden by noise; a
# tenth of the labels are known.

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

import dasp

rng = np.random.default_rng(2)
n, kinds, links = 6000, 4, 12
label = rng.integers(0, kinds, n)
members = [np.flatnonzero(label == kind) for kind in range(kinds)]
i = np.repeat(np.arange(n), links // 2)
inside = rng.random(len(i)) < 0.4
j = np.where(inside, [rng.choice(members[label[v]]) for v in i], rng.integers(0, n, len(i)))
adjacency = scipy.sparse.coo_array((np.ones(len(i)), (i, j)), shape=(n, n)).tocsr()
adjacency = ((adjacency + adjacency.T) > 0).astype(float) + scipy.sparse.eye_array(n)
scale = scipy.sparse.diags_array(1 / np.sqrt(adjacency.sum(axis=1)))
A = dasp.SpMatrix.from_scipy((scale @ adjacency @ scale).tocsr(), device="cpu")

features = np.eye(kinds)[label] + rng.normal(0, 2.0, (n, kinds))
features = np.concatenate([features, rng.normal(0, 1.0, (n, 12))], axis=1)
known = rng.random(n) < 0.1

# %%
# Two layers, softmax, cross-entropy over the known labels. Each line of the way forward has its line on the
# way back, and the sparse products are the same two matrices.

hidden, rate, decay = 16, 0.02, 5e-4
W1 = rng.normal(0, 1 / np.sqrt(features.shape[1]), (features.shape[1], hidden))
W2 = rng.normal(0, 1 / np.sqrt(hidden), (hidden, kinds))
target = np.eye(kinds)[label]


def forward(W1, W2):
    """Return the hidden layer, and the chances of each community."""
    H = np.maximum(AX @ W1, 0)
    Z = (A @ H) @ W2
    Z -= Z.max(axis=1, keepdims=True)
    P = np.exp(Z)
    return H, P / P.sum(axis=1, keepdims=True)


def loss_of(P):
    """Return the mean cross-entropy over the known labels."""
    return -np.log(P[known, label[known]]).mean()


def gradients(W1, W2):
    """Return the gradients of the loss, and the chances."""
    H, P = forward(W1, W2)
    dZ = np.where(known[:, None], P - target, 0) / known.sum()
    back = A.T @ dZ  # the transpose, of a symmetric matrix the same plan
    dW2 = H.T @ back
    dH = np.where(H > 0, back @ W2.T, 0)
    return AX.T @ dH, dW2, P


AX = A @ features

# %%
# A gradient that was derived by hand is checked by differences before it is used.

dW1, dW2, P = gradients(W1, W2)
bump = rng.standard_normal(W1.shape)
plus, minus = (loss_of(forward(W1 + sign * 1e-6 * bump, W2)[1]) for sign in (1, -1))
assert np.isclose((plus - minus) / 2e-6, (dW1 * bump).sum(), rtol=1e-4)

# %%
# Adam, 150 steps.

weights = [W1, W2]
means = [np.zeros_like(W) for W in weights]
squares = [np.zeros_like(W) for W in weights]
losses, known_right, others_right = [], [], []
for step in range(1, 151):
    *slopes, P = gradients(*weights)
    for k, slope in enumerate(slopes):
        slope = slope + decay * weights[k]
        means[k] = 0.9 * means[k] + 0.1 * slope
        squares[k] = 0.999 * squares[k] + 0.001 * slope**2
        by = means[k] / (1 - 0.9**step) / (np.sqrt(squares[k] / (1 - 0.999**step)) + 1e-8)
        weights[k] = weights[k] - rate * by
    right = P.argmax(axis=1) == label
    losses.append(loss_of(P))
    known_right.append(right[known].mean())
    others_right.append(right[~known].mean())

alone = (features[:, :kinds].argmax(axis=1) == label)[~known].mean()
print(f"labels that were not known: {others_right[-1]:.1%} right; from a vertex's own features {alone:.1%}")
assert others_right[-1] > alone + 0.15

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
left.plot(losses, color="#0072B2")
left.set(xlabel="step", ylabel="cross-entropy (nats)", title="loss over the known labels")
right.plot(known_right, color="#E69F00", label="known labels")
right.plot(others_right, color="#0072B2", label="the others")
right.axhline(alone, color="black", linestyle=":", label="own features alone")
right.set(xlabel="step", ylabel="share that is right", ylim=(0, 1), title="communities")
right.legend(frameon=False, loc="lower right")
plt.show()
