"""What the hardware lacks of the allocations in use, and what it has too much of ours. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.core.allocation.reconcile_changes import Find, Remark, Remove
from agent.core.allocation.reconcile_evidence import Evidence
from agent.core.model import Allocation, AllocationState
from agent.vendor_api.agent import Partition

#: An allocation's id as the allocator makes them; what else a slice bears was not written by us.
OURS = re.compile(r"[0-9a-f]{16}")


def slices(
    allocations: Sequence[Allocation], evidence: Evidence, busy: Collection[str] = ()
) -> list[Find | Remark | Remove]:
    """The changes for these allocations in use. `busy` are being answered or started now."""
    changes: list[Find | Remark | Remove] = []
    for vendor, there in (evidence.partitions or {}).items():
        for it in allocations:
            if it.vendor == vendor and it.state is AllocationState.DONE and it.id not in busy:
                changes += _of(it, there)
        if evidence.granted is not None:
            owned = {it.id for it in allocations} | {it.allocation for it in evidence.granted} | set(busy)
            marks = dict.fromkeys(it.allocation for it in there if it.allocation is not None)
            changes += (Remove(vendor, mark) for mark in marks if OURS.fullmatch(mark) and mark not in owned)
    return changes


def foreign(partitions: Mapping[str, Sequence[Partition]]) -> dict[tuple[str, str], int]:
    """Vendor and card to how many slices lie there without our mark, of cards that have some."""
    found = (
        (vendor, it.uuid)
        for vendor, there in partitions.items()
        for it in there
        if not OURS.fullmatch(it.allocation or "")
    )
    return dict(Counter(found))


def _of(it: Allocation, there: Sequence[Partition]) -> Iterator[Find | Remark]:
    found = tuple(one.id for one in there if one.allocation == it.id)
    if found and not it.partitions:
        yield Find(it.id, found)  # it was read back from the kubelet, who knows nothing of slices
        return
    ids = {one.id for one in there}
    text = _missing([one for one in it.partitions if one not in ids], rebooted=it.rebooted)
    if text != it.reason and not it.forgotten:
        yield Remark(it.id, text)


def _missing(gone: Sequence[str], *, rebooted: bool) -> str:
    if not gone:
        return ""
    names = ", ".join(gone)
    if rebooted:
        return f"the reboot took {names}; made again before the container starts"
    return f"{names} is gone from the hardware; made again when the container starts anew"
