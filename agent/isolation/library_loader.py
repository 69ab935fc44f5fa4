"""Where the dynamic loader searches a library by its bare name, as far as files show (ld.so(8), glibc)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

#: The loader's default folders.
FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/lib",
    "/lib",
)
CACHE = Path("/etc/ld.so.cache")
#: Libraries named here are loaded into every program, under any name.
PRELOAD = Path("/etc/ld.so.preload")
#: Subfolders for some processors only; the second list is for glibc before 2.37.
BY_PROCESSOR = "glibc-hwcaps"
BY_OLD_PROCESSOR = ("tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "aarch64", "atomics")


def folders() -> list[str]:
    """The folders of LD_LIBRARY_PATH, in which an empty one means the current, then the default folders."""
    path = os.environ.get("LD_LIBRARY_PATH", "")
    return [*(it or "." for it in path.replace(";", ":").split(":") if path), *FOLDERS]


def may_find(names: Sequence[str]) -> bool:
    """Whether the loader may find one of the names; True where files do not show that.

    All names are looked for at once: a look at a vendor that is not here comes every few seconds.
    """
    if not names:
        return False
    places = (*folders(), *_prefixes())
    return _is_unforeseeable() or _is_any_cached(names) or any(_holds_any(it, names) for it in places)


def _is_unforeseeable() -> bool:
    """Whether files cannot show it: another C library, preloads, or variables in the search path."""
    return not _is_glibc() or PRELOAD.exists() or "$" in os.environ.get("LD_LIBRARY_PATH", "")


def _is_glibc() -> bool:
    with suppress(ValueError, OSError):  # only glibc has this name
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    return False


def _is_any_cached(names: Iterable[str]) -> bool:
    """Whether the cache has one of the names, which any of its formats ends with a NUL."""
    try:
        cache = CACHE.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(name.encode() + b"\0" in cache for name in names)


def _prefixes() -> list[str]:
    """Folders of libraries that belong to the interpreter's installation (RUNPATH)."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.base_exec_prefix))
    return [f"{prefix}/{folder}" for prefix in prefixes for folder in ("lib", "lib64")]


def _holds_any(folder: str, names: Iterable[str]) -> bool:
    if not os.path.isdir(folder):
        return False
    by_processor = f"{folder}/{BY_PROCESSOR}"
    places = [folder, *(f"{by_processor}/{it}" for it in _names_in(by_processor))]
    if any(os.path.lexists(f"{place}/{name}") for place in places for name in names):
        return True
    return folder not in FOLDERS and any(os.path.isdir(f"{folder}/{it}") for it in BY_OLD_PROCESSOR)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
