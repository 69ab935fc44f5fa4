"""Slices are made as they were promised, once each, and removed; what we did not make is never touched."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from metax_host import CARD, MIB, OTHER, OURS, THIRD, Host, asked, claim, in_a_process, marks
from mxsml_stub import MxsmlStub

from agent.vendor_api.agent import BackendUnavailable, NoRoom, RequestRefused
from agent.vendors.common import own_files
from agent.vendors.metax.child.abi import Code, SchedClass
from agent.vendors.metax.child.backend import MetaxBackend
from agent.vendors.metax.child.earlier_layouts import FILE
from agent.vendors.metax.child.library import MxsmlError
from agent.vendors.metax.child.slices import UnknownCard
from agent.vendors.metax.shared.qos_policy import SCHED_CLASSES, Qos

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

WHOLE = 65536  # MiB
SPEC = "metax-tech.com-sgpu.json"


def test_a_slice_has_what_was_promised_and_bears_our_mark(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    [made] = sgpu.prepare(asked(claim(10, 1)), [stub.uuid(2)])

    [there] = stub.slices(2)
    assert (there.vram, there.compute, there.alias) == (1024, 10, f"xpu-{OURS}")
    assert (made.id, made.uuid, made.allocation) == (there.uuid, stub.uuid(2), OURS)


def test_slices_are_switched_on_with_the_first_one_and_stay_so(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    assert stub.hardware().toggles == {}

    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.release(OURS)

    assert stub.hardware().toggles == {0: 1}


def test_memory_is_rounded_down_to_steps_of_128_mebibytes(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked({"core": "1", "memory": str(1000 * MIB)}), [stub.uuid(0)])

    assert [it.vram for it in stub.slices(0)] == [896]


@pytest.mark.parametrize(
    ("unclaimed", "memory", "compute"), [("share", WHOLE // 16, 6), ("whole", WHOLE, 100)]
)
def test_without_a_claim_a_container_gets_what_is_set(
    host: Host, stub: MxsmlStub, unclaimed: str, memory: int, compute: int
) -> None:
    backend = host.backend(mode="sgpu", unclaimed=unclaimed)
    backend.open()
    backend.discover()

    backend.prepare(asked(), [stub.uuid(0)])

    assert [(it.vram, it.compute) for it in stub.slices(0)] == [(memory, compute)]


@pytest.mark.parametrize("unclaimed", ["share", "whole", "refuse"])
def test_a_slice_without_a_claim_stays_as_it_was_made_whatever_is_set_by_now(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, unclaimed: str
) -> None:
    made = sgpu.prepare(asked(), [stub.uuid(0)])
    before = stub.slices()
    backend = host.backend(mode="sgpu", unclaimed=unclaimed)
    backend.open()
    backend.discover()

    assert backend.prepare(asked(), [stub.uuid(0)]) == made
    assert stub.slices() == before


def test_a_slice_that_was_made_for_a_pod_with_a_claim_is_no_other_ones(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    """The kubelet names the pod of an answer later, and it may ask for no amount."""
    sgpu.prepare(asked(claim(50, 8)), [stub.uuid(0)])

    sgpu.prepare(asked({"qos": "best-effort"}), [stub.uuid(0)])

    assert [(it.vram, it.compute) for it in stub.slices(0)] == [(4096, 6)]


def test_a_slice_alone_on_its_card_gets_the_policy_of_the_pod_that_it_turns_out_to_be_of(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    fixed, burst = (claim(10, 1, it) for it in ("fixed-share", "burst-share"))
    sgpu.prepare(asked(fixed), [stub.uuid(0)])

    sgpu.prepare(asked(burst), [stub.uuid(0)])

    assert [(it.vram, it.compute) for it in stub.slices(0)] == [(1024, 10)]
    assert stub.hardware().classes[0] == SCHED_CLASSES[Qos.BURST_SHARE]


def test_beside_slices_of_another_policy_it_is_refused_with_both(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    fixed, burst = (claim(10, 1, it) for it in ("fixed-share", "burst-share"))
    sgpu.prepare(asked(fixed), [stub.uuid(0)])
    sgpu.prepare(asked(fixed, allocation=OTHER), [stub.uuid(0)])

    with pytest.raises(NoRoom, match=r"is burst-share, and the slices on .* are fixed-share"):
        sgpu.prepare(asked(burst), [stub.uuid(0)])

    assert [it.alias for it in stub.slices(0)] == [f"xpu-{OTHER}"]


def test_a_whole_card_is_all_that_slices_may_take_of_it(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.sgpu_quota(0, 64000)

    sgpu.prepare(asked(CARD), [stub.uuid(0)])

    assert [(it.vram, it.compute) for it in stub.slices(0)] == [(64000, 100)]


def test_several_whole_cards_are_one_slice_each(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    uuids = [stub.uuid(3), stub.uuid(1)]

    made = sgpu.prepare(asked(CARD, count=2), uuids)

    assert [it.uuid for it in made] == uuids
    assert {it.alias for it in stub.slices()} == {f"xpu-{OURS}"}


def test_prepare_asked_twice_makes_a_slice_once(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    first = sgpu.prepare(asked(claim()), [stub.uuid(0)])
    second = sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert first == second
    assert len(stub.slices()) == 1


def test_a_slice_made_otherwise_is_made_anew(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim(10, 1)), [stub.uuid(0)])

    sgpu.prepare(asked(claim(20, 2)), [stub.uuid(0)])

    assert [(it.vram, it.compute) for it in stub.slices()] == [(2048, 20)]


def test_a_slice_on_another_card_moves(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])

    sgpu.prepare(asked(claim()), [stub.uuid(1)])

    assert [it.slot for it in stub.slices()] == [1]


def test_a_slice_that_vanished_is_made_again(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.vanish(0, 0)
    assert sgpu.partitions() == []

    sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert marks(sgpu.partitions()) == [OURS]


def test_after_a_reboot_a_slice_has_another_number_and_its_container_the_same_name(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    before = _devices(sgpu)
    stub.reboot()
    for minor in range(192, 200):
        if not (host.root / f"dev/dri/renderD{minor}").is_symlink():
            host.make(f"/dev/dri/renderD{minor}")
    sgpu.close()
    sgpu.open()
    sgpu.discover()

    sgpu.prepare(asked(claim()), [stub.uuid(0)])

    after = _devices(sgpu)
    assert before.keys() == after.keys() == {OURS}
    assert before[OURS] != after[OURS]


def test_release_removes_what_prepare_made_and_is_quiet_when_nothing_is_there(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(CARD, count=2), [stub.uuid(0), stub.uuid(1)])

    sgpu.release(OURS)
    sgpu.release(OURS)

    assert stub.slices() == []


def test_a_slice_in_use_can_not_be_released_and_keeps_no_other(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(CARD, count=2), [stub.uuid(0), stub.uuid(1)])
    stub.run_process(0, 0)

    with pytest.raises(MxsmlError):
        sgpu.release(OURS)

    assert [it.slot for it in stub.slices()] == [0]
    stub.end_processes()
    sgpu.release(OURS)
    assert stub.slices() == []


def test_releasing_one_allocation_leaves_the_others(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.prepare(asked(claim(), allocation=OTHER), [stub.uuid(0)])

    sgpu.release(OURS)

    assert marks(sgpu.partitions()) == [OTHER]


# Foreign slices


@pytest.mark.parametrize(
    "alias",
    ["", "by-hand", "xpu-", "xpu-test", "xpu-../../etc", "XPU-0123456789abcdef", "xpu-0123456789ABCDEF"],
)
def test_a_slice_without_our_mark_is_seen_counted_and_never_touched(
    sgpu: MetaxBackend, stub: MxsmlStub, alias: str
) -> None:
    foreign = stub.make_slice(0, 4096, 25, alias)

    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.release(OURS)
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    attributes = sgpu.discover()[0].attributes

    assert stub.slices(0)[0] == foreign
    assert marks(sgpu.partitions()) == [None, OURS]
    assert attributes["slices"] == "2"
    counted = [attributes[f"foreign-{what}"] for what in ("slices", "compute", "memory")]
    assert counted == ["1", "25", "4096"]


def test_a_card_without_foreign_slices_says_nothing_of_them(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])

    attributes = sgpu.discover()[0].attributes

    assert not [name for name in attributes if name.startswith("foreign")]
    assert attributes["slice-memory"] == str(WHOLE)


def test_what_a_card_has_no_room_for_is_refused_with_what_is_free(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.make_slice(0, WHOLE - 512, 1)

    with pytest.raises(NoRoom, match=r"1024 MiB .* 512 MiB of it are free, 1 slices .* not the agent's"):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert marks(sgpu.partitions()) == [None]


@pytest.mark.parametrize("asks", [claim(60), claim(100)], ids=["a part", "all"])
def test_compute_that_a_card_has_no_more_is_refused_with_what_is_free(
    sgpu: MetaxBackend, stub: MxsmlStub, asks: dict[str, str]
) -> None:
    sgpu.prepare(asked(claim(60)), [stub.uuid(0)])

    with pytest.raises(NoRoom, match=r"(60|100) percent of GPU-.* asked for, 40 percent of it are"):
        sgpu.prepare(asked(asks, allocation=OTHER), [stub.uuid(0)])

    assert marks(sgpu.partitions()) == [OURS]


def test_a_seventeenth_slice_is_refused(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    for _ in range(16):
        stub.make_slice(0, 128, 1)

    with pytest.raises(NoRoom, match="16 slices already"):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])


# Policies


POLICIES = {
    "": SchedClass.BEST_EFFORT,
    "best-effort": SchedClass.BEST_EFFORT,
    "fixed-share": SchedClass.FIXED_SHARE,
    "burst-share": SchedClass.BURST_SHARE,
}


@pytest.mark.parametrize(("policy", "expected"), POLICIES.items())
def test_the_first_slice_of_a_card_brings_its_policy(
    sgpu: MetaxBackend, stub: MxsmlStub, policy: str, expected: SchedClass
) -> None:
    stub.sched_class(0, SchedClass.FIXED_SHARE)

    sgpu.prepare(asked(claim(qos=policy)), [stub.uuid(0)])

    assert stub.hardware().classes.get(0, SchedClass.BEST_EFFORT) == expected
    assert sgpu.discover()[0].attributes["qos"] == (policy or "best-effort")


def test_another_policy_on_a_card_with_slices_is_refused_naming_both(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim(qos="fixed-share")), [stub.uuid(0)])

    with pytest.raises(NoRoom, match=r"burst-share.*fixed-share"):
        sgpu.prepare(asked(claim(qos="burst-share"), allocation=OTHER), [stub.uuid(0)])

    assert marks(sgpu.partitions()) == [OURS]
    assert stub.hardware().classes[0] == SchedClass.FIXED_SHARE


def test_the_policy_of_foreign_slices_counts_too(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.make_slice(0, 128, 1)
    stub.sched_class(0, SchedClass.BURST_SHARE)

    with pytest.raises(NoRoom, match=r"best-effort.*burst-share"):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])


def test_a_policy_that_nobody_knows_is_left_to_those_whose_slices_lie_there(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.make_slice(0, 128, 1)
    stub.sched_class(0, 7)

    sgpu.prepare(asked(claim(qos="fixed-share")), [stub.uuid(0)])

    assert stub.hardware().classes[0] == 7
    assert "qos" not in sgpu.discover()[0].attributes


def test_a_slice_of_all_compute_fits_any_policy(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.sched_class(0, SchedClass.BURST_SHARE)

    sgpu.prepare(asked(claim(100)), [stub.uuid(0)])

    assert stub.hardware().classes[0] == SchedClass.BURST_SHARE


def test_a_free_card_takes_any_policy(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim(qos="fixed-share")), [stub.uuid(0)])
    sgpu.release(OURS)

    sgpu.prepare(asked(claim(qos="burst-share"), allocation=OTHER), [stub.uuid(0)])

    assert stub.hardware().classes[0] == SchedClass.BURST_SHARE


# What is refused leaves nothing


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({**claim(), "qos": "gold"}, 1, "best-effort, fixed-share, burst-share"),
    (claim(), 2, "one partial sGPU per container"),
    ({"core": "10", "memory": str(1 << 50)}, 1, "has 65536"),
]


@pytest.mark.parametrize(("parameters", "cards", "says"), REFUSED)
def test_what_is_no_slice_is_refused_and_switches_nothing_on(
    sgpu: MetaxBackend, stub: MxsmlStub, parameters: dict[str, str], cards: int, says: str
) -> None:
    with pytest.raises(RequestRefused, match=says):
        sgpu.prepare(asked(parameters, count=cards), [stub.uuid(slot) for slot in range(cards)])

    assert stub.slices() == []
    assert stub.hardware().toggles == {}


def test_a_refusal_takes_back_the_slices_that_were_made_before_it(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.make_slice(1, WHOLE - 512, 1)

    with pytest.raises(RequestRefused):
        sgpu.prepare(asked(CARD, count=2), [stub.uuid(0), stub.uuid(1)])

    assert marks(sgpu.partitions()) == [None]


def test_a_slice_without_its_node_is_refused_naming_slice_path_and_setting(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    host.unmake("/dev/dri/renderD160")

    with pytest.raises(RequestRefused, match=r"GPU-.*/dev/dri/renderD160.*sliceNodes"):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert stub.slices() == []


def test_a_card_that_knows_no_slices_refuses_them(host: Host) -> None:
    stub = MxsmlStub(host.stub.control.parent, without=["sgpu"])
    backend = host.backend(mode="sgpu", **stub.settings)
    backend.open()
    devices = backend.discover()

    with pytest.raises(RequestRefused, match="can have no slices"):
        backend.prepare(asked(claim()), [devices[0].uuid])

    assert devices[0].fault is None
    assert devices[0].attributes["sgpu-capable"] == "false"
    assert backend.partitions() == []


def test_the_nodes_of_a_slice_are_waited_for(host: Host, sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.node_patience = 60.0
    host.unmake("/dev/dri/renderD160")
    udev = threading.Timer(0.05, host.make, ["/dev/dri/renderD160"])
    udev.start()

    sgpu.prepare(asked(claim()), [stub.uuid(0)])

    udev.join()
    assert marks(sgpu.partitions()) == [OURS]


def test_a_slice_that_can_not_be_marked_is_taken_back(
    sgpu: MetaxBackend, stub: MxsmlStub, host: Host
) -> None:
    stub.fail("SetSgpuAlias", Code.FAILURE)

    with pytest.raises(MxsmlError):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert stub.slices() == []
    assert host.journal == []


def test_a_read_only_sysfs_is_noticed_where_a_slice_was_to_be_made(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.read_only()
    with pytest.raises(
        RequestRefused, match="sysfs is read-only: give the agent's container a writable /sys"
    ):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.release(OURS)  # which has nothing to write
    assert {it.attributes.get("sysfs") for it in sgpu.discover()} == {"read-only"}

    before = stub.hardware().toggles
    stub.writable()

    assert {it.attributes.get("sysfs") for it in sgpu.discover()} == {None}
    assert {slot: on for slot, on in stub.hardware().toggles.items() if on} == before


def test_slices_in_use_are_no_read_only_sysfs(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.busy_by_errno()
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.run_process(0, 0)

    with pytest.raises(MxsmlError):
        sgpu.release(OURS)

    assert {it.attributes.get("sysfs") for it in sgpu.discover()} == {None}


# What cannot be read


def test_the_slices_of_a_card_that_can_not_be_read_are_those_that_were_there(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    before = sgpu.partitions()
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR)
    stub.fail("GetSgpuCount", Code.SYSFS_ERROR)

    assert sgpu.partitions() == before


def test_a_count_of_0_that_is_an_error_is_not_no_slices(host: Host, stub: MxsmlStub) -> None:
    stub.make_slice(0, 1024, 10)
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR)
    backend = host.backend(mode="sgpu")
    backend.open()
    backend.discover()

    with pytest.raises(MxsmlError):
        backend.partitions()


def test_slices_are_not_gone_because_the_driver_is(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.driver_gone()

    with pytest.raises(MxsmlError):
        sgpu.partitions()


def test_a_card_that_is_gone_keeps_nobody_from_releasing(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.lose(3)
    sgpu.discover()

    sgpu.release(OURS)

    assert stub.slices() == []


UNREADABLE = ["GetSgpuToggle", "GetSgpuAvailableQuota", "GetSgpuInfo"]


@pytest.mark.parametrize("begun", [False, True], ids=["", "with a slice begun there"])
@pytest.mark.parametrize("symbol", UNREADABLE)
def test_a_card_that_can_not_be_read_stops_the_slices_of_no_other(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, symbol: str, begun: bool
) -> None:
    stub.make_slice(0, 128, 1, "by-hand")
    sgpu.prepare(asked(claim()), [stub.uuid(1)])
    sgpu.cdi()
    if begun:
        stub.kill_after("CreateSgpu")
        in_a_process(host, "prepare", asdict(asked(claim(), allocation=THIRD)), [stub.uuid(0)])
    stub.fail(symbol, Code.SYSFS_ERROR, slot=0)

    sgpu.prepare(asked(claim(), allocation=OTHER), [stub.uuid(2)])
    assert _devices(sgpu).keys() == {OURS, OTHER}
    sgpu.release(OURS)
    assert _devices(sgpu).keys() == {OTHER}
    sgpu.release(OTHER)

    assert stub.slices(1) == stub.slices(2) == []
    assert bool(host.journal) is begun


def test_a_slice_of_another_that_can_not_be_marked_yet_stops_no_release(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(1)])
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", asdict(asked(claim(), allocation=OTHER)), [stub.uuid(0)])
    stub.fail("SetSgpuAlias", Code.SYSFS_WRITE_ERROR, slot=0)

    sgpu.release(OURS)

    assert [it.slot for it in stub.slices()] == [0]


@pytest.mark.parametrize("symbol", UNREADABLE)
def test_the_next_process_makes_slices_beside_a_card_that_can_not_be_read(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, symbol: str
) -> None:
    stub.make_slice(0, 128, 1)
    stub.fail(symbol, Code.SYSFS_ERROR, slot=0)
    backend = host.reopened(sgpu)

    backend.prepare(asked(claim()), [stub.uuid(1)])

    assert _devices(backend).keys() == {OURS}


@pytest.mark.parametrize("seen", [True, False], ids=["was read before", "was never read"])
@pytest.mark.parametrize("symbol", UNREADABLE)
def test_the_next_process_releases_slices_beside_a_card_that_can_not_be_read(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, symbol: str, seen: bool
) -> None:
    stub.make_slice(0, 128, 1)
    sgpu.prepare(asked(claim()), [stub.uuid(1)])
    sgpu.partitions()
    if not seen:
        (host.directory / FILE).unlink()
    stub.fail(symbol, Code.SYSFS_ERROR, slot=0)
    backend = host.reopened(sgpu)

    others = [None] if seen else []
    assert marks(backend.partitions()) == [*others, OURS]
    backend.release(OURS)

    assert marks(backend.partitions()) == others
    assert [it.slot for it in stub.slices()] == [0]


def test_the_next_process_knows_what_lies_on_a_card_that_it_can_not_read(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.make_slice(0, 128, 1)
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    before, names = sgpu.partitions(), _devices(sgpu)
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR, slot=0)
    backend = host.reopened(sgpu)

    assert backend.partitions() == before
    assert _devices(backend) == names
    with pytest.raises(MxsmlError):
        backend.release(OURS)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"boot": "%s", "cards": {"%s": 1}}', '{"boot": "%s", "cards": {"%s": [["x"]]}}'],
    ids=["nothing", "no object", "no list", "no slice"],
)
def test_what_makes_no_sense_of_slices_before_is_as_if_it_were_not_there(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, text: str
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(1)])
    (host.directory / FILE).write_text(text.replace("%s", own_files.boot_id(), 1).replace("%s", stub.uuid(0)))
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR, slot=0)

    host.reopened(sgpu).release(OURS)

    assert stub.slices() == []


def test_what_lay_on_a_card_before_the_machine_was_started_anew_lies_there_no_more(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.partitions()
    stub.reboot()
    monkeypatch.setattr(own_files, "BOOT_ID", tmp_path / "boot")
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR, slot=0)

    host.reopened(sgpu).release(OURS)


def test_a_release_fails_while_a_card_that_may_have_the_slice_can_not_be_read(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR, slot=0)

    for backend in (sgpu, host.reopened(sgpu)):
        with pytest.raises(MxsmlError):
            backend.release(OURS)


def test_a_release_fails_while_what_was_begun_of_it_can_not_be_ended(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.partitions()
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", asdict(asked(claim())), [stub.uuid(0)])
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR, slot=0)

    with pytest.raises(MxsmlError):
        sgpu.release(OURS)

    stub.clear("GetSgpuToggle")
    sgpu.release(OURS)
    assert stub.slices() == []


@pytest.mark.parametrize("symbol", UNREADABLE)
def test_a_slice_whose_card_can_not_be_read_once_it_is_made_is_not_answered_without_its_name(
    sgpu: MetaxBackend, stub: MxsmlStub, symbol: str
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.fail(symbol, Code.SYSFS_ERROR, slot=0)

    with pytest.raises(MxsmlError):
        sgpu.cdi()


def test_a_slice_that_is_removed_is_no_longer_told_of_a_card_that_can_not_be_read(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.cdi()
    sgpu.release(OURS)
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR, slot=0)

    assert sgpu.cdi() == {SPEC: ""}
    with pytest.raises(MxsmlError):
        sgpu.partitions()


# Cards that nobody is given


def test_slices_on_a_card_that_works_in_part_only_are_there_and_removed(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.limited(0)

    for backend in (sgpu, host.reopened(sgpu)):
        backend.discover()
        assert marks(backend.partitions()) == [OURS]
        assert _devices(backend).keys() == {OURS}

    sgpu.release(OURS)
    assert stub.slices() == []


def test_while_a_card_tells_no_uuid_nobody_says_which_slices_are_gone_and_they_are_removed(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.rename(0, "")
    backend = host.reopened(sgpu)

    with pytest.raises(UnknownCard, match="card 0 tells no uuid"):
        backend.partitions()

    assert _devices(backend).keys() == {OURS}
    backend.release(OURS)
    assert stub.slices() == []


def test_no_slice_is_made_on_a_card_that_works_in_part_only(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.limited(0)
    sgpu.discover()

    with pytest.raises(RequestRefused, match=r"no slice is made on .* the driver allows only a part"):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert stub.slices() == []


# CDI


def _spec(backend: MetaxBackend) -> Any:
    text = backend.cdi()[SPEC]
    return json.loads(text) if text else None


def _devices(backend: MetaxBackend) -> dict[str, Any]:
    return {it["name"]: it["containerEdits"] for it in _spec(backend)["devices"]}


def rw(path: str) -> dict[str, str]:
    return {"path": path, "permissions": "rw"}  # without mknod


def test_the_spec_names_each_allocation_of_ours_with_the_nodes_of_its_slices(
    sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.make_slice(0, 128, 1, "by-hand")
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.prepare(asked(CARD, count=2, allocation=OTHER), [stub.uuid(1), stub.uuid(2)])

    assert _spec(sgpu)["kind"] == "metax-tech.com/sgpu"
    assert _devices(sgpu) == {
        OURS: {"deviceNodes": [rw("/dev/dri/renderD161")]},
        OTHER: {"deviceNodes": [rw("/dev/dri/renderD162"), rw("/dev/dri/renderD163")]},
    }


def test_without_slices_of_ours_there_is_no_spec(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.make_slice(0, 128, 1)

    assert sgpu.cdi() == {SPEC: ""}


def test_the_variable_that_the_settings_name_carries_the_uuids(host: Host, stub: MxsmlStub) -> None:
    backend = host.backend(mode="sgpu", visibleDevices="MACA_VISIBLE_DEVICES")
    backend.open()
    backend.discover()

    [made] = backend.prepare(asked(claim()), [stub.uuid(0)])

    assert _devices(backend)[OURS]["env"] == [f"MACA_VISIBLE_DEVICES={made.id}"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["/dev/dri/renderD{minor}"], ["/dev/dri/renderD160"]),
        (["/dev/dri/card{card}", "/dev/dri/renderD{render}"], ["/dev/dri/card1", "/dev/dri/renderD128"]),
        (["/dev/mxs{sgpu}"], ["/dev/mxs0"]),
    ],
)
def test_the_nodes_of_a_slice_are_those_of_the_setting(
    host: Host, stub: MxsmlStub, patterns: list[str], expected: list[str]
) -> None:
    host.make("/dev/mxs0")
    backend = host.backend(mode="sgpu", sliceNodes=patterns, visibleDevices="V")
    backend.open()
    backend.discover()

    backend.prepare(asked(claim()), [stub.uuid(0)])

    nodes = [it["path"] for it in _devices(backend)[OURS]["deviceNodes"]]
    assert nodes == expected


@pytest.mark.parametrize("mode", ["native", "shared", "vgpu"])
def test_in_other_modes_what_is_left_of_slices_is_served_and_released(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub, mode: str
) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    sgpu.close()
    backend = host.backend(mode=mode)
    backend.open()
    backend.discover()

    assert marks(backend.partitions()) == [OURS]
    assert OURS in _devices(backend)
    backend.release(OURS)
    assert stub.slices() == []
    assert backend.cdi() == {SPEC: ""}


@pytest.mark.parametrize("call", ["partitions", "cdi", "release", "prepare"])
def test_a_closed_backend_is_unavailable_and_not_without_slices(
    sgpu: MetaxBackend, stub: MxsmlStub, call: str
) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"release": (OURS,), "prepare": (asked(claim()), [stub.uuid(0)])}
    sgpu.close()

    with pytest.raises(BackendUnavailable, match="not-open"):
        getattr(sgpu, call)(*arguments.get(call, ()))


def test_without_the_library_there_are_no_slices_to_see(host: Host) -> None:
    backend = host.backend(library="/nowhere/libmxsml.so")
    backend.open()
    backend.discover()

    assert backend.partitions() == []
    backend.release(OURS)
    assert backend.cdi() == {SPEC: ""}
