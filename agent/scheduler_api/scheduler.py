"""A scheduler, as its plugin registers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.scheduler_api.candidate import OWN, Candidate
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards, Dialect
from agent.scheduler_api.node_checks import SchedulerChecks
from agent.scheduler_api.node_facts import SchedulerFacts
from agent.scheduler_api.node_report import NodeReport
from agent.scheduler_api.reserved_names import Reserved
from agent.vendor_api.exporters import Exporter
from agent.vendor_api.tool_formats import Format


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What a container asks for by the scheduler's own resource names."""

    cards: int
    #: The amount of each card, in words: `10 % of the cores and 1Gi`.
    each: str


Asks = Callable[[Mapping[str, int]], ContainerRequest | None]
"""What a container with these limits asks for; None where it asks for no card. Pure."""


@dataclass(frozen=True, slots=True)
class ExternalUse:
    """Cards that a scheduler gives to pods without a device plugin. An annotation is the only evidence."""

    #: Name of such allocations in the ledger, in place of a resource.
    resource: str
    #: The claim of a pod, all containers together, on these cards; None where the pod asks for no card or
    #: got none. Pure. Raises ValueError for annotations that make no sense, or that name none of these cards.
    #: The pod then holds no card, and an Event has the text.
    claim: Callable[[Candidate, Cards], Claim | None]


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One scheduler: values and pure functions for all that the agent asks of a scheduler.

    The agent loops over the registered schedulers and knows no scheduler by name.
    """

    name: str
    #: Names of schedulers that are heard before this one, if registered: a pod may have annotations of both.
    after: tuple[str, ...] = ()
    #: Name of the scheduler's program: `schedulerName` of pods, and manager of the fields that it writes.
    program: str = ""
    #: The annotation of pods that has the program's choice.
    writes: str = ""
    #: Prefixes of all annotation keys that the program writes on pods: `acme.com/`. The agent keeps no other
    #: annotation of a pod.
    reads: tuple[str, ...] = ()
    #: The dialects for every vendor's cards. They are heard after the vendor's own dialects.
    dialects: tuple[Dialect, ...] = ()
    asks: Asks | None = None
    external: ExternalUse | None = None
    #: The dialects that vendors may name, each with the function that makes it.
    vendor_dialects: Mapping[str, MakeDialect] = field(default_factory=dict)
    #: The formats of the scheduler's tools that vendors may name, each with the function that makes it.
    vendor_formats: Mapping[str, MakeFormat] = field(default_factory=dict)
    #: The exporters of use that vendors may name, each with the function that makes it.
    vendor_exporters: Mapping[str, MakeExporter] = field(default_factory=dict)
    #: What the scheduler reads on the Node of the cards of vendors that name it, each with the function that
    #: makes it.
    vendor_node_facts: Mapping[str, MakeNodeFacts] = field(default_factory=dict)
    #: Keys of the Node's annotations by which the program locks the Node for a pod of any vendor's cards, as
    #: `Dialect.locks`.
    locks: tuple[str, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    #: How the scheduler gets a report of the node's cards; None where it gets none.
    report: NodeReport | None = None
    #: Checks of `xpu-agent doctor`; None where the scheduler has none.
    checks: SchedulerChecks | None = None


MakeDialect = Callable[[Mapping[str, str], Sequence[Scheduler]], Dialect]
"""A dialect in a vendor's terms, given the registered schedulers in the order in which they are heard.

Pure. Raises ValueError for terms that the dialect cannot use; the text says what would work.
"""


MakeFormat = Callable[[Mapping[str, str]], Format]
"""A format of the scheduler's tools in a vendor's terms.

Pure. Raises ValueError for terms that the format cannot use; the text says what would work.
"""


MakeExporter = Callable[[Mapping[str, str]], Exporter]
"""An exporter of the scheduler's programs in a vendor's terms.

Pure. Raises ValueError for terms that the exporter cannot use; the text says what would work.
"""


MakeNodeFacts = Callable[[Mapping[str, str]], SchedulerFacts]
"""What the scheduler reads on the Node, in a vendor's terms.

Pure. Raises ValueError for terms that cannot be used; the text says what would work.
"""


def reporting(schedulers: Iterable[Scheduler]) -> NodeReport | None:
    """How the scheduler that gets a report of the node's cards gets it; None where no scheduler gets one."""
    return next((it.report for it in schedulers if it.report is not None), None)


def common_dialects(schedulers: Iterable[Scheduler]) -> tuple[Dialect, ...]:
    """The dialects that are heard for every vendor, in order."""
    return tuple(dialect for it in schedulers for dialect in it.dialects)


@dataclass(frozen=True, slots=True)
class AnnotationFilter:
    """Which annotations of a pod the agent keeps, and whether the ids of containers."""

    #: Prefixes of their keys.
    prefixes: tuple[str, ...] = (OWN,)
    #: Programs of schedulers, each with the annotation that it writes. A pod that names Kubernetes' own
    #: scheduler and has that annotation from that program was placed by the program.
    writers: tuple[tuple[str, str], ...] = ()
    #: Whether the runtime's ids of containers are kept. Only the sampling of use reads them, and a pod whose
    #: container starts again is another value with them.
    container_ids: bool = False


def reads(schedulers: Iterable[Scheduler], dialects: Iterable[Dialect] = ()) -> AnnotationFilter:
    """The annotations that these schedulers and these dialects of vendors read, with their receipts."""
    registered = tuple(schedulers)
    # Receipts are read too. Without that, the agent would write each receipt again and again.
    prefixes = [OWN, *(prefix for it in registered for prefix in it.reads)]
    heard = (*common_dialects(registered), *dialects)
    prefixes += [key for dialect in heard for key in (*dialect.reads, *dialect.receipt_keys)]
    writers = tuple((it.program, it.writes) for it in registered if it.program and it.writes)
    return AnnotationFilter(tuple(dict.fromkeys(prefixes)), writers)
