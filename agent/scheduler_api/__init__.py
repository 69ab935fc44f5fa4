"""What a scheduler's plugin registers and returns: claims on cards, receipts, dialects, locks, reports.

A vendor's plugin uses the same values for the dialects that it names or brings. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.scheduler_api.candidate import Candidate as Candidate
from agent.scheduler_api.candidate import PodContainer as PodContainer
from agent.scheduler_api.candidate import PodList as PodList
from agent.scheduler_api.candidate import merged as merged
from agent.scheduler_api.candidate import one_of_each_uid as one_of_each_uid
from agent.scheduler_api.node_checks import SchedulerChecks
from agent.scheduler_api.node_report import NodeReport

#: Prefix of annotation keys that are meant for this agent alone.
OWN = "xpu-agent.io/"
#: Name of Kubernetes' own scheduler. It writes nothing of cards, so cards on its pods are another writer's.
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a scheduler promised one container: cards, and parameters for the vendor."""

    uid: str
    namespace: str
    pod: str
    container: str
    #: Uuids of cards; empty where the scheduler chose none.
    devices: tuple[str, ...] = ()
    #: The share of the cards, by names that the vendor knows.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: A sentence for the pod's users, such as a difference to what the container asks for.
    remark: str = ""
    #: Name of the dialect that the claim was read in. Claims that differ in it alone are equal.
    dialect: str = field(default="", compare=False)


#: Uuid to minor number, in the order of the numbers; None for a card without a number.
Cards = Mapping[str, int | None]
Claims = Callable[[Candidate, str, Cards], Sequence[Claim]]
"""The claims of a pod on a resource, given the cards of the vendor that serves it.

Pure. Raises ValueError for annotations that make no sense. The pod then has no claim, and an Event says why.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one card: of its cores and of its memory. 1.0 is the whole card."""

    core: float = 0.0
    memory: float = 0.0


Measure = Callable[[Mapping[str, str], int], Part | None]
"""The part of each card that a claim with these parameters takes, given a card's bytes (0: unknown).

Pure, and without errors for any parameters: these may come from a file. None: the part is the share of the
claim's device IDs in the card's.
"""


@dataclass(frozen=True, slots=True)
class ServedClaim:
    """What one container of a pod has of a resource by its claim, confirmed by the kubelet."""

    container: str
    resource: str
    #: Number of device IDs.
    count: int
    #: Uuids of the cards.
    devices: tuple[str, ...]
    #: Slices that the hardware made for the container, by the vendor's ids.
    partitions: tuple[str, ...] = ()


Receipt = Callable[[Candidate, Sequence[ServedClaim]], Mapping[str, str]]
"""The annotations by which a pod tells its scheduler that it has its devices, given what each container has.

Pure. For a pod that has its receipt the function returns nothing that differs from the pod's annotations.
Raises ValueError for a pod that makes no sense. Nothing is then written to the pod, and the text is logged.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way in which a scheduler writes its choice on pods, and learns that a pod has its devices."""

    name: str
    claims: Claims
    #: Prefixes of the annotation keys that the functions read, such as `acme.com/`.
    reads: tuple[str, ...] = ()
    #: Keys of the Node's annotations by which the scheduler locks the Node before a bind, such as
    #: `acme.com/mutex.lock`. The value is TIME,NAMESPACE,POD, or TIME alone. The agent frees the lock once it
    #: has served that pod.
    locks: tuple[str, ...] = ()
    #: The part of a card that a claim takes; None where the number of device IDs says the part. For a claim
    #: without cards it is the part of each card that the claim is served from.
    measure: Measure | None = None
    #: The annotations of a pod that has its devices; None where the scheduler reads no receipt.
    receipt: Receipt | None = None
    #: All keys that the receipt may have, such as `acme.com/assigned`. Other keys are not written.
    receipt_keys: tuple[str, ...] = ()
    #: The resource by which a pod says over how many cards its amounts are spread; empty without one.
    card_count: str = ""


@dataclass(frozen=True, slots=True)
class DialectOf:
    """A dialect that a vendor names; the scheduler's plugin makes it from the vendor's terms."""

    scheduler: str
    dialect: str
    #: What the dialect needs to know of the vendor, such as the names of resources. The scheduler's plugin
    #: chooses the keys.
    terms: Mapping[str, str] = field(default_factory=dict)
    #: The part of a card that a claim takes, where the vendor knows the part and the scheduler does not.
    measure: Measure | None = None
    #: Whether the claims come from the pod's own limits. Such a dialect is heard after all schedulers, for
    #: resources that are served without a scheduler's choice too.
    of_limits: bool = False


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
class Reserved:
    """Resource names that a scheduler's programs write to the Node. No device plugin may serve them."""

    #: Prefix of the names: `acme.com/`.
    prefix: str
    #: The reason as a clause, and what would work: `is Acme's own; choose another domain`.
    why: str


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


def reporting(schedulers: Iterable[Scheduler]) -> NodeReport | None:
    """How the scheduler that gets a report of the node's cards gets it; None where no scheduler gets one."""
    return next((it.report for it in schedulers if it.report is not None), None)


def common_dialects(schedulers: Iterable[Scheduler]) -> tuple[Dialect, ...]:
    """The dialects that are heard for every vendor, in order."""
    return tuple(dialect for it in schedulers for dialect in it.dialects)


@dataclass(frozen=True, slots=True)
class AnnotationFilter:
    """Which annotations of a pod the agent keeps."""

    #: Prefixes of their keys.
    prefixes: tuple[str, ...] = (OWN,)
    #: Programs of schedulers, each with the annotation that it writes. A pod that names Kubernetes' own
    #: scheduler and has that annotation from that program was placed by the program.
    writers: tuple[tuple[str, str], ...] = ()


def reads(schedulers: Iterable[Scheduler], dialects: Iterable[Dialect] = ()) -> AnnotationFilter:
    """The annotations that these schedulers and these dialects of vendors read, with their receipts."""
    registered = tuple(schedulers)
    # Receipts are read too. Without that, the agent would write each receipt again and again.
    prefixes = [OWN, *(prefix for it in registered for prefix in it.reads)]
    for dialect in (*common_dialects(registered), *dialects):
        prefixes += [*dialect.reads, *dialect.receipt_keys]
    writers = tuple((it.program, it.writes) for it in registered if it.program and it.writes)
    return AnnotationFilter(tuple(dict.fromkeys(prefixes)), writers)
