"""Reads the dynamic loader's cache below a driver's root, for libraries outside of the usual folders.

The format is glibc's (sysdeps/generic/dl-cache.h): a header, entries, and the texts of the entries.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from itertools import islice

from .driver_root import Root

CACHE = "/etc/ld.so.cache"
#: Limit of bytes. The cache of a node with every library of CUDA has some hundred thousand.
LIMIT = 8 << 20
#: Begins the format since glibc 2.2. Up to 2.31 a cache in the older format may come before.
MAGIC = b"glibc-ld.so.cache1.1"
HEADER, COUNT_AT = 48, 20
#: Flags, and offsets of name and path. The rest of an entry depends on the processor.
ENTRY = struct.Struct("<3I12x")
#: The flags of a library of glibc (3) for x86-64 or aarch64. Others are for 32 bits.
WANTED = frozenset({0x0303, 0x0A03})
#: The driver's libraries that every program needs.
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def folders(root: Root) -> tuple[str, ...]:
    """The folders of the driver's libraries, with all links resolved."""
    real = (root.real(path) for name in NAMES for path in libraries(root, name))
    return tuple(dict.fromkeys(posixpath.dirname(path) for path in real if path))


def libraries(root: Root, name: str) -> list[str]:
    """The paths that the cache has for a name, in its order; none if the cache cannot be read."""
    cache = root.beginning(CACHE, LIMIT)
    start = cache.find(MAGIC)
    if start < 0:
        return []
    try:
        return [path for found, path in _entries(cache[start:]) if found == name and path.startswith("/")]
    except struct.error:  # the cache is longer than LIMIT, or incomplete
        return []


def _entries(cache: bytes) -> Iterator[tuple[str, str]]:
    (count,) = struct.unpack_from("<I", cache, COUNT_AT)
    body = memoryview(cache)[HEADER:]
    whole = body[: len(body) // ENTRY.size * ENTRY.size]
    for flags, name, path in islice(ENTRY.iter_unpack(whole), count):
        if flags in WANTED:
            yield _text(cache, name), _text(cache, path)


def _text(cache: bytes, at: int) -> str:
    return cache[at : max(cache.find(b"\0", at), at)].decode("utf-8", "replace")
