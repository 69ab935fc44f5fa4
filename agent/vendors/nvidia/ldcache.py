"""The dynamic loader's cache below a driver's root: it knows libraries that lie in none of the usual folders.

Its format is glibc's (sysdeps/generic/dl-cache.h): a header, entries, and the texts that they point to.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from itertools import islice

from .driver_root import Root

CACHE = "/etc/ld.so.cache"
#: Bytes; that of a node with every library of CUDA has some hundred thousand.
LIMIT = 8 << 20
#: Of the format since glibc 2.2; up to 2.31 the older one may stand before it.
MAGIC = b"glibc-ld.so.cache1.1"
HEADER, COUNT_AT = 48, 20
#: Flags, and where name and path begin; what follows is of the processor.
ENTRY = struct.Struct("<3I12x")
#: A library of glibc (3) for x86-64 or aarch64: others are for 32 bits.
WANTED = frozenset({0x0303, 0x0A03})
#: The driver's libraries that no program does without.
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def folders(root: Root) -> tuple[str, ...]:
    """The folders of the driver's libraries, without links."""
    real = (root.real(path) for name in NAMES for path in libraries(root, name))
    return tuple(dict.fromkeys(posixpath.dirname(path) for path in real if path))


def libraries(root: Root, name: str) -> list[str]:
    """The paths that the loader knows for a name, in its order; none without a cache that can be read."""
    cache = root.beginning(CACHE, LIMIT)
    start = cache.find(MAGIC)
    if start < 0:
        return []
    try:
        return [path for found, path in _entries(cache[start:]) if found == name and path.startswith("/")]
    except struct.error:  # it was cut off
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
