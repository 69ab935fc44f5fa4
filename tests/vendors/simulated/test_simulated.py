"""Rules of the simulated vendor, and the vendor contract held against it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from agent.core.model import VendorState
from agent.daemon.vendor_plugins import load
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_supervisor import ProcessTiming, VendorSupervisor
from agent.scheduler_api import findings as kinds
from agent.testing import agent_half, conformance
from agent.testing.bench import Bench
from agent.testing.conformance import CHECKS, Finding, check_vendor
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    DeviceNode,
    Distance,
    Format,
    HealthEvent,
    Mount,
    NodeFacts,
    NodeListing,
    NotShown,
    Offers,
    Partition,
    Proof,
    Request,
    Settings,
    Slices,
    State,
    Vendor,
    VendorCheck,
    VendorLook,
)
from agent.vendors.simulated.agent.container_edits import container_edits
from agent.vendors.simulated.child.backend import SimulatedBackend
from agent.vendors.simulated.child.scenario import Scenario, cards
from agent.vendors.simulated.child.slices import SliceFile as SlicesOfFile


def simulated(**settings: Any) -> Vendor:
    vendor = next(it.vendor for it in load({"simulated": settings}, {"simulated"}) if it.name == "simulated")
    assert vendor is not None
    return vendor


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path / "scenario.json", devices=4)


def test_neighbours_are_below_one_pcie_root_and_others_below_others() -> None:
    roots = [it["attributes"]["pcie-root"] for it in cards(512)]

    assert roots[:4] == ["pci0000:10", "pci0000:10", "pci0000:11", "pci0000:11"]
    assert all(re.fullmatch(r"pci\d{4}:[0-9a-f]{2}", it) for it in roots)


class Heard:
    """A sink that keeps what it hears and wakes who waits; that all are watched is no news."""

    def __init__(self) -> None:
        self.lists: list[Sequence[Device]] = []
        self.events: list[HealthEvent] = []
        self.losses: list[tuple[VendorState, str]] = []
        self._changed = asyncio.Event()

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        self.lists.append(devices)
        self._wake()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        self.events.extend(event for event in events if event != HealthEvent(None, None))
        self._wake()

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """The simulated vendor has none."""

    def unspecified(self, vendor: str, reason: str) -> None:
        """Nor does it lack them."""

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        self.losses.append((state, reason))
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await self._changed.wait()


@asynccontextmanager
async def serving(vendor: Vendor, *, in_process: bool = False, call: float = 30.0) -> AsyncIterator[Heard]:
    heard = Heard()
    process = VendorSupervisor(
        vendor,
        heard,
        deadlines=Deadlines(events=0.05, discover=call, close=0.05),
        timing=ProcessTiming(0.02, (0.001, 0.01)),
        in_process=in_process,
    )
    task = asyncio.create_task(process.run())
    try:
        await heard.until(lambda: heard.lists)
        yield heard
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_made_up_cards_look_like_a_real_node() -> None:
    backend = SimulatedBackend({"devices": 8})
    backend.open()

    devices = backend.discover()

    assert [device.numa for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({device.pci for device in devices}) == 8
    links = {link.peer: link for link in backend.links(devices[0].uuid)}
    assert links[devices[1].uuid].distance is Distance.SWITCH
    assert links[devices[1].uuid].lanes > links[devices[2].uuid].lanes > links[devices[7].uuid].lanes


@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        pytest.param({}, [(), ()], id="none unless said"),
        pytest.param({"deviceNodes": False}, [(), ()], id="not wanted"),
        pytest.param({"deviceNodes": True}, [("/dev/xpu0",), ("/dev/xpu1",)], id="wanted"),
    ],
)
@pytest.mark.parametrize("source", ["a number", "a file"])
def test_cards_have_the_device_nodes_that_no_node_has_only_where_they_are_asked_for(
    settings: Mapping[str, Any], paths: object, source: str, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.json", devices=2)
    vendor = simulated(
        **settings, **({"scenario": str(scenario.path)} if source == "a file" else {"devices": 2})
    )
    backend = SimulatedBackend(vendor.settings.for_backend)
    backend.open()

    assert [it.paths for it in backend.discover()] == paths


def test_a_thousand_made_up_cards_have_addresses_of_their_own() -> None:
    pci = [card["pci"] for card in cards(1024)]

    assert len(set(pci)) == 1024


def test_the_node_is_labelled_after_most_of_its_cards_where_the_settings_ask_for_it() -> None:
    vendor = simulated(devices=3, resource="example.com/xpu", labels=True)
    small = Device(uuid="SIM-0", index=0, model="Simulated A30", memory=24 << 30)
    large = [Device(uuid=f"SIM-{n}", index=n, model="Simulated H100 80GB", memory=80 << 30) for n in (1, 2)]

    assert simulated(devices=3).publishes.labels is None
    assert vendor.publishes.labels is not None
    assert vendor.publishes.labels((), ()) == {}
    assert vendor.publishes.labels((), [small, *large]) == {
        "example.com/xpu.count": "3",
        "example.com/xpu.memory": "81920",
        "example.com/xpu.product": "Simulated-H100-80GB",
    }


def test_a_container_gets_uuids_and_device_nodes() -> None:
    devices = [Device("a", 0, paths=("/dev/xpu0",)), Device("b", 1, paths=("/dev/xpu1",))]

    edits = container_edits(devices, Request("1", "r", ("a", "b")))

    assert edits.env == {"XPU_VISIBLE_DEVICES": "a,b"}
    assert [node.host_path for node in edits.device_nodes] == ["/dev/xpu0", "/dev/xpu1"]


@pytest.mark.parametrize("in_process", [False, True], ids=["process", "thread"])
async def test_a_fault_and_its_proof_become_events(scenario: Scenario, in_process: bool) -> None:
    sick = scenario.uuids[1]
    async with serving(simulated(scenario=str(scenario.path)), in_process=in_process) as heard:
        scenario.fault(sick, "xid-79", "fell off the bus", cleared_by=(Proof.RESET,))
        await heard.until(lambda: heard.events)
        scenario.heal(sick, Proof.RESET)
        await heard.until(lambda: len(heard.events) >= 2)

        bad, good = heard.events
        assert bad.uuid == sick
        assert bad.fault is not None
        assert (bad.fault.reason, bad.fault.cleared_by) == ("xid-79", (Proof.RESET,))
        assert good == HealthEvent(sick, None, Proof.RESET)


async def test_a_new_process_tells_the_faults_that_are_there(scenario: Scenario) -> None:
    scenario.fault(scenario.uuids[0], "hot")
    async with serving(simulated(scenario=str(scenario.path))) as heard:
        await heard.until(lambda: heard.events)
        scenario.crash()
        await heard.until(lambda: heard.losses)
        await heard.until(lambda: len(heard.events) >= 2)

        assert heard.losses == [(VendorState.FAILED, "killed by SIGSEGV")]
        assert {event.uuid for event in heard.events} == {scenario.uuids[0]}


async def test_the_driver_can_go_and_come_back(scenario: Scenario) -> None:
    async with serving(simulated(scenario=str(scenario.path))) as heard:
        scenario.unload()
        await heard.until(lambda: heard.losses)
        listed = len(heard.lists)
        scenario.reload()
        await heard.until(lambda: len(heard.lists) > listed)

        assert heard.losses[0] == (VendorState.UNAVAILABLE, "driver-not-loaded: the driver was unloaded")


async def test_garbage_and_hangs_cost_the_process_once(scenario: Scenario) -> None:
    async with serving(simulated(scenario=str(scenario.path)), call=2.0) as heard:
        scenario.garbage()
        await heard.until(lambda: heard.losses)
        scenario.hang("discover")
        await heard.until(lambda: any("did not return" in reason for _, reason in heard.losses))
        listed = len(heard.lists)
        scenario.hang(None)
        await heard.until(lambda: len(heard.lists) > listed)

        assert heard.losses[0][1].startswith("discover answered wrongly")


async def test_cards_come_and_go_with_the_file(scenario: Scenario) -> None:
    async with serving(simulated(scenario=str(scenario.path))) as heard:
        scenario.change(devices=cards(2))

        await heard.until(lambda: len(heard.lists[-1]) == 2)


def test_slices_outlive_the_backend_and_are_made_once(tmp_path: Path) -> None:
    settings = {"devices": 2, "prepares": True, "partitions": str(tmp_path / "slices.json")}
    foreign = Partition("by-hand", "x")
    (tmp_path / "slices.json").write_text(json.dumps([{"id": "by-hand", "uuid": "x"}]))
    request = Request("a1", "r", ("i",))

    made = SimulatedBackend(settings).prepare(request, ("dev-0",))
    again = SimulatedBackend(settings).prepare(request, ("dev-0",))

    assert made == again == (Partition("a1/0", "dev-0", "a1"),)
    assert SimulatedBackend(settings).partitions() == (foreign, *made)
    SimulatedBackend(settings).release("a1")
    SimulatedBackend(settings).release("a1")
    assert SimulatedBackend(settings).partitions() == (foreign,)


class ScenarioFaults:
    """Breaks simulated devices for the conformance kit."""

    def __init__(self, scenario: Scenario, slices: Path | None = None) -> None:
        self._scenario = scenario
        self._slices = None if slices is None else SlicesOfFile(slices)

    def inject(self, uuid: str) -> None:
        self._scenario.fault(uuid, "injected")

    def clear(self, uuid: str) -> None:
        self._scenario.heal(uuid)

    def blind(self) -> None:
        self._scenario.fault(self._scenario.uuids[0], "unmonitored", state=State.UNKNOWN)

    def sees(self) -> None:
        self._scenario.heal(self._scenario.uuids[0])

    def plant(self, uuid: str) -> None:
        assert self._slices is not None
        self._slices.write([*self._slices.read(), {"id": "theirs", "uuid": uuid}])

    def uproot(self) -> None:
        assert self._slices is not None
        self._slices.write([it for it in self._slices.read() if it["id"] != "theirs"])

    def steps(self) -> Sequence[str]:
        return ("prepare",)

    def crash_at(self, step: str) -> None:
        self._scenario.crash()

    def absent(self) -> Mapping[str, Any]:
        return {"scenario": "/nonexistent/scenario.json"}


async def findings(vendor: Vendor, faults: ScenarioFaults | None, path: Sequence[str] = ()) -> list[Finding]:
    return [finding async for finding in check_vendor(vendor, faults, path)]


async def test_the_simulated_vendor_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    slices = str(tmp_path / "slices.json")
    vendor = simulated(scenario=str(scenario.path), prepares=True, partitions=slices, cdi=True)

    found = await findings(vendor, ScenarioFaults(scenario, Path(slices)))

    assert len(found) == len(CHECKS)
    assert [it for it in found if it.ok is False] == []
    assert [it.detail for it in found if it.ok is None] == [
        "the vendor has no signs: its process is started on every node",
        "the vendor has no resources of its own",
        "the vendor has no labels",
        "the vendor has no annotations and no extended resources",
        "the vendor has no formats",
        "the vendor has no checks of the doctor",
    ]


async def test_without_an_injector_the_hardware_is_left_alone(scenario: Scenario, tmp_path: Path) -> None:
    slices = tmp_path / "slices.json"
    vendor = simulated(scenario=str(scenario.path), prepares=True, partitions=str(slices))

    found = await findings(vendor, None)

    assert [it for it in found if it.ok is False] == []
    assert not _exists(slices)


def _exists(path: Path) -> bool:
    return path.exists()


BAD_VENDOR = """
import sys, time
from agent.vendor_api.agent import *
class Bad(Backend):
    count = 0
    closed = False
    def open(self):
        if self.closed: raise RuntimeError("cannot open twice")
        if self.settings.get("absent"): raise OSError("no library")
    def close(self): Bad.closed = True
    def discover(self):
        Bad.count += 1
        return [Device("a", Bad.count, pci="0000:AB:00.0", memory=10), Device("b", 9)]
    def links(self, uuid): return [Link("b", 1)] if uuid == "a" else [Link("a", 2)]
    def health_events(self, timeout):
        time.sleep(timeout + 3)
        return ()
    def usage(self): return [Usage("a", 11)]
    def release(self, allocation): raise KeyError(allocation)
    def prepare(self, request, uuids):
        Bad.count += 1
        return [Partition(str(Bad.count), uuids[0])]
    def cdi(self): return {"bad-x.json": f"[{Bad.count}]"}
import itertools
numbers = itertools.count()
def edits(devices, request):
    return ContainerEdits(env={"N": next(numbers)})
def resources(rules, devices):
    return Offering((ResourceRule("bad.com/x", ("a", "z")),))
def labels(rules, devices):
    return {"bad.com/model": "Bad (tm) "}
"""


async def test_each_breach_of_the_contract_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_vendor.py").write_text(BAD_VENDOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(conformance, "EVENT_PATIENCE", 0.5)
    monkeypatch.setattr(conformance, "LATENESS", 1.0)
    import bad_vendor  # type: ignore[import-not-found]

    class Faults:
        def inject(self, uuid: str) -> None: ...
        def clear(self, uuid: str) -> None: ...
        def blind(self) -> None: ...
        def sees(self) -> None: ...
        def absent(self) -> Mapping[str, Any]:
            return {"absent": True}

    vendor = Vendor(
        "bad",
        "bad_vendor:Bad",
        "kubernetes.io/x",
        bad_vendor.edits,
        offers=Offers(resources=bad_vendor.resources),
        makes=Slices(),
        publishes=NodeFacts(labels=bad_vendor.labels),
    )

    found = [it async for it in check_vendor(vendor, Faults(), (str(tmp_path),))]

    details = {it.name.partition(" ")[0].strip("`"): it.detail for it in found if it.ok is False}
    assert details.keys() == {
        "discover", "A", "Links", "Importing", "container_edits", "Without", "After", "health_events",
        "release", "prepare", "What", "usage", "Each", "Good", "resource", "resources", "labels", "cdi",
    }  # fmt: skip
    assert details["resources"] == "`resources` names ['z'], which are not listed"
    assert "has the value 'Bad (tm) '" in details["labels"]
    assert details["cdi"].startswith("the CDI spec bad-x.json: no JSON object")
    assert "a says Link(peer='b', lanes=1" in details["Links"]
    assert details["Without"] == "the backend raised OSError: no library"
    assert details["usage"] == "a uses 11 of 10 bytes"
    assert details["Importing"] == "the import also imports bad_vendor"
    assert details["container_edits"] == "the second answer differs"


BAD_SLICER = """
import json, os, signal
from pathlib import Path
from agent.vendor_api.agent import *
class BadSlicer(Backend):
    @property
    def path(self): return Path(self.settings["slices"])
    def read(self): return json.loads(self.path.read_text())
    def discover(self): return [Device("a", 0)]
    def partitions(self): return [Partition(*it) for it in self.read()]
    def prepare(self, request, uuids):
        self.path.write_text(json.dumps([*self.read(), ["new", "a", None]]))
        if Path(self.settings["crash"]).exists():
            Path(self.settings["crash"]).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        self.path.write_text(json.dumps([*self.read()[:-1], ["new", "a", request.allocation]]))
        return [Partition("new", "a", request.allocation)]
    def release(self, allocation):
        self.path.write_text(json.dumps([it for it in self.read() if (it[2] or "") != allocation]))
    def cdi(self):
        spec = {"kind": "bad.com/slice", "devices": [{"name": it[0]} for it in self.read()]}
        return {"bad.com-slice.json": json.dumps(spec)}
def edits(devices, request):
    return ContainerEdits(cdi_devices=(f"bad.com/slice={request.allocation}",))
"""


async def test_each_breach_of_what_slicing_must_keep_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_slicer.py").write_text(BAD_SLICER)
    monkeypatch.syspath_prepend(str(tmp_path))
    import bad_slicer  # type: ignore[import-not-found]

    slices, crash = tmp_path / "slices.json", tmp_path / "crash"
    slices.write_text("[]")

    class Faults:
        def inject(self, uuid: str) -> None: ...
        def clear(self, uuid: str) -> None: ...
        def absent(self) -> None: ...
        def plant(self, uuid: str) -> None:
            slices.write_text(json.dumps([["theirs", uuid, None]]))

        def uproot(self) -> None:
            slices.write_text("[]")

        def steps(self) -> Sequence[str]:
            return ("made",)

        def crash_at(self, step: str) -> None:
            crash.touch()

    settings = {"slices": str(slices), "crash": str(crash)}
    vendor = Vendor(
        "bad",
        "bad_slicer:BadSlicer",
        "bad.com/x",
        bad_slicer.edits,
        settings=Settings(settings),
        makes=Slices(),
    )

    found = [it async for it in check_vendor(vendor, Faults(), (str(tmp_path),))]

    details = {it.name.partition(" ")[0]: it.detail for it in found if it.ok is False}
    assert details["A"].startswith("there were (Partition(id='theirs', uuid='a'")
    assert details["A"].endswith("now there are ()")
    assert details["Wherever"] == (
        "the process that ended at made left [Partition(id='new', uuid='a', allocation=None)] without a mark"
    )
    assert details["The"].startswith(f"['bad.com/slice={conformance.MARK}'] is in no spec")


WRONG_EDITS = {
    "a number": ContainerEdits(env={"N": cast("str", 1)}),
    "half a character": ContainerEdits(env={"N": "\ud800"}),
    "a NUL": ContainerEdits(annotations={"N": "\0"}),
    "a name with '='": ContainerEdits(env={"N=": ""}),
    "a relative path": ContainerEdits(mounts=(Mount("a", "/a"),)),
    "a path that is none": ContainerEdits(device_nodes=(DeviceNode("/a", cast("str", None)),)),
    "strange permissions": ContainerEdits(device_nodes=(DeviceNode("/a", "/a", "rx"),)),
    "no permissions": ContainerEdits(device_nodes=(DeviceNode("/a", "/a", ""),)),
    "half a truth": ContainerEdits(mounts=(Mount("/a", "/a", cast("bool", "yes")),)),
    "a device that is no text": ContainerEdits(cdi_devices=(cast("str", 1),)),
}


@pytest.mark.parametrize("edits", WRONG_EDITS.values(), ids=WRONG_EDITS)
def test_edits_that_no_answer_to_the_kubelet_can_hold_are_found(edits: ContainerEdits) -> None:
    with pytest.raises(AssertionError):
        agent_half.check_edits(edits)


def _of_another(picture: NodeListing, node: str, query: Mapping[str, str]) -> Any:
    raise NotShown({"error": {node}})


COUNT = count()
WRONG_FORMATS = {
    "two of a, a have one name": [Format("a", lambda *_: {}), Format("a", lambda *_: [])],
    "is no name that a path": [Format("a b", lambda *_: {})],
    "is no absolute path": [Format("a", lambda *_: {}, "acme")],
    "is no JSON: Object of type ListedPod": [Format("a", lambda it, *_: [one.pod for one in it.shares])],
    "is no JSON: Object of type set": [Format("a", _of_another)],
    "is no JSON: Out of range": [Format("a", lambda *_: float("nan"))],
    "a: first ": [Format("a", lambda *_: next(COUNT))],
    "TypeError: '<' not supported": [
        Format("a", lambda it, *_: min((one.minor for one in it.devices), default=0)),
    ],
}


@pytest.mark.parametrize("detail", WRONG_FORMATS)
async def test_a_format_that_can_not_be_shown_is_found(detail: str) -> None:
    vendor = replace(simulated(devices=3), formats=tuple(WRONG_FORMATS[detail]))

    finding = await conformance.judged(agent_half.formats_are_pure, Bench(vendor, None, ()))

    assert detail in finding.detail


WRONG_CHECKS: dict[str, Callable[[VendorLook], list[kinds.Finding]]] = {
    "acme returned no finding": lambda look: [],
    "acme returned findings of driver": lambda look: [kinds.well("driver", "fine")],
    "acme: first ": lambda look: [kinds.well("acme", str(next(COUNT)))],
    "TypeError: unsupported operand": lambda look: [kinds.well("acme", look.files["/x"].value + "")],  # type: ignore[operator]
}


@pytest.mark.parametrize("detail", WRONG_CHECKS)
async def test_a_check_of_the_doctor_that_breaks_the_contract_is_found(detail: str) -> None:
    check = VendorCheck("acme", WRONG_CHECKS[detail], ("/x",))

    finding = await conformance.judged(
        agent_half.doctor_checks_are_pure, Bench(replace(simulated(devices=3), checks=(check,)), None, ())
    )

    assert finding.ok is False
    assert detail in finding.detail


WRONG_ON_THE_NODE = {
    "acme.com/x": NodeFacts(annotation_keys=("acme.com/y",), annotations=lambda *_: {"acme.com/x": ""}),
    "a text is needed": NodeFacts(
        annotation_keys=("acme.com/y",),
        annotations=lambda *_: {"acme.com/y": cast("str", 1)},
    ),
    ", then {'acme.com/y': '": NodeFacts(
        annotation_keys=("acme.com/y",),
        annotations=lambda *_: {"acme.com/y": str(next(COUNT))},
    ),
    "-1 is no count": NodeFacts(
        extended_resource_keys=("acme.com/n",),
        extended_resources=lambda *_: {"acme.com/n": -1},
    ),
}


@pytest.mark.parametrize("detail", WRONG_ON_THE_NODE)
async def test_what_the_node_can_not_bear_is_found(detail: str) -> None:
    vendor = replace(simulated(devices=3), publishes=WRONG_ON_THE_NODE[detail])

    finding = await conformance.judged(
        agent_half.annotations_and_extended_resources_are_pure, Bench(vendor, None, ())
    )

    assert finding.ok is False
    assert detail in finding.detail


README = "# Acme\n## Settings\n{}\n## Resources\n## Health reasons\n| `hot` | x |\n## Tested with\n"


@pytest.mark.parametrize(
    ("plugin", "table", "found"),
    [
        ("SETTINGS = ('a', 'b')", "| `a` | x |\n| `b` | y |", ""),
        ("SETTINGS = ('a', 'b')", "| `a` | x |", "the README lacks the setting b"),
        ("SETTINGS = ('a',)", "| `a` | x |\n| `c` | y |", "the plugin does not know c"),
        ("SETTINGS = ()", "None.", ""),
        ("", "| `a` | x |", ""),
        ("", "None.", "the section Settings of the README has no table, and the plugin no empty SETTINGS"),
    ],
)
async def test_the_readme_is_held_against_the_settings_that_the_plugin_knows(
    plugin: str, table: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "readme_vendor"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(plugin)
    (package / "README.md").write_text(README.format(table))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("readme_vendor", "readme_vendor.plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    inner = {"inner": True} if plugin else {}
    vendor = Vendor(
        "acme", "readme_vendor.backend:B", "acme.com/x", container_edits, settings=Settings(inner)
    )

    finding = await conformance.judged(agent_half.readme_is_complete, Bench(vendor, None, ()))

    assert finding.detail == found
