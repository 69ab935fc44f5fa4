"""Reads what the kubelet, the hardware and the kernel say of our allocations. Every source may fail alone."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import anyio
import structlog

from agent.core.allocation import answer_annotations
from agent.core.allocation.reconcile_evidence import FOREIGN, CheckpointAnswer, Evidence, Pods
from agent.core.errors import VendorAbsent, VendorError
from agent.core.model import Owner, share
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.vendor_api.agent import Partition

log = structlog.get_logger(__name__)

#: A pod's folder in the cgroup tree, as either driver of the kubelet names it; systemd's have _ for -.
POD_CGROUP = re.compile(r"(?:^|-)pod([0-9a-f]{8}[-_][0-9a-f-_]{27}|[0-9a-f]{32})(?:\.slice)?$")
#: Folders below a cgroup root that may hold pods: the classes of service, of both drivers and versions.
POD_PARENTS = (
    "kubepods",
    "kubepods/burstable",
    "kubepods/besteffort",
    "kubepods.slice",
    "kubepods.slice/kubepods-burstable.slice",
    "kubepods.slice/kubepods-besteffort.slice",
)


class EvidenceSources:
    """Where evidence comes from. What cannot be read is said once per change, and changes nothing."""

    def __init__(
        self,
        read_checkpoint: Callable[[bool], KubeletCheckpoint | None],
        pods_in_use: Callable[[], Awaitable[Pods]],
        partitions: Callable[[str], Awaitable[Sequence[Partition]]],
        running: Callable[[], frozenset[str] | None] = lambda: None,
        life: Callable[[], str] = lambda: "",
        settled: Callable[[str], bool] = lambda life: True,
        *,
        pods_at_once: Callable[[], Awaitable[Pods]] | None = None,
        patience: float = 3.0,
    ) -> None:
        """`life` names the kubelet's life; `settled` says of one whether it has served for long enough.

        `pods_at_once` asks for an Allocate, which cannot wait for its turn as the loop does; `patience` is
        how long it waits for the answer, seconds: less than the deadline of an Allocate.
        """
        self._read_checkpoint = read_checkpoint
        self._pods_in_use = pods_in_use
        self._pods_at_once = pods_at_once or pods_in_use
        self._partitions = partitions
        self._running = running
        self._life = life
        self._settled = settled
        self._patience = patience
        self._complaints: dict[str, str] = {}
        self.unreadable: Counter[str] = Counter()

    async def evidence(self, vendors: Iterable[str] = (), *, prove: bool = True) -> Evidence:
        """Everything that can be read now. `vendors` are asked for their slices."""
        life = self.life
        granted = await self.granted(prove=prove)
        pods = await self._pods()
        running = await asyncio.to_thread(self._running)
        partitions = {name: found for name in vendors if (found := await self._slices(name)) is not None}
        steady = bool(life) and life == self.life
        settled = steady and self._settled(life)
        return Evidence(granted, prove, pods, partitions, running, life, settled, steady)

    @property
    def life(self) -> str:
        """Which life of the kubelet this is."""
        return self._life()

    async def shows(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """Those of them whose pods are there: they have a cgroup or, where none can be seen, are listed now.

        In doubt they are not: a node whose PodResources cannot be asked must go on.
        """
        running = await asyncio.to_thread(self._running)
        if running is not None:
            return frozenset(it for it in owners if it.uid in running)
        pods = await self.pods_now()
        return frozenset(it for it in owners if it.pod and (it.namespace, it.pod) in (pods or {}))

    async def gone(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """Those of them whose pods are over: they have no cgroup or, where none can be seen, a kubelet that
        has served for long lists them no more.

        In doubt they are there, for what they have would be given twice: whose pod nobody has named yet is
        found in no list, and a kubelet that begins lists the pods that it has come to, the oldest first.
        """
        running = await asyncio.to_thread(self._running)
        if running is not None:
            return frozenset(it for it in owners if it.uid and it.uid not in running)
        life = self.life
        pods = await self.pods_now()
        if pods is None or not (life and life == self.life and self._settled(life)):
            return frozenset()
        return frozenset(it for it in owners if it.pod and (it.namespace, it.pod) not in pods)

    async def shown_with(self, resource: str, ids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Those of the IDs with which the kubelet lists a pod now: to namespace and name. In doubt none."""
        pods = await self.pods_now()
        return {
            device_id: name
            for name, containers in (pods or {}).items()
            for resources in containers.values()
            for device_id in resources.get(resource, frozenset()).intersection(ids)
        }

    async def granted(
        self, *, prove: bool = True, sizes: bool = False
    ) -> tuple[CheckpointAnswer, ...] | None:
        """What the kubelet's checkpoint holds. `prove` asks for its checksum, too.

        `sizes` asks what other plugins made of a card, which the kubelet knows until we have registered.
        """
        try:
            checkpoint = await asyncio.to_thread(self._read_checkpoint, prove)
        except KubeletError as exc:
            self._complain("kubelet checkpoint", exc)
            return None
        self._complaints.pop("kubelet checkpoint", None)
        if checkpoint is None:
            return None
        registered = checkpoint.registered if sizes else {}
        return tuple(granted(it, registered) for it in checkpoint.entries)

    async def pods_now(self) -> Pods | None:
        """What PodResources shows, for who cannot wait for a turn; None where it cannot be read in time."""
        with anyio.move_on_after(self._patience):
            return await self._read_pods(self._pods_at_once)
        return None

    async def _pods(self) -> Pods | None:
        return await self._read_pods(self._pods_in_use)

    async def _read_pods(self, read: Callable[[], Awaitable[Pods]]) -> Pods | None:
        try:
            pods = await read()
        except KubeletError as exc:
            self._complain("PodResources", exc)
            return None
        self._complaints.pop("PodResources", None)
        return pods

    async def _slices(self, vendor: str) -> tuple[Partition, ...] | None:
        source = f"slices of {vendor}"
        try:
            found = tuple(await self._partitions(vendor))
        except VendorAbsent:
            self._complaints.pop(source, None)
            return None
        except VendorError as exc:
            self._complain(source, exc)
            return None
        self._complaints.pop(source, None)
        return found

    def _complain(self, source: str, exc: Exception) -> None:
        """Say it once per change; the loop comes again."""
        if self._complaints.get(source) != str(exc):
            log.warning("evidence not read, nothing is released on it", source=source, error=str(exc))
        self._complaints[source] = str(exc)
        self.unreadable[source] += 1

    @property
    def complaints(self) -> Mapping[str, str]:
        """Source to why it could not be read the last time."""
        return dict(self._complaints)


def granted(
    entry: CheckpointEntry, registered: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> CheckpointAnswer:
    """The answer with what it says of itself, where it is ours; else what the list of who gave it says."""
    said = entry.edits.annotations
    ours = said if said.get(answer_annotations.ALLOCATION) else {}
    return CheckpointAnswer(
        allocation_id(entry),
        entry.pod_uid,
        entry.container,
        entry.resource,
        entry.ids,
        answer_annotations.cards(ours),
        answer_annotations.share(ours),
        answer_annotations.unit(ours) if ours else None,
        0 if ours else _shares(entry, registered.get(entry.resource, ())),
        entry.edits,
    )


def _shares(entry: CheckpointEntry, listed: Sequence[str]) -> int:
    """How many shares its plugin lists of the card of the answer's first ID; 0 where it does no more."""
    its = share(entry.ids[0]) if entry.ids else None
    if its is None or entry.ids[0] not in listed or any("::" in it for it in listed):
        return 0  # a list of ours has of another's IDs those that are in use
    beginning = its.stem + its.between
    return sum(it.startswith(beginning) for it in listed)


def allocation_id(entry: CheckpointEntry) -> str:
    """Our own mark, or an id that is made of its place where another plugin answered."""
    place = f"{entry.pod_uid}/{entry.container}/{entry.resource}"
    return entry.edits.annotations.get(answer_annotations.ALLOCATION) or foreign_id(place)


def foreign_id(place: str) -> str:
    return f"{FOREIGN}{hashlib.sha256(place.encode(errors='replace')).hexdigest()[:16]}"


def running_pods(root: Path = Path("/sys/fs/cgroup")) -> frozenset[str] | None:
    """The uids of pods that have a cgroup; None where no pods' cgroups can be seen at all."""
    trees = (root, root / "memory", root / "systemd")  # version 2, and two hierarchies of version 1
    try:
        for tree in trees:
            parents = [tree / it for it in POD_PARENTS if (tree / it).is_dir()]
            if parents:
                return frozenset(uid for parent in parents for uid in _pods_below(parent))
    except OSError:
        pass  # half of them would make the others look gone
    return None


def _pods_below(parent: Path) -> Iterable[str]:
    for it in parent.iterdir():
        if found := POD_CGROUP.search(it.name):
            yield found[1].replace("_", "-")
