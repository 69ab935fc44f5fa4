"""Where the dynamic loader looks for a library by its bare name, as far as files tell (ld.so(8), glibc)."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

#: Its own folders.
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
#: What is loaded into every program may have any name.
PRELOAD = Path("/etc/ld.so.preload")
#: Folders below a folder that are for some processors alone; the others are of glibc before 2.37.
BY_PROCESSOR = "glibc-hwcaps"
BY_OLD_PROCESSOR = ("tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "aarch64", "atomics")


def folders() -> list[str]:
    """Those of LD_LIBRARY_PATH, of which an empty one is the current one, and then its own."""
    given = os.environ.get("LD_LIBRARY_PATH", "")
    return [*(it or "." for it in given.replace(";", ":").split(":") if given), *FOLDERS]


def may_find(name: str) -> bool:
    """Whether it may find the name; where files do not tell, it may."""
    return (
        _is_unforeseeable() or _is_cached(name) or any(_holds(it, name) for it in (*folders(), *_prefixes()))
    )


def _is_unforeseeable() -> bool:
    """Another C library, a library for all programs, or a path with variables of the loader's own."""
    return not _is_glibc() or PRELOAD.exists() or "$" in os.environ.get("LD_LIBRARY_PATH", "")


def _is_glibc() -> bool:
    with suppress(ValueError, OSError):  # the name is glibc's own
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    return False


def _is_cached(name: str) -> bool:
    """The cache has the names as they are, each ended by a NUL, in whatever format it is."""
    try:
        return name.encode() + b"\0" in CACHE.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _prefixes() -> list[str]:
    """Where an interpreter that was installed with libraries of its own looks for them (RUNPATH)."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.base_exec_prefix))
    return [f"{prefix}/{folder}" for prefix in prefixes for folder in ("lib", "lib64")]


def _holds(folder: str, name: str) -> bool:
    if os.path.lexists(f"{folder}/{name}"):
        return True
    if any(os.path.lexists(it / name) for it in Path(folder, BY_PROCESSOR).glob("*")):
        return True
    return folder not in FOLDERS and any(os.path.isdir(f"{folder}/{it}") for it in BY_OLD_PROCESSOR)
