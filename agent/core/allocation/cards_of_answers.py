"""Which of our cards an answer in the kubelet's checkpoint names, whatever its resource and plugin. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.core.allocation.reconcile_evidence import FOREIGN, CheckpointAnswer
from agent.core.model import Allocation, DeviceStatus, share
from agent.vendor_api.agent import ContainerEdits, Device, Vendor


@dataclass(frozen=True, slots=True)
class AnswerTie:
    """The vendor of an answer's cards, and those that it names; empty where it names cards that are not here.

    `by_id`: the card of each of its IDs, where each of them says it.
    """

    vendor: str
    cards: tuple[str, ...]
    by_id: tuple[str, ...] = ()


class AnswerTies:
    """What ties answers of whatever plugin to the cards that are here.

    Their own words come first: a vendor's variables, and CDI names. Then IDs that say a uuid or a PCI
    address, then device nodes. A number alone says nothing: another plugin may count something else.
    """

    def __init__(
        self, statuses: Iterable[DeviceStatus] = (), vendors: Mapping[str, Vendor] | None = None
    ) -> None:
        devices = [it for it in statuses if not it.device.nameless]
        #: Of vendors that have cards here alone.
        self._devices: dict[str, list[Device]] = {}
        for it in devices:
            self._devices.setdefault(it.vendor, []).append(it.device)
        self.vendors = vendors if vendors is not None else {}
        self._vendors = {name: it for name, it in self.vendors.items() if name in self._devices}
        self._vendor_of = {it.uuid: it.vendor for it in devices}
        self._parents = {it.uuid: it.device.parent for it in devices if it.device.parent}
        cards = [it for it in devices if it.device.parent is None]
        self._names = {it.device.pci: it.uuid for it in cards if it.device.pci}
        self._names |= {it.uuid: it.uuid for it in devices}
        self._nodes = {**_nodes([it.device for it in devices]), **_nodes([it.device for it in cards])}

    @property
    def has_cards(self) -> bool:
        """Whether there is anything to tie to."""
        return bool(self._devices)

    def former(self, resource: str) -> str:
        """The vendor out of whose cards other plugins give this resource; empty where none is known."""
        return next((name for name, it in self._vendors.items() if gives(it, resource)), "")

    def told(self, vendor: str, answer: ContainerEdits) -> tuple[str, ...] | None:
        """The vendor's cards that an answer names in its words; None where it has none of them."""
        its = self._vendors.get(vendor)
        if its is None or its.replaces.cards_of_answer is None:
            return None
        try:
            told = its.replaces.cards_of_answer(answer, tuple(self._devices[vendor]))
        except Exception:  # contributors' code, and what it reads is others'
            return ()
        return None if told is None else tuple(it for it in dict.fromkeys(told) if it in self._vendor_of)

    def tie(self, it: CheckpointAnswer) -> AnswerTie | None:
        """The cards behind an answer. None of one that has nothing to do with cards of ours.

        An answer of our own that fits no card is of a vendor that nobody knows, which has no name.
        """
        by_id = self._by_id(it.ids)
        worded = {name: told for name in self._vendors if (told := self.told(name, it.answer)) is not None}
        named = next((told for told in worded.values() if told), ())
        cards = named or self._by_cdi(it.answer) or self._here(it.cards) or by_id or self._by_node(it.answer)
        if cards:
            return AnswerTie(self._vendor_of[cards[0]], tuple(dict.fromkeys(cards)), by_id)
        vendor = next(iter(worded), "") or self.former(it.resource)
        return AnswerTie(vendor, ()) if vendor or not it.allocation.startswith(FOREIGN) else None

    def by_id(self, ids: Sequence[str]) -> AnswerTie | None:
        """The cards that IDs name, where nothing else is to be had; None where not all do."""
        cards = self._by_id(ids)
        return AnswerTie(self._vendor_of[cards[0]], tuple(dict.fromkeys(cards)), cards) if cards else None

    def _by_id(self, ids: Sequence[str]) -> tuple[str, ...]:
        cards = tuple(self._of_id(it) for it in ids)
        return tuple(it for it in cards if it) if all(cards) else ()

    def _of_id(self, device_id: str) -> str:
        its = share(device_id)
        names = (device_id, device_id.lower(), its.stem if its else "")
        return next((self._names[it] for it in names if it in self._names), "")

    def _by_cdi(self, answer: ContainerEdits) -> tuple[str, ...]:
        """`nvidia.com/gpu=UUID`, beside devices that are no cards."""
        return self._here(it.rpartition("=")[2] for it in answer.cdi_devices)

    def _here(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._names[it] for it in names if it in self._names)

    def _by_node(self, answer: ContainerEdits) -> tuple[str, ...]:
        """A slice's container has the nodes of its card, too."""
        paths = [path for it in answer.device_nodes for path in (it.path, it.host_path)]
        found = dict.fromkeys(self._nodes[it] for it in paths if it in self._nodes)
        cards = {self._parents[it] for it in found if it in self._parents}
        return tuple(it for it in found if it not in cards)


def gives(vendor: Vendor, resource: str) -> bool:
    """Whether other plugins give the resource out of the vendor's cards."""
    return any(fnmatchcase(resource, it) for it in vendor.replaces.resources)


def of_others(it: Allocation) -> bool:
    """Whether another plugin answered it. Of what PodResources alone shows nobody knows: that has no uid."""
    return it.id.startswith(FOREIGN) and it.owner is not None and bool(it.owner.uid)


def theirs(in_use: Iterable[Allocation]) -> frozenset[str]:
    """Resources of which other plugins alone gave what is in use."""
    alone: dict[str, bool] = {}
    for it in in_use:
        alone[it.resource] = alone.get(it.resource, True) and of_others(it)
    return frozenset(name for name, others in alone.items() if others)


def companions(
    granted: Iterable[CheckpointAnswer], tied: Mapping[str, AnswerTie]
) -> Iterator[tuple[CheckpointAnswer, AnswerTie]]:
    """Entries that name no card beside one of their container that does, with its cards.

    gpu-manager answers a container's cores, and its memory with nothing
    (gpu-manager v1.1.5, pkg/services/allocator/nvidia/allocator.go).
    """
    granted = [*granted]
    beside = {
        (it.uid, it.container, tie.vendor): tie
        for it in granted
        if (tie := tied.get(it.allocation)) is not None and tie.cards
    }
    for it in granted:
        tie = tied.get(it.allocation)
        if tie is None or tie.cards or it.answer != ContainerEdits():
            continue
        if (other := beside.get((it.uid, it.container, tie.vendor))) is not None:
            yield it, AnswerTie(other.vendor, other.cards)


def _nodes(devices: Sequence[Device]) -> dict[str, str]:
    """Device node to the one device that has it."""
    count = Counter(path for it in devices for path in dict.fromkeys(it.paths))
    return {path: it.uuid for it in devices for path in it.paths if count[path] == 1}
