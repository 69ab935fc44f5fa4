"""The stubs keep EFML's binary interface and the rules of DRS, and do what tests ask."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from efml_stub import FORMATS, HANDLES, INDICES, NEWER, PROCESSES, RUNNING, SUFFIXES, EfmlStub
from enflame_tree import MAJOR, Tree

from agent.vendors.enflame.child import abi, library
from agent.vendors.enflame.child.abi import Code, EventType, HandleCode
from agent.vendors.enflame.child.efsmi import Efsmi, EfsmiError
from agent.vendors.enflame.child.library import Efml
from agent.vendors.enflame.child.library_errors import EfmlError
from agent.vendors.enflame.child.values import CardStanding

pytest_plugins = ["efml_fixtures"]

ROOT = Path(__file__).parents[3]
STRUCTS = {
    "DeviceInfo": abi.DeviceInfo,
    "MemInfo": abi.MemInfo,
    "Event": abi.Event,
    "EccStatus": abi.EccStatus,
    "RmaStatus": abi.RmaStatus,
    "RmaDetails": abi.RmaDetails,
    "Power": abi.Power,
    "Thermal": abi.Thermal,
    "LinkInfo": abi.LinkInfo,
    "LarePortInfo": abi.LarePortInfo,
    "ProcessInfo": abi.ProcessInfo,
    "ErrorRecord": abi.ErrorRecord,
    "DeviceMemory": abi.DeviceMemory,
    "DeviceMemoryV2": abi.DeviceMemoryV2,
    "PciInfo": abi.PciInfo,
    "Utilization": abi.Utilization,
    "RunningProcess": abi.RunningProcess,
    "UtilizationSample": abi.UtilizationSample,
}
BY_HANDLE = {name for name in abi.ARGUMENTS if not abi.by_index(name)}
SINCE_2019 = {
    "EfmlGetEventV2",
    "EfmlGetErrorRecords",
    "EfmlGetHwArchName",
    "EfmlGetNumaNode",
    "EfmlGetGcuVirtStatus",
    "EfmlGetDevTempV2",
    "EfmlGetPowerMode",
    "EfmlGetDevIsHealth",
    "EfmlGetMemClk",
    "EfmlGetGcuLarePortNum",
    "EfmlGetGcuLarePortInfo",
}
#: Names of handles that have a newer one; a build has the one or the other. Only these two it has beside it.
OLDER = {"efmlDeviceGetCount", "efmlDeviceGetHandleByIndex", "efmlDeviceGetHandleByPciBusId"}
SUFFIXED = {f"{name}_v2" for name in (*OLDER, "efmlInit", "efmlDeviceGetMemoryInfo")}
PROCESSES_BY_HANDLE = {"efmlDeviceGetComputeRunningProcesses_v3", "efmlDeviceGetProcessUtilization"}
#: What a build lacks.
LACKING: Mapping[tuple[str, ...], set[str]] = {
    (): OLDER,
    (HANDLES,): BY_HANDLE,
    (INDICES,): {*abi.ARGUMENTS} - BY_HANDLE | OLDER,
    (NEWER,): SINCE_2019 | BY_HANDLE,
    (SUFFIXES,): SUFFIXED,
    (RUNNING,): OLDER | PROCESSES_BY_HANDLE,
    (PROCESSES,): OLDER | PROCESSES_BY_HANDLE | {"EfmlGetProcessInfo"},
}


def answer(call: Callable[[], Any]) -> EfmlError:
    with pytest.raises(EfmlError) as caught:
        call()
    return caught.value


def in_a_process(stub: EfmlStub, calls: str) -> subprocess.CompletedProcess[str]:
    """Let another process make calls on `it`, the library, and `tool`."""
    return stub.run(
        "from agent.vendors.enflame.child import library\n"
        "from agent.vendors.enflame.child.efsmi import Efsmi\n"
        f"it, tool = library.start({stub.settings!r}), Efsmi({str(stub.efsmi)!r})\n{calls}\n"
    )


# The interface


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_as_large_as_the_agents(stub: EfmlStub, name: str) -> None:
    sizeof = ctypes.CDLL(str(stub.library)).efml_stub_sizeof
    sizeof.restype = ctypes.c_size_t

    assert sizeof(name.encode()) == ctypes.sizeof(STRUCTS[name])


@pytest.mark.parametrize("without", LACKING)
@pytest.mark.parametrize("rebranded", [False, True])
def test_a_build_exports_every_function_but_those_it_is_to_lack(
    tmp_path: Path, without: tuple[str, ...], rebranded: bool
) -> None:
    stub = EfmlStub(tmp_path, without=without, rebranded=rebranded)
    efml = Efml(ctypes.CDLL(str(stub.library)))

    assert {name for name in abi.ARGUMENTS if not efml.has(name)} == LACKING[without]
    assert hasattr(ctypes.CDLL(str(stub.library)), "EfmlInit") == (not rebranded and INDICES not in without)


def test_only_efml_is_exported(stub: EfmlStub) -> None:
    assert not hasattr(ctypes.CDLL(str(stub.library)), "refresh")


# Cards


def test_a_removed_card_is_no_device_until_the_library_looks_anew(stub: EfmlStub, efml: Efml) -> None:
    stub.remove(2)
    before, count = answer(lambda: efml.identity(2)).code, efml.count()
    efml.init()

    assert (before, count, efml.count()) == (Code.NO_DEVICE, 8, 7)
    assert efml.uuid(2) == stub.uuid(3)
    assert stub.slots[2] == 3


def test_no_cards_are_counted_where_none_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = EfmlStub(tmp_path, 0)
    monkeypatch.setenv("XPU_EFML_STUB", str(stub.control))

    assert library.start(stub.settings).count() == 0
    assert Efsmi(str(stub.efsmi)).table().rows == ()


def test_without_the_driver_nothing_works_until_it_is_loaded_anew(
    stub: EfmlStub, efml: Efml, tool: Efsmi
) -> None:
    stub.make_instance(0)
    stub.lose(1)
    stub.driver_gone()
    gone, lost = answer(lambda: efml.uuid(0)).code, answer(lambda: efml.standing(0)).code
    start = answer(efml.init).code
    with pytest.raises(EfsmiError, match="driver is not loaded"):
        tool.table()
    stub.driver_reload()
    efml.init()

    assert (gone, lost, start) == (
        Code.DRIVER_NOT_LOADED,
        HandleCode.DRIVER_NOT_LOADED,
        Code.DRIVER_NOT_LOADED,
    )
    assert (efml.uuid(0), efml.standing(1)) == (stub.uuid(0), CardStanding.LOST)
    assert (tool.instances().rows, stub.drs()) == ((), [])


def test_an_event_before_the_start_is_none(stub: EfmlStub, efml: Efml) -> None:
    stub.event(0, EventType.EID, 17)
    efml.init()

    assert efml.events(0) == ()


# Calls


def test_a_call_that_kills_kills_its_process_alone(stub: EfmlStub, efml: Efml) -> None:
    stub.segv("EfmlGetDevHealth")
    stub.kill_before("EfmlGetDevUuid")
    ends = [in_a_process(stub, call).returncode for call in ("it.uuid(0)", "it.uuid(0)")]
    stub.unsupported("EfmlGetDevIsHealth")

    assert ends == [-signal.SIGKILL, 0]
    assert stub.killed() == 1
    assert in_a_process(stub, "it.healthy(0)").returncode == -signal.SIGSEGV
    assert efml.uuid(0) == stub.uuid(0)


# DRS


def test_instances_are_made_listed_and_destroyed_and_outlive_processes(stub: EfmlStub, tool: Efsmi) -> None:
    done = in_a_process(stub, "tool.set_drs(1, True)\ntool.create(1, 1)\ntool.create(1, 0)")
    listed, numbers = tool.instances(1).rows, tool.listed_instances(1).rows
    tool.destroy(1, 0)
    tool.create(1, 0)

    assert done.returncode == 0, done.stderr
    assert [(it.card, it.profile, it.id) for it in listed] == [(1, "3g.20gb", 0), (1, "1g.6gb", 1)]
    assert [it.id for it in numbers] == [0, 1]
    assert {it.uuid for it in listed} & {stub.instances()[1].uuid} == set()
    assert [(it.profile, it.id) for it in stub.instances(1)] == [("1g.6gb", 1), ("1g.6gb", 0)]


REFUSED: list[tuple[str, Callable[[EfmlStub], Any], Callable[[Efsmi], Any], str]] = [
    ("off", lambda it: None, lambda it: it.create(0, 0), "DRS is not enabled"),
    ("profiles of a card without DRS", lambda it: None, lambda it: it.profiles(0), "DRS is not enabled"),
    ("full", lambda it: it.make_instance(0, "6g.40gb"), lambda it: it.create(0, 0), "insufficient"),
    ("no profile", lambda it: it.set_drs(0), lambda it: it.create(0, 7), "no such profile"),
    ("no instance", lambda it: it.set_drs(0), lambda it: it.destroy(0, 0), "no such instance"),
    ("instances", lambda it: it.make_instance(0), lambda it: it.set_drs(0, False), "instances exist"),
    ("busy", lambda it: it.run_process(0, 4711), lambda it: it.set_drs(0, True), "in use"),
    ("VF", lambda it: it.virt(0, 4, "SRIOV"), lambda it: it.set_drs(0, True), "not supported in SRIOV mode"),
    ("no card", lambda it: None, lambda it: it.set_drs(8, True), "device 8 is not found"),
    (
        "instance in use",
        lambda it: it.use_instance(it.make_instance(0).uuid),
        lambda it: it.destroy(0, 0),
        "instance is in use",
    ),
]


@pytest.mark.parametrize(("name", "given", "asked", "said"), REFUSED, ids=[it[0] for it in REFUSED])
def test_the_hardware_refuses(
    stub: EfmlStub,
    tool: Efsmi,
    name: str,
    given: Callable[[EfmlStub], Any],
    asked: Callable[[Efsmi], Any],
    said: str,
) -> None:
    given(stub)
    before = (stub.drs(), stub.instances())

    with pytest.raises(EfsmiError, match=said):
        asked(tool)

    assert (stub.drs(), stub.instances()) == before


def test_a_card_holds_what_its_slices_hold(stub: EfmlStub, tool: Efsmi) -> None:
    tool.set_drs(0, True)
    for _ in range(6):
        tool.create(0, 0)
    stub.make_instance(1, "3g.20gb")
    tool.create(1, 1)

    with pytest.raises(EfsmiError, match="insufficient"):
        tool.create(0, 0)
    with pytest.raises(EfsmiError, match="insufficient"):
        tool.create(1, 0)
    assert [it.id for it in stub.instances(0)] == list(range(6))


def test_a_command_without_a_card_would_change_them_all(stub: EfmlStub) -> None:
    """What the agent never runs; GCUShare did, with an annotation that was empty."""
    subprocess.run([str(stub.efsmi), "--drs", "on"], check=True, capture_output=True)

    assert stub.drs() == list(range(8))


def test_a_tool_that_dies_before_its_command_did_nothing_and_after_it_did(
    stub: EfmlStub, tool: Efsmi
) -> None:
    tool.set_drs(0, True)
    ends, left = [], []
    for when in ("before", "after"):
        stub.efsmi_kills("create", when)
        with pytest.raises(EfsmiError) as caught:
            tool.create(0, 0)
        ends.append(caught.value.status)
        left.append(len(stub.instances()))

    assert (ends, left) == ([-signal.SIGKILL] * 2, [0, 1])
    assert stub.killed() == 2
    tool.create(0, 0)


def test_the_caller_may_die_between_the_command_and_its_answer(stub: EfmlStub, tool: Efsmi) -> None:
    stub.set_drs(0)
    stub.efsmi_kills("create", caller=True)

    done = in_a_process(stub, "tool.create(0, 0)\nprint('never')")

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert len(stub.instances()) == 1


def test_an_answer_may_be_lost_and_an_instance_with_it(stub: EfmlStub, tool: Efsmi) -> None:
    stub.set_drs(0)
    stub.efsmi_fails("create", 3, "Error: timeout", late=True)
    with pytest.raises(EfsmiError, match="ends with 3: Error: timeout"):
        tool.create(0, 0)
    stub.efsmi_works()
    stub.efsmi_says("destroy", "")
    tool.destroy(0, 0)

    assert len(stub.instances()) == 1


@pytest.mark.parametrize("release", FORMATS)
def test_the_table_shows_drs_in_every_release(stub: EfmlStub, tool: Efsmi, release: str) -> None:
    stub.efsmi_format(release)
    stub.make_instance(1)
    stub.virt(2, 4, "SRIOV")

    assert [it.virt for it in tool.table().rows[:3]] == ["Disable", "DRS", "SRIOV"]


def test_commands_are_counted(stub: EfmlStub, tool: Efsmi) -> None:
    stub.trace()
    tool.table()
    tool.instances()

    assert (stub.calls("efsmi:table"), stub.calls("efsmi:list"), stub.calls("efsmi:create")) == (1, 1, 0)


# sysfs


def test_the_tree_has_the_cards_files_and_their_nodes(stub: EfmlStub, efml: Efml, tmp_path: Path) -> None:
    stub.minor(1, 9, logic=3)
    stub.numa(1, -1)
    tree = Tree(tmp_path / "node", stub)
    card = Path(efml.access_point()) / efml.identity(1).bdf

    read = {
        name: (card / name).read_text().strip() for name in ("vendor", "class", "numa_node", "ssm/chipid")
    }

    assert read == {"vendor": "0x1e36", "class": "0x120000", "numa_node": "-1", "ssm/chipid": efml.uuid(1)}
    assert (card / f"enflame/gcu{efml.identity(1).logic_id}/dev").read_text() == f"{MAJOR}:9\n"
    assert (tree.root / "dev/gcuctl").exists()
    assert (tree.root / "dev/gcu9").exists()
    assert (tree.sysfs / "module/enflame/version").read_text().strip() == efml.driver_version()
