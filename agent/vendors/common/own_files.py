"""Small JSON files that outlive the process, in the backend's own directory: replaced in one step, 0600."""

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
    """What is another one after each start of the machine; empty where the kernel does not say."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def read(path: Path) -> Any:
    """What stands there; None where there is no file, or none that makes sense."""
    try:
        return json.loads(beginning(path, LIMIT))
    except (OSError, ValueError, RecursionError):
        return None


def write(path: Path, said: Any, *, durable: bool = True) -> None:
    """Put it there, so that a crash leaves it or what was before; one of the machine where it is durable.

    Raises:
        OSError: It cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)  # a crash left it
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(said, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    if durable:
        _sync(path.parent)


def read_since_boot(path: Path) -> dict[str, Any]:
    """The JSON object that `write_since_boot` put there since the machine was started; empty without one."""
    said = read(path)
    return said if isinstance(said, dict) and said.get("boot") == boot_id() else {}


def write_since_boot(path: Path, said: Mapping[str, Any], *, durable: bool = True) -> None:
    """Put an object there that counts until the machine starts again. Raises OSError as `write` does."""
    write(path, {"boot": boot_id(), **said}, durable=durable)


def of_card(directory: Path, prefix: str, card: str) -> Path:
    """The file of a card: the prefix, the card's uuid as quoted in URLs, and `.json`."""
    return directory / f"{prefix}{quote(card, safe='')}.json"


def of_cards(directory: Path, prefix: str) -> list[Path]:
    """The files of cards that are there, in the order of their names."""
    return sorted(directory.glob(f"{prefix}*.json"))


def remove(path: Path) -> None:
    """Take it away, also if the machine crashes right after."""
    with suppress(FileNotFoundError):
        path.unlink()
        _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
