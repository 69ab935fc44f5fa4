"""A real driver's answers: the stub gives them, and the card is read, watched and labelled by them.

recorded_driver.json has what NVML of one H200 with driver 580.159.04 answered, and with which codes; its keys
`load`, `mps` and those of pid namespaces have what it tells of processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvidia_node import given
from nvml_stub import XID, NvmlStub

from agent.vendor_api.agent import Device, DeviceNode
from agent.vendors.nvidia.agent.labels import labels
from agent.vendors.nvidia.agent.options import Options
from agent.vendors.nvidia.child.backend import NvmlBackend

pytest_plugins = ["nvml_fixtures"]

RECORDED: Mapping[str, Any] = json.loads((Path(__file__).parent / "recorded_driver.json").read_text())
IDLE = RECORDED["idle"]
DEVICE = Device(
    **{
        **RECORDED["device"],
        "paths": tuple(RECORDED["device"]["paths"]),
        "links": tuple(RECORDED["device"]["links"]),
    }
)
#: What the stub has of its own: who the card is, its brand, its MIG profiles.
OWN = {"nvmlDeviceGetUUID", "nvmlDeviceGetBrand", "nvmlDeviceGetGpuInstanceProfileInfo"}
#: What is not asked of a card alone.
APART = {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetTopologyCommonAncestor"}


def value(name: str) -> Any:
    return IDLE[name]["value"]


@pytest.fixture
def card(stub: NvmlStub, settings: Mapping[str, Any], tmp_path: Path) -> NvmlStub:
    """The stub and the folders of the settings as the node of the recording."""
    pci = value("nvmlDeviceGetPciInfo")
    stub.cards(1)
    stub.driver(RECORDED["driver"])
    stub.product(0, value("nvmlDeviceGetName"))
    stub.bus_id(0, pci["busId"])
    stub.pci_ids(0, pci["pciDeviceId"], pci["pciSubSystemId"])
    stub.memory(0, value("nvmlDeviceGetMemoryInfo")["total"])
    stub.energy(0, DEVICE.counters["energy-mj"])
    stub.event_types(RECORDED["events"]["supported"])
    stub.power(0, value("nvmlDeviceGetPowerUsage"))
    stub.temperature(0, value("nvmlDeviceGetTemperature(0)"))
    clocks = [value(f"nvmlDeviceGetClockInfo({clock})") for clock in range(4)]
    stub.clocks(0, graphics=clocks[0], sm=clocks[1], memory=clocks[2], video=clocks[3])
    stub.no_nvlink()
    assert DEVICE.pci is not None
    real = tmp_path / "sys/devices" / DEVICE.attributes["pcie-root"] / DEVICE.pci
    real.mkdir(parents=True)
    (real / "class").write_text(f"{DEVICE.attributes['pci-class']}\n")
    (real / "numa_node").write_text("-1\n")
    link = tmp_path / "sys/bus/pci/devices" / DEVICE.pci
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    for node in (*DEVICE.attributes["control-nodes"].split(","), *DEVICE.paths):
        # What the CDI library takes for a device node and takes no privileges.
        os.mkfifo(tmp_path / "driver" / node.lstrip("/"))
    return stub


def test_the_card_is_read_as_it_was_on_its_node(card: NvmlStub, backend: NvmlBackend) -> None:
    (found,) = backend.discover()

    assert found.attributes == DEVICE.attributes
    assert (found.pci, found.numa, found.memory, found.model) == (
        DEVICE.pci,
        DEVICE.numa,
        DEVICE.memory,
        DEVICE.model,
    )
    assert (found.paths, found.counters, found.fault, found.recovery_due) == (
        DEVICE.paths,
        DEVICE.counters,
        None,
        False,
    )
    assert backend.links(found.uuid) == []


def answered(name: str, *arguments: Any) -> Mapping[str, Any]:
    """What the library says, as the recording writes it."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    try:
        found = getattr(pynvml, name)(handle, *arguments)
    except pynvml.NVMLError as error:
        return {"code": error.value}
    fields = vars(type(found)).get("_fields_")
    if fields is not None:
        found = {key: getattr(found, key) for key, *_ in fields}
    return {"value": list(found) if isinstance(found, tuple) else getattr(found, "value", found)}


def split(call: str) -> tuple[str, tuple[int, ...]]:
    """A recorded call: `nvmlDeviceGetNvLinkState(0)`."""
    name, _, rest = call.partition("(")
    return name, tuple(int(it) for it in rest.rstrip(")").split(",") if it)


def known(call: str) -> bool:
    """Whether the stub has it, and a card by itself can be asked."""
    name, arguments = split(call)
    symbols = NvmlStub.symbols()
    return (
        name not in OWN | APART
        and len(arguments) < 2
        and any(symbol in symbols for symbol in (name, f"{name}_v2", f"{name}_v3"))
    )


@pytest.mark.parametrize("call", [it for it in IDLE if known(it)])
def test_the_stub_answers_as_the_driver_did(card: NvmlStub, backend: NvmlBackend, call: str) -> None:
    name, arguments = split(call)
    told = answered(name, *arguments)

    if name == "nvmlDeviceGetMemoryInfo":  # what is free is each moment's own
        assert told["value"]["total"] == value(name)["total"]
    elif name == "nvmlDeviceGetTotalEnergyConsumption":
        assert told.keys() == IDLE[call].keys()
    elif name.startswith("nvmlDeviceGetPciInfo"):
        both = {key: (it, told["value"][key]) for key, it in value(name).items()}
        assert all(both[key][0] == both[key][1] for key in ("busId", "pciDeviceId", "pciSubSystemId"))
    else:
        assert told == IDLE[call]


def test_a_card_has_no_distance_to_itself(card: NvmlStub, backend: NvmlBackend) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    assert IDLE["nvmlDeviceGetTopologyCommonAncestor()"] == answered(
        "nvmlDeviceGetTopologyCommonAncestor", handle
    )


def test_a_second_card_is_an_invalid_argument_and_no_end_of_the_first(
    card: NvmlStub, backend: NvmlBackend
) -> None:
    assert IDLE["nvmlDeviceGetHandleByIndex(1)"] == {"code": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    assert len(backend.discover()) == 1


def test_the_driver_takes_the_events_that_are_asked_for(
    card: NvmlStub, backend: NvmlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted, asked = RECORDED["events"]["register"], []
    register = pynvml.nvmlDeviceRegisterEvents

    def registering(handle: Any, types: int, events: Any) -> Any:
        asked.append(types)
        return register(handle, types, events)

    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", registering)
    backend.discover()

    assert backend.health_events(0.0) == []
    (types,) = asked
    assert types & pynvml.nvmlEventTypeXidCriticalError
    assert all(accepted[f"{1 << bit:#x}"] == 0 for bit in range(64) if types & 1 << bit)
    assert types & RECORDED["events"]["supported"] == types


@pytest.mark.parametrize("checks", ["", "all"])
def test_errors_of_a_program_count_where_they_are_asked_to_and_nowhere_else(
    card: NvmlStub, settings: Mapping[str, Any], checks: str
) -> None:
    backend = NvmlBackend({**settings, "enableHealthChecks": checks})
    backend.open()
    backend.discover()
    backend.health_events(0.0)
    said = {}
    for act in RECORDED["xids"]:
        for event in act["heard"]:
            assert event["type"] == XID
            card.event(0, event["type"], event["data"], event["gi"], event["ci"])
            said[act["program"]] = [it.fault.reason for it in backend.health_events(1.0) if it.fault]
    backend.close()

    wanted = {"oob": 31, "oobread": 31, "trap": 43, "misaligned": 13, "shared": 13}
    assert said == {name: [f"xid-{code}"] if checks else [] for name, code in wanted.items()}


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("plain", {}),
        ("sliced", {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}),
        ("mixed", {"migStrategy": "mixed"}),
    ],
)
def test_the_labels_are_those_that_gpu_feature_discovery_gave_the_node(
    case: str, settings: Mapping[str, Any]
) -> None:
    recorded = {
        key: text for key, text in RECORDED["labels"][case].items() if key != "nvidia.com/gpu.machine"
    }

    assert labels(Options.read(settings), (), [DEVICE]) == recorded


def test_a_container_gets_what_nvidias_plugin_gave_it_on_that_node() -> None:
    (recorded,) = RECORDED["plugin"]["plain"]

    edits = given({"passDeviceSpecs": True}, [DEVICE])

    assert dict(edits.env) == recorded["env"]
    assert edits.device_nodes == tuple(
        DeviceNode(inside, host, how) for host, inside, how in recorded["devices"]
    )
    assert dict(given({}, [DEVICE]).env) == RECORDED["plugin"]["sliced"][0]["env"]


def test_the_version_of_cuda_is_told_without_the_drivers_libcuda(
    card: NvmlStub, backend: NvmlBackend
) -> None:
    """As in a container that has the driver's root mounted and nothing where its loader looks."""
    card.fail("nvmlSystemGetCudaDriverVersion_v2", pynvml.NVML_ERROR_NOT_FOUND)
    backend.close()
    backend.open()

    (found,) = backend.discover()

    assert found.attributes["cuda-version"] == DEVICE.attributes["cuda-version"]


def test_the_card_that_the_stub_is_without_a_script_is_an_h100_as_the_driver_tells_it(
    backend: NvmlBackend,
) -> None:
    recorded, pci = RECORDED["h100"], pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByIndex(0))

    assert answered("nvmlDeviceGetName") == recorded["nvmlDeviceGetName"]
    assert answered("nvmlDeviceGetCudaComputeCapability") == recorded["nvmlDeviceGetCudaComputeCapability"]
    total = recorded["nvmlDeviceGetMemoryInfo"]["value"]["total"]
    assert answered("nvmlDeviceGetMemoryInfo")["value"]["total"] == total
    assert (pci.pciDeviceId, pci.pciSubSystemId) == (recorded["pciDeviceId"], recorded["pciSubSystemId"])
    for number in (0, 1, 2, 3, 7, 9):
        profile = answered("nvmlDeviceGetGpuInstanceProfileInfo", number)["value"]
        wanted = recorded["gpuInstanceProfiles"][str(number)]["value"]
        same = ("id", "sliceCount", "instanceCount", "memorySizeMB")
        assert [profile[key] for key in same] == [wanted[key] for key in same]
