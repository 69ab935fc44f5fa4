"""What goes to and fro between who chooses how Koordinator hears of the cards, and the API server."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.core.cell import Cell
from agent.schedulers.koordinator.report_mode import Shown, Telling


@dataclass(frozen=True, slots=True)
class Exchange:
    """What goes to and fro between who chooses and who speaks with the API server."""

    #: Whether it is to be looked at what the API server shows.
    looks: Cell[bool] = field(default_factory=lambda: Cell(False))
    #: None while it is not known.
    shown: Cell[Shown | None] = field(default_factory=lambda: Cell(None))
    #: None while it is not chosen.
    telling: Cell[Telling | None] = field(default_factory=lambda: Cell(None))
    #: Uuids of the cards for which other files of koordlet's directory answer, and not ours.
    elsewhere: Cell[frozenset[str]] = field(default_factory=lambda: Cell(frozenset()))
