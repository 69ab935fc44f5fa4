"""The cards of three vendors and what is made on them, in the memory of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.core.errors import InsufficientRoom
from agent.vendor_api.agent import ContainerEdits, Device, Partition, Request, RequestRefused
from agent.vendors.enflame.shared import constants as enflame
from agent.vendors.metax.shared import constants as metax
from agent.vendors.metax.shared.slice_request import slices

GIB = 1 << 30
COUNT = 3


@dataclass(frozen=True, slots=True)
class Slice:
    """What lies on a card: percent of it, and bytes. `mark` None: others made it."""

    card: str
    core: int
    memory: int
    mark: str | None
    name: str


@dataclass
class Cards:
    """Cards whose hardware makes no slices."""

    vendor: str
    plain: tuple[Device, ...]
    slices: list[Slice] = field(default_factory=list)
    made: int = 0

    @property
    def memory(self) -> Mapping[str, int]:
        return {it.uuid: it.memory for it in self.plain}

    @property
    def devices(self) -> tuple[Device, ...]:
        """As the vendor lists them now."""
        return tuple(replace(it, attributes={**it.attributes, **self.said(it)}) for it in self.plain)

    def said(self, card: Device) -> Mapping[str, str]:
        foreign = [it for it in self.slices if it.card == card.uuid and it.mark is None]
        return {"foreign-slices": str(len(foreign))} if foreign else {}

    def named(self, answer: ContainerEdits) -> Sequence[str]:
        """The cards that a container with this answer sees."""
        by_node = {path: it.uuid for it in self.plain for path in it.paths}
        return tuple(by_node[it.path] for it in answer.device_nodes if it.path in by_node)

    def wanted(self, request: Request, uuids: Sequence[str]) -> Sequence[tuple[str, int, int]]:
        """Card, percent and bytes of each slice of a request."""
        raise AssertionError(f"{self.vendor} was asked for hardware: {request}")

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        """Make the slices of a request, whichever it had before.

        Raises:
            InsufficientRoom: Others are in the way, or it can be no slice.
        """
        others = [it for it in self.slices if it.mark != request.allocation]
        try:
            wanted = self.wanted(request, uuids)
        except RequestRefused as exc:
            raise InsufficientRoom(request.resource, str(exc)) from exc
        made: list[Slice] = []
        for card, core, memory in wanted:
            there = [it for it in (*others, *made) if it.card == card]
            whole = self.memory[card]
            if sum(it.core for it in there) + core > 100 or sum(it.memory for it in there) + memory > whole:
                raise InsufficientRoom(request.resource, f"{card} has no room for {core} percent")
            self.made += 1
            made.append(Slice(card, core, memory, request.allocation, f"{self.made}:slice-{self.made}"))
        self.slices = [*others, *made]
        return self.partitions(request.allocation)

    def release(self, mark: str) -> None:
        self.slices = [it for it in self.slices if it.mark != mark]

    def partitions(self, mark: str | None = "") -> Sequence[Partition]:
        its = (it for it in self.slices if mark == "" or it.mark == mark)
        return tuple(Partition(it.name, it.card, it.mark) for it in its)

    def others_slice(self, card: str) -> bool:
        """Have somebody else make a small slice; whether there was room."""
        there = [it for it in self.slices if it.card == card]
        if sum(it.core for it in there) > 80:
            return False
        self.made += 1
        self.slices = [*self.slices, Slice(card, 17, self.memory[card] // 8, None, f"{self.made}:theirs")]
        return True


class Nvidia(Cards):
    def __init__(self) -> None:
        super().__init__("nvidia", tuple(map(_gpu, range(COUNT))))

    def named(self, answer: ContainerEdits) -> Sequence[str]:
        value = answer.env.get("NVIDIA_VISIBLE_DEVICES", "")
        mounted = [it.path.rpartition("/")[2] for it in answer.mounts]
        names = mounted if value.startswith("/") else value.split(",")
        known = {name: it.uuid for it in self.plain for name in (it.uuid, str(it.index))}
        by_cdi = [it.partition("=")[2] for it in answer.cdi_devices]
        return tuple(dict.fromkeys(known[it] for it in (*names, *by_cdi) if it in known))


class MetaX(Cards):
    def __init__(self) -> None:
        super().__init__("metax", tuple(map(_metax, range(COUNT))))

    def said(self, card: Device) -> Mapping[str, str]:
        its = [it for it in self.slices if it.card == card.uuid]
        foreign = [it for it in its if it.mark is None]
        own = [it for it in its if it.mark is not None]
        said = {
            name: f"{it.mark}:{it.core}:{it.memory >> 20}"
            for name, it in zip(metax.OWN_SLICES, own, strict=False)
        }
        if its:
            said[metax.SLICES] = str(len(its))
        if foreign:
            said |= {
                metax.FOREIGN_SLICES: str(len(foreign)),
                metax.FOREIGN_COMPUTE: str(sum(it.core for it in foreign)),
                metax.FOREIGN_MEMORY: str(sum(it.memory for it in foreign) >> 20),
            }
        return said

    def named(self, answer: ContainerEdits) -> Sequence[str]:
        marks = {it.partition("=")[2] for it in answer.cdi_devices}
        sliced = tuple(it.card for it in self.slices if it.mark in marks)
        return sliced or super().named(answer)

    def wanted(self, request: Request, uuids: Sequence[str]) -> Sequence[tuple[str, int, int]]:
        sizes = {it: self.memory[it] for it in uuids}
        return [(it.card, it.compute, it.memory << 20) for it in slices(request, sizes)]


class Enflame(Cards):
    def __init__(self) -> None:
        super().__init__("enflame", tuple(map(_gcu, range(COUNT))))

    def said(self, card: Device) -> Mapping[str, str]:
        foreign = [it for it in self.slices if it.card == card.uuid and it.mark is None]
        sixths = sum(-(-it.core * 6 // 100) for it in foreign)
        return (
            {enflame.FOREIGN_SLICES: str(len(foreign)), enflame.FOREIGN_SIXTHS: str(sixths)}
            if foreign
            else {}
        )

    def named(self, answer: ContainerEdits) -> Sequence[str]:
        marks = {it.partition("=")[2] for it in answer.cdi_devices}
        by_minor = {str(it.minor): it.uuid for it in self.plain}
        told = answer.env.get("ENFLAME_VISIBLE_DEVICES", "").split(",")
        return (
            *(it.card for it in self.slices if it.mark in marks),
            *(by_minor[it] for it in told if it in by_minor),
        )

    def wanted(self, request: Request, uuids: Sequence[str]) -> Sequence[tuple[str, int, int]]:
        sixths = enflame.slices(request.parameters.get(enflame.PROFILE, "")) or len(request.ids)
        return [(uuids[0], sixths * 100 // 6, self.memory[uuids[0]] * sixths // 6)]


def _gpu(n: int) -> Device:
    uuid = f"GPU-{n}0000000-0000-0000-0000-000000000000"
    paths = (f"/dev/nvidia{n}",)
    return Device(uuid, n, minor=n, pci=f"0000:1{n}:00.0", memory=16 * GIB, model="A100", paths=paths)


def _metax(n: int) -> Device:
    said = {metax.SGPU_CAPABLE: metax.YES, metax.VIRTUALISATION: metax.NONE, metax.CONTROL_NODES: "/dev/mxcd"}
    paths = (f"/dev/dri/card{n}", f"/dev/dri/renderD{128 + n}")
    return Device(
        f"GPU-metax-{n}",
        n,
        minor=n,
        pci=f"0000:2{n}:00.0",
        memory=64 * GIB,
        model="C500",
        paths=paths,
        attributes=said,
    )


def _gcu(n: int) -> Device:
    said = {
        enflame.ARCH: "scorpio",
        enflame.DRIVER_VERSION: "1.7.2.14",
        enflame.VIRTUAL: enflame.DRS,
        enflame.PROFILES: "1g.8gb:0,2g.16gb:1,3g.24gb:2,6g.48gb:3",
    }
    return Device(
        f"GCU-{n}",
        n,
        minor=n + 1,
        pci=f"0000:3{n}:00.0",
        memory=48 * GIB,
        model="S60",
        paths=(f"/dev/gcu{n + 1}",),
        attributes=said,
    )


MAKES = {"nvidia": Nvidia, "metax": MetaX, "enflame": Enflame}
