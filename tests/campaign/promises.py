"""Days on which schedulers, and whoever else may write on pods, promise cards: nobody is misled by them.

A kubelet that gives out each ID once, and now and then not the one that it was asked to, admits and removes
pods whose annotations are honest, forged, or spoilt.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from support.read_annotations import READS

from agent.cluster.pods import candidate
from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.attribution.external_use_rules import external_allocations
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.inventory import Inventory
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.errors import AllocationError
from agent.core.model import Allocation, Owner, VendorState, VendorStatus
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate
from agent.schedulers.hami.pod_annotations import METAX_ALLOCATED
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.vendor_api.agent import ContainerEdits, Device, Placement, Request, ResourceRule, Sharing, Vendor

from .mutations import spoilt_json, spoilt_text, written

#: Written by schedulers, and read by nobody here.
BOUND = "scheduling.koordinator.sh/bind-timestamp"

WHOLE, SHARED, REPLICAS = "example.com/xpu", "example.com/xpu.shared", 2
CARDS = tuple(Device(f"GPU-{n}", n, minor=n) for n in range(5))
OF: Mapping[str, tuple[str, ...]] = {
    WHOLE: ("GPU-0", "GPU-1"),
    SHARED: ("GPU-2", "GPU-3", "GPU-4"),
}
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"


@dataclass(frozen=True, slots=True)
class Asking:
    """A pod, what it asks for, and the cards that a scheduler gave it where nobody has lied."""

    pod: Candidate
    resource: str
    count: int
    honest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Day:
    """Pods in the order in which they are admitted; `gone`: how many of those before end first."""

    placement: Placement
    pods: tuple[tuple[Asking, int], ...]
    seed: str


def day(rng: Random) -> Day:
    placement: Placement = rng.choice(("auto", "auto", "claim"))
    free = {card: 1 if card in OF[WHOLE] else REPLICAS for its in OF.values() for card in its}
    pods = [
        (_asking(rng, number, free), rng.choice((0, 0, 0, 0, 1))) for number in range(rng.randrange(1, 12))
    ]
    return Day(placement, tuple(pods), str(rng.random()))


def _asking(rng: Random, number: int, free: dict[str, int]) -> Asking:
    resource = rng.choice((WHOLE, SHARED, SHARED))
    count = rng.choice((1, 1, 2))
    there = [card for card in OF[resource] if free[card]]
    cards = tuple(rng.sample(there, count)) if len(there) >= count and rng.random() < 0.6 else ()
    for card in cards:
        free[card] -= 1
    said = _said(rng, resource, cards or rng.sample([it.uuid for it in CARDS], count), spoilt=not cards)
    percent = 100 if resource == WHOLE else 50
    asked = {resource: str(count), CORE: str(percent * count), RATIO: str(percent * count)}
    if resource == SHARED:
        asked["koordinator.sh/gpu.shared"] = str(count)
    metadata = {
        "uid": f"uid-{number}",
        "namespace": "default",
        "name": f"pod-{number}",
        "creationTimestamp": f"2026-01-01T00:00:{number:02d}Z",
        "annotations": said,
    }
    scheduler = rng.choice(("koord-scheduler", "koord-scheduler", "", "default-scheduler"))
    spec = {
        "nodeName": "n",
        "schedulerName": "koord-scheduler" if cards else scheduler,
        "containers": [{"name": "main", "resources": {"limits": asked}}],
    }
    pod = candidate({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}, READS)
    assert pod is not None
    return Asking(pod, resource, count, cards)


def _said(rng: Random, resource: str, cards: Sequence[str], *, spoilt: bool) -> dict[str, str]:
    """What stands on a pod: as koord-scheduler writes it, or as it does not."""
    percent = "100" if resource == WHOLE else "50"
    grants = [
        {"minor": int(card[-1]), "id": card, "resources": {CORE: percent, RATIO: percent}} for card in cards
    ]
    document = {"gpu": grants}
    bound = str(1795210468 * 10**9 + rng.randrange(100))
    if not spoilt:
        return {ALLOCATED: json.dumps(document), BOUND: bound}
    if rng.random() < 0.3:
        return {}
    if rng.random() < 0.4:  # forged, and well so
        return {ALLOCATED: json.dumps(document), BOUND: bound}
    key = rng.choice((ALLOCATED, ALLOCATED, METAX_ALLOCATED, "hami.io/vgpu-devices-to-allocate"))
    if key == ALLOCATED:
        text = written(spoilt_json([document], rng), rng).decode(errors="replace")
    elif key == METAX_ALLOCATED:
        flat = [[{"uuid": card, "compute": 50, "vRam": 1024} for card in cards]]
        text = written(spoilt_json([flat], rng), rng).decode(errors="replace")
    else:
        text = spoilt_text(":".join(f"{card},NVIDIA,1024,50" for card in cards) + ":;", rng)
    return {key: text, BOUND: spoilt_text(bound, rng) if rng.random() < 0.5 else bound}


# The node


@dataclass
class Kubelet:
    """Gives out what is free, and remembers whose it is; also the disk, and the clock."""

    day: Day
    heard: list[Candidate] = field(default_factory=list)
    has: dict[str, tuple[str, tuple[str, ...], str]] = field(default_factory=dict)
    life: str = "k1"

    def __post_init__(self) -> None:
        self.rng = Random(self.day.seed)
        inventory = Inventory({}, now=1000.0)
        inventory.enable([VendorStatus("acme", VendorState.STARTING)])
        inventory.discovered("acme", CARDS, 1000.0)
        self.snapshot = inventory.snapshot()
        rules = (
            ResourceRule(WHOLE, devices=OF[WHOLE], placement=self.day.placement),
            ResourceRule(
                SHARED,
                devices=OF[SHARED],
                sharing=Sharing("replicas", REPLICAS),
                placement=self.day.placement,
            ),
        )
        self.plan = plan([Offer("acme", rules)], self.snapshot)
        self.vendor = Vendor("acme", "", WHOLE, _edits)
        self.ledger = Ledger()
        self.allocator = Allocator(self.scene, self.ledger, self, lambda: 1000.0, _made, _removed, self)

    def scene(self) -> Scene:
        vendors = {"acme": self.vendor}
        shown, heard = topology(self.snapshot), KnownPods.of(self.heard)
        return Scene(self.plan, self.snapshot, shown, vendors, candidates=heard, schedulers=registered())

    async def save(self, *, durable: bool) -> None: ...

    async def checkpoint_answers(self) -> tuple[CheckpointAnswer, ...]:
        return tuple(
            CheckpointAnswer(allocation, uid, "main", resource, ids)
            for uid, (resource, ids, allocation) in self.has.items()
        )

    async def existing_owners(self, owners: object) -> tuple[()]:
        return ()

    async def ended_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        return {it for it in owners if it.uid not in self.has}

    async def pods_with_ids(self, resource: str, ids: object, owners: object) -> dict[str, tuple[str, str]]:
        return {}

    def hears(self, pod: Candidate) -> None:
        if pod not in self.heard:
            self.heard.append(pod)

    def free(self, resource: str) -> list[str]:
        taken = {one for name, ids, _ in self.has.values() if name == resource for one in ids}
        return [one for card in self.plan[resource].cards for one in card if one not in taken]

    def ids(self, it: Asking) -> list[str]:
        """Those that it takes: as it is asked to, most of the time."""
        free = self.free(it.resource)
        if len(free) < it.count:
            return []
        preferred = self.allocator.preferred(it.resource, free, [], it.count)
        obeys = self.rng.random() < 0.7 and len(preferred) == it.count and set(preferred) <= set(free)
        return preferred if obeys else self.rng.sample(free, it.count)

    async def admits(self, it: Asking) -> Allocation | None:
        """What it gets; None where the node has no IDs left.

        Raises:
            AllocationError: It was refused.
        """
        self.hears(it.pod)
        ids = self.ids(it)
        if not ids:
            return None
        [answer] = await self.allocator.allocate(it.resource, [ids])
        got = self.ledger.get(answer.edits.annotations[ALLOCATION])
        assert got is not None, "no allocation of this name"
        assert answer.edits.env["VISIBLE"].split(",") == list(dict.fromkeys(got.cards)), "told other cards"
        self.has[it.pod.uid] = (it.resource, tuple(ids), got.id)
        return got

    async def confirms(self) -> None:
        for uid, (_, _, allocation) in self.has.items():
            self.ledger.confirm(allocation, Owner(uid, "main", "default", uid), self.life)
        self.allocator.swaps.swap(self.allocator.promises, await self.checkpoint_answers())
        for it in self.ledger.in_use():
            whose = (it.owner and it.owner.uid, it.claim and it.claim.uid)
            assert it.claim is None or whose[0] == whose[1], f"the claim of another: {whose}"

    def ends(self, uid: str) -> None:
        self.heard = [it for it in self.heard if it.uid != uid]
        _, _, allocation = self.has.pop(uid)
        self.ledger.release(allocation, "pod gone", 1000.0)


def _edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits(env={"VISIBLE": ",".join(it.uuid for it in devices), **request.parameters})


async def _made(vendor: str, request: Request, uuids: Sequence[str]) -> tuple[()]:
    return ()


async def _removed(vendor: str, allocation: str) -> None: ...


# What must hold


def lived(it: Day, clearly: Callable[[Exception], bool]) -> bool:
    """Whether a scheduler's choice was honoured on it.

    Raises:
        AssertionError: Somebody was misled.
    """
    return asyncio.run(_lived(it, clearly))


async def _lived(day: Day, clearly: Callable[[Exception], bool]) -> bool:
    node, honoured = Kubelet(day), False
    for number, (it, gone) in enumerate(day.pods):
        if number + 1 < len(day.pods) and node.rng.random() < 0.4:
            node.hears(day.pods[number + 1][0].pod)
        for uid in [*node.has][:gone]:
            node.ends(uid)
        before = node.ledger.in_use()
        alone = all(one.owner for one in before) and all(
            one.uid in node.has and _is_at_home(one, before) for one in node.heard
        )
        try:
            got = await node.admits(it)
        except AllocationError as exc:
            clearly(exc)
            assert _given(node.ledger.in_use()) == _given(before), "a refusal changed the ledger"
            node.heard = [one for one in node.heard if one.uid != it.pod.uid]
            continue
        if got is None:
            node.heard = [one for one in node.heard if one.uid != it.pod.uid]
            continue
        _holds(day, node, got)
        if it.honest and alone:
            assert set(got.cards) == set(it.honest), (
                f"{it.pod.name} was promised {it.honest}, has {got.cards}"
            )
        honoured = honoured or got.claim is not None
        if node.rng.random() < 0.8:
            await node.confirms()
        cards = {one.uuid: one.minor for one in CARDS}
        external_allocations(registered(), KnownPods.of(node.heard), node.plan, {"acme": cards}, 1000.0)
    return honoured


def _given(in_use: Iterable[Allocation]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """What is given out; whose it is may be learned by whoever comes next."""
    return [(it.id, it.ids, it.cards) for it in in_use]


def _holds(day: Day, node: Kubelet, got: Allocation) -> None:
    in_use = node.ledger.in_use()
    whole = Counter(card for one in in_use if one.resource == WHOLE for card in one.cards)
    assert all(count == 1 for count in whole.values()), f"given twice: {whole}"
    assert {*whole} <= {*OF[WHOLE]}, "whole cards of another resource"
    units = Counter(
        one.cards[n % len(one.cards)] for one in in_use if one.resource == SHARED for n in range(len(one.ids))
    )
    assert all(count <= REPLICAS for count in units.values()), f"more shares than there are: {units}"
    assert {*units} <= {*OF[SHARED]}, "shares of another resource's cards"
    claim = got.claim
    assert claim is not None or day.placement != "claim", "served without a promise"
    if claim is not None:
        (pod,) = (one for one in node.heard if one.uid == claim.uid)
        asked = pod.containers[0].limits.get(got.resource)
        assert asked == len(got.ids), "the claim of a pod that asks for something else"
        if {*claim.devices} != {*got.cards}:
            # Cards go round: who finds its own taken gets what was promised to one of those who took others'.
            wanders = [one for one in node.heard if not _is_at_home(one, in_use)]
            promised = all(_is_promised(card, wanders) for card in got.cards)
            assert promised, "a claim on other cards than were given"
        theirs = node.heard if got.resource == WHOLE else [pod]
        assert all(_is_promised(card, theirs) for card in claim.devices)


def _is_promised(card: str, pods: Iterable[Candidate]) -> bool:
    said = "".join(text for pod in pods for text in pod.annotations.values()).replace(" ", "")
    return card in said or f'"minor":{card[-1]}' in said


def _is_at_home(pod: Candidate, in_use: Iterable[Allocation]) -> bool:
    its = (it for it in in_use if it.owner and it.owner.uid == pod.uid)
    return all(_is_promised(card, [pod]) for it in its for card in it.cards)
