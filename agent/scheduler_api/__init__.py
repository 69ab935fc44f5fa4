"""Who asks, as schedulers say it: the pods of this node, and what of its devices each was promised.

Standard library only: a vendor's dialects are written in these words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.scheduler_api.node_report import NodeReport

#: How the keys begin of the annotations in which a scheduler may speak to this agent alone.
OWN = "xpu-agent.io/"
#: What a pod asks for that Kubernetes' own scheduler binds, which writes nothing of cards: somebody else did.
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container and its limits: resource name to count. `restartable` init containers are sidecars."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    init: bool = False
    restartable: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod bound to this node, as the API server shows it. Everything in it is a stranger's word."""

    uid: str
    namespace: str
    name: str
    containers: tuple[PodContainer, ...] = ()
    #: Those in which a scheduler may promise something.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Unix time, seconds
    created: float = 0.0
    #: Whether it has failed or succeeded, or is being deleted after it had started: it gets nothing any more.
    over: bool = False
    #: What the kubelet says of it in its status: why it was refused, say.
    message: str = ""
    #: Whether the uid is that of a static pod, which the pod says of itself; else the server gave it.
    static: bool = False
    #: Whether it has failed or succeeded: its containers run no more.
    ended: bool = False
    #: The scheduler that it asks for, or that wrote its cards; empty where nobody says.
    scheduler: str = ""
    #: Whether none of its containers has started yet, or one of them has not since the node was started.
    pending: bool = True
    #: The resourceVersion at which it was seen here first, while it had not started; 0 where nobody knows.
    #: The kubelet hears of pods in this order, whatever the scheduler wrote, who binds several at once; only
    #: those that it finds as it starts it takes by their age.
    appeared: int = field(default=0, compare=False)
    #: When it was bound to the node, Unix time in whole seconds of the API server's clock; 0: nobody knows.
    bound: float = 0.0
    #: The resourceVersion of what was read here; 0 where nobody knows. An API server's only grow (KEP-5504).
    version: int = field(default=0, compare=False)
    #: What `agent.core.allocation.remembered_claims` made of it already, for this version of the pod.
    heard: dict[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def waits(self) -> bool:
        """Whether it may ask for devices."""
        return self.pending and not self.over


def one_of_each_uid(pods: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Oldest first. The server gives each uid once; who only says that one is its own yields to an owner."""
    oldest_first = sorted(pods, key=lambda it: (it.created, it.uid))
    taken = {it.uid for it in oldest_first if not it.static}
    found: list[Candidate] = []
    for it in oldest_first:
        if not it.static or it.uid not in taken:
            taken.add(it.uid)
            found.append(it)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PodList:
    """The pods of this node that had not ended, as the API server had them at this resourceVersion."""

    pods: tuple[Candidate, ...]
    version: int = 0


def merged(known: Iterable[Candidate], reached: int, listed: PodList) -> tuple[Candidate, ...]:
    """The known pods and a list that was asked for beside them: of each pod what is newer.

    `reached`: the resourceVersion up to which the known ones are followed; 0: nobody knows. A pod that was
    known before the list and is not in the list is over. A pod of the list that the following has come past
    without knowing it is gone. Who is over stays so.
    """
    others = {(it.namespace, it.name, it.uid): it for it in listed.pods}
    found: list[Candidate] = []
    for it in known:
        other = others.pop((it.namespace, it.name, it.uid), None)
        if other is None:
            found.append(replace(it, over=it.over or 0 < it.version <= listed.version))
        elif it.over or other.version < it.version or 0 < other.version == it.version:
            found.append(it)
        else:
            found.append(replace(other, appeared=it.appeared or other.appeared))
    found += [it for it in others.values() if not (reached and 0 < it.version <= reached)]
    return one_of_each_uid(found)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a scheduler promised one container: these cards, and what the vendor must make of them."""

    uid: str
    namespace: str
    pod: str
    container: str
    #: uuids of cards; empty where the scheduler chose none
    devices: tuple[str, ...] = ()
    #: What the hardware is made with, in the vendor's own words.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: What the people of the pod should know of it: where it is not what the container asks for, say.
    remark: str = ""
    #: Name of the dialect in which it was said; in another one it is the same claim.
    dialect: str = field(default="", compare=False)


#: uuid to minor number, in the order of those; None of one that has none of its own.
Cards = Mapping[str, int | None]
Claims = Callable[[Candidate, str, Cards], Sequence[Claim]]
"""The claims of a pod on a resource, given the cards of the vendor that serves it.

Pure. Raises ValueError where the annotations make no sense; the pod then has no claim, and the text is told.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Of one card the part of its cores and of its memory; 1.0 is all of it."""

    core: float = 0.0
    memory: float = 0.0


Measure = Callable[[Mapping[str, str], int], Part | None]
"""The part of each of its cards that a claim with these parameters is for, given a card's bytes (0: unknown).

Pure, and total: parameters may come from a file. None: as large as its device IDs are of those of the card.
"""


@dataclass(frozen=True, slots=True)
class ServedClaim:
    """What one container of a pod has of a resource under its claim, as the kubelet confirms it."""

    container: str
    resource: str
    #: How many of the resource's IDs.
    count: int
    #: uuids of the cards.
    devices: tuple[str, ...]
    #: Slices that the hardware made for it, by the vendor's ids.
    partitions: tuple[str, ...] = ()


Receipt = Callable[[Candidate, Sequence[ServedClaim]], Mapping[str, str]]
"""The annotations by which a pod tells its scheduler that it has its devices, given what each container has.

Pure. What stands on the pod already may go into it; of a pod that bears its receipt it must ask nothing more.
Raises ValueError where the pod makes no sense; nothing is written to it then, and the text is told.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one scheduler hands over its choice, and learns what came of it."""

    name: str
    claims: Claims
    #: How the keys of the annotations begin that it reads, such as `acme.com/`.
    reads: tuple[str, ...] = ()
    #: Keys of the Node's annotations in which the scheduler locks it before it binds a pod, and which whoever
    #: serves that pod is to free, such as `acme.com/mutex.lock`: TIME,NAMESPACE,POD or, of old, TIME alone.
    locks: tuple[str, ...] = ()
    #: What its claims take of a card, where that is not what their device IDs are of those of the card; of a
    #: claim that names none, of each that it lies on.
    measure: Measure | None = None
    #: What is to stand on a pod once it has its devices; None where the scheduler reads nothing there.
    receipt: Receipt | None = None
    #: Keys of all annotations that the receipt may have, such as `acme.com/assigned`: no other is written.
    receipt_keys: tuple[str, ...] = ()
    #: The resource by which a pod says over how many cards its amounts are spread; empty where there is none.
    card_count: str = ""


@dataclass(frozen=True, slots=True)
class DialectOf:
    """A dialect that a vendor hears, by name: the scheduler's plugin makes one in the vendor's terms."""

    scheduler: str
    dialect: str
    #: What the dialect needs to know of the vendor, by the names that its scheduler's plugin gives them:
    #: what resources are called, say.
    terms: Mapping[str, str] = field(default_factory=dict)
    #: What the claims take of a card, where the vendor knows that and the scheduler does not.
    measure: Measure | None = None
    #: Whether the claims are what a pod's own limits ask for: such a dialect is heard after all schedulers,
    #: where a scheduler may choose and none has to.
    of_limits: bool = False


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What a container asks of a scheduler by the scheduler's own resource names."""

    cards: int
    #: How much of each of these cards, in words: `10 % of the cores and 1Gi`.
    each: str


Asks = Callable[[Mapping[str, int]], ContainerRequest | None]
"""What a container with these limits asks of the scheduler; None where it asks for no card. Pure."""


@dataclass(frozen=True, slots=True)
class ExternalUse:
    """Cards that a scheduler gives to pods that ask no device plugin: an annotation is all that says so."""

    #: What such an allocation is of, in the ledger.
    resource: str
    #: What a pod was given of these cards, all containers together; None where the scheduler gave none, or
    #: the pod asks the scheduler for none. Pure. Raises ValueError where the annotations make no sense, or
    #: name no card that is among these; the pod then holds none, and people are told the text.
    claim: Callable[[Candidate, Cards], Claim | None]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Resource names that a scheduler's programs write to the Node: no device plugin may serve them."""

    #: How these names begin: `acme.com/`.
    prefix: str
    #: Why they cannot be served, as a clause, and what would work: `is Acme's own; choose another domain`.
    why: str


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One scheduler, as the agent's rules and wires ask about it: values and pure functions.

    The agent loops over the schedulers that are registered, and knows none of them by name.
    """

    name: str
    #: Names of schedulers to be heard before this one, where they are registered: a pod may bear the words
    #: of both.
    after: tuple[str, ...] = ()
    #: How the program calls itself: `schedulerName` of pods, and manager of the fields that it writes.
    program: str = ""
    #: The annotation of pods in which that program writes its choice.
    writes: str = ""
    #: How the keys of all annotations begin that the program writes on pods: `acme.com/`. The agent keeps no
    #: others of a pod.
    reads: tuple[str, ...] = ()
    #: The dialects that are heard for every vendor, after the vendor's own, where a scheduler may choose the
    #: card.
    dialects: tuple[Dialect, ...] = ()
    asks: Asks | None = None
    external: ExternalUse | None = None
    #: The dialects that vendors may name, each by the function that makes it.
    vendor_dialects: Mapping[str, MakeDialect] = field(default_factory=dict)
    #: Keys of the Node's annotations in which the program locks the Node, as `Dialect.locks`, whichever cards
    #: a pod asks for.
    locks: tuple[str, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    #: How the scheduler gets a report of the node's cards; None where it gets none.
    report: NodeReport | None = None


MakeDialect = Callable[[Mapping[str, str], Sequence[Scheduler]], Dialect]
"""A dialect in a vendor's terms, given the registered schedulers in the order in which they are heard.

Pure. Raises ValueError where the terms are not those that it needs, with what would work.
"""


def reporting(schedulers: Iterable[Scheduler]) -> NodeReport | None:
    """How the scheduler that gets a report of the node's cards gets it; None where no scheduler gets one."""
    return next((it.report for it in schedulers if it.report is not None), None)


def common_dialects(schedulers: Iterable[Scheduler]) -> tuple[Dialect, ...]:
    """The dialects that are heard for every vendor, in order."""
    return tuple(dialect for it in schedulers for dialect in it.dialects)


@dataclass(frozen=True, slots=True)
class AnnotationFilter:
    """What is kept of the annotations of pods, as the API server shows them."""

    #: How their keys begin.
    prefixes: tuple[str, ...] = (OWN,)
    #: Programs of schedulers, each with the annotation that the program writes. A pod that asks for
    #: Kubernetes' own scheduler and bears the annotation was placed by that program, under whatever name.
    writers: tuple[tuple[str, str], ...] = ()


def reads(schedulers: Iterable[Scheduler], dialects: Iterable[Dialect] = ()) -> AnnotationFilter:
    """What these schedulers and these dialects of vendors read, and the receipts that pods bear."""
    heard = tuple(schedulers)
    # What a pod bears of its receipt is read, too: else it would be written again and again.
    prefixes = [OWN, *(prefix for it in heard for prefix in it.reads)]
    prefixes += [key for it in (*common_dialects(heard), *dialects) for key in (*it.reads, *it.receipt_keys)]
    writers = tuple((it.program, it.writes) for it in heard if it.program and it.writes)
    return AnnotationFilter(tuple(dict.fromkeys(prefixes)), writers)
