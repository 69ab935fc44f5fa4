"""Drivers of the two peers: the kubelet's real device manager, and a fake kubelet that measures."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent.testing.node_kubelet import Admission, Arrivals, Capacity, Pod, RunOptions

from .process import Event, PeerProcess, state_of

BUILD = Path(__file__).resolve().parents[2] / "build" / "peers"
#: How often a state is asked for that the kubelet has no event about.
ASK_EVERY = 0.01


def built_peers() -> list[Path]:
    """List the peer binaries that build.sh has made, one per Kubernetes release."""
    return sorted(path for path in BUILD.glob("peer-*") if path.suffix not in {".stamp", ".new"})


class RealKubelet:
    """NodeKubelet over the kubelet's own managers; keep `directory` short, it holds unix sockets."""

    def __init__(
        self, binary: Path, directory: Path, *, numa: int = 1, policy: str = "none", scope: str = "container"
    ) -> None:
        self.refused: Mapping[str, Admission] = {}  # by pod UID: what the last restart did not take back
        self._directory = directory
        self._command: list[str | Path] = [binary, "kubelet", "--dir", self.plugin_dir, "--numa", str(numa)]
        self._command += ["--policy", policy, "--scope", scope]
        self._pods: dict[str, dict[str, Any]] = {}
        self._arrivals = Arrivals()
        self._process = PeerProcess(*self._command, log=self.log)

    @property
    def plugin_dir(self) -> Path:
        return self._directory / "device-plugins"

    @property
    def registry_dir(self) -> Path:
        """Where the plugin watcher looks for sockets."""
        return self._directory / "plugins_registry"

    @property
    def pod_resources_socket(self) -> Path:
        return self._directory / "pod-resources" / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        return self.plugin_dir / "kubelet_internal_checkpoint"

    @property
    def log(self) -> Path:
        return self._directory / "kubelet.log"

    @property
    def running(self) -> bool:
        """Whether the kubelet is up."""
        return self._process.running

    async def __aenter__(self) -> Self:
        await self._process.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._process.stop()

    async def admit(self, pod: Pod) -> Admission:
        spec = _spec(pod)
        with self._arrivals.of(pod.uid):
            answer = await self._process.call("admit", pod=spec)
            if answer["admitted"]:
                self._pods[pod.uid] = spec
        return _admission(answer)

    async def delete(self, uid: str) -> None:
        """Forget the pod, after its admission; a dead kubelet misses it when it starts."""
        await self._arrivals.judged(uid)
        self._pods.pop(uid, None)
        if self._process.running:
            await self._process.call("delete", uid=uid)

    async def finish(self, uid: str) -> None:
        await self._process.call("finish", uid=uid)
        self._pods[uid]["finished"] = True

    async def capacity(self) -> Mapping[str, Capacity]:
        answer = await self._process.call("capacity")
        return {resource: Capacity(**counts) for resource, counts in answer.items()}

    async def devices(self, uid: str) -> Mapping[str, Mapping[str, frozenset[str]]]:
        answer = await self._process.call("devices", uid=uid)
        return {
            container: {resource: frozenset(ids) for resource, ids in held.items()}
            for container, held in answer.items()
        }

    async def allocations(self, resource: str) -> Mapping[str, float]:
        """How many Allocate calls there were for the resource (`calls`), and how long all took (`seconds`).

        These are the kubelet's own figures (kubelet_device_plugin_alloc_duration_seconds).
        """
        answer: dict[str, float] = await self._process.call("allocations", resource=resource)
        return answer

    async def run_options(self, uid: str, container: str) -> RunOptions:
        answer = await self._process.call("run_options", uid=uid, container=container)
        return RunOptions(
            env=answer["env"],
            annotations=answer["annotations"],
            devices=tuple((host, inside, permissions) for host, inside, permissions in answer["devices"]),
            mounts=tuple((host, inside, read_only) for host, inside, read_only in answer["mounts"]),
            cdi_devices=tuple(answer["cdi_devices"]),
        )

    async def health(self, uid: str) -> Mapping[str, str]:
        answer: dict[str, str] = await self._process.call("health", uid=uid)
        return answer

    async def kill(self) -> None:
        """Leave the kubelet dead, its sockets in place, until `start`; commands raise PeerDown."""
        await self._process.kill()

    async def start(self, *, readmit: bool = False, api_away: bool = False) -> None:
        """Start a new kubelet on the same directory.

        With `readmit` it judges every pod anew, as on a node: those it does not take back, pods with
        init containers that hold devices for one, are in `refused` then.
        """
        if self._process.running:
            raise RuntimeError("the kubelet runs already")
        pods = self._directory / "pods.json"
        pods.write_text(json.dumps(list(self._pods.values())))
        flags = {"--readmit": readmit, "--api-away": api_away}
        options: list[str | Path] = ["--pods", pods, *(flag for flag, given in flags.items() if given)]
        self._process = PeerProcess(*self._command, *options, log=self.log)
        self._note_refused(await self._process.start())

    async def restart(self, *, down: float = 0.0, readmit: bool = False, api_away: bool = False) -> None:
        await self.kill()
        await asyncio.sleep(down)
        await self.start(readmit=readmit, api_away=api_away)

    async def restart_in_process(
        self, *, down: float = 0.0, readmit: bool = False, api_away: bool = False
    ) -> None:
        """Stop the managers in good order and start new ones; kubelet.sock is gone in between."""
        how = {"down_ms": round(down * 1000), "readmit": readmit, "api_away": api_away}
        self._note_refused(await self._process.call("restart", **how))

    async def api_back(self, *, readmit: bool = False) -> None:
        self._note_refused(await self._process.call("api_back", readmit=readmit))

    async def recreate_directory(self) -> None:
        await self.kill()
        while self.plugin_dir.exists():  # a plugin may be tidying up in it
            shutil.rmtree(self.plugin_dir, ignore_errors=True)
        await self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def freeze(self) -> None:
        """Stop the process where it is: its sockets take connections and bytes, nobody reads them."""
        self._process.signal(signal.SIGSTOP)
        while True:
            if state_of(self.pid) == "T":
                return
            await asyncio.sleep(ASK_EVERY)

    def thaw(self) -> None:
        self._process.signal(signal.SIGCONT)

    async def next(self, predicate: Callable[[Event], bool], timeout: float = 30.0) -> Event:
        """Take the next event that fits; `pod_status` names pods whose device health changed."""
        return await self._process.next(predicate, timeout)

    async def until(
        self, accept: Callable[[Mapping[str, Capacity]], bool], timeout: float = 30.0
    ) -> Mapping[str, Capacity]:
        """Ask for the capacity until it is as wanted: a kubelet tells nobody when it changes."""
        counts: Mapping[str, Capacity] = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    counts = await self.capacity()
                    if accept(counts):
                        return counts
                    await asyncio.sleep(ASK_EVERY)
        except TimeoutError:
            raise TimeoutError(f"not as wanted after {timeout} s: {dict(counts)}") from None

    def _note_refused(self, answer: Event) -> None:
        self.refused = {verdict["uid"]: _admission(verdict) for verdict in answer["refused"]}
        for uid in self.refused:
            self._pods.pop(uid, None)


@dataclass(frozen=True, slots=True)
class Timing:
    """Sequential calls to a plugin, in microseconds; `first` is the first good answer's content."""

    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int
    calls: int
    errors: int
    error: str = ""
    first: Any = None


class GoClient:
    """A fake kubelet in grpc-go; its events carry the wall clock in `t_ns`."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self.plugin_dir = directory / "device-plugins"
        self._process = PeerProcess(binary, "client", "--dir", self.plugin_dir, log=directory / "client.log")

    @property
    def running(self) -> bool:
        """Whether the kubelet is up."""
        return self._process.running

    async def __aenter__(self) -> Self:
        await self._process.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._process.stop()

    @property
    def events(self) -> list[Event]:
        """What happened and was not yet taken: register, list and end of each resource, and ready."""
        return self._process.events

    async def next(self, predicate: Callable[[Event], bool], timeout: float = 30.0) -> Event:
        """Take the oldest event that fits out of `events`, waiting for one if there is none."""
        return await self._process.next(predicate, timeout)

    async def allocate(self, resource: str, ids: Sequence[str], n: int = 1) -> Timing:
        """Call Allocate n times for one container; `first` holds its container responses."""
        return Timing(**await self._process.call("allocate", resource=resource, ids=list(ids), n=n))

    async def allocate_each(self, resource: str, ids: Sequence[str]) -> Timing:
        """Call Allocate once for each of the IDs."""
        return Timing(**await self._process.call("allocate", resource=resource, ids=list(ids), each=True))

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int, n: int = 1
    ) -> Timing:
        """Call GetPreferredAllocation n times; `first` holds the IDs it chose."""
        arguments = {"available": list(available), "must": list(must), "size": size, "n": n}
        return Timing(**await self._process.call("preferred", resource=resource, **arguments))

    async def ids(self, resource: str) -> Mapping[str, str]:
        """Give the health of each device ID in the newest list."""
        answer: dict[str, str] = await self._process.call("ids", resource=resource)
        return answer

    async def restart(self, *, down: float = 0.0) -> None:
        """Drop all connections, stay away for a while, wipe the sockets and serve again."""
        await self._process.call("restart", down_ms=round(down * 1000))


def _spec(pod: Pod) -> dict[str, Any]:
    containers = [{**asdict(container), "limits": dict(container.limits)} for container in pod.containers]
    return {**asdict(replace(pod, containers=())), "containers": containers}


def _admission(answer: Mapping[str, Any]) -> Admission:
    return Admission(answer["admitted"], answer["reason"], answer["message"])
