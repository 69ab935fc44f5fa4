"""Other device plugins on this node: how the agent finds them, and what it does about them.

Another plugin can serve a vendor's cards under a resource name of its own. The agent then registers no
resource of that vendor until the plugin has gone (`CardPlugins`, `OtherResources`).

Another plugin can also register a resource that this agent serves (`Takeovers`). Up to 1.36 the kubelet tells
neither plugin. The newest registration answers every Allocate, and of two lists the last one counts
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go, manager.go). The kubelet's checkpoint alone shows such
a plugin: it holds answers without the agent's mark, and device IDs that the agent never listed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import anyio
import structlog

from agent.config import ConfigState
from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, sleep_in_step
from agent.core.model import Plan, Resource, SessionStatus
from agent.core.reconciling.reconcile_evidence import FOREIGN
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.node_state import NodeState
from agent.daemon.reconciling.recovery import Recovery
from agent.daemon.registration.sessions import Sessions
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_directory import FileIdentity, OtherSocket
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.kubelet_view import KubeletView
from agent.vendor_api.agent import Vendor
from agent.vendor_api.text import shorten

log = structlog.get_logger()

REMEDY = "remove it from this node, or let vendors.{vendor}.foreign be `yield`, which leaves the cards to it"
YIELDED = "the cards are left to it until it goes"
TAKEN_OVER = "its devices are given out twice; let one plugin alone serve the resource"

#: How many lists of a resource are remembered: the kubelet may still have one before the newest.
REMEMBERED = 4
#: How many IDs of a list are looked up: the kubelet keeps one plugin's list at a time, in no order.
SAMPLE = 256

#: Called with resource to whether the list that the kubelet has of it is the agent's.
ListsInForce = Callable[[Mapping[str, bool]], None]
#: Pod uid, container, resource and device IDs of an answer in the kubelet's checkpoint.
_Answer = tuple[str, str, str, tuple[str, ...]]


class OtherPlugins:
    """Finds other plugins on the agent's resources and on the vendors' cards, for as long as it runs."""

    def __init__(
        self,
        config: Cell[ConfigState],
        node: NodeState,
        kubelet: KubeletView,
        sessions: Sessions,
        recovery: Recovery,
        timing: AgentTiming,
    ) -> None:
        self._config = config
        self._plan = node.plan
        self._kubelet = kubelet
        self._recovery = recovery
        self.sockets = ServedSockets(kubelet)
        self._resources = OtherResources(node, kubelet, sessions, timing.other_plugins)
        self._on_cards = CardPlugins(
            node,
            kubelet,
            self._resources_of_vendors,
            self._yields,
            every=timing.other_plugins,
            gone_after=timing.other_plugin_gone,
        )
        self._takeovers = Takeovers(node.plan, kubelet, sessions, timing.takeover_again)

    async def run(self, in_force: ListsInForce) -> None:
        """Look for ever. `in_force` is called after each look at the kubelet's lists."""
        checkpoint = self._kubelet.directory.checkpoint
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._takeovers.run, checkpoint, in_force)
            group.start_soon(for_ever, self._resources.run, checkpoint)
            group.start_soon(for_ever, self._on_cards.run)

    @property
    def changes(self) -> Cell[int]:
        """A count that grows whenever the plugins on the vendors' cards have changed."""
        return self._on_cards.changes

    def closed(self, vendor: str) -> SessionStatus | None:
        """Why no resource of the vendor may be registered now; None where its resources may be."""
        return self._on_cards.closed(vendor)

    async def look(self) -> None:
        """Read now which resources other plugins serve."""
        await self._resources.look()

    @property
    def found(self) -> Mapping[str, str]:
        """Planned resource to a sentence on another plugin that serves the resource, or its cards."""
        plan, on_cards = self._plan.value, self._on_cards.found
        of_cards = {name: on_cards[it.vendor] for name, it in plan.items() if it.vendor in on_cards}
        return {**of_cards, **self._takeovers.found}

    def _yields(self, vendor: str) -> bool:
        """Whether the config leaves a vendor's cards to other plugins."""
        return self._config.value.config.vendor(vendor).foreign == "yield"

    def _resources_of_vendors(self) -> Mapping[str, str]:
        """Vendor to a resource of its cards that another plugin serves, or that a pod has from one."""
        return {**self._left_behind(), **self._resources.found}

    def _left_behind(self) -> Mapping[str, str]:
        """Vendor to the resource of a pod that has cards from another plugin which are not on this node."""
        answers = self._recovery.answers_without_cards.values()
        others = ((vendor, it) for vendor, it in answers if it.allocation.startswith(FOREIGN))
        return {vendor: it.resource for vendor, it in others if vendor and self._yields(vendor)}


class ServedSockets:
    """The sockets of other plugins in the kubelet's directory at which a server listens."""

    def __init__(self, kubelet: KubeletView) -> None:
        self._kubelet = kubelet
        #: As of the last look.
        self.last: frozenset[OtherSocket] = frozenset()

    @property
    def present(self) -> frozenset[OtherSocket]:
        """The sockets of the last look that are still in the directory."""
        return self.last & self._kubelet.other_sockets.value

    def look(self, *, again: bool) -> frozenset[OtherSocket]:
        """Try the sockets in the directory. `again`: also those that were served before.

        Each try opens a connection to another plugin.
        """
        self.last = frozenset(
            other
            for other in self._kubelet.other_sockets.value
            if (other in self.last and not again) or self._kubelet.is_served(other)
        )
        return self.last


class CardPlugins:
    """Finds other plugins on a vendor's cards, by the names of their sockets or by their resources.

    A plugin that has gone counts for `gone_after` seconds more. A kubelet that starts removes all sockets,
    and each plugin makes its socket again when it notices.
    """

    def __init__(
        self,
        node: NodeState,
        kubelet: KubeletView,
        resources: Callable[[], Mapping[str, str]],
        yields: Callable[[str], bool],
        *,
        every: float = 2.0,
        gone_after: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`resources`: vendor to a resource of its cards that the kubelet has from another plugin.

        `yields`: whether the config leaves a vendor's cards to other plugins. `every`: seconds between looks.
        """
        self._node = node
        self._kubelet = kubelet
        self._resources = resources
        self._yields = yields
        self._every = every
        self._gone_after = gone_after
        self._clock = clock
        #: Vendor to the place where its other plugin was seen, and when it last was.
        self._seen: dict[str, tuple[str, float]] = {}
        #: Counts how often `found` changed.
        self.changes: Cell[int] = Cell(0)

    async def run(self) -> None:
        """Look for ever: a plugin that is killed leaves its socket, and no file changes."""
        while True:
            self.look()
            await sleep_in_step(self._every)

    def closed(self, vendor: str) -> SessionStatus | None:
        """Why no resource of the vendor may be registered now; None where its resources may be."""
        self.look()
        if (sentence := self.found.get(vendor)) is None:
            return None
        return SessionStatus("yielded" if self._yields(vendor) else "refused", sentence)

    @property
    def found(self) -> Mapping[str, str]:
        """Vendor to a sentence on the other plugin."""
        return {name: self._sentence(name, place) for name, (place, _) in self._seen.items()}

    def look(self) -> None:
        """Look at all vendors now; log and count a change."""
        now, before = self._clock(), self.found
        for vendor in self._node.vendors.values():
            if place := self._place(vendor):
                self._seen[vendor.name] = place, now
        self._seen = {
            name: (place, at) for name, (place, at) in self._seen.items() if now - at < self._gone_after
        }
        if self.found != before:
            log.warning("other device plugins", found=dict(self.found))
            self.changes.set(self.changes.value + 1)

    def _place(self, vendor: Vendor) -> str:
        if socket := self._served_socket(vendor):
            return f"at {socket}"
        resource = self._resources().get(vendor.name)
        return f"as {resource}" if resource else ""

    def _served_socket(self, vendor: Vendor) -> str:
        patterns = vendor.replaces.sockets
        named = [
            other
            for other in self._kubelet.other_sockets.value
            if any(fnmatchcase(other.name, pattern) for pattern in patterns)
        ]
        return min((it.name for it in named if self._kubelet.is_served(it)), default="")

    def _sentence(self, vendor: str, place: str) -> str:
        end = YIELDED if self._yields(vendor) else REMEDY.format(vendor=vendor)
        return f"another device plugin serves cards of {vendor} {place}: {end}"


class OtherResources:
    """Finds resources that other plugins make of a vendor's cards, whatever their sockets are called.

    The resource must be one that the vendor's other plugins are known by, and that this agent does not serve.
    The kubelet's checkpoint keeps the last list of a plugin that has gone until the next write. So the
    kubelet is asked, too: only a running plugin has healthy devices there.
    """

    def __init__(self, node: NodeState, kubelet: KubeletView, sessions: Sessions, every: float = 2.0) -> None:
        """`every`: seconds after which a resource that was found is looked for again."""
        self._node = node
        self._kubelet = kubelet
        self._sessions = sessions
        self._every = every
        #: Resources that this agent served, until the kubelet has none of their devices any more.
        self._served_before: set[str] = set()
        #: Vendor to the first such resource of its cards.
        self.found: Mapping[str, str] = {}

    async def run(self, checkpoint: Cell[FileIdentity | None]) -> None:
        """Look whenever the kubelet has written its checkpoint, for ever.

        The kubelet does not write it when a plugin goes: what was found is looked for again by time.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._look_again)
            async for _ in checkpoint.watch():
                await self.look()
                await anyio.sleep(self._every / 20)  # answers close together cost one look

    async def _look_again(self) -> None:
        while True:
            await sleep_in_step(self._every)
            if self.found:
                await self.look()

    async def look(self) -> None:
        """Look now. `found` stays as it was where the kubelet does not answer."""
        self._served_before.update(self._sessions.registrations())
        try:
            checkpoint = await asyncio.to_thread(self._kubelet.read_checkpoint)
            lists = checkpoint.registered if checkpoint else {}
            vendors = {name: vendor for name in lists if (vendor := self._vendor(name))}
            listed = sorted(name for name in vendors if lists[name])
            live = await self._kubelet.allocatable(listed) if listed else ()
        except KubeletError:
            return
        self._served_before &= {*live, *self._sessions.registrations()}
        others = [name for name in listed if name in live and name not in self._served_before]
        self.found = {vendors[name]: name for name in reversed(others)}

    def _vendor(self, resource: str) -> str:
        """The vendor with cards that other plugins make the resource of; empty where this agent serves it."""
        return "" if self._serves(resource) else self._node.answer_reader.value.vendor_of_resource(resource)

    def _serves(self, resource: str) -> bool:
        """Whether this agent serves the resource.

        A retired resource is planned only because pods still have it; another plugin may serve it by now.
        """
        planned = self._node.plan.value.get(resource)
        return resource in self._sessions.registrations() or (planned is not None and not planned.retired)


class Takeovers:
    """Finds resources of the agent that another plugin has registered, too. What two looks show counts."""

    def __init__(
        self, plan: Cell[Plan], kubelet: KubeletView, sessions: Sessions, again: float = 1.0
    ) -> None:
        """`again`: seconds between the two looks."""
        self._plan = plan
        self._kubelet = kubelet
        self._sessions = sessions
        self._again = again
        #: Answers of other plugins that were given before this agent served their resource.
        self._earlier: set[_Answer] = set()
        #: Resource to the last lists that this agent made of it, oldest first.
        self._listed: dict[str, list[Resource]] = {}
        self._has_looked = False
        #: Resources with another plugin's list in the kubelet at the last look.
        self._other_lists: frozenset[str] = frozenset()
        #: Resource to a sentence on how the other plugin shows.
        self.found: Mapping[str, str] = {}

    async def run(self, checkpoint: Cell[FileIdentity | None], in_force: ListsInForce) -> None:
        """Follow the kubelet's checkpoint for ever."""
        await self.look()
        async for _ in checkpoint.watch():
            # The reconciler reads the file at once; until the next write the parsed file is kept.
            await anyio.sleep(self._again)
            await self.act(in_force)

    async def act(self, in_force: ListsInForce) -> None:
        """Look, and report for each served resource whether the kubelet has the agent's list.

        A list is not reported where only one of two looks showed another plugin's.
        """
        self.found = await self.checked()
        served = self._sessions.registrations()
        known = [name for name in served if name in self.found or name not in self._other_lists]
        in_force({name: name not in self._other_lists for name in known})

    async def checked(self) -> Mapping[str, str]:
        """What a look shows; where it shows something new, only what a second look shows, too."""
        found = await self.look()
        if found.keys() <= self.found.keys():
            return found
        await anyio.sleep(self._again)
        again = await self.look()
        return {name: again[name] for name in found.keys() & again.keys()}

    async def look(self) -> Mapping[str, str]:
        """Resource to a sentence, as of now; as before where the file cannot be read."""
        try:
            checkpoint = await asyncio.to_thread(self._kubelet.read_checkpoint)
        except KubeletError:
            return self.found  # the reconciler logs it
        checkpoint = checkpoint or KubeletCheckpoint()
        served = set(self._sessions.registrations())
        plan = self._plan.value
        self._listed = {name: lists for name, lists in self._listed.items() if name in plan}
        for name, resource in plan.items():
            self._remember(name, resource)
        foreign = [_answer(it) for it in checkpoint.entries if ALLOCATION not in it.edits.annotations]
        # Answers that stood in the file at the first look are of a plugin that served before this agent.
        self._earlier &= set(foreign)
        self._earlier |= {it for it in foreign if not self._has_looked or it[2] not in served}
        self._has_looked = True
        pods = {it[2]: it[0] for it in foreign if it not in self._earlier}
        unknown = {name: ids for name in served if (ids := self._unknown(name, checkpoint))}
        self._other_lists = frozenset(unknown)
        return {
            name: f"{_evidence(pods.get(name), unknown.get(name, ()))}; {TAKEN_OVER}"
            for name in sorted(served)
            if name in pods or name in unknown
        }

    def _remember(self, name: str, resource: Resource) -> None:
        lists = self._listed.setdefault(name, [])
        if resource not in lists:
            self._listed[name] = [*lists, resource][-REMEMBERED:]

    def _unknown(self, name: str, checkpoint: KubeletCheckpoint) -> list[str]:
        """The device IDs that the kubelet has of the resource and that this agent never listed."""
        ids = checkpoint.registered.get(name, ())[:SAMPLE]
        lists = self._listed.get(name, ())
        return sorted(it for it in ids if all(one.index.find(it) is None for one in lists))


def _evidence(pod: str | None, unknown: Sequence[str]) -> str:
    if pod is not None:
        return f"another plugin answered for the pod with uid {shorten(pod)}"
    some = ", ".join(map(shorten, unknown[:3]))
    return f"another plugin lists devices that are not the agent's ({some})"


def _answer(entry: CheckpointEntry) -> _Answer:
    return entry.pod_uid, entry.container, entry.resource, entry.ids
