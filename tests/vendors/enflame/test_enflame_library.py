"""Rules of finding, starting and calling EFML."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from efml_stub import INDICES, NEWER, SUFFIXES, EfmlStub

from agent.vendor_api.agent import BackendUnavailable
from agent.vendors.enflame.child import abi, library
from agent.vendors.enflame.child.abi import (
    Code,
    EventType,
    HandleCode,
    PowerMode,
    ResetSource,
    ResetType,
    VirtMode,
)
from agent.vendors.enflame.child.library import MIB, Efml
from agent.vendors.enflame.child.library_errors import EfmlError
from agent.vendors.enflame.child.values import (
    CardPower,
    CardStanding,
    Ecc,
    EfmlErrorRecord,
    EfmlEvent,
    EfmlIdentity,
    EfmlMemory,
    LarePort,
    PcieLink,
    Process,
    ProcessLoad,
    Rma,
    Temperature,
)
from agent.vendors.enflame.shared import library_places

pytest_plugins = ["efml_fixtures"]

ROOT = Path(__file__).parents[3]

#: Size and the offsets of fields, of the LP64 model, as compiled from the public declarations.
LAYOUTS: list[tuple[type[ctypes.Structure], int, dict[str, int]]] = [
    (abi.DeviceInfo, 156, {"vendorId": 128, "deviceId": 132, "domain": 136, "function": 148, "logicId": 152}),
    (abi.MemInfo, 16, {"total": 0, "used": 8}),
    (abi.Event, 136, {"id": 0, "type": 4, "message": 8}),
    (abi.EccStatus, 12, {"pending": 1, "blacklistPending": 2, "singleBit": 4, "doubleBit": 8}),
    (abi.RmaStatus, 2, {"flag": 1}),
    (abi.RmaDetails, 8, {"flag": 1, "doubleBit": 4}),
    (abi.Power, 8, {"current": 4}),
    (abi.Thermal, 12, {"memory": 4, "board": 8}),
    (abi.LinkInfo, 16, {"maxSpeed": 4, "width": 8, "maxWidth": 12}),
    (
        abi.LarePortInfo,
        104,
        {"uuid": 4, "domain": 28, "portType": 48, "remoteCard": 52, "remoteUuid": 56, "remoteDomain": 80},
    ),
    (abi.ProcessInfo, 24, {"deviceMemory": 8, "systemMemory": 16}),
    (abi.ErrorRecord, 32, {"resetType": 8, "source": 12, "time": 16, "bdf": 24}),
    (abi.DeviceMemory, 24, {"free": 8, "used": 16}),
    (abi.DeviceMemoryV2, 40, {"total": 8, "free": 16, "used": 24, "reserved": 32}),
    (abi.PciInfo, 56, {"pciDeviceId": 16, "busId": 24}),
    (abi.Utilization, 8, {"memory": 4}),
]


@pytest.mark.parametrize(("struct", "size", "offsets"), LAYOUTS)
def test_a_structure_lies_in_memory_as_the_library_has_it(
    struct: type[ctypes.Structure], size: int, offsets: dict[str, int]
) -> None:
    assert ctypes.sizeof(struct) == size
    assert {name: getattr(struct, name).offset for name in offsets} == offsets


def test_no_function_that_changes_a_card_is_declared() -> None:
    changing = ("Set", "Reset", "FLR", "Scan", "Switch", "Start", "Dump", "Pf")

    assert not [name for name in abi.ARGUMENTS if any(word in name for word in changing)]
    assert len(abi.ARGUMENTS) > 50


def test_the_version_of_the_memory_structure_has_its_size_and_number() -> None:
    assert abi.MEMORY_VERSION == 0x02000028


def answer(call: Callable[[], Any]) -> EfmlError:
    with pytest.raises(EfmlError) as caught:
        call()
    return caught.value


def started(directory: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[EfmlStub, Efml]:
    """Another build of the library than the fixture's."""
    stub = EfmlStub(directory, **how)
    monkeypatch.setenv("XPU_EFML_STUB", str(stub.control))
    return stub, library.start(stub.settings)


def in_a_process(stub: EfmlStub, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Let another process run a script with `settings`, those of the stub, and `library`."""
    head = f"from agent.vendors.enflame.child import library\nsettings = {stub.settings!r}\n"
    return stub.run(head + script, **environment)


# Finding it


def unavailable(settings: dict[str, str]) -> BackendUnavailable:
    with pytest.raises(BackendUnavailable) as caught:
        library.start(settings)
    return caught.value


def put(stub: EfmlStub, folder: Path, name: str = library_places.SONAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(stub.library, folder / name)
    return folder


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose loader and folders know no EFML, as is this one with the stub."""
    monkeypatch.setattr(library_places, "SONAME", "libnowhere.so")


def test_a_file_is_loaded(stub: EfmlStub) -> None:
    assert library.start({"library": str(stub.library)}).count() == 8


@pytest.mark.parametrize("folder", [".", "lib", *(it.lstrip("/") for it in library_places.FOLDERS)])
def test_a_directory_is_searched_as_itself_and_as_a_root(stub: EfmlStub, tmp_path: Path, folder: str) -> None:
    put(stub, tmp_path / "root" / folder)

    assert library.start({"library": str(tmp_path / "root")}).count() == 8


@pytest.mark.parametrize("version", library_places.VERSIONS)
def test_a_file_may_bear_a_version(stub: EfmlStub, tmp_path: Path, version: str) -> None:
    put(stub, tmp_path / "root", library_places.SONAME + version)

    assert library.start({"library": str(tmp_path / "root")}).count() == 8


def test_of_the_packages_of_efsmi_the_newest_is_taken_first(stub: EfmlStub, tmp_path: Path) -> None:
    for version in ("1.9.0", "1.14.0", "1.2.3.14"):
        (tmp_path / f"host/usr/local/efsmi/efsmi-{version}/lib").mkdir(parents=True)
    put(stub, tmp_path / "host/usr/local/efsmi/efsmi-1.9.0/lib", "libefml.so.1.0.0")

    settings = {"containerDriverRoot": str(tmp_path / "host")}
    found = [
        name
        for name in library_places.searched(settings)
        if "/efsmi-" in name and name.endswith("/libefml.so")
    ]

    assert [Path(name).parts[-3] for name in found] == ["efsmi-1.14.0", "efsmi-1.9.0", "efsmi-1.2.3.14"]
    assert library.start(settings).count() == 8


def test_the_loaders_own_path_comes_first(stub: EfmlStub, tmp_path: Path) -> None:
    folder = str(put(stub, tmp_path / "lib"))

    done = in_a_process(stub, "print(library.start({}).count())", LD_LIBRARY_PATH=folder)

    assert (done.stdout, done.stderr) == ("8\n", "")
    assert library_places.searched({})[: len(library_places.VERSIONS)] == [
        library_places.SONAME + it for it in library_places.VERSIONS
    ]


def test_all_names_are_looked_for_in_one_folder_before_the_next() -> None:
    searched = library_places.searched({})[len(library_places.VERSIONS) :]

    assert searched[:2] == ["/usr/lib/libefml.so", "/usr/lib/libefml.so.1"]
    assert searched[6] == "/usr/lib64/libefml.so"
    assert "/driver-root/usr/lib/libefml.so" in searched


def test_another_name_is_looked_for_in_the_same_places(tmp_path: Path, monkeypatch: Any) -> None:
    stub = EfmlStub(tmp_path, rebranded=True)
    monkeypatch.setenv("XPU_EFML_STUB", str(stub.control))
    put(stub, tmp_path / "host/usr/lib64", "liberml.so.1")

    settings = {"library": "liberml.so", "containerDriverRoot": str(tmp_path / "host")}

    assert library_places.searched(settings)[0] == "liberml.so"
    assert library.start(settings).count() == 8


def test_a_file_that_can_not_be_loaded_is_passed_over(stub: EfmlStub, tmp_path: Path) -> None:
    put(stub, tmp_path / "lib")
    (tmp_path / library_places.SONAME).write_text("no library")

    assert library.start({"library": str(tmp_path)}).count() == 8


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "libefml.so").write_text("no library")

    said = unavailable({"library": str(tmp_path / "libefml.so")})

    assert said.reason == "library-unusable"
    assert f"{tmp_path}/libefml.so: " in said.message


def test_every_place_without_the_library_is_named(nowhere: None) -> None:
    said = unavailable({"containerDriverRoot": "/host"})

    assert said.reason == "library-not-found"
    assert said.message.count("cannot open") == 1
    assert "no libnowhere.so in /usr/lib or /usr/lib64 or" in said.message
    assert "/host/usr/lib or" in said.message
    assert said.message.endswith(library.REMEDY)


def test_a_link_that_leads_nowhere_is_named_with_its_target(tmp_path: Path, nowhere: None) -> None:
    """As in a container that has the host's /usr/lib/libefml.so and not /usr/local/efsmi."""
    target = "/usr/local/efsmi/efsmi-1.14.0/lib/libnowhere.so.1.0.0"
    (tmp_path / "usr/lib").mkdir(parents=True)
    link = tmp_path / "usr/lib/libnowhere.so"
    link.symlink_to(target)
    (tmp_path / "usr/lib/libnowhere.so.1").symlink_to(tmp_path)  # leads somewhere
    settings = {"containerDriverRoot": str(tmp_path)}

    assert library_places.dangling(settings) == [(str(link), target)]
    assert f"{link} leads to {target}, which is not here" in unavailable(settings).message


def test_a_library_that_is_no_efml_is_told_from_one_that_is() -> None:
    said = unavailable({"library": "libc.so.6"})

    assert said.reason == "library-unusable"
    assert said.message == "libc.so.6 has no EfmlInit: it is another library, or 'symbolPrefix' names it"


def test_a_file_that_is_no_library_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "hostname").write_text("node-1\n")

    said = unavailable({"library": str(tmp_path / "hostname")})

    assert said.reason == "library-unusable"
    assert f"{tmp_path}/hostname: " in said.message
    assert said.message.endswith(library.REMEDY)


def test_symbols_are_global_and_bound_when_they_are_called(stub: EfmlStub, tmp_path: Path) -> None:
    """As Enflame's binding opens it: a library may name functions that this machine has not."""
    source = tmp_path / "lazy.c"
    source.write_text(
        "int nowhere(void); int EfmlInit(void) { return 0; } int EfmlOther(void) { return nowhere(); }"
    )
    lazy = ["-shared", "-fPIC", "-Wl,-z,lazy", "-o", str(tmp_path / "libefml.so")]
    subprocess.run(["cc", *lazy, str(source)], check=True)

    done = in_a_process(
        stub,
        f"import ctypes\nlibrary.start({{'library': {str(tmp_path / 'libefml.so')!r}}})\n"
        "print(hasattr(ctypes.CDLL(None), 'EfmlOther'))",
    )

    assert (done.stdout, done.stderr) == ("True\n", "")


# Starting it


@pytest.mark.parametrize(
    ("by_index", "by_handle", "reason"),
    [
        (Code.DRIVER_NOT_LOADED, HandleCode.DRIVER_NOT_LOADED, "driver-not-loaded"),
        (Code.OPEN_DRIVER_VERSION, HandleCode.DRIVER_NOT_LOADED, "driver-not-loaded"),
        (Code.DRIVER_NOT_COMPATIBLE, HandleCode.VERSION_MISMATCH, "driver-library-mismatch"),
        (Code.NO_DEVICE, HandleCode.GCU_NOT_FOUND, "no-device"),
        (Code.FAIL, HandleCode.UNKNOWN, "efml-init"),
    ],
)
def test_a_refused_start_is_named_and_works_once_the_cause_is_gone(
    stub: EfmlStub, by_index: Code, by_handle: HandleCode, reason: str
) -> None:
    stub.fail("EfmlInit", by_index)
    stub.fail("efmlInit_v2", by_handle)
    said = unavailable(stub.settings)
    stub.clear()

    assert said.reason == reason
    assert library.start(stub.settings).count() == 8


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (HandleCode.DRIVER_NOT_LOADED, "driver-not-loaded"),
        (HandleCode.VERSION_MISMATCH, "driver-library-mismatch"),
        (HandleCode.NO_PERMISSION, "no-permission"),
        (HandleCode.OPERATING_SYSTEM, "no-permission"),
        (HandleCode.GCU_NOT_FOUND, "no-device"),
        (HandleCode.LIBRARY_NOT_FOUND, "efml-init"),
    ],
)
def test_numbers_of_the_handle_family_mean_what_they_mean_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: HandleCode, reason: str
) -> None:
    stub = EfmlStub(tmp_path, without=[INDICES])
    monkeypatch.setenv("XPU_EFML_STUB", str(stub.control))
    stub.fail("efmlInit_v2", code)

    assert unavailable(stub.settings).reason == reason


def test_the_index_family_says_why_neither_starts(stub: EfmlStub) -> None:
    stub.fail("EfmlInit", Code.DRIVER_NOT_COMPATIBLE)
    stub.fail("efmlInit_v2", HandleCode.DRIVER_NOT_LOADED)

    assert unavailable(stub.settings).reason == "driver-library-mismatch"


def test_the_driver_is_wanted(stub: EfmlStub) -> None:
    """EfmlInit's argument is no_driver; the stub refuses true."""
    assert library.start(stub.settings).indices


def test_one_family_that_does_not_start_leaves_the_other(stub: EfmlStub) -> None:
    stub.fail("efmlInit_v2", HandleCode.UNKNOWN)
    by_index = library.start(stub.settings)
    uuid = by_index.uuid(0)
    stub.clear()
    stub.fail("EfmlInit", Code.FAIL)
    by_handle = library.start(stub.settings)

    assert (by_index.indices, by_index.handles) == (True, False)
    assert (by_handle.indices, by_handle.handles) == (False, True)
    assert uuid == stub.uuid(0)
    assert by_handle.memory(0).total == 42976 * MIB
    assert answer(lambda: by_handle.uuid(0)).unsupported


def test_cards_that_come_are_seen_after_a_new_look(stub: EfmlStub, efml: Efml) -> None:
    stub.cards(9)
    before = efml.count()
    efml.init()

    assert (before, efml.count()) == (8, 9)


def test_a_new_look_ends_both_families_before(stub: EfmlStub, efml: Efml) -> None:
    stub.trace()
    efml.init()

    assert (stub.calls("EfmlShutdown"), stub.calls("efmlShutdown")) == (1, 1)


def test_after_the_end_nothing_is_called_until_a_new_start(stub: EfmlStub, efml: Efml) -> None:
    stub.trace()
    efml.close()
    ended = answer(efml.count)
    efml.init()

    assert ended.code == Code.UNINITIALIZED
    assert stub.calls("EfmlGetDevCount") == 0
    assert efml.count() == 8


# Signals


#: What is ignored is so in children, too, and this process may have loaded the library.
BY_DEFAULT = """\
import signal
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_DFL)
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_efmls_signals_do_not_end_the_process_that_loads_it(stub: EfmlStub, number: int) -> None:
    stub.raise_on_load(number)

    done = in_a_process(stub, f"{BY_DEFAULT}print(library.start(settings).count())")

    assert (done.returncode, done.stdout) == (0, "8\n")


def test_efmls_signals_stay_ignored_from_whatever_thread_it_is_started(stub: EfmlStub) -> None:
    done = in_a_process(
        stub,
        f"{BY_DEFAULT}import os, threading\n"
        "it = threading.Thread(target=library.start, args=(settings,))\n"
        "it.start()\nit.join()\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nos.kill(os.getpid(), signal.SIGUSR2)\nprint('alive')",
    )

    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("how", ["ignore", "handle"])
def test_what_the_library_does_about_other_signals_is_undone(stub: EfmlStub, how: str) -> None:
    stub.change_signal(signal.SIGTERM, how)

    done = in_a_process(
        stub,
        "import os, signal, time\nlibrary.start(settings).init()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nprint('alive')",
    )

    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_handler_that_was_there_is_there_again(stub: EfmlStub) -> None:
    stub.change_signal(signal.SIGTERM, "ignore")

    done = in_a_process(
        stub,
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('heard'))\n"
        "library.start(settings)\nos.kill(os.getpid(), signal.SIGTERM)",
    )

    assert (done.returncode, done.stdout) == (0, "heard\n")


# Calling it

TELLS: list[tuple[str, Callable[[Efml], Any], Any]] = [
    ("driver_version", lambda it: it.driver_version(), "1.4.3.4"),
    ("library_version", lambda it: it.library_version(), "1.23.0"),
    ("access_point", lambda it: it.access_point(), "/sys/bus/pci/devices/"),
    ("count", lambda it: it.count(), 8),
    ("identity", lambda it: it.identity(1), EfmlIdentity(1, "S60", "0000:21:00.0", 0x1E36, 0xC035, 5)),
    ("uuid", lambda it: it.uuid(1), "TR6Y46000001"),
    ("serial", lambda it: it.serial(1), "A018K30500001"),
    ("part_number", lambda it: it.part_number(1), "EFB-0088000-00"),
    ("sku", lambda it: it.sku(1), "S60"),
    ("slot", lambda it: it.slot(1), "slot 1"),
    ("firmware_version", lambda it: it.firmware_version(1), "33.6.5"),
    ("arch", lambda it: it.arch(1), "GCU400"),
    ("numa_node", lambda it: (it.numa_node(0), it.numa_node(4), it.numa_node(1)), (0, 1, None)),
    ("virt_mode", lambda it: it.virt_mode(1), VirtMode.SRIOV_VF),
    ("memory", lambda it: it.memory(1), EfmlMemory(16384 * MIB, 7 * MIB)),
    ("utilization", lambda it: it.utilization(1), 12.5),
    ("memory_utilization", lambda it: it.memory_utilization(1), 25),
    ("clock", lambda it: it.clock(1), 1.4e9),
    ("memory_clock", lambda it: it.memory_clock(1), 1.7e9),
    ("processes", lambda it: it.processes(1), (Process(4711, 2048, in_bytes=True),)),
    ("process_loads", lambda it: it.process_loads(1), (ProcessLoad(4711, 99, 40),)),
    ("power", lambda it: it.power(1), CardPower(300, 105)),
    ("standing", lambda it: it.standing(1), CardStanding.HERE),
    ("healthy", lambda it: (it.healthy(0), it.healthy(1)), (True, False)),
    ("ecc", lambda it: it.ecc(1), Ecc(True, True, False, 3, 4)),
    ("rma", lambda it: it.rma(1), Rma(True, True, 2)),
    ("link", lambda it: it.link(1), PcieLink(3, 5, 8, 16)),
    ("temperature", lambda it: it.temperature(1), Temperature(96.5, 38, 34)),
    ("power_mode", lambda it: it.power_mode(1), PowerMode.SLEEP),
    (
        "error_records",
        lambda it: it.error_records(1),
        (EfmlErrorRecord(9, ResetType.FLR, ResetSource.DRAM_HBM, 1_700_000_000),),
    ),
    (
        "ports",
        lambda it: it.ports(1)[:2],
        (LarePort(0, "0000:20:00.0", 0), LarePort(1, None, 0)),
    ),
]


@pytest.mark.parametrize(("name", "call", "expected"), TELLS, ids=[name for name, _, _ in TELLS])
def test_what_the_library_tells_is_a_plain_value(
    stub: EfmlStub, efml: Efml, name: str, call: Callable[[Efml], Any], expected: Any
) -> None:
    stub.minor(1, 3, logic=5)
    stub.arch(1, "GCU400")
    stub.numa(1, -1)
    stub.virt(1, VirtMode.SRIOV_VF, "SRIOV")
    stub.memory(1, 16384, used=7)
    stub.utilization(1, 12.5)
    stub.memory_utilization(1, 25)
    stub.clocks(1, 1400, 1700)
    stub.run_process(1, 4711, 2048, 40)
    stub.sampled_at(99)
    stub.health(1, healthy=False)
    stub.ecc(1, single=3, double=4, pending=True)
    stub.rma(1, flagged=True, double=2)
    stub.link(1, 8, 16, speed=3)
    stub.temperature(1, 96.5)
    stub.power_mode(1, PowerMode.SLEEP)
    stub.record_error(1, 9, reset=ResetType.FLR, source=ResetSource.DRAM_HBM, time=1_700_000_000)
    stub.port(1, 0, 0)

    assert call(efml) == expected


def test_every_value_is_told_by_a_method_that_was_tried() -> None:
    asked = {name for name, _, _ in TELLS} | {"close", "events", "events_of_any_card"}

    assert {name for name in vars(Efml) if not name.startswith("_")} == asked


def test_a_value_that_is_not_known_yet_is_told_nevertheless(stub: EfmlStub, efml: Efml) -> None:
    stub.event(0, 77)
    stub.power_mode(0, 99)

    assert [it.type for it in efml.events(0)] == [77]
    assert efml.power_mode(0) == 99


def test_more_cards_than_there_can_be_are_not_believed(stub: EfmlStub, efml: Efml) -> None:
    stub.count(4_000_000)

    assert efml.count() == abi.MAX_DEVICES


# Both families


def test_a_build_with_handles_alone_tells_what_these_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, efml = started(tmp_path, monkeypatch, without=[INDICES])
    stub.memory(1, 16384, used=7)
    stub.link(1, 8)

    assert (efml.indices, efml.handles, efml.count()) == (False, True, 8)
    assert efml.identity(1) == EfmlIdentity(1, "S60", "0000:21:00.0", 0x1E36, 0xC035)
    assert efml.memory(1) == EfmlMemory(16384 * MIB, 7 * MIB)
    assert efml.link(1) == PcieLink(None, None, 8, 16)
    assert efml.temperature(1) == Temperature(36, None, None)
    assert efml.utilization(1) == 0
    for call in (
        efml.uuid,
        efml.events,
        efml.ecc,
        efml.rma,
        efml.healthy,
        efml.numa_node,
        efml.error_records,
    ):
        assert answer(partial(call, 1)).unsupported
    assert efml.ports(1) == ()


def test_a_build_without_newer_names_of_handles_is_called_by_the_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, efml = started(tmp_path, monkeypatch, without=[INDICES, SUFFIXES])

    assert not efml.has("efmlInit_v2")
    assert (efml.count(), efml.memory(1).total, efml.standing(1)) == (8, 42976 * MIB, CardStanding.HERE)


def test_a_build_of_2019_tells_what_it_knew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub, efml = started(tmp_path, monkeypatch, without=[NEWER])
    stub.temperature(0, 40, 50, 60)
    stub.port(0, 0, 1)
    stub.health(1, healthy=False)

    assert (efml.indices, efml.handles) == (True, False)
    assert efml.temperature(0) == Temperature(40, 60, None)  # two stacks of HBM: the hotter one
    assert (efml.healthy(0), efml.healthy(1)) == (True, False)
    assert efml.ports(0)[0].remote == "0000:21:00.0"
    assert efml.standing(0) == CardStanding.UNKNOWN
    for call in (efml.events, efml.numa_node, efml.error_records, efml.virt_mode):
        assert answer(partial(call, 0)).unsupported


def test_another_prefix_is_found_by_itself_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub, efml = started(tmp_path, monkeypatch, rebranded=True)

    named = library.start({**stub.settings, "symbolPrefix": "Erml"})

    assert (efml.uuid(1), efml.standing(1)) == (stub.uuid(1), CardStanding.HERE)
    assert named.count() == 8
    assert unavailable({**stub.settings, "symbolPrefix": "Xyml"}).message.startswith(
        f"{stub.library} has no Xy"
    )


def test_a_lost_card_is_told_by_the_handle_family(stub: EfmlStub, efml: Efml) -> None:
    stub.lose(2)
    standing, said = efml.standing(2), answer(lambda: efml.uuid(2))
    stub.restore(2)

    assert standing == CardStanding.LOST
    assert (said.code, said.gone, said.unsupported) == (Code.FAIL, False, False)
    assert (efml.standing(3), efml.standing(2)) == (CardStanding.HERE, CardStanding.HERE)


def test_a_card_that_needs_a_reset_is_told_by_the_handle_family(stub: EfmlStub, efml: Efml) -> None:
    stub.require_reset(2)

    assert efml.standing(2) == CardStanding.RESET_REQUIRED
    assert efml.uuid(2) == stub.uuid(2)


def test_what_else_keeps_a_handle_from_answering_is_no_standing(stub: EfmlStub, efml: Efml) -> None:
    stub.fail("efml*", HandleCode.UNKNOWN, slot=2)

    assert answer(lambda: efml.standing(2)).code == HandleCode.UNKNOWN


def test_a_removed_card_is_gone_in_both_families(stub: EfmlStub, efml: Efml) -> None:
    stub.remove(2)

    assert answer(lambda: efml.uuid(2)).gone
    assert efml.standing(2) == CardStanding.LOST


def test_a_handle_is_the_cards_whose_address_is_known(stub: EfmlStub, efml: Efml) -> None:
    """The families may count cards in different orders."""
    stub.order_of_handles(7, 6, 5, 4, 3, 2, 1, 0)
    stub.lose(0)
    efml.init()
    unknown = efml.standing(0)
    stub.restore(0)
    efml.identity(0)
    stub.lose(0)

    assert (unknown, efml.standing(0)) == (CardStanding.HERE, CardStanding.LOST)


def test_an_address_is_forgotten_with_the_list_that_it_is_of(stub: EfmlStub, efml: Efml) -> None:
    efml.identity(0)
    stub.order(1, 0)
    stub.order_of_handles(1, 0)
    stub.lose(0)
    efml.init()

    assert (efml.standing(0), efml.standing(1)) == (CardStanding.HERE, CardStanding.LOST)


def test_what_the_index_family_can_not_tell_of_a_card_the_handle_tells(stub: EfmlStub, efml: Efml) -> None:
    for symbol in ("EfmlGetDevMem", "EfmlGetPcieLinkInfo", "EfmlGetDevTempV2", "EfmlGetDevTemp"):
        stub.unsupported(symbol, slot=1)

    assert efml.memory(1) == EfmlMemory(42976 * MIB, 1129 * MIB)
    assert efml.link(1).speed is None
    assert efml.temperature(1).memory is None
    assert efml.link(0).speed == 5


def test_an_error_of_the_index_family_is_not_hidden_by_the_handle(stub: EfmlStub, efml: Efml) -> None:
    stub.fail("EfmlGetDevMem", Code.FAIL, slot=1)

    assert answer(lambda: efml.memory(1)).code == Code.FAIL


def test_memory_is_told_by_the_older_structure_where_the_newer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, efml = started(tmp_path, monkeypatch, without=[INDICES])
    stub.unsupported("efmlDeviceGetMemoryInfo_v2")

    assert efml.memory(1).total == 42976 * MIB


def test_rma_without_details_is_its_flag(stub: EfmlStub, efml: Efml) -> None:
    stub.rma(1, flagged=True, double=2)
    stub.unsupported("EfmlGetDevRmaDetails")

    assert efml.rma(1) == Rma(True, True, None)


# Events


def test_events_are_the_cards_that_they_came_from(stub: EfmlStub, efml: Efml) -> None:
    stub.event(2, EventType.RESET_START, 5, "reset begins")
    stub.event(3, EventType.EID, 17)
    stub.event(2, EventType.RESET_FINISH, 6)

    assert efml.events(2) == (
        EfmlEvent(2, EventType.RESET_START, 5, "reset begins"),
        EfmlEvent(2, EventType.RESET_FINISH, 6, ""),
    )
    assert efml.events(3) == (EfmlEvent(3, EventType.EID, 17, ""),)
    assert efml.events(2) == efml.events(0) == ()


def test_an_event_of_no_type_with_a_message_is_one(stub: EfmlStub, efml: Efml) -> None:
    stub.event(0, EventType.UNKNOWN, 0, "something")
    stub.event(1, EventType.UNKNOWN)

    assert [it.message for it in efml.events(0)] == ["something"]
    assert efml.events(1) == ()


def test_a_card_that_tells_without_end_does_not_hold_us(
    stub: EfmlStub, efml: Efml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "MAX_EVENTS", 3)
    for number in range(5):
        stub.event(0, EventType.EID, number)

    assert [it.id for it in efml.events(0)] == [0, 1, 2]
    assert [it.id for it in efml.events(0)] == [3, 4]


def test_a_build_without_events_of_cards_has_those_of_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, efml = started(tmp_path, monkeypatch, without=[NEWER])
    stub.event(2, EventType.SUSPEND, 1)

    assert efml.events_of_any_card() == (EfmlEvent(None, EventType.SUSPEND, 1, ""),)
    assert efml.events_of_any_card() == ()


def test_an_error_while_events_are_asked_for_is_one(stub: EfmlStub, efml: Efml) -> None:
    stub.fail("EfmlGetEventV2", Code.FAIL, slot=1)

    assert answer(lambda: efml.events(1)).code == Code.FAIL


# Errors


def test_an_error_names_call_card_number_and_words(stub: EfmlStub, efml: Efml) -> None:
    stub.fail("EfmlGetDevUuid", Code.NOT_SUPPORTED, slot=1)
    stub.fail("EfmlGetDevSn", 99, slot=1)
    stub.fail("EfmlGetDevPn", Code.FAIL, slot=1)
    stub.fail("efmlDeviceGetMemoryInfo_v2", HandleCode.IN_USE, slot=1)

    assert str(answer(lambda: efml.uuid(1))) == "EfmlGetDevUuid(1) answers 3, Error, not supported"
    assert str(answer(lambda: efml.serial(1))) == "EfmlGetDevSn(1) answers 99, no text"
    assert str(answer(lambda: efml.part_number(1))) == "EfmlGetDevPn(1) answers 254, fail"
    assert str(answer(lambda: efml.standing(1))) == "efmlDeviceGetMemoryInfo_v2() answers 19, in use"


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("EfmlGetDevUuid", 3, "unsupported"),
        ("EfmlGetDevUuid", 9, "unsupported"),
        ("EfmlGetDevUuid", 13, "unsupported"),
        ("EfmlGetDevUuid", 12, "gone"),
        ("EfmlGetDevUuid", 15, None),
        ("EfmlGetDevUuid", 16, None),
        ("efmlDeviceGetName", 3, "unsupported"),
        ("efmlDeviceGetName", 13, "unsupported"),
        ("efmlDeviceGetName", 26, "unsupported"),
        ("efmlDeviceGetName", 9, None),
        ("efmlDeviceGetName", 12, None),
        ("efmlDeviceGetName", 6, "gone"),
        ("efmlDeviceGetName", 15, "gone"),
        ("efmlDeviceGetName", 28, "gone"),
        ("efmlDeviceGetName", 16, "reset_required"),
    ],
)
def test_what_a_number_says_depends_on_the_family(call: str, code: int, said: str | None) -> None:
    error = EfmlError(call, code)

    answers = {it for it in ("unsupported", "gone", "reset_required") if getattr(error, it)}

    assert answers == ({said} if said else set())


def test_an_index_without_a_card_is_an_error(efml: Efml) -> None:
    assert answer(lambda: efml.uuid(8)).code == Code.INVALID_ARGUMENT


# Threads


def test_calls_come_one_after_the_other(stub: EfmlStub, efml: Efml) -> None:
    stub.trace()
    stub.latency("EfmlGetDevUuid", 0.002)
    stub.latency("efmlDeviceGetMemoryInfo_v2", 0.002)
    both = threading.Barrier(4)

    def ask(card: int) -> None:
        both.wait()
        for _ in range(5):
            efml.uuid(card)
            efml.standing(card)

    threads = [threading.Thread(target=ask, args=(card,)) for card in range(4)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()

    assert stub.calls("EfmlGetDevUuid") == 20
    assert stub.overlaps() == 0
