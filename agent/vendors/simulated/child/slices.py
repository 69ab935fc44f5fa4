"""Slices of simulated hardware: a JSON file that outlives the process, as real slices do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Partition, Request


class SliceFile:
    """The file of slices, ours alone (0600); every change is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Partition, ...]:
        return tuple(Partition(it["id"], it["uuid"], it.get("allocation")) for it in self.read())

    def make(self, request: Request, uuids: Sequence[str]) -> tuple[Partition, ...]:
        """One slice per device of the request; those that are as wanted are kept, others replaced."""
        wanted: list[dict[str, Any]] = [
            {
                "id": f"{request.allocation}/{number}",
                "uuid": uuid,
                "allocation": request.allocation,
                "parameters": dict(request.parameters),
            }
            for number, uuid in enumerate(uuids)
        ]
        there = self.read()
        if [it for it in there if it.get("allocation") == request.allocation] != wanted:
            self.write([*(it for it in there if it.get("allocation") != request.allocation), *wanted])
        return tuple(Partition(it["id"], it["uuid"], it.get("allocation")) for it in wanted)

    def remove(self, allocation: str) -> None:
        there = self.read()
        kept = [it for it in there if it.get("allocation") != allocation]
        if kept != there:
            self.write(kept)

    def read(self) -> list[dict[str, Any]]:
        """The slices as they stand in the file, with what each was made with."""
        try:
            raw: list[dict[str, Any]] = json.loads(self._path.read_text() or "[]")
        except FileNotFoundError:
            return []
        return raw

    def write(self, slices: Sequence[Mapping[str, Any]]) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)  # a crash left it, perhaps with another mode
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(slices, file)
        temporary.replace(self._path)
