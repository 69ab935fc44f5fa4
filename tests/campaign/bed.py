"""One node of the campaign: its kubelet, its cards, the agent's process, and the truth beside them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from peers.faults import FaultyPodResources
from scenarios.kubelets import Kind

from agent.cli import operator_requests
from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.errors import AgentError
from agent.http.admin_client import fetch
from agent.testing.node_kubelet import NodeKubelet, Pod, RunOptions

from . import cgroups as pod_cgroups
from . import kubelets
from .cgroups import Cgroups
from .hardware import LAYOUTS, Card, EnflameCards, Hardware, MetaXCards, Offer
from .invariants import Look, Place, Told, Violation, swapped, violations
from .process import Agent
from .switches import VARIABLE, Switches

#: Seconds until everything must be as it should be again, and between two looks.
CAP, LOOK = 20.0, 0.02
#: Bytes and descriptors that the agent's own process must not need more of.
MEMORY, DESCRIPTORS = 120 << 20, 120
#: Layouts under which the agent sees the pods' cgroups. With kubelets from 1.34 on it does not need them;
#: older ones list ended pods, too, and one that ended while the kubelet restarted looks as if forgotten.
SEEN = {"sliced"}


class Broken(Exception):
    """Raised when something does not hold, however long one waits."""

    def __init__(self, found: Sequence[Violation], look: Look, words: str) -> None:
        super().__init__("; ".join(map(str, found)))
        self.violations = tuple(found)
        self.look = look
        self.words = words


class NoRoom(Exception):
    """Raised when a node cannot have what a fault needs: a mistake of the campaign's own."""


class Bed:
    def __init__(
        self,
        root: Path,
        kubelet: NodeKubelet,
        lister: FaultyPodResources,
        hardware: Hardware,
        cgroups: Cgroups,
        report: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`report`: that part of the configuration. `environment`: what the agent's process gets beside."""
        self.root = root
        self.kubelet = kubelet
        #: PodResources as the agent has it.
        self.lister = lister
        self.hardware = hardware
        self.cgroups = cgroups
        self._report = report
        self.state = root / "state"
        self.config = root / "config.json"
        self.socket = self.state / "agent.sock"
        self.checkpoint = self.state / "checkpoint.json"
        self.journal = self.state / "checkpoint.journal"
        #: The pods that were admitted and not deleted, by uid.
        self.pods: dict[str, Pod] = {}
        #: What became of pods, newest last.
        self.history: deque[str] = deque(maxlen=30)
        #: Pods that came to their end and were not deleted.
        self.finished: list[str] = []
        #: Copies of the checkpoint as it was when all was well.
        self.copies: list[bytes] = []
        #: How long it took to serve again after each SIGKILL, seconds.
        self.served_again: list[float] = []
        self.memory: list[int] = []
        self.descriptors = 0
        #: Whether the agent may have lost what it knew of faults that only events tell of.
        self.forgetful = False
        #: Whether one fault strikes alone: then it is worth waiting until the agent serves again.
        self.alone = True
        self.foreign = hardware.foreign()
        self._read_to = 0
        switches = root / "switches"
        switches.mkdir()
        self.switches = Switches(switches)
        environment = {
            **hardware.environment,
            VARIABLE: str(switches),
            pod_cgroups.VARIABLE: str(cgroups.root),
            **(environment or {}),
        }
        self.agent = Agent(self.config, root / "agent.log", environment)

    def configure(self) -> None:
        agent = {
            "kubeletDir": str(self.kubelet.plugin_dir),
            "podResourcesSocket": str(self.lister.served),
            "stateDir": str(self.state),
            "cdiDir": str(self.root / "cdi"),
            "http": "",
        }
        report = self._report or {"deviceInfosDir": str(self.root / "infos")}
        document = {"version": "v1", "agent": agent, "report": report, "vendors": self.hardware.settings()}
        self.config.write_text(json.dumps(document))

    # Pods

    async def admit(self, pod: Pod) -> bool:
        """Ask the kubelet for the pod; what it takes is true from then on."""
        try:
            if not await self._fits(pod):
                return False
            verdict = await self.kubelet.admit(pod)
            if verdict.admitted and not await self._has_devices(pod):
                # Of a resource that it does not know right now the kubelet gives nothing, and says nothing.
                await self.kubelet.delete(pod.uid)
                return False
        except kubelets.Down:
            return False
        if verdict.admitted:
            self.pods[pod.uid] = pod
            self.cgroups.add(pod.uid)
        shape = ", ".join(f"{it.name} {dict(it.limits)}" for it in pod.containers)
        words = "admitted" if verdict.admitted else f"refused: {verdict.message}"
        self.history.append(f"{pod.uid}{' (static)' if pod.static else ''} {shape} {words}")
        return verdict.admitted

    async def _fits(self, pod: Pod) -> bool:
        """What a scheduler and the kubelet's own first look see to: the node counts that many."""
        counts = await self.kubelet.capacity()
        wanted = {name for it in pod.containers for name in it.limits}
        return all(name in counts and counts[name].allocatable for name in wanted)

    async def _has_devices(self, pod: Pod) -> bool:
        held = await self.kubelet.devices(pod.uid)
        return all(held.get(it.name, {}).keys() >= it.limits.keys() for it in pod.containers)

    async def delete(self, uid: str) -> None:
        """Delete the pod, a finished one too, unless the kubelet is down."""
        if (uid in self.pods or uid in self.finished) and kubelets.lives(self.kubelet):
            with suppress(*kubelets.Down):
                await self.kubelet.delete(uid)
                self._gone(uid, "deleted")
                self.finished = [it for it in self.finished if it != uid]

    def _gone(self, uid: str, how: str) -> None:
        if self.pods.pop(uid, None):
            self.cgroups.remove(uid)
        self.history.append(f"{uid} {how}")

    async def finish(self, uid: str) -> None:
        """Let the pod come to its end: known, and no owner of anything any more."""
        if uid in self.pods and kubelets.lives(self.kubelet):
            with suppress(*kubelets.Down):
                await self.kubelet.finish(uid)
                self._gone(uid, "ended")
                self.finished.append(uid)

    async def start(self, pod: Pod) -> str:
        """Let every container of the pod start anew; why one could not."""
        for it in pod.containers:
            try:
                await self.kubelet.run_options(pod.uid, it.name)
            except (*kubelets.Down, *kubelets.NotStarted) as exc:
                return str(exc) or type(exc).__name__
        return ""

    async def starts_all(self) -> None:
        """Let the containers of all pods start anew, each tried again until it does, as the kubelet does."""
        for uid in list(self.pods):
            await self.comes(lambda pod=self.pods[uid]: self._starts(pod))  # type: ignore[misc]

    async def _starts(self, pod: Pod) -> bool:
        return not await self.start(pod)

    def takes_stock(self) -> None:
        """Slices of others are those that there are now."""
        self.foreign = self.hardware.foreign()

    async def make_room(self, offer: Offer, count: int = 1) -> None:
        """Delete pods, and repair cards, until so many IDs of the resource are free.

        Raises:
            NoRoom: However many go, there are not so many.
        """
        rivals = self.hardware.rivals(offer)
        while await self._room(offer) < count:
            if holder := self._holder({offer.name}) or self._holder(rivals):
                await self.delete(holder)
            elif not await self._repair(offer):
                raise NoRoom(f"{offer.name} has no {count} IDs, with all pods gone and all cards well")
        if rivals:
            await self.comes(self.counted)  # a card is free once we saw that its pods are gone

    def _holder(self, names: Collection[str]) -> str:
        """A pod that has some of these resources; empty where none has."""
        its = (
            uid for uid, pod in self.pods.items() if any({*names} & it.limits.keys() for it in pod.containers)
        )
        return next(its, "")

    async def _repair(self, offer: Offer) -> bool:
        """Repair broken cards up to the first cordoned one, which is given back; whether there were any."""
        repaired = False
        for card in (Card(offer.vendor, index) for index in offer.cards):
            if card in self.hardware.broken:
                self.hardware.reset(card)
                repaired = True
            if card in self.hardware.cordoned and not await self.say("uncordon", card):
                self.hardware.cordoned.discard(card)
                await self.until(self.counted)
                return True
        return repaired

    async def _room(self, offer: Offer) -> int:
        """IDs of the resource that surely can be had of cards that no other resource has."""
        held: Mapping[Place, frozenset[str]] = {}
        with suppress(*kubelets.Down):
            held = await self._held()
        others = {place: ids for place, ids in held.items() if place[2] != offer.name}
        return self.hardware.expected(others)[offer.name][1] - self._given(offer)

    def free(self, offer: Offer) -> int:
        """IDs of the resource that surely can be had: those on broken cards may be held, too."""
        return self.hardware.expected({})[offer.name][1] - self._given(offer)

    def _given(self, offer: Offer) -> int:
        return sum(it.limits.get(offer.name, 0) for pod in self.pods.values() for it in pod.containers)

    # The agent

    async def revive(self) -> None:
        """Start the agent unless it runs, and note how long it takes to serve."""
        if self.agent.runs:
            return
        began = time.monotonic()
        await self.agent.start()
        if self.alone and not self.forgetful and await self.comes(self.counted):
            self.served_again.append(time.monotonic() - began)

    async def counted(self) -> bool:
        """Whether the kubelet counts what is true."""
        try:
            counts = await self.kubelet.capacity()
            expected = self.hardware.expected(await self._held())
        except kubelets.Down:
            return False
        seen = {name: (it.capacity, it.allocatable) for name, it in counts.items()}
        return expected.items() <= seen.items()

    async def document(self) -> Mapping[str, Any]:
        """What the agent shows; nothing while nobody answers."""
        try:
            document: Mapping[str, Any] = msgspec.json.decode(
                await asyncio.to_thread(fetch, self.socket, timeout=2.0)
            )
        except Exception:
            return {}
        return document

    # Waiting

    async def comes(self, condition: Callable[[], Awaitable[bool]], cap: float = 10.0) -> bool:
        """Whether the condition comes to hold."""
        until = time.monotonic() + cap
        while not await condition():
            self.agent.look()
            if time.monotonic() > until or self.agent.unplanned:
                return False
            await asyncio.sleep(LOOK)
        return True

    async def until(self, condition: Callable[[], Awaitable[bool]], cap: float = CAP) -> None:
        if not await self.comes(condition, cap):
            await self.settle(cap=1.0)  # which says what does not hold
            raise Broken(
                [Violation("late", f"{condition.__qualname__} does not come")], await self.look(), ""
            )

    async def settle(self, cap: float = CAP) -> None:
        """Wait until everything holds.

        Raises:
            Broken: Something still does not.
        """
        until = time.monotonic() + cap
        announced = time.monotonic()
        while True:
            look = await self.look()
            found = [*self._ended(), *(violations(look) or await self._swapped(look))]
            final = any(it.kind in ("exit", "traceback") for it in found)
            if not found:
                break
            if final or time.monotonic() > until:
                raise Broken(found, look, self.agent.last_words())
            if self.forgetful and time.monotonic() - announced > 0.5:
                announced = time.monotonic()
                await self._announce(look)
            await asyncio.sleep(LOOK)
        self.forgetful = False
        self._note()

    async def _announce(self, look: Look) -> None:
        """Tell again of cards that the agent cannot know any more: faults, resets, and cordons."""
        shown = {it["uuid"]: it for it in look.document.get("devices", ())}
        for card in self.hardware.cards():
            it = shown.get(self.hardware.uuid(card))
            if it is None:
                continue
            if it["health"]["state"] != ("unhealthy" if card in self.hardware.broken else "healthy"):
                self.hardware.announce(card)
                if card not in self.hardware.broken:
                    await self.say("clear", card)  # an event is no proof to who does not know what it ends
            if (card in self.hardware.cordoned) != bool(it["cordon"]):
                await self.say("cordon" if card in self.hardware.cordoned else "uncordon", card)

    async def say(self, verb: str, card: Card) -> str:
        """An operator's word; why it was refused, if it was."""
        try:
            await asyncio.to_thread(
                operator_requests.send, self.socket, verb, self.hardware.uuid(card), "campaign"
            )
        except AgentError as exc:
            return str(exc)
        return ""

    def _ended(self) -> list[Violation]:
        self.agent.look()
        found = [Violation("exit", it) for it in self.agent.unplanned]
        with self.agent.log.open("rb") as log:
            log.seek(self._read_to)
            fresh = log.read()
        self._read_to += len(fresh)
        found += [Violation("traceback", it) for it in tracebacks(fresh.decode(errors="replace"))]
        return found

    def _note(self) -> None:
        """Keep what is seen when all is well."""
        if self.checkpoint.exists():
            self.copies = [*self.copies, self.checkpoint.read_bytes()][-20:]
        if memory := self.agent.memory():
            self.memory.append(memory)
        self.descriptors = max(self.descriptors, self.agent.descriptors())

    # Looking

    async def look(self) -> Look:
        try:
            held = await self._held()
            counts = {
                name: (it.capacity, it.allocatable) for name, it in (await self.kubelet.capacity()).items()
            }
        except kubelets.Down:
            held, counts = {}, {}
        return Look(
            held=held,
            counts=counts,
            document=await self.document(),
            admitted={place: count for pod in self.pods.values() for place, count in _places(pod)},
            expected=self.hardware.expected(held),
            broken=frozenset(map(self.hardware.uuid, self.hardware.broken)),
            cordoned=frozenset(map(self.hardware.uuid, self.hardware.cordoned)),
            foreign=self.foreign,
            slices=self.hardware.slices(),
            prepared=frozenset(it.name for it in self.hardware.offers if it.prepares),
        )

    async def _held(self) -> Mapping[Place, frozenset[str]]:
        return {
            (uid, container, resource): ids
            for uid in list(self.pods)
            for container, resources in (await self.kubelet.devices(uid)).items()
            for resource, ids in resources.items()
        }

    async def _swapped(self, look: Look) -> list[Violation]:
        """Start every container anew, and compare what it is told with what is true."""
        told: list[Told] = []
        for uid, container, resource in look.admitted:
            try:
                options = await self.kubelet.run_options(uid, container)
            except (*kubelets.Down, *kubelets.NotStarted) as exc:
                return [Violation("start", f"{uid}/{container} cannot start: {exc}")]
            mark = options.annotations.get(ALLOCATION, "")
            told.append(Told((uid, container, resource), mark, self._told(resource, options)))
        return list(swapped(look, told))

    def _told(self, resource: str, options: RunOptions) -> frozenset[str]:
        """The cards that the container has."""
        vendor = next(it.vendor for it in self.hardware.offers if it.name == resource)
        cards = self.hardware.vendors[vendor]
        if isinstance(cards, MetaXCards | EnflameCards):
            return cards.told(options)
        return frozenset(options.env.get(cards.visible, "").split(","))


def _places(pod: Pod) -> list[tuple[Place, int]]:
    return [((pod.uid, it.name, name), count) for it in pod.containers for name, count in it.limits.items()]


def tracebacks(log: str) -> list[str]:
    """Exceptions that came out of the agent; what a vendor's library prints is its own."""
    lines = log.splitlines()
    mark = "Traceback (most recent call last)"
    return [
        "\n".join(lines[n : n + 20])[:3000].replace("\\n", "\n")
        for n, line in enumerate(lines)
        if mark in line and '"vendor output"' not in line
    ]


@asynccontextmanager
async def bed(
    kind: Kind,
    layout: str,
    root: Path,
    report: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Bed]:
    """A node that serves; `root` is short, for it holds sockets. The others are as Bed has them."""
    (root / "k").mkdir()
    async with AsyncExitStack() as stack:
        kubelet = await stack.enter_async_context(kind.open(root / "k", "none"))
        lister = await stack.enter_async_context(
            FaultyPodResources(kubelet.pod_resources_socket, root / "lister.sock")
        )
        seen = kubelets.lists_ended(kind) or layout in SEEN
        cgroups = Cgroups(root / "cgroup", seen=seen)
        made = Bed(root, kubelet, lister, LAYOUTS[layout](root), cgroups, report, environment)
        made.configure()
        try:
            await made.agent.start()
            await made.settle()
            yield made
        finally:
            made.agent.signal(signal.SIGCONT)
            await made.agent.kill()
