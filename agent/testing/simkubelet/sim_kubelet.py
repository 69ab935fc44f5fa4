"""SimKubelet: the simulated kubelet of tests and the demo."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from agent.testing.node_kubelet import Admission, Arrivals, Capacity, Pod, RunOptions

from .journal import Journal
from .known_pods import Pods, is_init
from .life import Life, remove_directory
from .manager import DEFAULT_LIMITS, KubeletLimits, Settings
from .register_call import RegisterFaults
from .release import Release
from .topology_manager import MAX_NODES, Policy


class SimKubelet:
    """A kubelet in memory below `directory`, which stands for /var/lib/kubelet.

    `mode` is a Kubernetes release from 1.20 on. Behaviour that changed between releases follows `mode`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        mode: str = "1.36",
        numa_nodes: int = 2,
        policy: Policy = "none",
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        limits: KubeletLimits = DEFAULT_LIMITS,
    ) -> None:
        if policy != "none" and numa_nodes > MAX_NODES:
            raise ValueError(f"unsupported on machines with more than {MAX_NODES} NUMA Nodes")
        self._settings = Settings(
            directory=directory,
            release=Release.parse(mode),
            numa_nodes=numa_nodes,
            policy=policy,
            clock=clock,
            limits=limits,
        )
        #: The events so far, over all restarts.
        self.journal = Journal()
        #: Seconds that PodResources waits before each answer.
        self.pod_resources_delay = 0.0
        #: Pods that the last restart did not admit again.
        self.refused: Mapping[str, Admission] = {}
        self._rng = random.Random(seed)
        self._pods = Pods()
        self._faults = RegisterFaults()
        self._arrivals = Arrivals()
        self._admission = asyncio.Lock()
        self._life: Life | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def plugin_dir(self) -> Path:
        return self._settings.plugin_dir

    @property
    def pod_resources_socket(self) -> Path:
        return self._settings.directory / "pod-resources" / "kubelet.sock"

    @property
    def registry_dir(self) -> Path:
        """The directory in which the plugin watcher looks for registration sockets."""
        return self._settings.directory / "plugins_registry"

    @property
    def checkpoint(self) -> Path:
        return self.plugin_dir / "kubelet_internal_checkpoint"

    async def admit(self, pod: Pod) -> Admission:
        """Admit the pod. Pods are admitted one after another, so a plugin that hangs delays every later pod.

        A pod that is refused is forgotten. A pod that is known already is admitted again.
        """
        with self._arrivals.of(pod.uid):
            async with self._admission:
                life = self._living()
                if self._pods.api_away and not pod.static:
                    raise RuntimeError("the API server is away: only static pods come to the kubelet")
                self._pods.add(pod)
                return await self._judge(life, pod)

    async def _judge(self, life: Life, pod: Pod) -> Admission:
        verdict = await life.manager.admit(pod)
        if verdict.admitted and self._life is not life:
            verdict = Admission(False, "Killed", "the kubelet died before it could tell")
        if not verdict.admitted:
            self._pods.remove(pod.uid)
        self.journal.note()
        return verdict

    async def delete(self, uid: str) -> None:
        """Forget the pod after its admission; its devices become free when the kubelet next counts them."""
        await self._arrivals.judged(uid)
        self._pods.remove(uid)

    async def finish(self, uid: str) -> None:
        """End the pod's containers; the pod is inactive but known until it is deleted."""
        self._pods.finish(uid)

    async def capacity(self) -> Mapping[str, Capacity]:
        return self.counts()

    def counts(self) -> Mapping[str, Capacity]:
        """The counts of each resource. As in a real kubelet, counting lets resources expire."""
        return self._living().manager.counts()

    async def devices(self, uid: str) -> Mapping[str, Mapping[str, frozenset[str]]]:
        holdings = self._living().manager.devices.holdings
        return {
            container.name: {one.resource: one.ids for one in holdings.of(uid, container.name)}
            for container in self._pods.find(uid).containers
        }

    async def run_options(self, uid: str, container: str) -> RunOptions:
        """Start (or restart) the container.

        Raises:
            StartError: The plugin refused. A kubelet would try again later.
        """
        pod = self._pods.find(uid)
        for one in pod.containers:
            if one.name == container:
                return await self._living().manager.run_options(pod, one)
        raise LookupError(f"pod {uid} has no container {container}")

    async def health(self, uid: str) -> Mapping[str, str]:
        """Device ID to health, as in the pod's status, which leaves out init containers."""
        devices = self._living().manager.devices
        shown = [one for one in self._pods.find(uid).containers if not is_init(one)]
        return {key: value for one in shown for key, value in devices.health(uid, one.name).items()}

    @property
    def running(self) -> bool:
        """Whether the kubelet is up."""
        return self._life is not None

    async def restart(self, *, down: float = 0.0, readmit: bool = False, api_away: bool = False) -> None:
        """Kill the kubelet if it runs, wait `down` seconds and start it. Its sockets stay until the start."""
        if self._life is not None:
            await self.kill()
        await anyio.sleep(down)
        await self.start(readmit=readmit, api_away=api_away)

    async def start(self, *, readmit: bool = False, api_away: bool = False) -> None:
        """Begin a life.

        With `readmit` every pod is admitted again before the sources are ready, as on a node. With `api_away`
        the kubelet knows only its static pods, and its sources are not ready, until `api_back`.
        """
        async with self._admission:
            if self._life is not None:
                raise RuntimeError("the kubelet runs already")
            (self._pods.lose_api if api_away else self._pods.find_api)()
            life = self._new_life()
            await life.start()
            self._life = life
            await self._readmit(life, self._pods.active() if readmit else ())
            life.manager.sources_ready = not api_away
        self.journal.note()

    async def api_back(self, *, readmit: bool = False) -> None:
        """Learn the pods that were not deleted meanwhile, one after another. Then the sources are ready."""
        async with self._admission:
            life = self._living()
            back = (pod for pod in self._pods.arriving() if readmit and self._pods.is_active(pod))
            await self._readmit(life, back)
            self._pods.find_api()
            life.manager.sources_ready = True
        self.journal.note()

    async def _readmit(self, life: Life, pods: Iterable[Pod]) -> None:
        verdicts = {pod.uid: await self._judge(life, pod) for pod in pods}
        self.refused = {uid: verdict for uid, verdict in verdicts.items() if not verdict.admitted}

    def _new_life(self) -> Life:
        delay = lambda: self.pod_resources_delay  # noqa: E731
        return Life(self._settings, self._pods, self.journal, self._rng, self._faults, delay)

    def _living(self) -> Life:
        if self._life is None:
            raise RuntimeError("the kubelet is down")
        return self._life

    async def stop(self) -> None:
        """End in order. Does nothing when the kubelet is down."""
        life, self._life = self._life, None
        if life is not None:
            await life.stop()
            self.journal.note()

    async def kill(self) -> None:
        """Die without cleanup: connections break, sockets stay where they are."""
        life, self._life = self._living(), None
        await life.kill()
        self.journal.note()

    @property
    def sources_ready(self) -> bool:
        """Whether the kubelet knows all its pods. Until then it frees no devices."""
        return self._living().manager.sources_ready

    @sources_ready.setter
    def sources_ready(self, ready: bool) -> None:
        self._living().manager.sources_ready = ready

    async def wait(self, condition: Callable[[Self], bool]) -> None:
        """Return once the condition holds. The condition is evaluated at every change."""
        while not condition(self):
            await self.journal.next_note()

    def hang_register(self, hang: bool = True) -> None:
        """Leave Register calls without an answer until this is called with False."""
        if hang:
            self._faults.answers.clear()
        else:
            self._faults.answers.set()

    def refuse_registration(self, text: str | None) -> None:
        """Answer every Register with this error; None ends the fault."""
        self._faults.refusal = text

    def open_second_stream(self, resource: str) -> None:
        """Open a second ListAndWatch stream to the newest plugin of the resource."""
        clients = self._living().clients
        clients.read_again(clients.newest(resource))

    def drop_stream(self, resource: str) -> None:
        """Lose the connection to the newest plugin of the resource."""
        self._living().clients.newest(resource).drop()

    def cut_next_message(self, resource: str) -> None:
        """Lose the connection to the newest plugin in the middle of its next list, or of its next answer."""
        self._living().clients.newest(resource).cut()

    async def recreate_directory(self) -> None:
        """Restart on a new plugin directory. The checkpoint is lost with the old one."""
        await self.stop()
        remove_directory(self.plugin_dir)
        await self.start()
