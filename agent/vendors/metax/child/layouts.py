"""The layout of a card: its slices, own and foreign, their policy, and the free quota."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from agent.vendor_api.backend import Fault, Partition
from agent.vendors.metax.shared import constants, qos_policy
from agent.vendors.metax.shared.slice_request import MIB, Slice

from . import faults
from .cards import MetaxCard
from .library import Mxsml, MxsmlError
from .values import Sgpu, SgpuQuota

#: The alias of an own slice: the mark, then the id of the allocation.
MARKED = re.compile(rf"{constants.MARK}([0-9a-f]{{16}})")


@dataclass(frozen=True, slots=True)
class SgpuSlice:
    """A slice on a card; `card` is the card's uuid. A foreign slice has no `allocation`."""

    card: str
    sgpu: Sgpu
    allocation: str | None = None

    @property
    def id(self) -> str:
        return self.sgpu.uuid or f"{self.card}:{self.sgpu.id}"

    def partition(self) -> Partition:
        return Partition(self.id, self.card, self.allocation)

    def fits(self, wanted: Slice) -> bool:
        """Whether card, memory and compute are as wanted. The policy is not compared."""
        same = (self.card, self.sgpu.vram, self.sgpu.compute)
        return same == (wanted.card, wanted.memory, wanted.compute)


@dataclass(frozen=True, slots=True)
class Layout:
    """The slices of a card that supports slices. `quota` is None while slices are switched off."""

    slices: tuple[SgpuSlice, ...] = ()
    quota: SgpuQuota | None = None
    policy: qos_policy.Qos | None = None

    @property
    def own(self) -> tuple[SgpuSlice, ...]:
        return tuple(it for it in self.slices if it.allocation is not None)

    @property
    def foreign(self) -> tuple[SgpuSlice, ...]:
        return tuple(it for it in self.slices if it.allocation is None)

    def room(self, card: MetaxCard) -> int:
        """Bytes that the slices of the card may have together."""
        if self.quota is None:
            return card.device.memory
        return min(self.quota.total_vram * MIB, card.device.memory or sys.maxsize)


def read(mxsml: Mxsml, card: MetaxCard) -> Layout | None:
    """Read the layout of a card; None if the card does not support slices.

    Raises:
        MxsmlError: The layout cannot be read.
    """
    try:
        enabled = mxsml.sgpu_enabled(card.index)
    except MxsmlError as error:
        if error.unsupported:
            return None
        raise
    if not enabled:
        return Layout()
    quota = mxsml.sgpu_quota(card.index)
    slices = tuple(_slice(mxsml, card, it) for it in mxsml.sgpus(card.index))
    return Layout(slices, quota, _policy(mxsml, card) if slices else None)


def _slice(mxsml: Mxsml, card: MetaxCard, sgpu: Sgpu) -> SgpuSlice:
    mark = MARKED.fullmatch(mxsml.sgpu_alias(card.index, sgpu.id))
    return SgpuSlice(card.uuid, sgpu, mark[1] if mark else None)


def _policy(mxsml: Mxsml, card: MetaxCard) -> qos_policy.Qos | None:
    number = mxsml.sched_class(card.index)
    policies = {sched_class: policy for policy, sched_class in qos_policy.SCHED_CLASSES.items()}
    return policies.get(number)


def unsummed(layout: Layout | None) -> Fault | None:
    """The fault of a card with other memory than its slices and its free memory together; None without it."""
    if layout is None or layout.quota is None:
        return None
    total, free = layout.quota.total_vram, layout.quota.free_vram
    sliced = sum(it.sgpu.vram for it in layout.slices)
    return faults.unsummed(total, sliced, free) if sliced + free != total else None


def attributes(layout: Layout | None) -> dict[str, str]:
    """The layout as attributes of the device, for the agent half."""
    if layout is None:
        return {constants.SGPU_CAPABLE: constants.NO}
    attributes = {
        constants.SGPU_CAPABLE: constants.YES,
        constants.SGPU_ON: constants.YES if layout.quota else constants.NO,
    }
    if layout.quota:
        attributes[constants.SLICE_MEMORY] = str(layout.quota.total_vram)
    if layout.slices:
        attributes[constants.SLICES] = str(len(layout.slices))
        attributes |= {constants.QOS: str(layout.policy)} if layout.policy else {}
    if foreign := layout.foreign:
        attributes[constants.FOREIGN_SLICES] = str(len(foreign))
        attributes[constants.FOREIGN_COMPUTE] = str(sum(it.sgpu.compute for it in foreign))
        attributes[constants.FOREIGN_MEMORY] = str(sum(it.sgpu.vram for it in foreign))
    own = (f"{it.allocation}:{it.sgpu.compute}:{it.sgpu.vram}" for it in layout.own)
    return attributes | dict(zip(constants.OWN_SLICES, own, strict=False))
