"""Reads what the kubelet, the hardware and the kernel show of allocations. Each source may fail alone."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import anyio
import structlog

from agent.core.allocation import answer_annotations
from agent.core.errors import VendorAbsent, VendorError
from agent.core.model import Owner, share
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer, Evidence, Pods
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.vendor_api.agent import Partition

log = structlog.get_logger(__name__)

#: The name of a pod's cgroup, with the uid. The systemd driver writes _ in place of -.
POD_CGROUP = re.compile(r"(?:^|-)pod([0-9a-f]{8}[-_][0-9a-f-_]{27}|[0-9a-f]{32})(?:\.slice)?$")
#: Cgroups above the cgroups of pods: quality-of-service classes, for both drivers and both versions.
POD_PARENTS = (
    "kubepods",
    "kubepods/burstable",
    "kubepods/besteffort",
    "kubepods.slice",
    "kubepods.slice/kubepods-burstable.slice",
    "kubepods.slice/kubepods-besteffort.slice",
)

#: Asks PodResources. With device IDs, pods without one of them may be left out; with the (namespace, name) of
#: a pod, all others.
PodsAtOnce = Callable[[Collection[str] | None, tuple[str, str] | None], Awaitable[Pods]]


class EvidenceSources:
    """Reads the sources. An error is logged once per change, and nothing is released because of it."""

    def __init__(
        self,
        read_checkpoint: Callable[[bool], KubeletCheckpoint | None],
        pods_in_use: Callable[[], Awaitable[Pods]],
        partitions: Callable[[str], Awaitable[Sequence[Partition]]],
        running: Callable[[], frozenset[str] | None] = lambda: None,
        life: Callable[[], str] = lambda: "",
        settled: Callable[[str], bool] = lambda life: True,
        *,
        pods_at_once: PodsAtOnce | None = None,
        patience: float = 3.0,
    ) -> None:
        """`read_checkpoint` verifies the checksum where its argument is true. `partitions`: slices by vendor.

        `running`: uids of pods that have a cgroup; None where no cgroup can be seen. `life` names the life of
        the kubelet. `settled`: whether a life has served for so long that its lists are complete.

        `pods_at_once` asks PodResources for an Allocate, which cannot wait as long as the loop can.
        `patience`: seconds that an Allocate waits for the answer, less than its own deadline.
        """
        self._read_checkpoint = read_checkpoint
        self._pods_in_use = pods_in_use
        self._pods_at_once = pods_at_once or (lambda ids, pod: pods_in_use())
        self._partitions = partitions
        self._read_running = running
        self._life = life
        self._is_settled = settled
        self._patience = patience
        self._answers = _Answers()
        self._complaints: dict[str, str] = {}
        self.unreadable: Counter[str] = Counter()

    async def evidence(self, vendors: Iterable[str] = (), *, prove: bool = True) -> Evidence:
        """Read all sources now. `vendors` are asked for their slices. `prove`: verify the checksum."""
        life = self.life
        granted = await self.checkpoint_answers(prove=prove)
        pods = await self._read_all_pods()
        running = await asyncio.to_thread(self._read_running)
        partitions = {name: made for name in vendors if (made := await self._read_slices(name)) is not None}
        steady = bool(life) and life == self.life
        settled = steady and self._is_settled(life)
        return Evidence(
            granted,
            proven=prove,
            pods=pods,
            partitions=partitions,
            running=running,
            life=life,
            settled=settled,
            steady=steady,
        )

    @property
    def life(self) -> str:
        """The life of the kubelet that serves now; empty without one."""
        return self._life()

    async def existing_owners(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """The owners with a pod that exists: it has a cgroup or, where no cgroup can be seen, is listed now.

        An unknown pod does not exist: a node must work while PodResources does not answer.
        """
        running = await asyncio.to_thread(self._read_running)
        if running is not None:
            return frozenset(it for it in owners if it.uid in running)
        pods = await self.pods_now()
        return frozenset(it for it in owners if it.pod and (it.namespace, it.pod) in (pods or {}))

    async def ended_owners(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """The owners with a pod that is over.

        Such a pod has no cgroup or, where no cgroup can be seen, is not listed by a kubelet that has served
        for long. An unknown pod is not over, since its cards would be given out twice. A pod without a name
        yet is in no list, and a starting kubelet lists only pods that it has handled, oldest first.
        """
        running = await asyncio.to_thread(self._read_running)
        if running is not None:
            return frozenset(it for it in owners if it.uid and it.uid not in running)
        life = self.life
        pods = await self.pods_now()
        if pods is None or not (life and life == self.life and self._is_settled(life)):
            return frozenset()
        return frozenset(it for it in owners if it.pod and (it.namespace, it.pod) not in pods)

    async def pods_with_ids(
        self, resource: str, ids: Collection[str], owners: Collection[Owner | None]
    ) -> Mapping[str, tuple[str, str]]:
        """Device ID to the (namespace, name) of its pod, as the kubelet says now; empty where unknown.

        `owners`: the owners of the allocations that hold the IDs. Where they are one pod, the kubelet is
        asked for that pod alone.
        """
        pods = await self.pods_now(ids, _only_pod(owners))
        return {
            device_id: pod
            for pod, containers in (pods or {}).items()
            for resources in containers.values()
            for device_id in resources.get(resource, frozenset()).intersection(ids)
        }

    async def checkpoint_answers(
        self, *, prove: bool = True, sizes: bool = False
    ) -> tuple[CheckpointAnswer, ...] | None:
        """The answers in the kubelet's checkpoint; None where it is unreadable. `prove`: verify the checksum.

        `sizes`: also count the shares that another plugin made of each card. The kubelet knows them until
        this agent has registered.
        """
        try:
            checkpoint = await asyncio.to_thread(self._read_checkpoint, prove)
        except KubeletError as exc:
            self._complain("kubelet checkpoint", exc)
            return None
        self._complaints.pop("kubelet checkpoint", None)
        if checkpoint is None:
            return None
        if not sizes:
            return self._answers.of(checkpoint)
        return tuple(checkpoint_answer(it, checkpoint.registered) for it in checkpoint.entries)

    async def pods_now(
        self, ids: Collection[str] | None = None, pod: tuple[str, str] | None = None
    ) -> Pods | None:
        """What PodResources lists, for an Allocate; None where it does not answer in time.

        With `ids`, pods without one of these device IDs may be left out; with `pod`, all other pods.
        """
        with anyio.move_on_after(self._patience):
            is_whole = ids is None and pod is None
            return await self._read_pods(partial(self._pods_at_once, ids, pod), is_whole=is_whole)
        return None

    async def _read_all_pods(self) -> Pods | None:
        return await self._read_pods(self._pods_in_use)

    async def _read_pods(self, read: Callable[[], Awaitable[Pods]], *, is_whole: bool = True) -> Pods | None:
        """Read pods; None after an error. That a part was read says nothing of the whole list."""
        try:
            pods = await read()
        except KubeletError as exc:
            self._complain("PodResources", exc)
            return None
        if is_whole:
            self._complaints.pop("PodResources", None)
        return pods

    async def _read_slices(self, vendor: str) -> tuple[Partition, ...] | None:
        source = f"slices of {vendor}"
        try:
            slices = tuple(await self._partitions(vendor))
        except VendorAbsent:
            self._complaints.pop(source, None)
            return None
        except VendorError as exc:
            self._complain(source, exc)
            return None
        self._complaints.pop(source, None)
        return slices

    def _complain(self, source: str, exc: Exception) -> None:
        """Keep and count the error of a source, and log it once per change."""
        if self._complaints.get(source) != str(exc):
            log.warning("evidence not read, nothing is released on it", source=source, error=str(exc))
        self._complaints[source] = str(exc)
        self.unreadable[source] += 1

    @property
    def complaints(self) -> Mapping[str, str]:
        """Source to the reason why it could not be read the last time."""
        return dict(self._complaints)


def _only_pod(owners: Collection[Owner | None]) -> tuple[str, str] | None:
    """The (namespace, name) of the one pod of all owners; None where there is another, or no name yet."""
    pods = {(it.namespace, it.pod) if it is not None and it.pod else None for it in owners}
    return next(iter(pods)) if len(pods) == 1 else None


class _Answers:
    """Keeps the answers of the last checkpoint: the next one has nearly the same entries."""

    def __init__(self) -> None:
        self._last = KubeletCheckpoint()
        self._answers: tuple[CheckpointAnswer, ...] = ()

    def of(self, checkpoint: KubeletCheckpoint) -> tuple[CheckpointAnswer, ...]:
        """The answers in the order of the entries. The same entry object has the same answer."""
        if checkpoint is not self._last:
            # The last checkpoint keeps its entries alive, so that no other entry has the identity of one.
            kept = dict(zip(map(id, self._last.entries), self._answers, strict=True))
            self._answers = tuple(kept.get(id(it)) or checkpoint_answer(it) for it in checkpoint.entries)
            self._last = checkpoint
        return self._answers


def checkpoint_answer(
    entry: CheckpointEntry, registered: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> CheckpointAnswer:
    """The answer, with what the agent's annotations say of it.

    `registered`: resource to the IDs that another plugin lists, for an answer of that plugin. These IDs show
    how many shares a card has.
    """
    annotations = entry.edits.annotations
    own = annotations if annotations.get(answer_annotations.ALLOCATION) else {}
    return CheckpointAnswer(
        allocation_id(entry),
        entry.pod_uid,
        entry.container,
        entry.resource,
        entry.ids,
        cards=answer_annotations.cards(own),
        share=answer_annotations.share(own),
        unit=answer_annotations.unit(own) if own else None,
        ids_of_card=0 if own else _shares_of_card(entry, registered.get(entry.resource, ())),
        edits=entry.edits,
    )


def _shares_of_card(entry: CheckpointEntry, listed: Sequence[str]) -> int:
    """How many shares another plugin lists of the card of the answer's first ID; 0 where unknown."""
    first = share(entry.ids[0]) if entry.ids else None
    if first is None or entry.ids[0] not in listed or any("::" in it for it in listed):
        return 0  # a list of this agent has only the used IDs of another plugin
    prefix = first.stem + first.between
    return sum(it.startswith(prefix) for it in listed)


def allocation_id(entry: CheckpointEntry) -> str:
    """The id in the agent's annotation; for another plugin's answer an id made of its place."""
    place = f"{entry.pod_uid}/{entry.container}/{entry.resource}"
    return entry.edits.annotations.get(answer_annotations.ALLOCATION) or foreign_id(place)


def foreign_id(place: str) -> str:
    """The allocation id for an answer of another plugin at this place."""
    return f"{FOREIGN}{hashlib.sha256(place.encode(errors='replace')).hexdigest()[:16]}"


def running_pods(root: Path = Path("/sys/fs/cgroup")) -> frozenset[str] | None:
    """The uids of pods that have a cgroup; None where no pod's cgroup can be seen at all."""
    trees = (root, root / "memory", root / "systemd")  # version 2, and two hierarchies of version 1
    try:
        for tree in trees:
            parents = [tree / it for it in POD_PARENTS if (tree / it).is_dir()]
            if parents:
                return frozenset(uid for parent in parents for uid in _pods_below(parent))
    except OSError:
        pass  # with half of the cgroups, pods of the other half would look ended
    return None


def _pods_below(parent: Path) -> Iterable[str]:
    for folder in parent.iterdir():
        if uid := POD_CGROUP.search(folder.name):
            yield uid[1].replace("_", "-")
