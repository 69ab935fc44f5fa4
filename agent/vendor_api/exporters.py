"""Other programs that export the use of cards: what a plugin registers of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.vendor_api.metric_families import MetricFamily
    from agent.vendor_api.node_usage import NodeUsage
else:
    # The values are loaded with the first exporter that is switched on; the check of a plugin needs no more.
    MetricFamily = NodeUsage = Any

Families = Callable[[NodeUsage], Iterable[MetricFamily]]
"""The metrics of an exporter, in the order of the page, from the use of the vendor's cards.

Pure and quick: called more than once a scrape, on the agent's event loop. A figure that is not known has
no series. The function imports the module that does the work, so that agents without the exporter do not load
that module. A family that a page cannot have costs the exporter all its series.
"""


@dataclass(frozen=True, slots=True)
class Exporter:
    """A program whose metrics the agent can show, so that dashboards of that program work without it."""

    #: For the config's `metrics.compat`. Exporters of several vendors may have one name.
    name: str
    families: Families


@dataclass(frozen=True, slots=True)
class ExporterOf:
    """An exporter that a vendor names; the scheduler's plugin makes it from the vendor's terms."""

    scheduler: str
    #: The exporter's name, also for the config.
    exporter: str
    #: What the exporter needs to know of the vendor, such as the name of its cards' make. The scheduler's
    #: plugin chooses the keys.
    terms: Mapping[str, str] = field(default_factory=dict)
