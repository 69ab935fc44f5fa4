"""Notices another plugin that has registered a resource of ours: up to 1.36 the kubelet tells neither of us.

The newest registration answers every Allocate, and of two lists the last one counts
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go, manager.go). All that shows of it stands in the
kubelet's checkpoint: answers without our mark, and IDs that we never listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import anyio
import structlog

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.cell import Cell
from agent.core.model import Plan, Resource
from agent.kubelet.directory import FileIdentity
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.vendor_api.text import shorten

log = structlog.get_logger()

#: Lists of one resource that are remembered: the kubelet may still have one before the newest.
REMEMBERED = 4
#: IDs of a list that are looked up: the kubelet keeps one plugin's list at a time, in no order.
SAMPLE = 256
REMEDY = "its devices are given out twice; let one plugin alone serve the resource"

Read = Callable[[], KubeletCheckpoint | None]
#: Where an answer stands, and for which IDs.
_Answer = tuple[str, str, str, tuple[str, ...]]


class Strangers:
    """Looks whenever the kubelet has written its checkpoint; what is found twice counts."""

    def __init__(
        self,
        read: Read,
        plan: Cell[Plan],
        registered: Callable[[], Collection[str]],
        in_force: Callable[[Mapping[str, bool]], None],
        sure: float = 1.0,
    ) -> None:
        """`registered` names the resources that we serve now; `in_force` is told of which of them the kubelet
        has our list, and of which another's; `sure` is between two looks, seconds."""
        self._read = read
        self._plan = plan
        self._registered = registered
        self._in_force = in_force
        self._sure = sure
        #: Answers of others from before we served their resource.
        self._before: set[_Answer] = set()
        self._listed: dict[str, list[Resource]] = {}
        self._had_looked = False
        #: Resources of which the kubelet had another's list at the last look.
        self._foreign: frozenset[str] = frozenset()
        #: Resource to how it shows.
        self.found: Mapping[str, str] = {}

    async def run(self, checkpoint: Cell[FileIdentity | None]) -> None:
        """Follow the kubelet's checkpoint for ever."""
        await self.look()
        async for _ in checkpoint.watch():
            await anyio.sleep(self._sure)  # the reconciler reads it at once, and what it parsed is remembered
            await self.act()

    async def act(self) -> None:
        """Look, and tell whose lists the kubelet has."""
        self.found = await self.checked()
        known = [name for name in self._registered() if name in self.found or name not in self._foreign]
        self._in_force({name: name not in self._foreign for name in known})

    async def checked(self) -> Mapping[str, str]:
        """What shows, and where that is news still shows a moment later."""
        found = await self.look()
        if found.keys() <= self.found.keys():
            return found
        await anyio.sleep(self._sure)
        again = await self.look()
        return {name: again[name] for name in found.keys() & again.keys()}

    async def look(self) -> Mapping[str, str]:
        """What shows of strangers now; what showed before where the file cannot be read."""
        try:
            checkpoint = await asyncio.to_thread(self._read)
        except KubeletError:
            return self.found  # the reconciler says so
        checkpoint = checkpoint or KubeletCheckpoint()
        served = set(self._registered())
        plan = self._plan.value
        self._listed = {name: lists for name, lists in self._listed.items() if name in plan}
        for name, resource in plan.items():
            self._remember(name, resource)
        strange = [_place(it) for it in checkpoint.entries if ALLOCATION not in it.edits.annotations]
        # What stood there when we came is of who served before us.
        self._before &= set(strange)
        self._before |= {it for it in strange if not self._had_looked or it[2] not in served}
        self._had_looked = True
        answers = {it[2]: it[0] for it in strange if it not in self._before}
        unknown = {name: ids for name in served if (ids := self._unknown(name, checkpoint))}
        self._foreign = frozenset(unknown)
        return {
            name: f"{_shown(answers.get(name), unknown.get(name, ()))}; {REMEDY}"
            for name in sorted(served)
            if name in answers or name in unknown
        }

    def _remember(self, name: str, resource: Resource) -> None:
        lists = self._listed.setdefault(name, [])
        if resource not in lists:
            self._listed[name] = [*lists, resource][-REMEMBERED:]

    def _unknown(self, name: str, checkpoint: KubeletCheckpoint) -> list[str]:
        """The IDs that the kubelet has of it and that we never listed."""
        ids = checkpoint.registered.get(name, ())[:SAMPLE]
        lists = self._listed.get(name, ())
        return sorted(it for it in ids if all(one.index.find(it) is None for one in lists))


def _shown(pod: str | None, unknown: Sequence[str]) -> str:
    if pod is not None:
        return f"another plugin answered for the pod with uid {shorten(pod)}"
    some = ", ".join(map(shorten, unknown[:3]))
    return f"another plugin lists devices that are not ours ({some})"


def _place(it: CheckpointEntry) -> _Answer:
    return it.pod_uid, it.container, it.resource, it.ids
