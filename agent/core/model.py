"""The frozen values that all parts of the agent share: devices, resources, allocations, statuses."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import chain, product
from typing import Literal

from agent.scheduler_api.claims import Claim
from agent.vendor_api.agent import Device, Policy, Proof, ResourceRule, State


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one device; `since` is the Unix time in seconds at which this state began."""

    state: State
    reason: str = ""
    message: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Cordon:
    """An operator's command that new pods do not get a card; `since` is Unix time in seconds."""

    author: str
    reason: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstList:
    """The pods that were waiting when a kubelet started and listed its pods for the first time, by uid."""

    #: When the kubelet's socket was made, Unix nanoseconds. The time tells one kubelet from the next.
    began_ns: int
    pods: tuple[str, ...] = ()


Verb = Literal["cordon", "uncordon", "clear"]


@dataclass(frozen=True, slots=True)
class Command:
    """What an operator wants done with a device. `device` is a uuid, or the beginning of one."""

    verb: Verb
    device: str
    author: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device with its health. `told_healthy` is the advertised health; the kubelet has two states only."""

    vendor: str
    device: Device
    health: Health
    told_healthy: bool
    #: The device is known to exist no more, and is listed only while it is in use.
    gone: bool = False
    cordon: Cordon | None = None
    #: The proofs that end its fault, apart from an operator's command. Empty: clean polls end the fault.
    cleared_by: tuple[Proof, ...] = ()

    @property
    def uuid(self) -> str:
        return self.device.uuid


@dataclass(frozen=True, slots=True)
class AbsentDevice:
    """A device that its vendor does not list, but that the agent remembers for its fault or cordon."""

    uuid: str
    vendor: str
    health: Health
    cordon: Cordon | None = None
    cleared_by: tuple[Proof, ...] = ()


class VendorState(StrEnum):
    STARTING = "starting"
    OPEN = "open"
    UNAVAILABLE = "unavailable"  # no driver or library here
    FAILED = "failed"  # lost contact: the process crashed, hangs or gives broken answers
    LEFT_OUT = "left-out"  # the plugin itself is broken


@dataclass(frozen=True, slots=True)
class VendorStatus:
    """How one vendor is; `reason` says why the vendor is not open."""

    name: str
    state: VendorState
    reason: str = ""


#: `open`: the process failed so often that no restart is tried for a while. `half-open`: the process runs
#: again, but not yet long enough to be trusted.
BreakerState = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The process of a vendor in service. `memory` is in bytes, `next_try` is Unix time in seconds."""

    pid: int | None = None
    memory: int = 0
    #: How often the process failed by its own fault.
    restarts: int = 0
    breaker: BreakerState = "closed"
    next_try: float | None = None
    #: The pid of a process that was killed and does not end. No other is started until that process ends.
    stuck: int | None = None
    #: A process that uses more bytes than this is replaced; 0 means no limit.
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
        """The vendor's devices, without those that are listed only because they are still in use."""
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
            return iter((self.stem,))
        build = _cached_ids if self.count <= _MOST_CACHED else _build_ids
        return iter(build(self.stem, self.count))

    def __contains__(self, device_id: object) -> bool:
        if not isinstance(device_id, str):
            return False
        if self.count is None:
            return device_id == self.stem
        return device_id.startswith(self.stem) and device_id[len(self.stem) :] in _suffixes(self.count)

    def without(self, device_ids: Iterable[str]) -> list[str]:
        """The given IDs that are not in the range."""
        if self.count is None:
            return [it for it in device_ids if it != self.stem]
        stem, size, suffixes = self.stem, len(self.stem), _suffixes(self.count)
        return [it for it in device_ids if it[size:] not in suffixes or not it.startswith(stem)]


@lru_cache(maxsize=16)
def _suffixes(count: int) -> Mapping[str, None]:
    """The endings of `count` IDs, in order. All cards share one mapping; a lookup is faster than parsing."""
    return dict.fromkeys(f"::{n}" for n in range(count))


def _build_ids(stem: str, count: int) -> Iterable[str]:
    """The IDs of a range with numbers."""
    return map(stem.__add__, _suffixes(count))


#: The most IDs of a range that is cached, in some 50 KB: a choice of one ID reads the IDs of all cards.
_MOST_CACHED = 512


@lru_cache(maxsize=64)
def _cached_ids(stem: str, count: int) -> Iterable[str]:
    return tuple(_build_ids(stem, count))


class ClosedBecause(StrEnum):
    """Why new pods do not get a healthy card."""

    CORDON = "cordon"  # an operator's command
    FOREIGN_SLICES = "foreign-slices"  # slices on the card that the agent did not make
    EXTERNAL_USE = "external-use"  # a pod has the card by its scheduler's word, without an Allocate


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """A card as one resource lists it to the kubelet.

    `kept`: IDs of an earlier plan or of another plugin that are still in use. `held`: IDs that stay healthy
    for the pods that have them, on a card that new pods do not get. `mode`: the other resource that has the
    card now; empty where none has. `closed`: why new pods do not get the `held` IDs either, although the
    kubelet regards those IDs as free once their pod has ended; None where new pods get them.
    """

    uuid: str
    ids: IdRange | None
    healthy: bool
    numa: int | None = None
    kept: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    mode: str = ""
    closed: ClosedBecause | None = None
    #: By how many IDs the range is shortened because as many shares have `kept` IDs, so that the kubelet
    #: counts no more shares than the card has.
    displaced: int = 0
    #: The stems that IDs of this card can have, in the forms of this agent and of other plugins.
    names: tuple[str, ...] = ()
    #: Memory of the card in bytes; 0 where it is not known.
    memory: int = 0

    @property
    def shares(self) -> int:
        """How many shares the card has, under IDs of this agent or of another plugin."""
        return len(self.ids or ()) + self.displaced

    def has_share(self, device_id: str) -> bool:
        """Whether the ID is one of the card's shares in the form of another plugin."""
        return (
            self.ids is not None
            and self.ids.count is not None
            and is_share_of(device_id, self.names, self.shares)
        )

    def __iter__(self) -> Iterator[str]:
        return chain(self.ids or (), self.kept)

    def __len__(self) -> int:
        return len(self.ids or ()) + len(self.kept)

    def __contains__(self, device_id: object) -> bool:
        return (self.ids is not None and device_id in self.ids) or device_id in self.kept


class Index:
    """Finds the card of a device ID by hash lookups; a node can have 58,000 IDs."""

    def __init__(self, cards: Iterable[AdvertisedDevice]) -> None:
        self._stems: dict[str, AdvertisedDevice] = {}
        self._uuids: dict[str, AdvertisedDevice] = {}
        self._kept_ids: dict[str, AdvertisedDevice] = {}
        self._names: dict[str, AdvertisedDevice] = {}
        for card in cards:
            for name in card.names:
                self._names.setdefault(name, card)
            self._uuids[card.uuid] = card
            if card.ids is not None:
                self._stems.setdefault(card.ids.stem, card)
            self._kept_ids.update(dict.fromkeys(card.kept, card))

    def by_stem(self, device_id: str) -> AdvertisedDevice | None:
        """The card that the stem of the ID names, in the form of any plugin and with any number."""
        written = share(device_id)
        known = ((self._stems, self._uuids, self._names), (device_id, written.stem if written else ""))
        return next((cards[stem] for cards, stem in product(*known) if stem in cards), None)

    def find(self, device_id: str) -> AdvertisedDevice | None:
        """The card that lists exactly this ID; None where no card does."""
        for stem in (device_id.rpartition("::")[0], device_id):
            card = self._stems.get(stem)
            if card is not None and card.ids is not None and device_id in card.ids:
                return card
        return self._kept_ids.get(device_id)

    def uuids(self, device_ids: Container[str]) -> dict[str, str]:
        """Each of the IDs that a card lists to the uuid of the card, as `find` finds the card."""
        found = {it: card.uuid for it, card in self._kept_ids.items() if it in device_ids}
        for card in self._stems.values():
            found |= dict.fromkeys(filter(device_ids.__contains__, card.ids or ()), card.uuid)
        return found

    def ranges(self, stems: Iterable[str]) -> tuple[IdRange, ...]:
        """The ranges with one of these stems."""
        cards = map(self._stems.get, stems)
        return tuple(card.ids for card in cards if card is not None and card.ids is not None)

    @property
    def stems(self) -> KeysView[str]:
        """The stems of all ranges."""
        return self._stems.keys()


# No slots: the index is built once per value.
@dataclass(frozen=True)
class Resource:
    """What one resource lists now. `retired`: the config no longer has the resource, which ends once free.

    The cards of one resource may be shared in different ways. `rule` is then the rule that shares cards.
    """

    name: str
    vendor: str
    rule: ResourceRule
    policy: Policy
    cards: tuple[AdvertisedDevice, ...] = ()
    retired: bool = False
    #: The other resources that offer the same cards. The first one that gives a card to a pod keeps it.
    other_modes: frozenset[str] = frozenset()

    @property
    def capacity(self) -> int:
        """How many IDs the resource lists, as the kubelet counts them for the Node."""
        return sum(len(card) for card in self.cards)

    @property
    def allocatable(self) -> int:
        """How many of the listed IDs are healthy."""
        return sum(len(card) if card.healthy else len(card.held) for card in self.cards)

    def card_of(self, device_id: str) -> AdvertisedDevice | None:
        """The card of this ID: the card that lists the ID, or else the card that its stem names.

        The second case is an ID of another plugin's pod that ended: the agent lists the ID no more, and the
        kubelet can still assign the ID for a moment.
        """
        known = self.index.find(device_id)
        if known is None and (card := self.index.by_stem(device_id)) is not None:
            return card if card.has_share(device_id) else None
        return known

    def cards_of(self, device_ids: Sequence[str]) -> Sequence[AdvertisedDevice | None]:
        """The card of each ID. Thousands of memory units on one card are found in one step."""
        first = self.card_of(device_ids[0]) if device_ids else None
        if first is not None and first.ids is not None and not first.ids.without(device_ids):
            return [first] * len(device_ids)
        return [self.card_of(it) for it in device_ids]

    def uuids_of(self, device_ids: Iterable[str]) -> dict[str, str]:
        """Each ID that has a card to the uuid of the card. Thousands of listed IDs are found in one step."""
        wanted = frozenset(device_ids)
        found = self.index.uuids(wanted)
        others = ((it, self.card_of(it)) for it in wanted.difference(found))
        return found | {device_id: card.uuid for device_id, card in others if card is not None}

    def shares(self, device_id: str) -> bool:
        """Whether the ID is one of several replicas of its card."""
        card = self.card_of(device_id)
        return card is not None and (card.ids is None or card.ids.count is not None)

    @cached_property
    def index(self) -> Index:
        return Index(self.cards)

    @cached_property
    def outdated_ids(self) -> frozenset[str]:
        """The IDs that are listed only for the pods that have them, and that new pods cannot get.

        An ID in `kept` that displaces an ID of the card's range is a share like any other, and not in this
        set. A card that lists more `kept` IDs than it displaces is shared in another way now.
        """
        beyond = (card for card in self.cards if len(card.kept) > card.displaced)
        return frozenset(it for card in beyond for it in card.kept)


@dataclass(frozen=True, slots=True)
class ShareId:
    """The parts of a share's ID: the stem that names the card, the separator, and the share's number."""

    stem: str
    between: str
    number: int


def share(device_id: str) -> ShareId | None:
    """Parse the ID of a share; None where the ID has no such form.

    NVIDIA's plugin and this agent write `uuid::n` and `minor::n`. GCUShare wrote `uuid-_-n` in 2022 and has
    written `minor-n` since. Early virtual-device plugins wrote `uuid-n`.
    """
    for between in ("::", "-_-", "-"):
        stem, _, number = device_id.rpartition(between)
        if stem and number.isascii() and number.isdigit() and str(int(number[:9])) == number:
            return ShareId(stem, between, int(number))
    return None


def is_share_of(device_id: str, names: Collection[str], count: int) -> bool:
    """Whether the ID is one of the first `count` shares of a card in the form of another plugin.

    `names`: the stems that IDs of the card can have.
    """
    written = share(device_id)
    if written is None or written.between == "::" or written.stem not in names:
        return False
    return written.number < count


@dataclass(frozen=True, slots=True)
class Owner:
    """The container that has an allocation. `namespace` and `pod` are empty until PodResources shows them."""

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
    """Where the agent knows an allocation from."""

    ALLOCATE = "allocate"  # this process answered the Allocate
    CHECKPOINT = "checkpoint"  # an earlier process answered the Allocate
    KUBELET = "kubelet"  # the kubelet's checkpoint had the allocation, and the agent's had not
    POD_RESOURCES = "pod-resources"  # only PodResources showed it; neither checkpoint could be read
    ANNOTATION = "annotation"  # a scheduler gave cards to a pod for which no Allocate is ever called


@dataclass(frozen=True, slots=True)
class Allocation:
    """One answered Allocate. The same device IDs can come again in a later allocation."""

    id: str
    resource: str
    vendor: str
    ids: tuple[str, ...]
    devices: tuple[str, ...]
    state: AllocationState
    #: When the present state began: requested, answered or ended. Unix time in seconds.
    since: float
    source: AllocationSource = AllocationSource.ALLOCATE
    #: Why the allocation is in its state; empty where the state needs no reason.
    reason: str = ""
    owner: Owner | None = None
    #: The life of the kubelet that knew the allocation last.
    life: str = ""
    #: The kubelet has lost its record of the allocation. It regards the IDs as free while the pod still runs.
    forgotten: bool = False
    #: The node was rebooted after the slices of this allocation were made.
    rebooted: bool = False
    #: Slices that were made for this allocation, by the vendor's ids.
    partitions: tuple[str, ...] = ()
    #: The scheduler's promise that this allocation fulfils. `owner` is what the kubelet says.
    claim: Claim | None = None
    #: The cards that it has instead of the cards of its IDs; empty where they are the same. The checkpoint
    #: has this field by its name.
    diverged: tuple[str, ...] = ()
    #: The parameters that the answer was made with, where the claim's parameters would make another answer.
    handed: Mapping[str, str] | None = None
    #: GiB of memory that one ID stands for; empty where the IDs do not count memory.
    unit: str = ""

    @property
    def cards(self) -> tuple[str, ...]:
        """The uuids of the cards that the allocation has."""
        return self.diverged or self.devices

    @property
    def container_key(self) -> tuple[str, str] | None:
        """(pod uid, container) by the kubelet, or by the claim where PodResources gave no uid."""
        holder = self.owner if self.owner and self.owner.uid else self.claim
        return (holder.uid, holder.container) if holder and holder.uid else None


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """How far the registration of a resource with the kubelet is."""

    state: Literal["waiting", "registering", "registered", "refused", "yielded", "ended"] = "waiting"
    reason: str = ""
    registrations: int = 0


Plan = Mapping[str, Resource]
