"""What lies on a card: its slices, ours and foreign, their policy, and what is left."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from agent.vendor_api.backend import Fault, Partition
from agent.vendors.metax import constants, qos_policy
from agent.vendors.metax.slice_request import MIB, Slice

from . import faults
from .cards import MetaxCard
from .library import Mxsml, MxsmlError
from .values import Sgpu, SgpuQuota

#: An alias of ours: an allocation's id follows, and nothing else.
MARKED = re.compile(rf"{constants.MARK}([0-9a-f]{{16}})")


@dataclass(frozen=True, slots=True)
class SgpuSlice:
    """A slice that lies on a card; `allocation` None is foreign."""

    card: str
    sgpu: Sgpu
    allocation: str | None = None

    @property
    def id(self) -> str:
        return self.sgpu.uuid or f"{self.card}:{self.sgpu.id}"

    def partition(self) -> Partition:
        return Partition(self.id, self.card, self.allocation)

    def fits(self, wanted: Slice) -> bool:
        """Whether it is what was wanted, its policy aside."""
        same = (self.card, self.sgpu.vram, self.sgpu.compute)
        return same == (wanted.card, wanted.memory, wanted.compute)


@dataclass(frozen=True, slots=True)
class Layout:
    """What lies on a card that can have slices, and what is left; no `quota` while they are switched off."""

    found: tuple[SgpuSlice, ...] = ()
    quota: SgpuQuota | None = None
    policy: qos_policy.Qos | None = None

    @property
    def own(self) -> tuple[SgpuSlice, ...]:
        return tuple(it for it in self.found if it.allocation is not None)

    @property
    def foreign(self) -> tuple[SgpuSlice, ...]:
        return tuple(it for it in self.found if it.allocation is None)

    def room(self, card: MetaxCard) -> int:
        """Bytes that slices of the card may take."""
        if self.quota is None:
            return card.device.memory
        return min(self.quota.total_vram * MIB, card.device.memory or sys.maxsize)


def look(mxsml: Mxsml, card: MetaxCard) -> Layout | None:
    """What lies on a card; None where it can have no slices.

    Raises:
        MxsmlError: It cannot be read.
    """
    try:
        enabled = mxsml.sgpu_enabled(card.index)
    except MxsmlError as error:
        if error.code in faults.UNASKED:
            return None
        raise
    if not enabled:
        return Layout()
    quota = mxsml.sgpu_quota(card.index)
    found = tuple(_found(mxsml, card, it) for it in mxsml.sgpus(card.index))
    return Layout(found, quota, _policy(mxsml, card) if found else None)


def _found(mxsml: Mxsml, card: MetaxCard, it: Sgpu) -> SgpuSlice:
    mark = MARKED.fullmatch(mxsml.sgpu_alias(card.index, it.id))
    return SgpuSlice(card.uuid, it, mark[1] if mark else None)


def _policy(mxsml: Mxsml, card: MetaxCard) -> qos_policy.Qos | None:
    number = mxsml.sched_class(card.index)
    return next((policy for policy, its in qos_policy.SCHED_CLASSES.items() if its == number), None)


def unsummed(layout: Layout | None) -> Fault | None:
    """Whether the memory of the slices and what is free are the card's."""
    if layout is None or layout.quota is None:
        return None
    total, free = layout.quota.total_vram, layout.quota.free_vram
    sliced = sum(it.sgpu.vram for it in layout.found)
    return faults.unsummed(total, sliced, free) if sliced + free != total else None


def attributes(layout: Layout | None) -> dict[str, str]:
    """What lies on a card, as the agent's half reads it."""
    if layout is None:
        return {constants.SGPU_CAPABLE: constants.NO}
    said = {
        constants.SGPU_CAPABLE: constants.YES,
        constants.SGPU_ON: constants.YES if layout.quota else constants.NO,
    }
    if layout.quota:
        said[constants.SLICE_MEMORY] = str(layout.quota.total_vram)
    if layout.found:
        said[constants.SLICES] = str(len(layout.found))
        said |= {constants.QOS: str(layout.policy)} if layout.policy else {}
    if foreign := layout.foreign:
        said[constants.FOREIGN_SLICES] = str(len(foreign))
        said[constants.FOREIGN_COMPUTE] = str(sum(it.sgpu.compute for it in foreign))
        said[constants.FOREIGN_MEMORY] = str(sum(it.sgpu.vram for it in foreign))
    its = (f"{it.allocation}:{it.sgpu.compute}:{it.sgpu.vram}" for it in layout.own)
    return said | dict(zip(constants.OWN_SLICES, its, strict=False))
