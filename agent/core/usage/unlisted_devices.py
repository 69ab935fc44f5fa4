"""The entries of a sample that are of cards and slices of the vendor: of others nothing is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct, structs

from agent.core.attribution.scheduler_promises import Promises
from agent.core.usage.usage_report import VendorSample
from agent.vendor_api.agent import ProcessUsage, Usage
from agent.vendor_api.text import shorten

Entry = TypeVar("Entry", Usage, ProcessUsage)


class ListedSample(Struct, frozen=True):
    """A sample without the entries that name a device that the vendor does not list."""

    sample: VendorSample
    #: The uuids that these entries name.
    unlisted: frozenset[str] = frozenset()
    #: How many of these entries are of a process.
    processes: int = 0


def listed(
    vendor: str, sample: VendorSample, promises: Promises, before: frozenset[str] = frozenset()
) -> ListedSample:
    """The sample with a complaint of each uuid that was not listed `before`, either.

    A slice is listed a moment after it is made: one sample without the entries of the slice is no fault.
    """
    uuids = {it.uuid for it in promises.scene.snapshot.of(vendor)}
    of_cards = {it.uuid for it in sample.usages or () if it.parent in uuids}
    made = {uuid for it in promises.in_use if it.vendor == vendor for uuid in it.partitions}
    named = {it.uuid for it in sample.usages or ()} | {it.uuid for it in sample.processes or ()}
    unlisted = frozenset(named - uuids - of_cards - made)
    if not unlisted:
        return ListedSample(sample)
    complaints = dict(sample.complaints)
    for method, of_method in (("usage", sample.usages), ("processes", sample.processes)):
        if trouble := _trouble([it.uuid for it in of_method or () if it.uuid in unlisted & before]):
            complaints[method] = "; ".join(filter(None, (complaints.get(method), trouble)))
    usages, processes = _without(sample.usages, unlisted), _without(sample.processes, unlisted)
    left_out = len(sample.processes or ()) - len(processes or ())
    kept = structs.replace(sample, usages=usages, processes=processes, complaints=complaints)
    return ListedSample(kept, unlisted, left_out)


def _without(entries: Sequence[Entry] | None, unlisted: frozenset[str]) -> tuple[Entry, ...] | None:
    return None if entries is None else tuple(it for it in entries if it.uuid not in unlisted)


def _trouble(uuids: Sequence[str]) -> str:
    if not uuids:
        return ""
    entries = "1 entry is" if len(uuids) == 1 else f"{len(uuids)} entries are"
    return f"{entries} left out: {shorten(uuids[0])} is no device that the vendor lists"
