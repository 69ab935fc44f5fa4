"""Slices of simulated hardware: a JSON file that outlives the process, as real slices do."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from agent.core.vendor import Partition, Request


class Slices:
    """The file of slices; every change is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Partition, ...]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return ()
        return tuple(Partition(**raw) for raw in json.loads(text or "[]"))

    def make(self, request: Request, uuids: Sequence[str]) -> tuple[Partition, ...]:
        """One slice per device of the request; those that exist are kept."""
        wanted = tuple(
            Partition(f"{request.allocation}/{number}", uuid, request.allocation)
            for number, uuid in enumerate(uuids)
        )
        there = self.all()
        if not set(wanted) <= set(there):
            self._write((*there, *(it for it in wanted if it not in there)))
        return wanted

    def remove(self, allocation: str) -> None:
        there = self.all()
        kept = tuple(it for it in there if it.allocation != allocation)
        if kept != there:
            self._write(kept)

    def _write(self, slices: Sequence[Partition]) -> None:
        raw = [{"id": it.id, "uuid": it.uuid, "allocation": it.allocation} for it in slices]
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(raw))
        temporary.replace(self._path)
