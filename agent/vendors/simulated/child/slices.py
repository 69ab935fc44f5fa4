"""Slices of simulated hardware, in a JSON file that outlives the process as real slices do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Partition, Request


class SliceFile:
    """The file of slices, with mode 0600. Every change is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Partition, ...]:
        return tuple(map(_partition, self.read()))

    def make(self, request: Request, uuids: Sequence[str]) -> tuple[Partition, ...]:
        """Make one slice for each device of the request. Slices of it that differ are replaced."""
        wanted: list[dict[str, Any]] = [
            {
                "id": f"{request.allocation}/{number}",
                "uuid": uuid,
                "allocation": request.allocation,
                "parameters": dict(request.parameters),
            }
            for number, uuid in enumerate(uuids)
        ]
        slices = self.read()
        others = [it for it in slices if it.get("allocation") != request.allocation]
        if [it for it in slices if it.get("allocation") == request.allocation] != wanted:
            self.write([*others, *wanted])
        return tuple(map(_partition, wanted))

    def remove(self, allocation: str) -> None:
        slices = self.read()
        kept = [it for it in slices if it.get("allocation") != allocation]
        if kept != slices:
            self.write(kept)

    def read(self) -> list[dict[str, Any]]:
        """The slices as JSON values: id, uuid of the card, allocation, and the parameters of the request."""
        try:
            raw: list[dict[str, Any]] = json.loads(self._path.read_text() or "[]")
        except FileNotFoundError:
            return []
        return raw

    def write(self, slices: Sequence[Mapping[str, Any]]) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)  # left by a crash, perhaps with another mode
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(slices, file)
        temporary.replace(self._path)


def _partition(raw: Mapping[str, Any]) -> Partition:
    return Partition(raw["id"], raw["uuid"], raw.get("allocation"))
