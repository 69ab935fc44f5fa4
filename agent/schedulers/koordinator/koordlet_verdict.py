"""Judges whether a koordlet on the node writes the Device, from the Device and from koordlet's pods."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from agent.scheduler_api.node_report import ObjectLook, ObjectVerdict, Report
from agent.schedulers.koordinator.device_object import report_in
from agent.schedulers.koordinator.koordlet_signs import last_writes, wrote_devices
from agent.schedulers.koordinator.reporting_koordlet import KoordletObservation, KoordletStanding


@dataclass(frozen=True, slots=True)
class KoordletMemory:
    """What the next look needs to know of the looks before."""

    standing: KoordletStanding = field(default_factory=KoordletStanding)
    #: Whether koordlet's pod was seen since the koordlet counts.
    met: bool = False


def judge(look: ObjectLook, memory: Any) -> ObjectVerdict:
    """Whether a koordlet counts as the writer of the Device; `memory` is that of the last verdict or None."""
    last = memory if isinstance(memory, KoordletMemory) else KoordletMemory()
    pod = next(iter(look.programs), "")
    may_be_here = bool(pod) or (look.overwritten and not last.met)
    shows = None if look.failed else _shows(look, may_be_here=may_be_here)
    observation = KoordletObservation(bool(pod), last_writes(look.document), shows)
    standing = last.standing.after(observation, look.now)
    stopped = last.standing.counts and not standing.counts
    does = "overwrote" if look.overwritten else "writes"
    return ObjectVerdict(
        program=(pod or f"a koordlet {does} this node's Device") if standing.counts else "",
        silent="" if standing.counts else pod,
        memory=KoordletMemory(standing, met=standing.counts and (bool(pod) or last.met)),
        until=look.now + standing.ends(look.now),
        forgives=stopped and (look.overwritten or standing.stopped is not None),
    )


def _shows(look: ObjectLook, *, may_be_here: bool) -> bool | None:
    """Whether the Device shows what the sources of a koordlet say; None while that cannot be known.

    In mode `feed` the published report is such a source. In other modes the sources are not known: the
    Device that a koordlet wrote counts as their content for as long as the koordlet may be here. It may be
    here while its pod exists, or if it undid a write of the agent and its pod was not seen to go.
    """
    published = look.published
    if published is None or published.mode != "feed":
        return wrote_devices(look.document) and may_be_here
    if published.report is None:
        return None
    shown = report_in(look.document)
    wanted = _health(published.report, look.elsewhere)
    return wanted == (_health(shown, look.elsewhere) if shown else {})


def _health(report: Report, elsewhere: Set[str]) -> Mapping[str, bool]:
    return {it.uuid: it.healthy for it in report.cards if it.uuid not in elsewhere}
