"""
A file that survives four lost disks
====================================

Ten pieces of a file and four more that are computed from them: any ten of the fourteen give the file back.
That is a Reed-Solomon code, a product of a small matrix with the file's bytes over the field GF(2^8).
"""

# %%
# A file, and its fourteen shards on what we pretend to be disks. On the command line: ``dasp rs encode``.

import hashlib
import tempfile
import time
from math import comb
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dasp.dense import gf256
from dasp.dense.gf256 import shard_files

holder = tempfile.TemporaryDirectory()
folder = Path(holder.name)
archive = folder / "archive.bin"
content = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8).tobytes()
archive.write_bytes(content)
shards = shard_files.encode_file(archive, folder / "disks", data=10, parity=4)
print(f"{len(shards)} shards, {sum(s.stat().st_size for s in shards) / len(content):.2f} times the file")

# %%
# Three disks burn, and a fourth returns wrong bytes. The damage is found by checksums, so it counts as a
# loss too.

for lost in (2, 5, 11):
    shards[lost].unlink()
damaged = bytearray(shards[7].read_bytes())
damaged[5000:6000] = bytes(1000)
shards[7].write_bytes(damaged)
archive.unlink()

back = folder / "back.bin"
shard_files.decode_files(shards[:1] + [s for s in shards[1:] if s.exists()], back)
assert hashlib.sha256(back.read_bytes()).digest() == hashlib.sha256(content).digest()
print("every byte is back")

# %%
# In memory it is a product of matrices of bytes. The more parity, the more arithmetic for each byte that is
# read.

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
# What is it worth? Let a disk fail with a chance of 1 % before its shard is computed again. Copies of the
# whole file against shards: the chance that the file is lost, over the disk space that is paid for it.


def loses(shards, spare, chance=0.01):
    """Return the chance that more than `spare` of `shards` disks fail."""
    return sum(
        comb(shards, k) * chance**k * (1 - chance) ** (shards - k) for k in range(spare + 1, shards + 1)
    )


figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.3), layout="constrained")
copies = range(1, 5)
left.semilogy(copies, [loses(k, k - 1) for k in copies], "s-", color="#D55E00", label="copies")
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
right.set(xlabel="shards of parity", ylabel="data encoded (GB / s)", title="this machine, 10 shards of data")
plt.show()

holder.cleanup()
