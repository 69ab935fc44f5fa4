"""A node in a test: its kubelet, its cards, its configuration, and the agent in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
from msgspec import structs
from peers.process import PeerError
from support.vendor_inputs import INPUTS

from agent.config import ConfigSource, ConfigWatch, GivenValue, given_flags
from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.known_pods import KnownPods
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.model import Allocation, AllocationState, DeviceStatus, VendorState
from agent.core.publishing.agent_status import AgentStatus
from agent.daemon.node_agent import NodeAgent
from agent.daemon.vendor_config import check_config
from agent.demo.agent_process import PACE
from agent.isolation.deadlines import Deadlines
from agent.kubelet.session_timing import SessionTiming
from agent.scheduler_api import Candidate, PodContainer
from agent.state.checkpoint import CheckpointFile
from agent.state.last_config_file import remembered_from
from agent.testing.kubelet import StartError
from agent.testing.node_kubelet import Admission, Capacity, Container, NodeKubelet, Pod
from agent.vendors.simulated.agent.claims import ANNOTATION

from .cards import OFF, Cards

T = TypeVar("T")

PATIENCE = 60.0
LOOK = 0.01
AGENT_LOG = "agent.log"
PACE_OF_TESTS = structs.replace(
    PACE,
    discover=0.1,
    pod_resources=0.05,
    # Longer than a slow machine ever takes: what a test lets hang, it gives less.
    deadlines=Deadlines(open=PATIENCE, discover=PATIENCE, call=PATIENCE, prepare=PATIENCE),
    health=HealthThresholds(good_for=0.2),
    # What the kubelet gets to write down an answer; one that got less has its pod's cards taken away.
    grace=1.0,
    specs=0.2,
    takeover_again=0.05,
    # A kubelet that is slow to count a long list has not lapsed; the scenarios that are about it look often.
    renewals=600.0,
    renewal_again=0.05,
    other_plugins=0.05,
    other_plugin_gone=0.3,
    refusal_delay=0.0,
    session=SessionTiming(shortest_pause=0.1, longest_pause=0.5, min_list_interval=0.02),
)
Rule = Mapping[str, Any]


def whole(name: str, devices: Any = "all", **more: Any) -> Rule:
    return {"name": name, "devices": devices, **more}


def shared(name: str, replicas: int, devices: Any = "all", **more: Any) -> Rule:
    return {
        "name": name,
        "devices": devices,
        "sharing": {"kind": "replicas", "replicas": replicas},
        **more,
    }


def by_memory(name: str, unit: str, devices: Any = "all", **more: Any) -> Rule:
    return {"name": name, "devices": devices, "sharing": {"kind": "memory", "unit": unit}, **more}


@dataclass(frozen=True)
class Got:
    """What a container has below /dev, by paths of the host; its CDI names and variables."""

    nodes: set[str]
    names: set[str]
    env: Mapping[str, str] = field(default_factory=dict)


async def gets(node: Node, pod: Pod, container: str = "main") -> Got:
    """Start the container, and read what its runtime would make of it: device specs and CDI names."""
    options = await node.kubelet.run_options(pod.uid, container)
    nodes, env = {host for host, *_ in options.devices}, dict(options.env)
    specs = [json.loads(it.read_text()) for it in node.cdi.glob("*.json")] if options.cdi_devices else []
    by_name = {f"{its['kind']}={it['name']}": it["containerEdits"] for its in specs for it in its["devices"]}
    for name in options.cdi_devices:
        edits = by_name[name]
        nodes |= {it.get("hostPath", it["path"]) for it in edits.get("deviceNodes", ())}
        env |= dict(it.split("=", 1) for it in edits.get("env", ()))
    return Got(nodes, set(options.cdi_devices), env)


class Node:
    """Waits with `until` and `counts`: nothing here sleeps for a fixed time."""

    def __init__(self, root: Path, kubelet: NodeKubelet, cards: Cards) -> None:
        self.root = root
        self.kubelet = kubelet
        self.cards = cards
        self.config = root / "config.yaml"
        self.state = root / "state"
        self.cdi = root / "cdi"
        #: Where koordlet would look for cards; nothing makes it but a test.
        self.infos = root / "koordlet"
        #: Where the agent is told to ask; a test may put something in between.
        self.pod_resources = kubelet.pod_resources_socket
        self.pace = PACE_OF_TESTS
        #: Whether the pods that a test shows were listed before the agent starts.
        self.knows_pods = True
        self._pods: tuple[Candidate, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []

    # The configuration

    def configure(self, *rules: Rule, **vendors: Mapping[str, Any]) -> None:
        """Write the file anew: the rules of the node's own cards, and other vendors whole."""
        own = {self.cards.vendor: {"enabled": True, **self.cards.settings, "resources": rules}}
        agent = {
            "kubeletDir": str(self.kubelet.plugin_dir),
            "podResourcesSocket": str(self.pod_resources),
            "stateDir": str(self.state),
            "cdiDir": str(self.cdi),
            "http": "",
        }
        document = {
            "version": "v1",
            "agent": agent,
            "report": {"deviceInfosDir": str(self.infos)},
            "vendors": {**OFF, **own, **vendors},
        }
        self.write(json.dumps(document, default=list))

    def write(self, text: str) -> None:
        """Replace the file, whatever the text is."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.config)

    # The agent

    async def start(self, *rules: Rule) -> None:
        """Start the agent; rules are written into its configuration before."""
        if rules:
            self.configure(*rules)
        self._run(ConfigSource(self.config), ())

    async def start_from(self, source: ConfigSource, environ: Mapping[str, str] | None = None) -> None:
        """Start the agent as NVIDIA's plugin is started: with its files, and its variables."""
        driver = self.cards.settings["library"]
        arguments = {
            "kubelet-dir": str(self.kubelet.plugin_dir),
            "pod-resources-socket": str(self.pod_resources),
            "state-dir": str(self.state),
            "cdi-dir": str(self.cdi),
            "device-infos-dir": str(self.infos),
            "http": "",
            "driver-root-ctr-path": str(Path(driver).parent),
        }
        self._run(source, given_flags(arguments, environ or {}, INPUTS))

    def _run(self, source: ConfigSource, flags: Sequence[GivenValue]) -> None:
        watch = ConfigWatch(
            replace(source, inputs=INPUTS),
            "node",
            every=0.05,
            flags=flags,
            check=check_config,
            settle=0.02,
            recall=remembered_from,
        )
        self.watch = watch
        self.agent = NodeAgent(watch.cell, "node", self.pace)
        self.agent.pods.set(KnownPods.of(self._pods))
        if self.knows_pods:
            self.agent.pod_state.follow_to(0)
        self._tasks = [asyncio.create_task(self.agent.run()), asyncio.create_task(watch.run())]

    def gives_up(self, **deadlines: float) -> None:
        """Let the agent wait so long for its vendors, in seconds; it must not run."""
        self.pace = structs.replace(self.pace, deadlines=structs.replace(self.pace.deadlines, **deadlines))

    async def stop(self) -> None:
        """End the agent in order, and wait until the kubelet has noticed."""
        await self.end()
        await self.unserved()

    async def unserved(self) -> None:
        """Wait until the kubelet offers nothing: what it offers later is of an agent to come."""

        async def look() -> bool:
            return not any(it.allocatable for it in (await self.kubelet.capacity()).values())

        await self._wait(look)

    async def end(self) -> None:
        """End the agent in order; what it failed with comes out here."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for it in ended:
            if isinstance(it, Exception):
                raise it

    def reboot(self) -> None:
        """Let what the agent saved be from before a boot; it must not run."""
        file = CheckpointFile(self.state / "checkpoint.json")
        saved, aside = file.load()
        assert aside is None, aside
        file.save(structs.replace(saved, boot_id="the one before"), durable=False)

    @property
    def view(self) -> AgentStatus:
        for task in self._tasks:
            if task.done():
                task.result()
        return self.agent.view()

    async def until(self, condition: Callable[[AgentStatus], object]) -> AgentStatus:
        """Look at the agent until it is as wanted."""

        async def look() -> AgentStatus | None:
            return view if condition(view := self.view) else None

        return await self._wait(look)

    def streams(self, resource: str) -> float:
        """How many lists the kubelet has asked for since the agent began."""
        return self.count("plugin_streams", resource=resource)

    def count(self, name: str, **labels: str) -> float:
        return self.view.counters.get((name, tuple(labels.items())), 0)

    @property
    def restarts(self) -> float:
        """How often a process of the cards' vendor was lost by its own fault."""
        return self.count("vendor_restarts", vendor=self.cards.vendor)

    def done(self, action: str) -> float:
        """How often the reconciler did this."""
        return self.count("reconcile_actions", action=action)

    async def saved(self, *texts: str) -> None:
        """Wait until checkpoint or journal hold these texts: what is killed then has written them."""

        async def look() -> bool:
            content = "".join(_content(self.state / f"checkpoint.{it}") for it in ("json", "journal"))
            return all(text in content for text in texts)

        await self._wait(look)

    async def read(self, path: Path, *texts: str) -> str:
        """Wait until a file holds these texts, and read it."""

        async def look() -> str | None:
            content = _content(path)
            return content if all(text in content for text in texts) else None

        return await self._wait(look)

    # The hardware

    async def fail(self, index: int) -> None:
        """Let a card report XID 79, once somebody listens."""
        await self.watched()
        self.cards.fail(index)

    async def watched(self) -> None:
        async def look() -> bool:
            return self.cards.watched

        await self._wait(look)

    # The pods, as an API server shows them

    def shows(self, *pods: Pod, **annotations: str) -> None:
        """Let the agent hear of pods that are bound to the node; later ones were created later."""
        self._show(_candidate(pod, len(self._pods) + n, annotations) for n, pod in enumerate(pods))

    def shows_one(
        self,
        pod: Pod,
        created: float,
        annotations: Mapping[str, str],
        appeared: int = 0,
        bound: float = 0.0,
    ) -> None:
        """The same of one, when it was created, and at which version and in which second it was bound."""
        self._show([replace(_candidate(pod, created, annotations), appeared=appeared, bound=bound)])

    def _show(self, fresh: Iterable[Candidate]) -> None:
        self._pods = (*self._pods, *fresh)
        if self._tasks:
            self.agent.pods.set(KnownPods.of(self._pods))

    def forgets(self, pod: Pod) -> None:
        """Let the agent hear of this one no more."""
        self._pods = tuple(it for it in self._pods if it.uid != pod.uid)
        if self._tasks:
            self.agent.pods.set(KnownPods.of(self._pods))

    def hides(self) -> None:
        """Let the agent hear of none."""
        self._pods = ()
        if self._tasks:
            self.agent.pods.set(KnownPods())

    def promises(self, pod: Pod, /, **parameters: str) -> None:
        """Let a scheduler have said how the slices of the pod's main container are to be made."""
        said = {"main": {"parameters": parameters}}
        self.shows(pod, **{ANNOTATION: json.dumps(said)})

    # The kubelet

    async def counts(self, expected: Mapping[str, tuple[int, int]]) -> None:
        """Wait until the kubelet counts (capacity, allocatable) of these resources so.

        The kubelet counts before the agent has read the answer to Register: wait for this, too.
        """
        wanted = {name: Capacity(*both) for name, both in expected.items()}

        async def look() -> bool:
            return (await self.kubelet.capacity()).items() >= wanted.items() and not self._registers(wanted)

        await self._wait(look)

    def _registers(self, resources: Iterable[str]) -> bool:
        """Whether the agent in this process waits for an answer to Register."""
        sessions = self.view.sessions if self._tasks else {}
        return any(name in sessions and sessions[name].state == "registering" for name in resources)

    async def admit(self, name: str, limits: Mapping[str, int], namespace: str = "default") -> Pod:
        """Admit a pod of one container; a refusal fails the test."""
        return await self.admit_pod(Pod(name, (Container(dict(limits)),), namespace))

    async def admit_pod(self, pod: Pod) -> Pod:
        verdict = await self.kubelet.admit(pod)
        assert verdict.admitted, f"{pod.name}: {verdict.reason}: {verdict.message}"
        return pod

    async def admit_at_once(self, *pods: Pod) -> None:
        await asyncio.gather(*map(self.admit_pod, pods))

    async def refused(self, name: str, limits: Mapping[str, int]) -> Admission:
        """Ask for a pod that must not be admitted; what the kubelet says."""
        verdict = await self.kubelet.admit(Pod(name, (Container(dict(limits)),)))
        assert not verdict.admitted, f"{name} was admitted"
        return verdict

    async def cards_of(self, pod: Pod, container: str = "main") -> set[str]:
        """The physical cards that the container is told of."""
        got = await gets(self, pod, container)
        return {self.cards.named(it) for it in got.env[self.cards.visible].split(",")}

    async def start_of(self, pod: Pod, container: str = "main") -> str:
        """Let the kubelet start the container; the allocation that it then has."""
        options = await self.kubelet.run_options(pod.uid, container)
        return options.annotations[ALLOCATION]

    async def not_started(self, pod: Pod) -> str:
        """Start a container that must not start; what the kubelet says."""
        try:
            await self.kubelet.run_options(pod.uid, "main")
        except (StartError, PeerError) as exc:
            return str(exc)
        raise AssertionError(f"{pod.name} was started")

    async def _wait(self, look: Callable[[], Awaitable[T | None]]) -> T:
        with anyio.move_on_after(PATIENCE):
            while True:
                if found := await look():
                    return found
                await anyio.sleep(LOOK)
        raise AssertionError(f"not as wanted after {PATIENCE:g} s:\n{await self._picture()}")

    async def _picture(self) -> str:
        counts = f"kubelet: {dict(await self.kubelet.capacity())}"
        if not self._tasks:
            return f"{counts}\n{last_words(self.root)}"
        view = self.view
        parts: list[object] = [
            counts,
            *view.snapshot.vendors,
            *((it.uuid, it.health, it.told_healthy) for it in view.snapshot.devices),
            *view.sessions.items(),
            *view.allocations,
            f"troubles: {view.troubles}",
            f"counters: {dict(view.counters)}",
        ]
        return "\n".join(map(str, parts))


def one(name: str, resource: str, count: int = 1, **more: Any) -> Pod:
    """A pod of one container."""
    return Pod(name, (Container({resource: count}),), **more)


def _candidate(pod: Pod, created: float, annotations: Mapping[str, str]) -> Candidate:
    containers = (PodContainer(it.name, it.limits, it.init, it.restartable) for it in pod.containers)
    return Candidate(pod.uid, pod.namespace, pod.name, tuple(containers), annotations, created)


def last_words(root: Path, lines: int = 15) -> str:
    """The end of the log of an agent that runs as a process of its own."""
    log = root / AGENT_LOG
    return (
        "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "no agent runs"
    )


def _content(path: Path) -> str:
    with suppress(FileNotFoundError):  # it may go between two looks
        return path.read_text()
    return ""


def in_use(view: AgentStatus) -> list[Allocation]:
    return [it for it in view.allocations if it.state is AllocationState.DONE]


def owned_by(view: AgentStatus, pod: Pod) -> list[Allocation]:
    """The allocations of the pod, released ones too."""
    return [it for it in view.allocations if it.owner is not None and it.owner.uid == pod.uid]


def confirmed(view: AgentStatus, *pods: Pod) -> bool:
    """Whether each pod is known by name as the owner of an allocation in use."""
    named = {(it.owner.namespace, it.owner.pod) for it in in_use(view) if it.owner}
    return all((pod.namespace, pod.name) in named for pod in pods)


def released(view: AgentStatus, pod: Pod) -> bool:
    mine = owned_by(view, pod)
    return bool(mine) and all(it.state is AllocationState.RELEASED for it in mine)


def device(view: AgentStatus, uuid: str) -> DeviceStatus:
    found = view.snapshot.device(uuid)
    assert found is not None, f"{uuid} is not known"
    return found


def vendor_is(view: AgentStatus, name: str, state: VendorState) -> bool:
    return any(it.name == name and it.state is state for it in view.snapshot.vendors)
