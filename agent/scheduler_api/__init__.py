"""What a scheduler's plugin registers and returns: claims on cards, receipts, dialects, locks, reports.

A vendor's plugin uses the same values for the dialects that it names or brings. Standard library only.
"""

from __future__ import annotations

from agent.scheduler_api.candidate import (
    DEFAULT_SCHEDULER,
    OWN,
    Candidate,
    PodContainer,
    PodList,
    merged,
    one_of_each_uid,
)
from agent.scheduler_api.claims import Claim, Part, ServedClaim
from agent.scheduler_api.dialects import Cards, Claims, Dialect, DialectOf, Measure, Receipt
from agent.scheduler_api.node_facts import CountedCard, Grant, SchedulerFacts
from agent.scheduler_api.reserved_names import Reserved
from agent.scheduler_api.scheduler import (
    AnnotationFilter,
    ContainerRequest,
    ExternalUse,
    MakeDialect,
    MakeFormat,
    MakeNodeFacts,
    Scheduler,
    common_dialects,
    reads,
    reporting,
)

__all__ = [
    "DEFAULT_SCHEDULER",
    "OWN",
    "AnnotationFilter",
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
    "MakeFormat",
    "MakeNodeFacts",
    "Measure",
    "Part",
    "PodContainer",
    "PodList",
    "Receipt",
    "Reserved",
    "Scheduler",
    "SchedulerFacts",
    "ServedClaim",
    "common_dialects",
    "merged",
    "one_of_each_uid",
    "reads",
    "reporting",
]
