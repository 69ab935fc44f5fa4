"""The allocator between a vendor, a disk and a kubelet that write down what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.devices.resource_waits import ResourceWait
from agent.core.errors import InsufficientRoom
from agent.core.model import Allocation, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocate_evidence import MakeRoom
from agent.daemon.allocation.allocator import Allocator
from agent.scheduler_api import Candidate, Dialect
from agent.vendor_api.agent import ContainerEdits, Edits, Partition, Placement, Request

from .scenes import BY_LIMITS, CHOSEN, PLAIN, WAITING, cards_with_room, edits, scene


@dataclass
class Room:
    """The allocator between a vendor and a disk that write down what was asked of them, in order."""

    prepares: bool = False
    log: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    disk: tuple[Allocation, ...] = ()
    prepare_fails: Exception | None = None
    release_fails: Exception | None = None
    save_fails: Exception | None = None
    gate: asyncio.Event | None = None
    release_takes: float = 0.0
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    edits: Edits = edits
    dialects: tuple[Dialect, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    placement: Placement = "local"
    #: What the kubelet says.
    life: str = "k1"
    #: Resources that the config no longer has, and which resources wait for their cards.
    retired: frozenset[str] = frozenset()
    waits: tuple[ResourceWait, ...] = ()
    grants: Sequence[CheckpointAnswer] | None = ()
    #: Names of the pods that the kubelet lists.
    listed: frozenset[str] = frozenset()
    #: Allocation to the card of its slice, and percent; where limits say how much.
    lies: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: What happens while the vendor prepares.
    meanwhile: Callable[[Ledger], object] = lambda ledger: None

    #: Where the pods are looked for, instead of `candidates`.
    heard: Callable[[], Sequence[Candidate]] | None = None
    #: Cards that have failed by now.
    failed: frozenset[str] = frozenset()
    #: Whether the vendor is left out.
    left_out: bool = False
    #: Whether its resources may name the same cards.
    dynamic: bool = False
    #: Device ID to the pod with which the kubelet lists it.
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)
    now: float = 1234.5
    make_room: MakeRoom | None = None
    #: Whether pods' own limits say how much of a card they get.
    by_limits: bool = False
    #: Why no pod is ever seen.
    unseen: str = ""
    #: How often the node was looked at.
    scenes: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.allocator = Allocator(
            self.scene,
            self.ledger,
            self,
            lambda: self.now,
            self.prepare,
            self.release,
            evidence=self,
            make_room=self.make_room,
        )

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """What each container gets."""
        return [it.edits for it in await self.allocator.allocate(resource, containers)]

    async def checkpoint_answers(self) -> Sequence[CheckpointAnswer] | None:
        return self.grants

    async def existing_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        self.log.append(f"list {','.join(sorted(it.pod for it in owners))}")
        return {it for it in owners if it.pod in self.listed}

    async def ended_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        return {*owners} - {*await self.existing_owners(owners)}

    async def pods_with_ids(
        self, resource: str, ids: Collection[str], owners: object
    ) -> Mapping[str, tuple[str, str]]:
        self.log.append(f"list {','.join(sorted(ids))}")
        return {it: self.shown[it] for it in ids if it in self.shown}

    def scene(self) -> Scene:
        self.scenes += 1
        return scene(
            *(self.heard() if self.heard else self.candidates),
            placement=self.placement,
            dialects=self.dialects,
            dynamic=self.dynamic,
            failed=self.failed,
            retired=self.retired,
            left_out=self.left_out,
            prepares=self.prepares,
            container_edits=self.edits,
            waits=self.waits,
            limits=BY_LIMITS if self.by_limits else None,
            cards_with_room=cards_with_room if self.by_limits else None,
            unseen=self.unseen,
        )

    async def save(self, *, durable: bool) -> None:
        if self.save_fails:
            self.log.append("save fails")
            raise self.save_fails
        self.disk = self.ledger.all()
        states = ",".join(it.state for it in self.disk)
        self.log.append(f"save {'durable ' * durable}{states}".strip())
        if not self.disk:
            self.emptied.set()

    async def prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        self.log.append(f"prepare {','.join(request.ids)} on {','.join(uuids)}")
        self.requests.append(request)
        self.meanwhile(self.ledger)
        if self.gate:
            await self.gate.wait()
        if self.prepare_fails:
            raise self.prepare_fails
        self.lie(request, uuids)
        return [Partition(f"slice-of-{uuids[0]}", uuids[0], request.allocation)]

    def lie(self, request: Request, uuids: Sequence[str]) -> None:
        """Where limits say how much: have a slice of so much lie there; a card has 100 percent."""
        if not self.by_limits:
            return
        own = (uuids[0], int(request.parameters.get("core", "10")))
        self.lies.pop(request.allocation, None)
        if sum(core for uuid, core in self.lies.values() if uuid == own[0]) + own[1] > 100:
            raise InsufficientRoom(request.resource, f"{own[1]} percent are too many for {own[0]}")
        self.lies[request.allocation] = own

    async def release(self, vendor: str, allocation: str) -> None:
        known = self.ledger.get(allocation)
        self.lies.pop(allocation, None)
        self.log.append(f"release {','.join(known.ids) if known else allocation}")
        await asyncio.sleep(self.release_takes)
        if self.release_fails:
            raise self.release_fails

    def claimed(self) -> list[str | None]:
        """The pods whose claims the allocations bear, oldest first."""
        return [it.claim.pod if it.claim else None for it in self.ledger.all()]


def heeding(*pods: Candidate, placement: Placement = "auto", **more: Any) -> Room:
    """A room where these pods wait and a scheduler chooses cards."""
    return Room(dialects=(CHOSEN,), candidates=pods, placement=placement, **more)


def promising() -> Room:
    """Two equal pods wait, to which a scheduler has promised slices of different priorities."""
    return Room(prepares=True, dialects=(PLAIN,), candidates=WAITING)
