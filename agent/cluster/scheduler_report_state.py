"""State that the report policy (`daemon/publishing/wanted_scheduler_report.py`) and its carriers share."""

from __future__ import annotations

from msgspec import Struct, field

from agent.core.cell import Cell
from agent.scheduler_api.node_report import NodeReport, PublishedReport, ShownReport


class SchedulerReportState(Struct, frozen=True):
    """The policy writes `looks` and `published`; the follower of the object and the file write the others."""

    reporting: NodeReport
    #: Whether the API server is to be asked about the scheduler at all.
    looks: Cell[bool] = field(default_factory=lambda: Cell(False))
    #: None while not known.
    shown: Cell[ShownReport | None] = field(default_factory=lambda: Cell(None))
    #: None while no mode is chosen.
    published: Cell[PublishedReport | None] = field(default_factory=lambda: Cell(None))
    #: Uuids of the cards that other files of the scheduler's directory list.
    elsewhere: Cell[frozenset[str]] = field(default_factory=lambda: Cell(frozenset()))
