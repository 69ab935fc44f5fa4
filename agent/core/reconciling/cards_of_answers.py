"""Which cards an answer in the kubelet's checkpoint names, whatever plugin gave the answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from agent.core.model import Allocation, DeviceStatus, share
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer
from agent.vendor_api.agent import ContainerEdits, Device, Vendor


class CardsOfAnswer(Struct, frozen=True):
    """The cards that an answer names."""

    vendor: str
    #: Empty where the answer names cards that are not here.
    cards: tuple[str, ...]
    #: The card of each device ID, where every ID names its card.
    card_of_each_id: tuple[str, ...] = ()


class AnswerReader:
    """Finds the present cards that answers of any plugin name.

    A vendor's variables and CDI names come first, then IDs with a UUID or a PCI address, then device nodes. A
    number alone names no card, since other plugins may count other things.
    """

    def __init__(
        self, statuses: Iterable[DeviceStatus] = (), vendors: Mapping[str, Vendor] | None = None
    ) -> None:
        devices = [it for it in statuses if not it.device.nameless]
        #: Vendor to its devices; vendors without cards here are left out.
        self._devices: dict[str, list[Device]] = {}
        for status in devices:
            self._devices.setdefault(status.vendor, []).append(status.device)
        self.vendors = vendors if vendors is not None else {}
        self._vendors = {name: it for name, it in self.vendors.items() if name in self._devices}
        self._vendor_of = {it.uuid: it.vendor for it in devices}
        self._parents = {it.uuid: it.device.parent for it in devices if it.device.parent}
        cards = [it for it in devices if it.device.parent is None]
        self._names = {it.device.pci: it.uuid for it in cards if it.device.pci}
        self._names |= {it.uuid: it.uuid for it in devices}
        self._nodes = {
            **_devices_by_node([it.device for it in devices]),
            **_devices_by_node([it.device for it in cards]),
        }

    @property
    def has_cards(self) -> bool:
        """Whether any vendor has cards here."""
        return bool(self._devices)

    def vendor_of_resource(self, resource: str) -> str:
        """The vendor of the cards that other plugins give as this resource; empty where it is not known."""
        return next(
            (name for name, it in self._vendors.items() if is_other_plugin_resource(it, resource)), ""
        )

    def named_cards(self, vendor: str, answer: ContainerEdits) -> tuple[str, ...] | None:
        """The vendor's cards that its variables in the answer name; None where it has no such variables."""
        known = self._vendors.get(vendor)
        if known is None or known.replaces.cards_of_answer is None:
            return None
        try:
            named = known.replaces.cards_of_answer(answer, tuple(self._devices[vendor]))
        except Exception:  # contributors' code, which reads answers of other plugins
            return ()
        return None if named is None else tuple(it for it in dict.fromkeys(named) if it in self._vendor_of)

    def cards_of(self, answer: CheckpointAnswer) -> CardsOfAnswer | None:
        """The cards behind an answer; None where the answer has nothing to do with the cards here.

        An answer of this agent that names no card belongs to an unknown vendor, with an empty name.
        """
        uuids_of_ids, edits = self._uuids_of_ids(answer.ids), answer.edits
        by_vendor = {name: self.named_cards(name, edits) for name in self._vendors}
        named = next((cards for cards in by_vendor.values() if cards), ())
        others = self._uuids_of_cdi_names(edits) or self._present_uuids(answer.cards) or uuids_of_ids
        cards = named or others or self._uuids_of_device_nodes(edits)
        if cards:
            return CardsOfAnswer(self._vendor_of[cards[0]], tuple(dict.fromkeys(cards)), uuids_of_ids)
        with_words = (name for name, cards_of_vendor in by_vendor.items() if cards_of_vendor is not None)
        vendor = next(with_words, "") or self.vendor_of_resource(answer.resource)
        return CardsOfAnswer(vendor, ()) if vendor or not answer.allocation.startswith(FOREIGN) else None

    def cards_of_ids(self, ids: Sequence[str]) -> CardsOfAnswer | None:
        """The cards that the IDs name, where only the IDs are known; None where an ID names none."""
        cards = self._uuids_of_ids(ids)
        return CardsOfAnswer(self._vendor_of[cards[0]], tuple(dict.fromkeys(cards)), cards) if cards else None

    def _uuids_of_ids(self, ids: Sequence[str]) -> tuple[str, ...]:
        cards = tuple(self._uuid_of_id(it) for it in ids)
        return tuple(it for it in cards if it) if all(cards) else ()

    def _uuid_of_id(self, device_id: str) -> str:
        numbered = share(device_id)
        names = (device_id, device_id.lower(), numbered.stem if numbered else "")
        return next((self._names[it] for it in names if it in self._names), "")

    def _uuids_of_cdi_names(self, answer: ContainerEdits) -> tuple[str, ...]:
        """The cards of CDI names such as `nvidia.com/gpu=UUID`; other CDI devices are no cards."""
        return self._present_uuids(it.rpartition("=")[2] for it in answer.cdi_devices)

    def _present_uuids(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._names[it] for it in names if it in self._names)

    def _uuids_of_device_nodes(self, answer: ContainerEdits) -> tuple[str, ...]:
        """The devices of device nodes. A container with a slice has the nodes of its card as well."""
        paths = [path for it in answer.device_nodes for path in (it.path, it.host_path)]
        uuids = dict.fromkeys(self._nodes[it] for it in paths if it in self._nodes)
        cards = {self._parents[it] for it in uuids if it in self._parents}
        return tuple(it for it in uuids if it not in cards)


def is_other_plugin_resource(vendor: Vendor, resource: str) -> bool:
    """Whether other plugins give the vendor's cards as this resource."""
    return any(fnmatchcase(resource, it) for it in vendor.replaces.resources)


def is_of_other_plugin(allocation: Allocation) -> bool:
    """Whether another plugin answered the Allocate. False without a pod uid, because then it is not known."""
    return allocation.id.startswith(FOREIGN) and allocation.owner is not None and bool(allocation.owner.uid)


def resources_of_other_plugins(in_use: Iterable[Allocation]) -> frozenset[str]:
    """The resources in use that have allocations of other plugins alone."""
    alone: dict[str, bool] = {}
    for allocation in in_use:
        alone[allocation.resource] = alone.get(allocation.resource, True) and is_of_other_plugin(allocation)
    return frozenset(name for name, others in alone.items() if others)


def cards_by_other_answer(
    granted: Iterable[CheckpointAnswer], named: Mapping[str, CardsOfAnswer]
) -> Iterator[tuple[CheckpointAnswer, CardsOfAnswer]]:
    """The answers that name no card, each with the cards of another answer for the same container.

    gpu-manager answers a container's cores, and its memory with nothing
    (gpu-manager v1.1.5, pkg/services/allocator/nvidia/allocator.go).
    """
    granted = [*granted]
    by_other_resource = {
        (answer.uid, answer.container, known.vendor): known
        for answer in granted
        if (known := named.get(answer.allocation)) is not None and known.cards
    }
    for answer in granted:
        known = named.get(answer.allocation)
        if known is None or known.cards or answer.edits != ContainerEdits():
            continue
        if (other := by_other_resource.get((answer.uid, answer.container, known.vendor))) is not None:
            yield answer, CardsOfAnswer(other.vendor, other.cards)


def _devices_by_node(devices: Sequence[Device]) -> dict[str, str]:
    """Device node to the one device that has it."""
    count = Counter(path for it in devices for path in dict.fromkeys(it.paths))
    return {path: it.uuid for it in devices for path in it.paths if count[path] == 1}
