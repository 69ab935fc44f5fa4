"""Slices that allocations in use lack on the hardware, and slices there that no allocation has. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.core.model import Allocation, AllocationState
from agent.core.reconciling.reconcile_changes import Find, Remark, Remove
from agent.core.reconciling.reconcile_evidence import Evidence
from agent.vendor_api.agent import Partition

#: The form of an allocation's id. A slice with another mark was not made by this agent.
ALLOCATION_ID = re.compile(r"[0-9a-f]{16}")


def slice_changes(
    allocations: Sequence[Allocation], evidence: Evidence, busy: Collection[str] = ()
) -> list[Find | Remark | Remove]:
    """The changes for these allocations in use. `busy`: ids of allocations to leave alone."""
    changes: list[Find | Remark | Remove] = []
    for vendor, present in (evidence.partitions or {}).items():
        for allocation in allocations:
            if (
                allocation.vendor == vendor
                and allocation.state is AllocationState.DONE
                and allocation.id not in busy
            ):
                changes += _changes_of_allocation(allocation, present)
        if evidence.granted is not None:
            owned = {it.id for it in allocations} | {it.allocation for it in evidence.granted} | set(busy)
            marks = dict.fromkeys(it.allocation for it in present if it.allocation is not None)
            changes += (
                Remove(vendor, mark) for mark in marks if ALLOCATION_ID.fullmatch(mark) and mark not in owned
            )
    return changes


def foreign_slices(partitions: Mapping[str, Sequence[Partition]]) -> dict[tuple[str, str], int]:
    """(vendor, card) to the number of slices without the agent's mark, for cards with such slices."""
    foreign = (
        (vendor, partition.uuid)
        for vendor, present in partitions.items()
        for partition in present
        if not ALLOCATION_ID.fullmatch(partition.allocation or "")
    )
    return dict(Counter(foreign))


def _changes_of_allocation(allocation: Allocation, present: Sequence[Partition]) -> Iterator[Find | Remark]:
    own = tuple(partition.id for partition in present if partition.allocation == allocation.id)
    if own and not allocation.partitions:
        yield Find(allocation.id, own)  # it was recovered from the kubelet, which knows no slices
        return
    ids = {partition.id for partition in present}
    text = _describe_missing(
        [partition_id for partition_id in allocation.partitions if partition_id not in ids],
        rebooted=allocation.rebooted,
    )
    if text != allocation.reason and not allocation.forgotten:
        yield Remark(allocation.id, text)


def _describe_missing(gone: Sequence[str], *, rebooted: bool) -> str:
    if not gone:
        return ""
    names = ", ".join(gone)
    if rebooted:
        return f"the reboot took {names}; made again before the container starts"
    return f"{names} is gone from the hardware; made again when the container starts again"
