"""When the checkpoint is written, and what chose the config is kept for the next start."""

from __future__ import annotations

import anyio

from agent.cluster.pod_state import PodState
from agent.config import ConfigState
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.daemon.node_state import NodeState
from agent.state.retried_writes import LedgerStore


class StateSaver:
    """Saves what must outlive the process. An agent that waits for its first good config writes nothing."""

    def __init__(
        self,
        config: Cell[ConfigState],
        node: NodeState,
        pod_state: PodState,
        store: LedgerStore,
        interval: float = 0.1,
    ) -> None:
        """`interval`: seconds between two saves of health."""
        self._config = config
        self._node = node
        self._pod_state = pod_state
        self._store = store
        self._interval = interval

    async def run(self) -> None:
        """Save whenever something has changed, for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._save_on_change)
            group.start_soon(for_ever, self._keep_choice_of_config)
            group.start_soon(for_ever, self._keep_first_list)

    async def save(self, *, last: bool = False) -> None:
        """Write the checkpoint. `last`: no later save follows."""
        if not self._config.value.waiting:
            await self._store.save(durable=False, last=last)

    async def ledger_changed(self) -> None:
        """Publish what follows from a changed ledger, and save the ledger."""
        self._node.refresh()
        await self.save()

    async def _save_on_change(self) -> None:
        """Save faults and what proved them over, and the names of devices: they outlive the process."""
        while self._config.value.waiting:
            await self._config.changed()
        async for _ in self._node.memory.watch():
            await self._store.save(durable=False)
            await anyio.sleep(self._interval)

    async def _keep_choice_of_config(self) -> None:
        """Keep the labels and the name that chose the config: the next start may have no API server."""
        async for state in self._config.watch():
            if not state.waiting:
                await self._store.remember(state.labels, state.name)

    async def _keep_first_list(self) -> None:
        """Save the pods that the kubelet found when the kubelet started."""
        while self._config.value.waiting:
            await self._config.changed()
        async for first in self._pod_state.first.watch():
            await self._store.remember_first(first)
