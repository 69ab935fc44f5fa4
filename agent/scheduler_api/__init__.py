"""What a scheduler's plugin registers and returns: claims on cards, receipts, dialects, locks, reports.

A vendor's plugin uses the same values for the dialects that it names or brings. Standard library only.
"""

from __future__ import annotations

from agent.scheduler_api.candidate import (
    DEFAULT_SCHEDULER,
    Candidate,
    PodContainer,
)
from agent.scheduler_api.claims import Claim, Part, ServedClaim
from agent.scheduler_api.dialects import Cards, Claims, Dialect, DialectOf, Measure, Receipt
from agent.scheduler_api.node_facts import CountedCard, Grant, SchedulerFacts
from agent.scheduler_api.reserved_names import Reserved
from agent.scheduler_api.scheduler import (
    ContainerRequest,
    ExternalUse,
    MakeDialect,
    MakeExporter,
    MakeFormat,
    MakeNodeFacts,
    Scheduler,
    reads,
)

__all__ = [
    "DEFAULT_SCHEDULER",
    "Candidate",
    "Cards",
    "Claim",
    "Claims",
    "ContainerRequest",
    "CountedCard",
    "Dialect",
    "DialectOf",
    "ExternalUse",
    "Grant",
    "MakeDialect",
    "MakeExporter",
    "MakeFormat",
    "MakeNodeFacts",
    "Measure",
    "Part",
    "PodContainer",
    "Receipt",
    "Reserved",
    "Scheduler",
    "SchedulerFacts",
    "ServedClaim",
    "reads",
]
