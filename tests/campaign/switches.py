"""How the campaign and the agent's process under it speak with each other: small files in one directory."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

#: Names the directory to the agent's process.
VARIABLE = "CAMPAIGN_SWITCHES"


class Switches:
    """The campaign throws them, the process under it looks at them whenever it comes by."""

    def __init__(self, directory: Path) -> None:
        self._arm = directory / "arm"
        self._hit = directory / "hit"
        self._full = directory / "full"
        self._clock = directory / "clock"
        self._reached: Counter[str] = Counter()

    # The campaign's side

    def arm(self, step: str, nth: int = 1) -> None:
        """Let the process kill itself when it comes by the step for the nth time."""
        self._hit.unlink(missing_ok=True)
        _put(self._arm, f"{step} {nth}")

    def disarm(self) -> None:
        self._arm.unlink(missing_ok=True)

    @property
    def hit(self) -> str:
        """The step at which the process killed itself; empty while it has not."""
        return _read(self._hit)

    def fill(self, where: str) -> None:
        """Let the disk of the state directory be full: `open` refuses new files, `write` stops half way."""
        _put(self._full, where)

    def free(self) -> None:
        self._full.unlink(missing_ok=True)

    def shift(self, seconds: float) -> None:
        """Let the process's clock be wrong by so much."""
        _put(self._clock, str(seconds))

    # The process's side

    def fires(self, step: str) -> bool:
        """Whether the process is to die here; it is told once."""
        armed, _, nth = _read(self._arm).partition(" ")
        if armed != step:
            return False
        self._reached[step] += 1
        if self._reached[step] < int(nth):
            return False
        self._arm.unlink(missing_ok=True)
        self._hit.write_text(step)
        return True

    @property
    def full(self) -> str:
        return _read(self._full)

    @property
    def ahead(self) -> float:
        """Seconds by which the clock is wrong."""
        return float(_read(self._clock) or 0.0)


def _put(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""
