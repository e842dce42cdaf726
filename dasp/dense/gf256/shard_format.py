"""The file of one shard: a header that says what it is part of, then chunks, each under its checksum.

    header    128 bytes and the file's name, ended by a CRC-32 of all that precedes it
    chunk 0   bytes, then their CRC-32
    chunk 1   ...

A file is cut into stripes of `data * chunk_bytes` bytes; chunk s of data shard i holds bytes `i * length` to
`(i + 1) * length` of stripe s, where `length` is `chunk_bytes`, and in the last stripe just enough for what
is left, the tail of the last shards being zero. So a file is read, and written back, in order. All integers
are little-endian; the name is the bytes that the file system keeps.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, replace
from typing import BinaryIO

from dasp.runtime.integers import ceil_div

MAGIC = b"DASP-RS\n"
VERSION = 1
MAX_CHUNK_BYTES = 64 << 20
MAX_FILE_BYTES = 2**63 - 1
"""What an offset in a file can reach."""

_FIXED = struct.Struct("<8sHHHHIQ32sH66x")
_CHECKSUM = struct.Struct("<I")


class DamagedHeaderError(ValueError):
    """A file does not begin with the header of a shard, or no longer does."""


@dataclass(frozen=True)
class Header:
    """What a shard says of itself.

    Attributes
    ----------
    data, parity : int
        The code.
    index : int
        Which of the `data + parity` shards this is.
    chunk_bytes : int
        Bytes of a chunk in every stripe but the last.
    file_bytes : int
        Length of the file that was encoded.
    digest : bytes
        Its SHA-256, 32 bytes: shards belong together if all but `index` is equal.
    name : str
        Its name, without folders.
    """

    data: int
    parity: int
    index: int
    chunk_bytes: int
    file_bytes: int
    digest: bytes
    name: str

    @property
    def shards(self) -> int:
        """Data and parity shards together."""
        return self.data + self.parity

    @property
    def file_name(self) -> str:
        """The name of this shard's file."""
        return f"{self.name}.{self.index:03d}.rs"

    @property
    def stripes(self) -> int:
        """Chunks in a shard."""
        return ceil_div(self.file_bytes, self.data * self.chunk_bytes)

    @property
    def header_bytes(self) -> int:
        """Where the first chunk begins."""
        return _FIXED.size + len(os.fsencode(self.name)) + _CHECKSUM.size

    def offset(self, stripe: int) -> int:
        """Return where the chunk of that stripe begins."""
        return self.header_bytes + stripe * (self.chunk_bytes + _CHECKSUM.size)

    def chunks_in(self, size: int) -> int:
        """Return how many chunks, the last perhaps cut, a shard file of `size` bytes can hold."""
        return ceil_div(max(0, size - self.header_bytes), self.chunk_bytes + _CHECKSUM.size)

    @property
    def shard_bytes(self) -> int:
        """Length of the whole shard file."""
        if not self.stripes:
            return self.header_bytes
        last = self.stripes - 1
        return self.offset(last) + self.chunk_length(last) + _CHECKSUM.size

    def chunk_length(self, stripe: int) -> int:
        """Return the bytes of a chunk of that stripe."""
        rest = self.file_bytes - stripe * self.data * self.chunk_bytes
        return min(self.chunk_bytes, ceil_div(rest, self.data))

    def stripe_bytes(self, stripe: int) -> int:
        """Return the bytes of the file in that stripe."""
        size = self.data * self.chunk_bytes
        return min(size, self.file_bytes - stripe * size)

    def sibling(self, index: int) -> Header:
        """Return the header of another shard of the same file."""
        return replace(self, index=index)

    def pack(self) -> bytes:
        """Return the header as bytes."""
        name = os.fsencode(self.name)
        numbers = (self.data, self.parity, self.index, self.chunk_bytes, self.file_bytes)
        packed = _FIXED.pack(MAGIC, VERSION, *numbers, self.digest, len(name)) + name
        return packed + _CHECKSUM.pack(zlib.crc32(packed))


def read_header(file: BinaryIO) -> Header:
    """Read and check the header at the start of a shard.

    Raises
    ------
    DamagedHeaderError
        If the file is no shard, or its header is damaged.
    ValueError
        If the header is intact, but of another version or such as no encoder writes.
    """
    fixed = file.read(_FIXED.size)
    if len(fixed) < _FIXED.size or not fixed.startswith(MAGIC):
        raise DamagedHeaderError("the file does not begin as a shard does")
    _, version, data, parity, index, chunk_bytes, file_bytes, digest, name_bytes = _FIXED.unpack(fixed)
    if version != VERSION:
        raise ValueError(f"the shard has format {version}; this program reads format {VERSION}")
    name = file.read(name_bytes)
    checksum = file.read(_CHECKSUM.size)
    if checksum != _CHECKSUM.pack(zlib.crc32(fixed + name)):
        raise DamagedHeaderError("the header does not match its checksum")
    header = Header(data, parity, index, chunk_bytes, file_bytes, digest, os.fsdecode(name))
    sound = data >= 1 and header.shards <= 256 and index < header.shards
    sound = sound and 0 < chunk_bytes <= MAX_CHUNK_BYTES and header.shard_bytes <= MAX_FILE_BYTES
    if not sound or name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise ValueError("the header holds values that no encoder writes")
    return header


def write_chunk(file: BinaryIO, chunk: bytes | memoryview) -> None:
    """Append a chunk and its checksum."""
    file.write(chunk)
    file.write(_CHECKSUM.pack(zlib.crc32(chunk)))


def read_chunk(file: BinaryIO, size: int, header: Header, stripe: int) -> bytearray | None:
    """Return the chunk of that stripe of a shard file of `size` bytes, or None if it is damaged or cut."""
    length, offset = header.chunk_length(stripe), header.offset(stripe)
    if offset + length + _CHECKSUM.size > size:  # asked before memory is taken for it
        return None
    chunk = bytearray(length)
    file.seek(offset)
    if file.readinto(chunk) != length:  # type: ignore[attr-defined]
        return None
    return chunk if file.read(_CHECKSUM.size) == _CHECKSUM.pack(zlib.crc32(chunk)) else None
