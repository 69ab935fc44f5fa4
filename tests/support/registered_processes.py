"""Processes that register with a scripted library; vendors/stub/processes.h tells the format."""

from __future__ import annotations

from pathlib import Path


class Registry:
    """The directory beside a control file in which processes register."""

    control: Path

    @property
    def registry(self) -> Path:
        return Path(f"{self.control}.processes")

    def register(self, pid: int, uuid: str, memory: int | None, percent: float | None = None) -> None:
        """Put a process on a card or on a slice: bytes, and percent of the compute; None: unknown."""
        figures = ("-" if it is None else str(it) for it in (memory, percent))
        self.registry.mkdir(exist_ok=True)
        (self.registry / str(pid)).write_text(f"{uuid} {' '.join(figures)}\n")

    def unregister(self, pid: int) -> None:
        (self.registry / str(pid)).unlink()
