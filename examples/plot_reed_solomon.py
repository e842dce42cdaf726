"""
A file that survives four lost disks
====================================

Ten pieces of a file and four more that are computed from them: any ten of the fourteen
give the file back. That is a Reed-Solomon code, a product of a small matrix with the
file's bytes over the field GF(2^8).
"""

# %%
# A file and its fourteen shards. Each shard is a file of its own, and stands for one
# disk. The code works on arrays of one length, so zeros fill the last shard of data. A
# digest of each shard shows damage. Keep the digests and the length of the file with
# every shard, or in a safe place.

import hashlib
import tempfile
import time
from math import comb
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dasp.dense import gf256

code = gf256.ReedSolomon(data=10, parity=4)
holder = tempfile.TemporaryDirectory()
archive = Path(holder.name) / "archive.bin"
disks = [Path(holder.name) / f"disk{i}" for i in range(code.shards)]
archive.write_bytes(np.random.default_rng(0).bytes(19_999_999))

content = np.fromfile(archive, np.uint8)
data = np.zeros((code.data, -(-content.size // code.data)), np.uint8)
data.reshape(-1)[: content.size] = content
shards = [*data, *code.encode(data)]
for disk, shard in zip(disks, shards, strict=True):
    shard.tofile(disk)
digests = [hashlib.sha256(shard).digest() for shard in shards]

# %%
# Three disks burn, and a fourth returns wrong bytes. A shard whose digest differs
# counts as lost too: ``None`` stands for it.

for lost in (2, 5, 11):
    disks[lost].unlink()
with open(disks[7], "r+b") as file:
    file.seek(5000)
    file.write(bytes(1000))

found = [np.fromfile(disk, np.uint8) if disk.exists() else None for disk in disks]
for i, shard in enumerate(found):
    if shard is not None and hashlib.sha256(shard).digest() != digests[i]:
        found[i] = None
print("lost:", [i for i, shard in enumerate(found) if shard is None])

repaired = code.reconstruct(found)
assert np.array_equal(np.concatenate(repaired[: code.data])[: content.size], content)
print("every byte is back")
holder.cleanup()

# %%
# Encoding is a product of matrices of bytes. The more parity, the more arithmetic for
# each byte that is read.

data = np.random.default_rng(1).integers(0, 256, (10, 1 << 20), dtype=np.uint8)
speeds = {}
for parity in range(1, 9):
    code = gf256.ReedSolomon(data=10, parity=parity)
    code.encode(data)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        code.encode(data)
        times.append(time.perf_counter() - start)
    speeds[parity] = data.nbytes / min(times) / 1e9

# %%
# How safe is the file? Let each disk fail with a chance of 1 % before its shard is
# computed again. The figure compares shards with copies of the whole file: the chance
# of losing the file over the disk space.


def loses(shards, spare, chance=0.01):
    """Return the chance that more than `spare` of `shards` disks fail."""
    return sum(
        comb(shards, k) * chance**k * (1 - chance) ** (shards - k)
        for k in range(spare + 1, shards + 1)
    )


figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.3), layout="constrained")
copies = range(1, 5)
left.semilogy(
    copies, [loses(k, k - 1) for k in copies], "s-", color="#D55E00", label="copies"
)
spares = range(9)
left.semilogy(
    [1 + p / 10 for p in spares],
    [loses(10 + p, p) for p in spares],
    "o-",
    color="#0072B2",
    label="10 + p shards",
)
left.set(xlabel="disk space / file", ylabel="chance to lose the file", ylim=(1e-13, 1))
left.legend(frameon=False)
right.bar(list(speeds), list(speeds.values()), color="#0072B2")
right.set(
    xlabel="shards of parity",
    ylabel="data encoded (GB / s)",
    title="this machine, 10 shards of data",
)
plt.show()
