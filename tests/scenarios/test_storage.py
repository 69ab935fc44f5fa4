"""What is kept on disk is spoilt, or cannot be written: the agent keeps serving and says what is wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.core.model import Owner
from agent.core.publishing.agent_status import AgentStatus
from agent.state.checkpoint import CheckpointFile
from agent.testing.kubelet import SimKubelet

from .node import Node, confirmed, in_use, owned_by, released, shared, whole
from .process import AgentProcess

XPU = "example.com/xpu"

SPOILT = {
    "empty": b"",
    "cut short": None,
    "not JSON": b"\x00\xff garbage",
    "of a release to come": b'{"version": 99, "checksum": "", "data": {}}',
    "edited": b'{"version": 1, "checksum": "sha256:0", "data": {}}',
}


@pytest.mark.parametrize("name", SPOILT)
async def test_a_checkpoint_that_is_spoilt_is_set_aside_and_read_back_from_the_kubelet(
    node: Node, name: str
) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("running", {XPU: 2})
    await node.until(lambda it: confirmed(it, pod))
    (before,) = in_use(node.view)
    await node.stop()
    checkpoint = node.state / "checkpoint.json"
    content = SPOILT[name]
    checkpoint.write_bytes(checkpoint.read_bytes()[:-20] if content is None else content)

    await node.start()

    await node.counts({XPU: (8, 8)})
    assert len(list(node.state.glob("checkpoint.json.corrupt-*"))) == 1
    view = await node.until(lambda it: confirmed(it, pod))
    (after,) = in_use(view)
    assert (after.id, after.resource, after.vendor) == (before.id, before.resource, before.vendor)
    assert dict(zip(after.ids, after.devices, strict=True)) == dict(
        zip(before.ids, before.devices, strict=True)
    )
    assert after.owner == Owner(pod.uid, "main", "default", "running")
    assert after.source == "kubelet"


async def test_what_was_read_back_is_released_with_its_pod(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("running", {XPU: 2})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").unlink()
    await node.start()
    await node.until(lambda it: confirmed(it, pod))

    await node.kubelet.delete(pod.uid)

    await node.until(lambda it: released(it, pod))
    assert len(owned_by(node.view, pod)) == 1


@pytest.mark.parametrize("count", [1])
async def test_what_was_read_back_is_not_offered_in_another_way(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (1, 1)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").write_text("{")
    await node.start()
    await node.until(lambda it: confirmed(it, pod))

    node.configure(shared(XPU, 10))
    await node.until(lambda it: it.resources[XPU].rule.sharing.replicas == 10)

    await node.counts({XPU: (1, 1)})
    await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (10, 10)})


async def test_a_state_directory_that_can_not_be_written_costs_no_pod_and_is_said(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    away = node.state.with_name("away")
    node.state.rename(away)
    node.state.write_text("a file is in the way")

    first = await node.admit("first", {XPU: 1})

    view = await node.until(lambda it: it.checkpoint_error)
    assert str(node.state) in view.checkpoint_error
    await node.until(lambda it: confirmed(it, first))
    await node.fail(0)
    await node.counts({XPU: (4, 3)})
    node.state.unlink()
    away.rename(node.state)
    second = await node.admit("second", {XPU: 1})
    await node.until(lambda it: not it.checkpoint_error)
    await node.saved(first.uid, '"xid-79"')
    await node.until(lambda it: confirmed(it, second))


def of_format_1(checkpoint: bytes) -> bytes:
    """The file as an agent of that format had written it."""
    content = json.loads(checkpoint)["data"]
    for later in ("cordons", "labels", "config"):
        del content[later]
    for it in content["allocations"]:
        it["seen_alive"] = True
        del it["claim"], it["unit"]
    text = json.dumps(content).encode()
    checksum = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return b'{"version":1,"checksum":"%s","data":%s}' % (checksum.encode(), text)


async def test_the_checkpoint_of_an_older_agent_is_taken_over_with_its_owners(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("running", {XPU: 2})
    await node.until(lambda it: confirmed(it, pod))
    await node.fail(0)
    await node.counts({XPU: (8, 6)})
    (before,) = in_use(node.view)
    await node.stop()
    checkpoint = node.state / "checkpoint.json"
    checkpoint.write_bytes(of_format_1(checkpoint.read_bytes()))

    await node.start()

    (after,) = in_use(await node.until(in_use))
    assert (after.id, after.ids, after.devices) == (before.id, before.ids, before.devices)
    assert (after.source, after.owner) == ("checkpoint", Owner(pod.uid, "main", "default", "running"))
    await node.counts({XPU: (8, 6)})
    await node.saved(after.id, '"version":2', '"xid-79"')


async def test_an_older_copy_of_the_checkpoint_that_is_put_back_loses_nothing(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    first = await node.admit("first", {XPU: 1})
    await node.until(lambda it: confirmed(it, first))
    await node.stop()
    copy = (node.state / "checkpoint.json").read_bytes()
    await node.start()
    await node.counts({XPU: (4, 4)})
    later = [await node.admit(name, {XPU: 1}) for name in ("second", "third")]
    await node.until(lambda it: confirmed(it, *later))
    before = {it.id: (it.ids, it.devices, it.owner) for it in in_use(node.view)}
    await node.stop()
    (node.state / "checkpoint.json").write_bytes(copy)

    await node.start()

    view = await node.until(lambda it: confirmed(it, first, *later))
    assert {it.id: (it.ids, it.devices, it.owner) for it in in_use(view)} == before
    assert sorted(it.source for it in in_use(view)) == ["checkpoint", "kubelet", "kubelet"]
    await node.counts({XPU: (4, 4)})
    last = await node.admit("last", {XPU: 1})
    assert len({card for pod in (first, *later, last) for card in await node.cards_of(pod)}) == 4
    await node.refused("one too many", {XPU: 1})


async def test_what_was_appended_since_the_checkpoint_outlasts_kill_after_kill(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    pods = []
    for name in ("first", "second", "third"):
        await process.start()
        await node.counts({XPU: (4, 4)})
        pods.append(await node.admit(name, {XPU: 1}))
        await node.saved(f'"pod":"{name}"')
        await process.kill()
        await node.unserved()

    await process.start()

    await node.counts({XPU: (4, 4)})
    document = await process.until(lambda it: it["ready"] and len(it["allocations"]) == 3)
    assert {it["owner"]["pod"]: it["source"] for it in document["allocations"]} == dict.fromkeys(
        ("first", "second", "third"), "checkpoint"
    )
    assert not list(node.state.glob("*.corrupt-*"))


@pytest.mark.parametrize("name", ["of another checkpoint", "edited"])
async def test_a_journal_that_is_spoilt_is_set_aside_and_read_back_from_the_kubelet(
    node: Node, process: AgentProcess, name: str
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    await node.saved('"pod":"running"')
    await process.kill()
    await node.unserved()
    journal = node.state / "checkpoint.journal"
    if name == "edited":
        journal.write_bytes(journal.read_bytes().replace(b"running", b"walking"))
    else:
        file = CheckpointFile(node.state / "checkpoint.json")
        file.save(replace(file.load()[0], config="another"), durable=False)

    await node.start()

    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: confirmed(it, pod))
    assert view.set_aside.startswith(f"{journal}: ")
    assert len(list(node.state.glob("checkpoint.journal.corrupt-*"))) == 1


async def test_pods_of_a_journal_that_is_lost_are_known_where_the_kubelets_checkpoint_is_unreadable_too(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    await node.admit("in-checkpoint", {XPU: 1})
    await node.saved('"pod":"in-checkpoint"')
    await process.kill()
    await process.start()
    await node.counts({XPU: (4, 4)})
    await node.admit("in-journal", {XPU: 1})
    await node.saved('"pod":"in-journal"')
    before = await process.until(lambda it: _pods_in_use(it).keys() == {"in-checkpoint", "in-journal"})
    await process.kill()
    await node.unserved()
    journal = node.state / "checkpoint.journal"
    journal.write_bytes(b"not a journal\n")
    node.kubelet.checkpoint.write_bytes(b"{")

    await process.start()

    await process.said('"allocation read back", "source": "pod-resources"')
    # The kubelet writes its file again after the first list. The agent then finds its own answer there, which
    # takes the place of what PodResources listed.
    await process.until(lambda it: it["ready"] and _pods_in_use(it) == _pods_in_use(before))


def _pods_in_use(document: dict[str, Any]) -> dict[str, list[str]]:
    """The cards of each pod."""
    allocations = (it for it in document["allocations"] if it["state"] != "released")
    return {it["owner"]["pod"]: it["devices"] for it in allocations if it["owner"]}


class Disk:
    """The disk under a state directory; a test makes it refuse what is written, also what root writes."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = str(directory)
        self._error = 0
        for name in ("open", "write", "rename", "replace", "mkdir", "chmod"):
            patch.setattr(os, name, self._refusing(getattr(os, name)))

    def is_full(self) -> None:
        self._error = errno.ENOSPC

    def is_read_only(self) -> None:
        self._error = errno.EROFS

    def works(self) -> None:
        self._error = 0

    def _refusing(self, real: Any) -> Any:
        def call(what: Any, *more: Any, **named: Any) -> Any:
            if self._refuses(real.__name__, what, more):
                raise OSError(self._error, os.strerror(self._error), what)
            return real(what, *more, **named)

        return call

    def _refuses(self, call: str, what: Any, more: Any) -> bool:
        if not self._error:
            return False
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        if not str(path).startswith(self._directory):
            return False
        if self._error == errno.ENOSPC:
            return call == "write"
        return call not in ("open", "write") or (call == "open" and bool(more[0] & (os.O_WRONLY | os.O_RDWR)))


def unwritten(view: AgentStatus, why: str) -> bool:
    return any(it.startswith("checkpoint: ") and why in it for it in view.troubles)


@pytest.fixture
def disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(node.state, monkeypatch)


async def test_a_full_disk_is_a_reason_not_to_be_ready_until_it_has_room_again(
    node: Node, disk: Disk
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.until(lambda it: not it.troubles)
    disk.is_full()

    pod = await node.admit("running", {XPU: 1})

    await node.until(lambda it: unwritten(it, "No space left") and confirmed(it, pod))
    disk.works()
    await node.until(lambda it: not it.troubles)
    await node.saved(pod.uid)


@pytest.mark.parametrize("used", [True, False], ids=["of an earlier agent", "empty"])
async def test_a_state_directory_that_is_read_only_from_the_start_costs_no_pod(
    node: Node, disk: Disk, used: bool
) -> None:
    node.configure(whole(XPU))
    earlier = []
    if used:
        await node.start()
        await node.counts({XPU: (4, 4)})
        earlier.append(await node.admit("earlier", {XPU: 1}))
        await node.until(lambda it: confirmed(it, *earlier))
        await node.stop()
    else:
        node.state.mkdir()
    disk.is_read_only()

    await node.start()

    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: unwritten(it, "Read-only") and confirmed(it, pod, *earlier))
    disk.works()
    await node.until(lambda it: not it.troubles)
    await node.saved(*(it.uid for it in (pod, *earlier)))


async def test_a_checkpoint_that_can_not_be_set_aside_is_kept_until_it_can(node: Node, disk: Disk) -> None:
    node.configure(whole(XPU))
    node.state.mkdir()
    (node.state / "checkpoint.json").write_text("a stranger's")
    disk.is_read_only()

    await node.start()

    await node.counts({XPU: (4, 4)})
    assert node.count("checkpoint_set_aside", why="foreign") == 1
    await node.until(lambda it: it.troubles)
    assert (node.state / "checkpoint.json").read_text() == "a stranger's"
    disk.works()
    await node.until(lambda it: not it.troubles)
    (aside,) = node.state.glob("checkpoint.json.corrupt-*")
    assert aside.read_text() == "a stranger's"


async def test_a_kubelet_checkpoint_that_is_spoilt_releases_nothing(node: Node, sim: SimKubelet) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    good = sim.checkpoint.read_bytes()

    sim.checkpoint.write_bytes(b"spoilt")
    await node.until(lambda it: node.count("evidence_unreadable", source="kubelet checkpoint") > 2)

    assert len(in_use(node.view)) == 1
    sim.checkpoint.write_bytes(good)
    await sim.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
