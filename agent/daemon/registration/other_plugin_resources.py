"""Resources of a vendor's cards that another plugin has the kubelet count, whatever its socket is called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.model import Plan
from agent.kubelet.directory import FileIdentity
from agent.kubelet.kubelet_checkpoint import KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError


class Beside:
    """Looks for names that other plugins are known by, that the config lacks and that we do not serve.

    The kubelet's checkpoint keeps what a plugin that has gone told last, until it is written again; what the
    kubelet itself counts as healthy is of one that runs.
    """

    def __init__(
        self,
        former: Callable[[str], str],
        plan: Cell[Plan],
        registered: Callable[[], Collection[str]],
        read: Callable[[], KubeletCheckpoint | None],
        allocatable: Callable[[Collection[str]], Awaitable[Collection[str]]],
        every: float = 2.0,
    ) -> None:
        """`former`: the vendor out of whose cards other plugins give a resource, empty where none is known.
        `registered`: those that the kubelet has from us. `allocatable`: those of which it has a healthy
        device now, or a KubeletError.

        `every`: seconds after which one that was there is looked for again.
        """
        self._former = former
        self._plan = plan
        self._registered = registered
        self._read = read
        self._allocatable = allocatable
        self._every = every
        #: Resources that were ours, until the kubelet is seen to have none of their devices any more.
        self._were_ours: set[str] = set()
        #: Vendor to the first such resource of its cards.
        self.found: Mapping[str, str] = {}

    async def run(self, checkpoint: Cell[FileIdentity | None]) -> None:
        """Look whenever the kubelet has written its checkpoint, for ever; it writes of nobody who goes."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._look_again)
            async for _ in checkpoint.watch():
                await self.look()

    async def _look_again(self) -> None:
        while True:
            await anyio.sleep(self._every)
            if self.found:
                await self.look()

    async def look(self) -> None:
        """See what is there now; what was there stays where the kubelet cannot be heard."""
        self._were_ours.update(self._registered())
        try:
            told = await asyncio.to_thread(self._read)
            names = {name: of for name in (told.registered if told else ()) if (of := self._vendor(name))}
            listed = sorted(name for name in names if told is not None and told.registered[name])
            live = await self._allocatable(listed) if listed else ()
        except KubeletError:
            return
        self._were_ours &= {*live, *self._registered()}
        theirs = [name for name in listed if name in live and name not in self._were_ours]
        self.found = {names[name]: name for name in reversed(theirs)}

    def _vendor(self, name: str) -> str:
        """The vendor of a resource that others give out of its cards, and we do not."""
        return "" if self._is_ours(name) else self._former(name)

    def _is_ours(self, name: str) -> bool:
        """One that is planned only because pods have something of it may be another's still."""
        planned = self._plan.value.get(name)
        return name in self._registered() or (planned is not None and not planned.retired)
