"""Small JSON files in the backend's own directory, which outlive the process.

A file is replaced in one step and has mode 0600.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .host import beginning

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LIMIT = 1 << 20  # bytes


def boot_id() -> str:
    """The id of this boot of the machine; empty if the kernel does not tell it."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def read(path: Path) -> Any:
    """The JSON value in the file; None if there is no file, or no JSON in it."""
    try:
        return json.loads(beginning(path, LIMIT))
    except (OSError, ValueError, RecursionError):
        return None


def write(path: Path, content: Any, *, durable: bool = True) -> None:
    """Replace the file with this JSON value. After a crash the file has the old value or the new one.

    `durable`: this also holds for a crash of the machine.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)  # left by a crash
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    if durable:
        _sync(path.parent)


def read_since_boot(path: Path) -> dict[str, Any]:
    """The JSON object that `write_since_boot` wrote during this boot of the machine; empty without one."""
    content = read(path)
    return content if isinstance(content, dict) and content.get("boot") == boot_id() else {}


def write_since_boot(path: Path, content: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a JSON object that holds for this boot of the machine. Raises OSError as `write` does."""
    write(path, {"boot": boot_id(), **content}, durable=durable)


def of_card(directory: Path, prefix: str, card: str) -> Path:
    """The file of a card: the prefix, the card's uuid quoted as in URLs, and `.json`."""
    return directory / f"{prefix}{quote(card, safe='')}.json"


def of_cards(directory: Path, prefix: str) -> list[Path]:
    """The files of all cards, in the order of their names."""
    return sorted(directory.glob(f"{prefix}*.json"))


def remove(path: Path) -> None:
    """Remove the file for good, even if the machine crashes right after. A missing file is no error."""
    with suppress(FileNotFoundError):
        path.unlink()
        _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
