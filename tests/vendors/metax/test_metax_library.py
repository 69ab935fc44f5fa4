"""Rules of finding, starting and calling MXSML."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mxsml_stub import EVENTS, REINIT, SGPU, MxsmlStub
from support.library_signs import library_signs

from agent.isolation.presence import absence
from agent.vendor_api.agent import BackendUnavailable
from agent.vendors.metax.child import abi, library
from agent.vendors.metax.child.abi import Code, PciEventType, SchedClass, TopologyLevel, VirtMode
from agent.vendors.metax.child.library import Mxsml, MxsmlError
from agent.vendors.metax.child.values import (
    EccErrors,
    LinkEnd,
    MxsmlIdentity,
    MxsmlMemory,
    PciEvent,
    Sgpu,
    SgpuQuota,
    UnavailableReason,
)
from agent.vendors.metax.plugin import register_backend
from agent.vendors.metax.shared import library_places, sysfs

pytest_plugins = ["mxsml_fixtures"]

ROOT = Path(__file__).parents[3]

#: Size and the offsets of fields, of the LP64 model, as independent ports of the library have them.
LAYOUTS = [
    (
        abi.DeviceInfo,
        184,
        {"bdfId": 8, "gpuId": 40, "nodeId": 44, "uuid": 48, "brand": 144, "deviceName": 152},
    ),
    (abi.DeviceIds, 516, {"deviceId": 4}),
    (abi.MemoryInfo, 48, {"vramTotal": 16, "vramUse": 24}),
    (abi.UnavailableReasonInfo, 68, {"unavailableReason": 4}),
    (abi.EccErrorCount, 20, {"dramUE": 12}),
    (abi.PciEventInfo, 92, {"count": 4, "firstTime": 8, "name": 28}),
    (abi.MetaXLinkRemoteInfo, 36, {"bdfId": 4}),
    (abi.DieMetaXLinkRemoteInfo, 40, {"dieId": 36}),
    (abi.SgpuInfo, 124, {"vramQuota": 8, "computeQuota": 16, "minor": 20, "uuid": 28}),
    (abi.SgpuAvailableQuota, 12, {"vramQuota": 4, "computeQuota": 8}),
    (abi.Event, 1032, {"type": 4, "eventData": 8}),
]


@pytest.mark.parametrize(("struct", "size", "offsets"), LAYOUTS)
def test_a_structure_lies_in_memory_as_the_library_has_it(
    struct: type[ctypes.Structure], size: int, offsets: dict[str, int]
) -> None:
    assert ctypes.sizeof(struct) == size
    assert {name: getattr(struct, name).offset for name in offsets} == offsets


def answer(call: Callable[[], Any]) -> MxsmlError:
    with pytest.raises(MxsmlError) as caught:
        call()
    return caught.value


# Finding it


def unavailable(settings: dict[str, str]) -> BackendUnavailable:
    with pytest.raises(BackendUnavailable) as caught:
        library.start(settings)
    return caught.value


def put(stub: MxsmlStub, folder: Path) -> Path:
    """Put the stub into a folder, as packages do: the file has a version, the name is a link."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(stub.library, folder / "libmxsml.so.2.3.1")
    (folder / library_places.SONAME).symlink_to("libmxsml.so.2.3.1")
    return folder


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose loader and folders know no MXSML, as is this one with the stub."""
    monkeypatch.setattr(library_places, "SONAME", "libnowhere.so")


def test_a_file_is_loaded(stub: MxsmlStub) -> None:
    assert library.start({"library": str(stub.library)}).device_count() == 8


@pytest.mark.parametrize("folder", [".", "lib", *(it.lstrip("/") for it in library_places.FOLDERS)])
def test_a_directory_is_searched_as_itself_and_as_a_root(
    stub: MxsmlStub, tmp_path: Path, folder: str
) -> None:
    put(stub, tmp_path / "root" / folder)

    assert library.start({"library": str(tmp_path / "root")}).device_count() == 8


def test_the_loaders_own_path_comes_first(stub: MxsmlStub, tmp_path: Path) -> None:
    script = (
        "from agent.vendors.metax.child import library\n"
        "from agent.vendors.metax.shared import library_places\n"
        "library_places.FOLDERS = (); print(library.start({}).device_count())"
    )

    done = stub.run(script, LD_LIBRARY_PATH=str(put(stub, tmp_path / "lib")))

    assert (done.stdout, done.stderr) == ("8\n", "")
    assert library_places.searched({})[0] == library_places.SONAME


def test_the_drivers_folders_follow_in_the_vendors_order_then_below_the_hosts_root() -> None:
    own = [f"{folder}/libmxsml.so" for folder in ("/opt/mxdriver/lib", "/opt/maca/lib", "/opt/mxn100/lib")]

    searched = library_places.searched({})

    assert searched[1:] == [*own, *(f"/driver-root{name}" for name in own)]
    assert library_places.searched({"containerDriverRoot": "/"})[1:] == own


def test_the_hosts_root_is_searched_where_the_settings_say(stub: MxsmlStub, tmp_path: Path) -> None:
    put(stub, tmp_path / "host/opt/maca/lib")

    assert library.start({"containerDriverRoot": str(tmp_path / "host")}).device_count() == 8


def test_a_file_that_can_not_be_loaded_is_passed_over(stub: MxsmlStub, tmp_path: Path) -> None:
    put(stub, tmp_path / "lib")
    (tmp_path / library_places.SONAME).write_text("no library")

    assert library.start({"library": str(tmp_path)}).device_count() == 8


def test_every_place_without_the_library_is_named(nowhere: None) -> None:
    said = unavailable({"containerDriverRoot": "/host"})

    assert said.reason == "library-not-found"
    assert "libnowhere.so: cannot open" in said.message
    assert "no libnowhere.so in /opt/mxdriver/lib or /opt/maca/lib or /opt/mxn100/lib or /host/opt/" in str(
        said
    )
    assert said.message.endswith(library.REMEDY)


def test_a_missing_file_is_named_with_what_would_work(tmp_path: Path) -> None:
    said = unavailable({"library": str(tmp_path / "nowhere.so")})

    assert said.reason == "library-not-found"
    assert f"{tmp_path}/nowhere.so: cannot open" in said.message
    assert said.message.endswith(library.REMEDY)


@pytest.mark.parametrize("beside", [(), ("other/libmxsml.so",)])
def test_a_file_that_is_there_and_no_library_is_told_from_none(
    stub: MxsmlStub, tmp_path: Path, beside: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "half/libmxsml.so"
    half.parent.mkdir()
    half.write_bytes(Path(stub.library).read_bytes()[:100])
    monkeypatch.setattr(
        library_places, "searched", lambda _: [str(half), *(str(tmp_path / it) for it in beside)]
    )

    said = unavailable({})

    assert said.reason == "library-unusable"
    assert f"{half}: cannot read file data" in said.message
    assert said.message.endswith(library.REMEDY)


def test_a_library_that_the_config_names_is_searched_alone(tmp_path: Path) -> None:
    (tmp_path / "lib.so").symlink_to("nowhere")

    assert library_places.searched({"library": f"{tmp_path}/lib.so"}) == [f"{tmp_path}/lib.so"]


# Signs: a process is started wherever it would load the library


WAYS = {
    "a file": ("libany.so", {"library": "{}/libany.so"}, ""),
    **{
        f"a directory, {folder}": (f"{folder}/libmxsml.so", {"library": "{}"}, "")
        for folder in (".", "lib", *(it.lstrip("/") for it in library_places.FOLDERS))
    },
    "the host's root": ("opt/maca/lib/libmxsml.so", {"containerDriverRoot": "{}"}, ""),
    "the loader's path": ("lib/libmxsml.so", {}, "{}/lib"),
    "the second of the loader's path": ("lib/libmxsml.so", {}, "/nonexistent:{}/lib"),
    "the current directory": ("libmxsml.so", {}, ":/nonexistent"),
}


@pytest.mark.parametrize(("file", "settings", "path"), WAYS.values(), ids=WAYS)
def test_the_library_is_a_sign_of_the_vendor_whichever_way_it_is_found(
    file: str, settings: dict[str, str], path: str, stub: MxsmlStub, tmp_path: Path
) -> None:
    def here(text: str) -> str:
        return text.replace("{}", str(tmp_path))

    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(stub.library, tmp_path / file)
    environment = {**stub.environment, **({"LD_LIBRARY_PATH": here(path)} if path else {})}

    found = library_signs("metax", {key: here(it) for key, it in settings.items()}, environment, cwd=tmp_path)

    assert found == (True, "")


def test_without_a_library_nothing_is_started() -> None:
    found = library_signs("metax", {}, {}, SONAME="libnowhere.so")

    assert not found.loaded
    assert "here is none of libnowhere.so, /opt/mxdriver/lib/libnowhere.so, " in found.absence


def test_the_driver_is_a_sign_where_it_stands_in_for_its_library(tmp_path: Path) -> None:
    vendor = register_backend({"sysfs": str(tmp_path), "containerDriverRoot": str(tmp_path)})
    (tmp_path / sysfs.MODULE).mkdir(parents=True)

    assert vendor.host.signs is not None
    assert str(tmp_path / sysfs.MODULE) in vendor.host.signs.driver
    assert sysfs.driver_loaded(tmp_path)
    assert not absence(replace(vendor, host=replace(vendor.host, libraries=None)))


# Starting it


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.LOAD_DLL_FAILURE, "driver-not-loaded"),
        (Code.NO_DEVICE, "driver-not-loaded"),
        (Code.PERMISSION_DENIED, "no-permission"),
        (Code.OPEN_DEVICE_FILE_FAILURE, "no-permission"),
        (Code.FAILURE, "mxsml-init"),
    ],
)
def test_a_refused_start_is_named_and_works_once_the_cause_is_gone(
    stub: MxsmlStub, code: Code, reason: str
) -> None:
    stub.fail("InitWithFlags", code)
    said = unavailable(stub.settings)
    stub.clear()

    assert said.reason == reason
    assert library.start(stub.settings).device_count() == 8


def test_cards_that_come_are_seen_after_a_new_look(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.cards(9)
    before = mxsml.devices()
    mxsml.init()

    assert (len(before), len(mxsml.devices())) == (8, 9)


def test_a_library_that_can_not_look_anew_is_started_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = MxsmlStub(tmp_path, without=[REINIT])
    monkeypatch.setenv("XPU_MXSML_STUB", str(old.control))

    mxsml = library.start(old.settings)

    assert not mxsml.has("InitWithFlags")
    assert mxsml.devices() == tuple(range(8))


# Calling it

CARD = MxsmlStub.uuid(1)
TELLS: list[tuple[str, Callable[[Mxsml], Any], Any]] = [
    (
        "identity",
        lambda it: it.identity(1),
        MxsmlIdentity(1, "0000:21:00.0", CARD, "MXC500", 2, VirtMode.NONE, 0),
    ),
    ("limited_devices", lambda it: it.limited_devices(), (2,)),
    ("limited_identity", lambda it: it.limited_identity(2).uuid, MxsmlStub.uuid(2)),
    ("die_count", lambda it: it.die_count(1), 2),
    ("version", lambda it: it.version(1), "3.6.11"),
    ("maca_version", lambda it: it.maca_version(), "3.5.3.18"),
    ("memory", lambda it: it.memory(0), MxsmlMemory(65536 * 1024, 858 * 1024)),
    ("memory of a die", lambda it: it.memory(1, die=1), MxsmlMemory(32768 * 1024, 429 * 1024)),
    ("utilization", lambda it: it.utilization(1), 77),
    ("state", lambda it: (it.state(0), it.state(1)), (True, False)),
    ("unavailable", lambda it: it.unavailable(1), UnavailableReason(0, "")),
    ("unavailable die", lambda it: it.unavailable(1, die=1), UnavailableReason(9, "hbm is broken")),
    ("ecc", lambda it: it.ecc(0), EccErrors(1, 3, 2, 4, 5)),
    ("ecc of a die", lambda it: it.ecc(1, die=1), EccErrors(0, 8, 0, 0, 0)),
    (
        "pci_events",
        lambda it: it.pci_events(1, PciEventType.DBE),
        (PciEvent(3, 2, "2026-01-01 00:00:00", "completion timeout"),),
    ),
    ("mmio_state", lambda it: it.mmio_state(1), 1),
    ("topology", lambda it: it.topology(0, 1), TopologyLevel.METAX_LINK),
    ("metaxlink_remote", lambda it: it.metaxlink_remote(1, 0), LinkEnd(0, "0000:20:00.0")),
    ("metaxlink_remote of a die", lambda it: it.metaxlink_remote(1, 1, die=1), LinkEnd(2, "0000:22:00.0", 1)),
    ("metaxlink_remote of nobody", lambda it: it.metaxlink_remote(1, 6), None),
    ("sgpu_enabled", lambda it: (it.sgpu_enabled(0), it.sgpu_enabled(1)), (True, False)),
    ("sgpu_count", lambda it: it.sgpu_count(0), 1),
    (
        "sgpu",
        lambda it: it.sgpu(0, 0),
        Sgpu(0, 0, "GPU-4d580001-0000-0000-0000-000000000001", 160, 1024, 20),
    ),
    ("sgpu_quota", lambda it: it.sgpu_quota(0), SgpuQuota(65536, 64512, 80)),
    ("sched_class", lambda it: it.sched_class(0), SchedClass.BURST_SHARE),
    ("sgpu_alias", lambda it: it.sgpu_alias(0, 0), "by hand"),
    ("sgpu_annotations_id", lambda it: it.sgpu_annotations_id(0, 0), f"{CARD}-12:2"),
]


@pytest.mark.parametrize(("name", "call", "expected"), TELLS, ids=[name for name, _, _ in TELLS])
def test_what_the_library_tells_is_a_plain_value(
    stub: MxsmlStub, mxsml: Mxsml, name: str, call: Callable[[Mxsml], Any], expected: Any
) -> None:
    stub.dies(1)
    stub.limited(2)
    stub.utilization(1, 77)
    stub.state(1, available=False)
    stub.unavailable(1, 9, "hbm is broken", die=1)
    stub.ecc(0, corrected=(1, 2), sram=3, dram=4, retired=5)
    stub.ecc(1, die=1, sram=8)
    stub.pci_event(1, PciEventType.DBE, 2, bit=3, name="completion timeout")
    stub.make_slice(0, 1024, 20, "by hand", f"{CARD}-12:2")
    stub.sched_class(0, SchedClass.BURST_SHARE)

    assert call(mxsml) == expected


def test_slices_are_made_marked_and_removed(stub: MxsmlStub, mxsml: Mxsml) -> None:
    mxsml.set_sgpu_enabled(0, True)
    mxsml.set_sched_class(0, SchedClass.FIXED_SHARE)
    number = mxsml.create_sgpu(0, 1024, 10)
    mxsml.set_sgpu_alias(0, number, "xpu-0123456789abcdef")
    [made] = stub.slices()
    mxsml.remove_sgpu(0, number)

    assert (made.vram, made.compute, made.alias) == (1024, 10, "xpu-0123456789abcdef")
    assert stub.slices() == []
    assert stub.hardware().classes == {0: 1}


def test_physical_functions_count_from_100_and_know_their_virtual_ones(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.physical(0, functions=2)
    stub.physical(1, functions=1)
    mxsml.init()

    assert mxsml.devices() == (*range(9), 100, 101)
    assert [mxsml.virtual_devices(pf) for pf in (100, 101)] == [(0, 1), (2,)]
    assert mxsml.identity(101).mode == VirtMode.PF
    assert mxsml.identity(2).mode == VirtMode.VF


def test_a_library_without_physical_functions_has_none(mxsml: Mxsml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mxsml, "has", lambda name: name != "GetPfDeviceCount")

    assert mxsml.pf_device_count() == 0


def test_slices_are_found_where_their_numbers_have_gaps(stub: MxsmlStub, mxsml: Mxsml) -> None:
    for _ in range(16):
        stub.make_slice(0, 128, 1)
    for number in (0, 7, 14):
        stub.vanish(0, number)

    assert [it.id for it in mxsml.sgpus(0)] == [*range(1, 7), *range(8, 14), 15]


def test_more_slices_than_a_card_can_have_are_not_believed(mxsml: Mxsml, monkeypatch: Any) -> None:
    monkeypatch.setattr(mxsml, "sgpu_count", lambda card: 99)
    monkeypatch.setattr(mxsml, "sgpu", lambda card, number: number)

    assert answer(lambda: mxsml.sgpus(0)).code == Code.FAILURE


def test_a_card_without_slices_has_none(stub: MxsmlStub, mxsml: Mxsml) -> None:
    assert mxsml.sgpus(0) == ()


def test_no_slices_that_are_an_error_are_told_as_one(stub: MxsmlStub, mxsml: Mxsml) -> None:
    """The library counts 0 slices also where it cannot read them."""
    stub.make_slice(0, 1024, 10)
    stub.lose(0)

    assert mxsml.sgpu_count(0) == 0
    assert answer(lambda: mxsml.sgpus(0)).gone


def test_slices_that_are_counted_and_do_not_answer_are_an_error(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.make_slice(0, 1024, 10)
    stub.fail("GetSgpuInfo", Code.OPERATION_NOT_SUPPORT)

    assert answer(lambda: mxsml.sgpus(0)).code == Code.OPERATION_NOT_SUPPORT


def test_an_error_names_the_call_its_numbers_the_code_and_the_librarys_words(mxsml: Mxsml) -> None:
    error = answer(lambda: mxsml.sgpu(0, 5))

    assert (error.call, error.code, error.text) == ("mxSmlGetSgpuInfo", 3, "Operation not support")
    assert str(error) == "mxSmlGetSgpuInfo(0, 5) answers 3, Operation not support"


def test_a_code_that_the_library_has_no_words_for_is_told_in_ours(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.fail("GetDeviceState", Code.OPEN_DEVICE_FILE_FAILURE)
    known = answer(lambda: mxsml.state(0))
    stub.fail("GetDeviceState", 77)

    assert known.text == "the device's file cannot be opened"
    assert str(answer(lambda: mxsml.state(0))) == "mxSmlGetDeviceState(0) answers 77, no text"


@pytest.mark.parametrize(
    ("code", "number", "told"),
    [
        (Code.SYSFS_ERROR, errno.EIO, errno.EIO),
        (Code.SYSFS_WRITE_ERROR, errno.EROFS, errno.EROFS),
        (Code.FAILURE, errno.EIO, 0),
    ],
)
def test_the_systems_number_is_told_of_sysfs_alone(
    stub: MxsmlStub, mxsml: Mxsml, code: Code, number: int, told: int
) -> None:
    stub.fail("GetDeviceState", code, errno=number)

    error = answer(lambda: mxsml.state(0))

    assert error.errno == told
    assert (os.strerror(number) in str(error)) == bool(told)


@pytest.mark.parametrize(
    ("code", "number", "says"),
    [
        (Code.INVALID_DEVICE_ID, 0, "gone"),
        (Code.NO_DEVICE, 0, "gone"),
        (Code.BUSY_DEVICE, 0, None),
        (Code.SYSFS_WRITE_ERROR, errno.EBUSY, None),
        (Code.SYSFS_WRITE_ERROR, errno.EROFS, "read_only"),
        (Code.SYSFS_WRITE_ERROR, errno.EINVAL, None),
        (Code.SYSFS_ERROR, errno.EBUSY, None),
    ],
)
def test_an_error_says_what_it_means_for_the_card(code: Code, number: int, says: str | None) -> None:
    error = MxsmlError("mxSmlRemoveSgpu", code, "", number)

    meanings = [name for name in ("gone", "read_only") if getattr(error, name)]

    assert meanings == ([says] if says else [])


def test_a_function_that_this_build_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = MxsmlStub(tmp_path, without=[EVENTS, SGPU])
    monkeypatch.setenv("XPU_MXSML_STUB", str(old.control))
    mxsml = library.start(old.settings)

    error = answer(lambda: mxsml.create_sgpu(0, 128, 1))

    assert not mxsml.has("EventSetCreate")
    assert not mxsml.has("CreateSgpu")
    assert mxsml.has("GetDeviceInfo")
    assert error.code == Code.FUNCTION_NOT_FOUND
    assert str(error) == "mxSmlCreateSgpu() answers 999, this library has no such function"


def test_a_text_gets_the_room_that_it_asks_for(stub: MxsmlStub, mxsml: Mxsml, monkeypatch: Any) -> None:
    monkeypatch.setattr(abi, "UUID_SIZE", 4)
    stub.make_slice(0, 128, 1, "thirty-one characters of alias.")

    assert mxsml.sgpu_alias(0, 0) == "thirty-one characters of alias."


def test_a_list_gets_the_room_that_it_asks_for(stub: MxsmlStub, mxsml: Mxsml) -> None:
    for bit in range(abi.MAX_PCI_EVENTS + 3):
        stub.pci_event(0, PciEventType.AER_CE, 1, bit=bit)

    assert [it.bit for it in mxsml.pci_events(0, PciEventType.AER_CE)] == list(range(abi.MAX_PCI_EVENTS + 3))


@pytest.mark.parametrize("call", [lambda it: it.sgpu_alias(0, 0), lambda it: it.pci_events(0, 0)])
def test_a_library_that_asks_for_no_more_room_is_not_asked_again(
    stub: MxsmlStub, mxsml: Mxsml, call: Callable[[Mxsml], Any]
) -> None:
    stub.make_slice(0, 128, 1)
    for symbol in ("GetSgpuAlias", "GetPciEventInfo"):
        stub.fail(symbol, Code.INSUFFICIENT_SIZE)

    assert answer(lambda: call(mxsml)).code == Code.INSUFFICIENT_SIZE
