"""The nouns of the agent: frozen values that every room passes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import product
from typing import Literal

from agent.scheduler_api import Claim
from agent.vendor_api.agent import Device, Policy, Proof, ResourceRule, State


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a physical device; `since` is Unix time in seconds."""

    state: State
    reason: str = ""
    message: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Cordon:
    """An operator's word that a card is given to nobody new; `since` is Unix time in seconds."""

    author: str
    reason: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstList:
    """Whom a kubelet found as it began: the uids of the pods that waited as it listed them first."""

    #: When that kubelet's socket came, Unix nanoseconds; another kubelet's has another time.
    began_ns: int
    pods: tuple[str, ...] = ()


Verb = Literal["cordon", "uncordon", "clear"]


@dataclass(frozen=True, slots=True)
class Command:
    """What an operator wants done with a device, which may be named by how its uuid begins."""

    verb: Verb
    device: str
    author: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device, how it is, and what the kubelet is told of it (it knows two states only)."""

    vendor: str
    device: Device
    health: Health
    told_healthy: bool
    #: Known to be there no more; it stays while it is in use.
    gone: bool = False
    cordon: Cordon | None = None
    #: The proofs that its fault waits for, beside an operator's word; none: good looks end it.
    cleared_by: tuple[Proof, ...] = ()

    @property
    def uuid(self) -> str:
        return self.device.uuid


@dataclass(frozen=True, slots=True)
class AbsentDevice:
    """A device that is not listed, and remembered nevertheless."""

    uuid: str
    vendor: str
    health: Health
    cordon: Cordon | None = None
    cleared_by: tuple[Proof, ...] = ()


class VendorState(StrEnum):
    STARTING = "starting"
    OPEN = "open"
    UNAVAILABLE = "unavailable"  # no driver or library here
    FAILED = "failed"  # lost contact: crashed, hung, broken answers
    LEFT_OUT = "left-out"  # the plugin itself is broken


@dataclass(frozen=True, slots=True)
class VendorStatus:
    name: str
    state: VendorState
    reason: str = ""


#: `open`: lost so often that it is given rest; `half-open`: tried again, and not yet of use for long enough.
BreakerState = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The process of a vendor in service; `memory` is in bytes, `next_try` is Unix time in seconds."""

    pid: int | None = None
    memory: int = 0
    #: How often it was lost by its own fault.
    restarts: int = 0
    breaker: BreakerState = "closed"
    next_try: float | None = None
    #: One that was killed and does not end, so that no other is started.
    stuck: int | None = None
    #: The bytes with more of which it is replaced; 0 where it may have any number.
    memory_limit: int = 0


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything known of the node's devices at one moment."""

    vendors: tuple[VendorStatus, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()
    absent: tuple[AbsentDevice, ...] = ()

    def device(self, uuid: str) -> DeviceStatus | None:
        return next((status for status in self.devices if status.uuid == uuid), None)

    def of(self, vendor: str) -> tuple[DeviceStatus, ...]:
        return tuple(status for status in self.devices if status.vendor == vendor)

    def present(self, vendor: str) -> tuple[Device, ...]:
        """The vendor's devices, without those that are kept for who holds them alone."""
        return tuple(status.device for status in self.of(vendor) if not status.gone)


@dataclass(frozen=True, slots=True)
class IdRange:
    """The device IDs of one card: `stem` alone, or `stem::0` up to `stem::count-1`."""

    stem: str
    count: int | None = None

    def __len__(self) -> int:
        return 1 if self.count is None else self.count

    def __iter__(self) -> Iterator[str]:
        if self.count is None:
            yield self.stem
        else:
            yield from map(self.stem.__add__, _suffixes(self.count))

    def __contains__(self, device_id: object) -> bool:
        if not isinstance(device_id, str):
            return False
        if self.count is None:
            return device_id == self.stem
        return device_id.startswith(self.stem) and device_id[len(self.stem) :] in _suffixes(self.count)

    def without(self, device_ids: Iterable[str]) -> list[str]:
        """Those IDs that are not in the range."""
        if self.count is None:
            return [it for it in device_ids if it != self.stem]
        stem, size, suffixes = self.stem, len(self.stem), _suffixes(self.count)
        return [it for it in device_ids if it[size:] not in suffixes or not it.startswith(stem)]


@lru_cache(maxsize=16)
def _suffixes(count: int) -> Mapping[str, None]:
    """What follows the stem, in order. Cards of a resource share it; looking up beats parsing numbers."""
    return dict.fromkeys(f"::{n}" for n in range(count))


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """A card within one resource. IDs of a former plan or plugin that are still in use stand in `kept`.

    `held` are the IDs that stay healthy, for who has them, on a card that is given to nobody new. `mode` is
    the resource whose the card is for now, where that is another one; empty where it is not. `closed`: nobody
    new gets the card by these IDs either, which the kubelet takes for free once their pod has ended.
    """

    uuid: str
    ids: IdRange | None
    healthy: bool
    numa: int | None = None
    kept: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    mode: str = ""
    closed: bool = False
    #: How many of `kept` are IDs of its range in another plugin's writing, or make way for such: the range is
    #: shorter by as many, so that the kubelet counts no more than the card has.
    instead: int = 0
    #: What the IDs of the card may begin with in another plugin's writing, and its memory in bytes.
    names: tuple[str, ...] = ()
    memory: int = 0

    @property
    def shares(self) -> int:
        """How many shares the card has, whoever made their IDs."""
        return len(self.ids or ()) + self.instead

    def knows(self, device_id: str) -> bool:
        """Whether it is one of the card's shares as another plugin writes it."""
        its = share(device_id)
        if its is None or its.between == "::" or its.stem not in self.names:
            return False
        return self.ids is not None and self.ids.count is not None and its.number < self.shares

    def __iter__(self) -> Iterator[str]:
        yield from self.ids or ()
        yield from self.kept

    def __len__(self) -> int:
        return len(self.ids or ()) + len(self.kept)

    def __contains__(self, device_id: object) -> bool:
        return (self.ids is not None and device_id in self.ids) or device_id in self.kept


class Index:
    """Finds the card of an ID; 58,000 IDs must not take longer than a pod's patience."""

    def __init__(self, cards: Iterable[AdvertisedDevice]) -> None:
        self._stems: dict[str, AdvertisedDevice] = {}
        self._uuids: dict[str, AdvertisedDevice] = {}
        self._kept: dict[str, AdvertisedDevice] = {}
        self._names: dict[str, AdvertisedDevice] = {}
        for card in cards:
            for name in card.names:
                self._names.setdefault(name, card)
            self._uuids[card.uuid] = card
            if card.ids is not None:
                self._stems.setdefault(card.ids.stem, card)
            self._kept.update(dict.fromkeys(card.kept, card))

    def named(self, device_id: str) -> AdvertisedDevice | None:
        """The card by how its ID begins, in whatever plugin's writing and of whatever number."""
        its = share(device_id)
        known = ((self._stems, self._uuids, self._names), (device_id, its.stem if its else ""))
        return next((cards[stem] for cards, stem in product(*known) if stem in cards), None)

    def find(self, device_id: str) -> AdvertisedDevice | None:
        for stem in (device_id.rpartition("::")[0], device_id):
            card = self._stems.get(stem)
            if card is not None and card.ids is not None and device_id in card.ids:
                return card
        return self._kept.get(device_id)


# No slots: the index is built once per value.
@dataclass(frozen=True)
class Resource:
    """What one resource lists now. `retired`: the config no longer has it; it ends when nothing is in use.

    Its cards may be shared in different ways; `rule` is the one that says most of it.
    """

    name: str
    vendor: str
    rule: ResourceRule
    policy: Policy
    cards: tuple[AdvertisedDevice, ...] = ()
    retired: bool = False
    #: The resources that offer the same cards: a card is the first's that takes of it.
    beside: frozenset[str] = frozenset()

    @property
    def capacity(self) -> int:
        return sum(len(card) for card in self.cards)

    @property
    def allocatable(self) -> int:
        return sum(len(card) if card.healthy else len(card.held) for card in self.cards)

    def card_of(self, device_id: str) -> AdvertisedDevice | None:
        """The card whose ID this is; one that is listed wins over how another plugin writes another card's.

        The kubelet may give out for a moment what such a plugin's pod had, and we list no more.
        """
        known = self.index.find(device_id)
        if known is None and (card := self.index.named(device_id)) is not None:
            return card if card.knows(device_id) else None
        return known

    def cards_of(self, device_ids: Sequence[str]) -> Sequence[AdvertisedDevice | None]:
        """The card of each ID. Thousands of units are of one card, and found at once."""
        first = self.card_of(device_ids[0]) if device_ids else None
        if first is not None and first.ids is not None and not first.ids.without(device_ids):
            return [first] * len(device_ids)
        return [self.card_of(it) for it in device_ids]

    def shares(self, device_id: str) -> bool:
        """Whether the ID is one of several replicas of its card."""
        card = self.card_of(device_id)
        return card is not None and (card.ids is None or card.ids.count is not None)

    @cached_property
    def index(self) -> Index:
        return Index(self.cards)

    @cached_property
    def former(self) -> frozenset[str]:
        """The IDs that are listed for their holders alone: their cards are given out in another way now.

        Of a card that is cut into shares as before, as many of its own make way for them: who gets one has
        one of those. Where more are listed, the card has less room than these take.
        """
        beyond = (card for card in self.cards if len(card.kept) > card.instead)
        return frozenset(it for card in beyond for it in card.kept)


@dataclass(frozen=True, slots=True)
class Share:
    """The ID of a share, read: what stands for its card, what between, and its number there."""

    stem: str
    between: str
    number: int


def share(device_id: str) -> Share | None:
    """An ID as that of a share; None where it can be none.

    `uuid::n` and `minor::n` are NVIDIA's today and ours, `uuid-_-n` is GCUShare's of 2022, `minor-n` what it
    writes since, and `uuid-n` what early virtual-device plugins did.
    """
    for between in ("::", "-_-", "-"):
        stem, _, number = device_id.rpartition(between)
        if stem and number.isascii() and number.isdigit() and str(int(number[:9])) == number:
            return Share(stem, between, int(number))
    return None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds an allocation. `namespace` and `pod` are empty until PodResources shows them."""

    uid: str
    container: str
    namespace: str = ""
    pod: str = ""


class AllocationState(StrEnum):
    INTENT = "intent"  # written, hardware not made yet
    PREPARED = "prepared"  # hardware made, answer not given yet
    DONE = "done"
    RELEASED = "released"


class AllocationSource(StrEnum):
    """Where an allocation is known from."""

    ALLOCATE = "allocate"  # answered by this process
    CHECKPOINT = "checkpoint"  # answered by an earlier one
    KUBELET = "kubelet"  # its checkpoint held what ours did not
    POD_RESOURCES = "pod-resources"  # shown there, with neither checkpoint to be had
    ANNOTATION = "annotation"  # a scheduler gave it to a pod that never asks a device plugin


@dataclass(frozen=True, slots=True)
class Allocation:
    """One answered Allocate. The same device IDs may come back in another one."""

    id: str
    resource: str
    vendor: str
    ids: tuple[str, ...]
    devices: tuple[str, ...]
    state: AllocationState
    #: When it was asked for, was answered, or ended, as its state says; Unix time in seconds.
    since: float
    source: AllocationSource = AllocationSource.ALLOCATE
    #: Why it is in its state, where that needs saying.
    reason: str = ""
    owner: Owner | None = None
    #: The life of the kubelet that knew it last.
    life: str = ""
    #: The kubelet has lost its record of it, and takes its IDs for free while its pod is there.
    forgotten: bool = False
    #: The node was started anew since its slices were made.
    rebooted: bool = False
    #: Slices that the hardware made for it, by the vendor's ids.
    partitions: tuple[str, ...] = ()
    #: Whose it was to be, as a scheduler said; the owner is who the kubelet says has it.
    claim: Claim | None = None
    #: The cards that it has instead of those of its IDs, as a scheduler chose; empty where they are the same.
    diverged: tuple[str, ...] = ()
    #: The parameters that its answer was made with, where those of its claim would have made another one.
    handed: Mapping[str, str] | None = None
    #: GiB of memory that each of its IDs stands for; empty where they do not count memory.
    unit: str = ""

    @property
    def cards(self) -> tuple[str, ...]:
        """The uuids of the cards that it has."""
        return self.diverged or self.devices

    @property
    def place(self) -> tuple[str, str] | None:
        """Uid and container of who has it, as the kubelet or else its claim says: PodResources has no uid."""
        whose = self.owner if self.owner and self.owner.uid else self.claim
        return (whose.uid, whose.container) if whose and whose.uid else None


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """Where a resource stands with the kubelet."""

    state: Literal["waiting", "registering", "registered", "refused", "yielded", "ended"] = "waiting"
    reason: str = ""
    registrations: int = 0


Plan = Mapping[str, Resource]
