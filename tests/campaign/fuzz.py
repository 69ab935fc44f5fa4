"""Hostile inputs to everything that strangers write: no traceback, no exit, a clear refusal.

Each target reads an input and does with it what the agent does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from structlog.testing import capture_logs
from support.read_annotations import READS
from support.vendor_inputs import INPUTS

from agent.cluster.pod_state import PodState
from agent.cluster.pods import candidate
from agent.config import parse
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.ledger_change import LedgerChange
from agent.core.allocation.scene import Scene
from agent.core.attribution.external_use_rules import external_allocations
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.inventory import Inventory
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.errors import AllocationError, ConfigError, StateError
from agent.core.model import Allocation, AllocationState, Plan, VendorState, VendorStatus
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer, Evidence
from agent.core.reconciling.reconcile_rules import reconcile
from agent.core.reconciling.recovered_allocations import recover_from_answers
from agent.daemon.allocation.allocate_calls import AllocateCalls
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.daemon.scheduler_plugins import registered
from agent.daemon.vendor_config import check_config
from agent.isolation import vendor_answers
from agent.kubelet import kubelet_checkpoint
from agent.kubelet.checkpoint_reader import CheckpointReader
from agent.kubelet.container_edit_messages import response
from agent.kubelet.device_plugin import DevicePlugin
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.pb.deviceplugin.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
)
from agent.kubelet.rpc import as_status
from agent.scheduler_api import Candidate
from agent.schedulers.hami.pod_annotations import METAX_ALLOCATED
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.state import journal_records
from agent.state.checkpoint import CheckpointFile, SavedState
from agent.state.file_envelope import Unusable, checksum_of, sealed
from agent.state.journal_records import JournalEnd
from agent.vendor_api.agent import ContainerEdits, Device, Placement, Request, ResourceRule, Sharing, Vendor

from . import promises
from .mutations import spoilt_bytes, spoilt_json, spoilt_text, written

WHOLE, SHARED = "example.com/xpu", "example.com/xpu.shared"
CARDS = tuple(Device(f"GPU-{n}", n, minor=n, numa=n // 2) for n in range(4))
GOOD = tuple(f"GPU-{n}::{m}" for n in (2, 3) for m in range(4))
#: IDs that a kubelet could name, and that it could not.
IDS = (
    *(it.uuid for it in CARDS),
    *(f"GPU-{n}::{m}" for n in (2, 3) for m in (0, 3, 4)),
    "GPU-2-1",
    "",
    "é",
    "x" * 300,
)


class Unclear(AssertionError):
    """Raised when an input is neither taken nor refused with words."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that strangers write. `reads` says whether it took the input, or refused it well."""

    name: str
    draws: Callable[[Random], Any]
    reads: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Tally:
    name: str
    inputs: int
    taken: int
    refused: int
    seconds: float

    def __str__(self) -> str:
        return f"| {self.name} | {self.inputs} | {self.taken} | {self.refused} | {self.seconds:.0f} s |"


def fuzz(target: Target, inputs: int, seed: int) -> Tally:
    """Feed it; what comes out is an exception that names the input.

    Raises:
        Unclear: An input was neither taken nor refused well.
    """
    began, taken = time.monotonic(), 0
    for number in range(inputs):
        it = target.draws(Random(f"{seed}/{target.name}/{number}"))
        try:
            with capture_logs() as logs:
                taken += target.reads(it)
            if tracebacks := [log for log in logs if log.get("exc_info")]:
                raise Unclear(f"it logs {tracebacks[0]}")
        except Exception as exc:
            raise Unclear(f"{target.name}, seed {seed}, input {number}: {it!r}: {exc!r}") from exc
    return Tally(target.name, inputs, taken, inputs - taken, time.monotonic() - began)


def clearly(refusal: Exception) -> bool:
    """False, where the words of a refusal can be shown to a person."""
    words = str(refusal)
    if not words.strip() or len(words) > 5000 or not words.isprintable():
        raise Unclear(f"refused with {words[:200]!r}") from refusal
    return False


# What the agent does with it


class Node:
    """Two whole cards and two shared ones, and an allocator over them."""

    def __init__(self, candidates: tuple[Candidate, ...] = (), placement: Placement = "local") -> None:
        self.ledger = Ledger()
        self.candidates = candidates
        inventory = seeing(CARDS)
        rules = (
            ResourceRule(WHOLE, devices=("GPU-0", "GPU-1"), placement=placement),
            ResourceRule(SHARED, devices=("GPU-2", "GPU-3"), sharing=Sharing("replicas", 4)),
        )
        self.snapshot = inventory.snapshot()
        self.plan: Plan = plan([Offer("acme", rules)], self.snapshot)
        self.vendor = Vendor("acme", "", WHOLE, _edits)
        self.allocator = Allocator(self.scene, self.ledger, self, lambda: 1000.0, _made, _removed, self)

    def scene(self) -> Scene:
        vendors = {"acme": self.vendor}
        shown = topology(self.snapshot)
        return Scene(
            self.plan,
            self.snapshot,
            shown,
            vendors,
            candidates=KnownPods.of(self.candidates),
            schedulers=registered(),
        )

    async def save(self, *, durable: bool) -> None:
        """A disk that takes everything."""

    # A kubelet that cannot be asked

    life = "first"

    async def checkpoint_answers(self) -> None: ...

    async def existing_owners(self, owners: object) -> tuple[()]:
        return ()

    async def ended_owners(self, owners: object) -> tuple[()]:
        return ()

    async def pods_with_ids(self, resource: str, ids: object, owners: object) -> dict[str, tuple[str, str]]:
        return {}

    def plugin(self, resource: str) -> DevicePlugin:
        askers = PodWaiter(Cell(self.scene().plan), lambda: self.allocator.promises, PodState(), within=0.0)
        timed = AllocateCalls(self.allocator, pod_waiter=askers)
        return DevicePlugin(Cell(self.plan[resource]), timed, _Calls())  # type: ignore[arg-type]


class _Calls:
    """Runs what is asked at once."""

    async def run(self, work: Callable[[], Any], seconds: float) -> Any:
        return await work()


def seeing(devices: Sequence[Device], saved: SavedState | None = None) -> Inventory:
    saved = saved or SavedState()
    inventory = Inventory(saved.health, now=1000.0, devices=saved.devices, cordons=saved.cordons)
    inventory.enable([VendorStatus("acme", VendorState.STARTING)])
    inventory.discovered("acme", devices, 1000.0)
    return inventory


def _edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits(env={"VISIBLE": ",".join(it.uuid for it in devices)})


async def _made(vendor: str, request: Request, uuids: Sequence[str]) -> tuple[()]:
    return ()


async def _removed(vendor: str, allocation: str) -> None: ...


# AllocateRequest and PreferredAllocationRequest


def _ids(rng: Random) -> list[str]:
    return [rng.choice(GOOD if rng.random() < 0.8 else IDS) for _ in range(rng.choice((0, 1, 1, 2, 3, 9)))]


def _allocate(rng: Random) -> bytes:
    asked = [ContainerAllocateRequest(devices_ids=_ids(rng)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    message = bytes(AllocateRequest(container_requests=asked))
    return message if rng.random() < 0.5 else spoilt_bytes([message], rng)


def _allocated(request: bytes) -> bool:
    node = Node()
    try:
        answer = asyncio.run(node.plugin(SHARED).allocate(request))
    except Exception as exc:
        status = as_status(exc)
        if status.status.name == "INTERNAL" or node.ledger.all():
            raise
        return clearly(exc)
    answered = len(AllocateResponse.parse(answer).container_responses)
    if answered != len(node.ledger.in_use()):
        raise Unclear(f"{answered} answers, {len(node.ledger.in_use())} allocations")
    return True


def _preferred(rng: Random) -> bytes:
    size = rng.choice((0, 1, 1, 2, 4, -1, 2**31 - 1))
    asked = [
        ContainerPreferredAllocationRequest(
            available_deviceIDs=_ids(rng), must_include_deviceIDs=_ids(rng), allocation_size=size
        )
        for _ in range(rng.choice((0, 1, 1, 2)))
    ]
    message = bytes(PreferredAllocationRequest(container_requests=asked))
    return message if rng.random() < 0.5 else spoilt_bytes([message], rng)


def _chosen(request: bytes) -> bool:
    """Never fails; what cannot be chosen is answered with no preference, which is the refusal."""
    answer = asyncio.run(Node().plugin(SHARED).preferred(request))
    choices = PreferredAllocationResponse.parse(answer).container_responses
    return any(it.device_i_ds for it in choices)


# What schedulers write on pods

_LIMITS = {WHOLE: "1", "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
_GRANT = {"minor": 1, "id": "GPU-1", "resources": {"koordinator.sh/gpu-core": "100"}}
_TEXTS: Mapping[str, Any] = {
    ALLOCATED: {"gpu": [_GRANT]},
    METAX_ALLOCATED: [[{"uuid": "GPU-1", "compute": 100, "vRam": 65536}]],
}
_POD = {
    "metadata": {
        "uid": "u",
        "namespace": "default",
        "name": "p",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": _LIMITS}}]},
    "status": {"phase": "Pending"},
}


def _promise(rng: Random) -> Any:
    """A pod that asks for a card, with annotations as schedulers write them, spoilt now and then."""
    key = rng.choice((ALLOCATED, ALLOCATED, METAX_ALLOCATED, "hami.io/vgpu-devices-to-allocate"))
    if key in _TEXTS:
        document = _TEXTS[key] if rng.random() < 0.3 else spoilt_json([_TEXTS[key]], rng)
        text = written(document, rng).decode(errors="replace")
    else:
        text = "GPU-1,NVIDIA,1024,30:;"
        text = text if rng.random() < 0.3 else spoilt_text(text, rng)
    bound = "1795210468133685700" if rng.random() < 0.5 else spoilt_text("1795210468133685700", rng)
    pod: Any = _POD if rng.random() < 0.7 else spoilt_json([_POD], rng)
    if isinstance(pod, dict) and isinstance(pod.get("metadata"), dict):
        pod = {**pod, "metadata": {**pod["metadata"], "annotations": {key: text, promises.BOUND: bound}}}
    return pod


def _promised(pod: Any) -> bool:
    """Whether the pod gets its card by a claim; without one it, or another, gets what the kubelet chose."""
    found = candidate(pod, READS) if isinstance(pod, dict) else None
    node = Node((found,) if found else (), "auto")
    external_allocations(
        registered(),
        KnownPods.of([found] if found else []),
        (),
        {"acme": {it.uuid: it.minor for it in CARDS}},
        1000.0,
    )
    ids = node.allocator.preferred(WHOLE, ["GPU-0", "GPU-1"], [], 1)
    try:
        asyncio.run(node.allocator.allocate(WHOLE, [ids]))
    except AllocationError as exc:  # it is promised a card that this resource does not have
        return clearly(exc)
    [it] = node.ledger.all()
    if it.claim is not None and set(it.claim.devices) != set(it.devices):
        raise Unclear(f"a claim on {it.claim.devices} was given {it.devices}")
    sealed(SavedState("boot", node.ledger.all(), {}, {}))
    return it.claim is not None


# Our checkpoint, and the kubelet's

_ALLOCATION = {
    "id": "abc",
    "resource": SHARED,
    "vendor": "acme",
    "ids": ["GPU-2::0"],
    "devices": ["GPU-2"],
    "state": "done",
    "since": 900.0,
    "owner": {"uid": "u", "container": "main", "namespace": "default", "pod": "p"},
}
_FAULT = {"reason": "xid-79", "message": "gone", "state": "unhealthy", "cleared_by": ["reset"]}
_SAVED = {
    "boot_id": "boot",
    "allocations": [_ALLOCATION, {**_ALLOCATION, "id": "def", "state": "intent", "owner": None}],
    "health": {"GPU-1": {"fault": _FAULT, "since": 900.0, "told_healthy": False}},
    "devices": {"acme": [{"uuid": "GPU-0", "index": 0, "minor": 0, "numa": 0, "paths": ["/dev/x"]}]},
    "cordons": {"GPU-3": {"author": "root", "reason": "", "since": 900.0}},
}


_REPLAYED = msgspec.convert(
    [_ALLOCATION, {**_ALLOCATION, "id": "def", "owner": None}], tuple[Allocation, ...]
)


def _checkpoint(rng: Random) -> bytes:
    if rng.random() < 0.3:
        return spoilt_bytes([sealed(_SAVED)], rng)
    document = spoilt_json([_SAVED], rng)
    try:
        return sealed(document)
    except (ValueError, OverflowError):  # which no agent could have written
        return written(document, rng)


def _loaded(content: bytes) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint.json"
        path.write_bytes(content)
        path.parent.chmod(0o700)
        try:
            saved, aside = CheckpointFile(path).load()
        except StateError as exc:
            return clearly(exc)
        if aside is not None:
            return clearly(ValueError(str(aside.message)))
    _go_on(saved)
    return True


_CHECKSUM = checksum_of(sealed(SavedState("boot", _REPLAYED)))


def _journal(rng: Random) -> bytes:
    """A journal with spoilt bytes, or with documents that are spoilt and framed as an agent frames them."""
    changes = [LedgerChange(it.id, None, it) for it in _REPLAYED]
    released = replace(_REPLAYED[0], state=AllocationState.RELEASED)
    changes += [LedgerChange("abc", _REPLAYED[0], released, is_moved=True), LedgerChange("def", None, None)]
    payloads = [journal_records.header(_CHECKSUM), *map(journal_records.change, changes)]
    if rng.random() < 0.5:
        return spoilt_bytes([journal_records.lines(payloads, JournalEnd())[0]], rng)
    at = rng.randrange(len(payloads))
    document = spoilt_json([json.loads(payloads[at])], rng)
    payloads[at] = written(document, rng).replace(b"\n", b" ")
    return journal_records.lines(payloads, JournalEnd())[0]


def _replayed(content: bytes) -> bool:
    try:
        replay = journal_records.replayed(content, _CHECKSUM, _REPLAYED[1:])
    except Unusable as exc:
        return clearly(exc)
    if replay.damage:
        return clearly(ValueError(replay.damage))
    _go_on(SavedState("boot", replay.allocations))
    return True


def _go_on(saved: SavedState) -> None:
    """Start with what was loaded, as the agent does."""
    ledger = Ledger(saved.allocations, now=1000.0)
    inventory = seeing(CARDS, saved)
    inventory.tick(1001.0, ledger.devices_in_use())
    snapshot = inventory.snapshot()
    plan([Offer("acme", (ResourceRule(WHOLE),))], snapshot, usage=ledger.usage())
    reconcile(ledger.in_use(), Evidence(granted=(), pods={}, settled=True), 2000.0, 60.0)
    sealed(
        SavedState(
            "boot", ledger.all(), inventory.records(), inventory.remembered_devices(), inventory.cordons()
        )
    )


_KUBELET = {
    "PodDeviceEntries": [
        {
            "PodUID": "u",
            "ContainerName": "main",
            "ResourceName": SHARED,
            "DeviceIDs": {"-1": ["GPU-2::0"], "0": ["GPU-3::1"]},
            "AllocResp": "",
        }
    ],
    "RegisteredDevices": {SHARED: ["GPU-2::0", "GPU-3::1"]},
}


def _kubelet(rng: Random) -> bytes:
    answer = response(ContainerEdits(env={"A": "1"}, annotations={"xpu-agent.io/allocation": "abc"}))
    content: Any = json.loads(json.dumps(_KUBELET))
    content["PodDeviceEntries"][0]["AllocResp"] = base64.b64encode(answer).decode()
    if rng.random() < 0.7:
        content = spoilt_json([content], rng)
    document = {"Data": content, "Checksum": 0}
    try:
        document["Checksum"] = kubelet_checkpoint.checksum(content)
    except Exception:  # what has no checksum is refused for it
        document["Checksum"] = rng.choice((0, -1, None, "x", 2**32))
    return written(document, rng)


def _granted(content: bytes) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kubelet_internal_checkpoint"
        path.write_bytes(content)
        try:
            found = CheckpointReader(path).read()
        except KubeletError as exc:
            return clearly(exc)
    assert found is not None, "the file was there"
    granted = tuple(
        CheckpointAnswer(str(n), it.pod_uid, it.container, it.resource, it.ids)
        for n, it in enumerate(found.entries)
    )
    node = Node()
    for it in recover_from_answers(granted, node.plan, 900.0).allocations:
        node.ledger.record(it.allocation)
    reconcile(node.ledger.in_use(), Evidence(granted=granted, pods={}, settled=True), 1000.0, 60.0)
    return True


# The configuration

_CONFIG: Mapping[str, Any] = {
    "version": "v1",
    "agent": {"kubeletDir": "/k", "stateDir": "/s", "http": "127.0.0.1:9808", "log": {"level": "info"}},
    "vendors": {
        "nvidia": {
            "enabled": "auto",
            "resources": [
                {"name": "nvidia.com/gpu", "devices": "all", "sharing": {"kind": "replicas", "replicas": 4}}
            ],
        },
        "simulated": {"settings": {"devices": 4}},
    },
}
_THEIRS: Mapping[str, Any] = {
    "version": "v1",
    "flags": {"migStrategy": "none", "plugin": {"deviceListStrategy": ["envvar"], "passDeviceSpecs": True}},
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, "devices": "all"}]}},
}


def _config(rng: Random) -> str:
    text = written(spoilt_json([_CONFIG, _THEIRS], rng), rng).decode(errors="replace")
    return spoilt_text(text, rng) if rng.random() < 0.3 else text


def _configured(text: str) -> bool:
    try:
        check_config(parse(text, "f", "node-1", inputs=INPUTS))
    except ConfigError as exc:
        return clearly(exc)
    return True


# What a vendor's process answers

_DEVICE = {
    "uuid": "GPU-0",
    "index": 0,
    "minor": 0,
    "numa": 0,
    "memory": 1 << 30,
    "model": "X",
    "fault": _FAULT,
}
_ANSWERS: Mapping[str, Any] = {
    "discover": [_DEVICE, {"uuid": "GPU-1", "index": 1, "paths": ["/dev/x"], "attributes": {"a": "b"}}],
    "health_events": [
        {"uuid": "GPU-0", "fault": _FAULT, "proof": None},
        {"uuid": None, "fault": None, "proof": "reset"},
    ],
    "links": [{"peer": "GPU-1", "lanes": 4, "distance": "switch"}],
    "partitions": [{"id": "s", "uuid": "GPU-0", "allocation": "abc"}],
    "sample": {
        "usage": {"answer": [{"uuid": "GPU-0", "memory_used": 1, "power": 300.5, "ecc_errors": {"a": 1}}]},
        "processes": {"answer": [{"uuid": "GPU-0", "pid": 4711, "memory": 1, "utilization": 0.5}]},
    },
    "cdi": {"acme.com-gpu.json": "{}"},
}


def _answer(rng: Random) -> tuple[str, bytes]:
    method = rng.choice(sorted(_ANSWERS))
    return method, written(spoilt_json([_ANSWERS[method]], rng), rng)


def _heard(answer: tuple[str, bytes]) -> bool:
    method, raw = answer
    try:
        decoded = vendor_answers.decode(method, raw)
    except vendor_answers.WrongAnswer as exc:
        return clearly(exc)
    inventory = seeing(CARDS)
    if method == "discover":
        inventory.discovered("acme", decoded, 1001.0)
    elif method == "health_events":
        inventory.observed("acme", decoded, 1001.0)
    inventory.tick(1002.0, ())
    plan([Offer("acme", (ResourceRule(WHOLE),))], inventory.snapshot())
    sealed(SavedState("boot", (), inventory.records(), inventory.remembered_devices()))
    return True


TARGETS = (
    Target("AllocateRequest", _allocate, _allocated),
    Target("PreferredAllocationRequest", _preferred, _chosen),
    Target("pods' annotations", _promise, _promised),
    Target("days of schedulers' promises", promises.day, lambda it: promises.lived(it, clearly)),
    Target("checkpoint", _checkpoint, _loaded),
    Target("journal", _journal, _replayed),
    Target("kubelet's checkpoint", _kubelet, _granted),
    Target("configuration", _config, _configured),
    Target("vendor's answers", _answer, _heard),
)


def table(tallies: Sequence[Tally]) -> str:
    return "\n".join(
        ["| input | inputs | taken | refused | time |", "|---|---|---|---|---|", *map(str, tallies)]
    )
