"""Which vendors are in service: what the config wants, and nobody twice."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog.testing
from support.waiting import eventually

from agent.config import Config, ConfigState, VendorSettings, parse
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.devices.inventory import Inventory
from agent.core.errors import ConfigError
from agent.daemon import vendors_in_service
from agent.daemon.node_state import NodeState
from agent.daemon.vendor_plugins import VendorPlugin
from agent.isolation.process_memory import MemoryLimit
from agent.scheduler_api import OWN, AnnotationFilter, Dialect
from agent.vendor_api.agent import (
    ContainerEdits,
    Offering,
    Offers,
    ResourceRule,
    Settings,
    SettingsError,
    SettingsWarning,
    Sharing,
    Vendor,
)


def vendor(name: str, resource: str) -> Vendor:
    return Vendor(name, "a.b:C", resource, lambda devices, request: ContainerEdits())


def plugin(name: str, resource: str = "", reason: str = "") -> VendorPlugin:
    offered = vendor(name, resource) if resource else None
    return VendorPlugin(name, "here", "1", offered, reason, broken=offered is None)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[VendorPlugin]]:
    found: list[VendorPlugin] = []
    monkeypatch.setattr(vendors_in_service, "load", lambda settings, wanted: tuple(found))
    return found  # type: ignore[return-value]


def reading(name: str) -> Vendor:
    """One whose dialect reads annotations of its own."""
    dialect = Dialect(
        name, lambda pod, resource, devices: (), reads=(f"{name}.com/",), receipt_keys=(f"{name}-given",)
    )
    return replace(vendor(name, f"{name}.com/x"), dialects=(dialect,))


async def test_what_dialects_read_of_pods_follows_the_config_and_a_vendor_that_is_off_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def load(settings: Mapping[str, Any], wanted: Container[str]) -> tuple[VendorPlugin, ...]:
        """Each sits out unless it has settings."""
        here = [it for it in ("acme", "copy") if it in wanted]
        asked.extend(here)
        sitting = plugin("none", reason="ImportError: no module named none")
        return (
            sitting,
            *(VendorPlugin(it, "here", "1", reading(it) if settings.get(it) else None) for it in here),
        )

    monkeypatch.setattr(vendors_in_service, "load", load)
    off = VendorSettings(enabled=False, settings={"n": 1})
    placeholder = ConfigState(Config(), "awaited", waiting=True)
    config = Cell(placeholder)
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async def applied(vendors: Mapping[str, VendorSettings], *own: str) -> None:
        config.set(ConfigState(Config(vendors=vendors), "file"))
        with anyio.fail_after(30):
            await fleet_.reads.until(AnnotationFilter((OWN, *own)))

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, config)
        await anyio.wait_all_tasks_blocked()
        assert (asked, fleet_.reads.value) == ([], AnnotationFilter())

        await applied({"acme": VendorSettings(settings={"n": 1}), "copy": off}, "acme.com/", "acme-given")
        assert asked == ["acme"]
        both = ("acme.com/", "acme-given", "copy.com/", "copy-given")
        await applied({"copy": VendorSettings(settings={"n": 1})}, *both)
        group.cancel_scope.cancel()


def refusing(message: str, *path: str | int) -> VendorPlugin:
    return replace(plugin("acme", reason="settings"), refusal=SettingsError(message, path))


def test_settings_that_a_named_vendor_does_not_know_are_the_config_s_fault(found: list[VendorPlugin]) -> None:
    found.append(refusing("is not known", "deep", 0))

    with pytest.raises(ConfigError, match=r"vendors\.acme\.settings\.deep\[0\]: is not known"):
        vendors_in_service.check(Config(vendors={"acme": VendorSettings()}))
    vendors_in_service.check(Config())


def test_what_a_vendor_refuses_is_named_by_its_line(found: list[VendorPlugin]) -> None:
    text = "vendors:\n  acme:\n    settings:\n      deep:\n      - 1\n      - 2"
    found.append(refusing("is odd", "deep", 1))

    with pytest.raises(ConfigError, match=r"f:6: vendors\.acme\.settings\.deep\[1\]: is odd"):
        vendors_in_service.check(parse(text, "f", "n"))


def test_a_vendor_that_nobody_brings_is_not_reported_in_silence(
    found: list[VendorPlugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendors_in_service, "names", lambda: ("nvidia", "metax"))
    sits_out = parse("report: {vendor: metax}", "f.yaml", "n")
    assert vendors_in_service.check(sits_out).report.vendor == "metax"

    with pytest.raises(ConfigError, match=r"f.yaml:1: report\.vendor: no vendor .*did you mean 'nvidia'\?"):
        vendors_in_service.check(parse("report: {vendor: nvidai}", "f.yaml", "n"))


def test_koordinator_s_own_name_is_refused_where_a_setting_says_it() -> None:
    text = "vendors:\n  simulated:\n    settings:\n      devices: 1\n      resource: koordinator.sh/gpu"

    with pytest.raises(
        ConfigError, match=r"^f:5: vendors\.simulated\.settings\.resource: .*Koordinator's own"
    ):
        vendors_in_service.check(parse(text, "f", "n"))


@pytest.mark.parametrize("name", ["koordinator.sh/gpu", "koordinator.sh/gpu.shared"])
def test_a_resource_of_koordinator_s_own_name_is_refused_with_its_line(name: str) -> None:
    text = f"vendors:\n  nvidia:\n    resources:\n    - {{name: {name}}}"

    with pytest.raises(ConfigError, match=rf"^f:4: .*resources\[0\]\.name: .*'{name}' is Koordinator's"):
        vendors_in_service.check(parse(text, "f", "n"))


def test_koordinator_s_own_name_is_refused_where_a_setting_of_enflames_says_it() -> None:
    text = "vendors:\n  enflame:\n    settings:\n      registerResource: koordinator.sh/gpu"

    with pytest.raises(ConfigError, match=r"^f:4: .*settings\.registerResource: .*is Koordinator's own"):
        vendors_in_service.check(parse(text, "f", "n"))


SHARES = "vendors: {nvidia: {resources: [{name: nvidia.com/gpu, sharing: {kind: replicas, replicas: 2}}]}}"


def test_shares_named_as_cards_are_a_warning_with_their_line_where_the_way_is_to_be_found(
    found: list[VendorPlugin],
) -> None:
    [warning] = vendors_in_service.check(parse(f"report: {{mode: auto}}\n{SHARES}", "f", "n")).warnings

    assert warning.startswith("f:2: vendors.nvidia.resources[0].name: 'nvidia.com/gpu' counts replicas")


@pytest.mark.parametrize("text", [SHARES, f"{SHARES}\nreport: {{mode: none}}"])
def test_shares_named_as_cards_are_no_warning_where_nobody_spoke_of_koordinator(
    found: list[VendorPlugin], text: str
) -> None:
    assert not vendors_in_service.check(parse(text, "f", "n")).warnings


@pytest.mark.parametrize("mode", ["feed", "device"])
@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu"])
@pytest.mark.parametrize(
    ("sharing", "what"),
    [("{kind: replicas, replicas: 2}", "replicas"), ("{kind: memory, unit: 1}", "units of memory")],
)
def test_shares_that_a_scheduler_takes_for_cards_are_refused_with_a_report_and_told_to_be_renamed(
    mode: str, name: str, sharing: str, what: str
) -> None:
    shares = f"vendors: {{nvidia: {{resources: [{{name: {name}, sharing: {sharing}}}]}}}}"

    with pytest.raises(ConfigError) as caught:
        vendors_in_service.check(parse(f"{shares}\nreport: {{mode: {mode}}}", "f", "n"))

    error = str(caught.value)
    assert f"vendors.nvidia.resources[0].name: '{name}' counts {what}, which" in error
    assert f"rename them: '{name}.shared' would do" in error


@pytest.mark.parametrize(
    "text",
    [
        f"{SHARES.replace('gpu,', 'gpu.shared,')}\nreport: {{mode: device}}",
        "vendors: {nvidia: {resources: [{name: nvidia.com/gpu}]}}\nreport: {mode: device}",
        # Whoever never heard of Koordinator keeps what was good.
        SHARES,
        f"{SHARES}\nreport: {{mode: none}}",
    ],
)
def test_cards_shares_of_another_name_and_shares_without_a_report_are_taken(text: str) -> None:
    assert vendors_in_service.check(parse(text, "f", "n")).vendors["nvidia"].resources


def test_a_path_that_leads_nowhere_is_told_as_far_as_it_goes(found: list[VendorPlugin]) -> None:
    text = "vendors:\n  acme:\n    settings:\n      deep: [1]"
    found.append(refusing("is odd", "deep", 7, "x"))

    with pytest.raises(ConfigError, match=r"f:4: vendors\.acme\.settings\.deep\[7\]\.x: is odd"):
        vendors_in_service.check(parse(text, "f", "n"))


def test_what_a_vendor_doubts_becomes_a_few_warnings_with_their_lines(found: list[VendorPlugin]) -> None:
    text = "vendors:\n  acme:\n    settings:\n      old: 1"
    settings = Settings(warnings=(SettingsWarning("is old", ("old",)),) * 100)
    doubting = replace(vendor("acme", "acme.com/x"), settings=settings)
    found.append(VendorPlugin("acme", "here", "1", doubting))

    warnings = vendors_in_service.check(replace(parse(text, "f", "n"), warnings=("first",))).warnings

    assert warnings == ("first", *("f:4: vendors.acme.settings.old: is old",) * 20)


def test_with_dynamic_modes_all_cards_may_be_for_several_resources(found: list[VendorPlugin]) -> None:
    rules = "   - {name: a/one}\n   - {name: a/other, ids: minor}"
    config = parse(f"vendors:\n acme:\n  modes: dynamic\n  resources:\n{rules}", "f", "n")
    found.append(plugin("acme", "acme.com/x"))

    assert vendors_in_service.check(config).warnings == ()


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        (
            "all",
            "[0]",
            r"f:4: .*resources\[0\]\.devices: 'a/one' takes all cards, also those of a/other",
        ),
        (
            "[0]",
            "all",
            r"f:5: .*resources\[1\]\.devices: 'a/other' takes all cards, also those of a/one",
        ),
    ],
)
def test_all_cards_are_for_one_resource_alone(
    found: list[VendorPlugin], one: str, other: str, error: str
) -> None:
    rules = f"   - {{name: a/one, devices: {one}}}\n   - {{name: a/other, devices: {other}}}"
    config = parse(f"vendors:\n acme:\n  resources:\n{rules}", "f", "n")
    found.append(plugin("acme", "acme.com/x"))

    with pytest.raises(ConfigError, match=error):
        vendors_in_service.check(config)


def test_a_vendor_that_makes_its_own_resources_says_itself_what_all_is(found: list[VendorPlugin]) -> None:
    rules = (ResourceRule("acme.com/x"), ResourceRule("acme.com/slice"))
    own = replace(vendor("acme", "acme.com/x"), offers=Offers(resources=lambda rules, devices: Offering()))
    found.append(VendorPlugin("acme", "here", "1", own))

    vendors_in_service.check(Config(vendors={"acme": VendorSettings(resources=rules)}))


def slicing(rules: Sequence[ResourceRule]) -> None:
    for index, rule in enumerate(rules):
        if rule.placement == "local":
            raise SettingsError("is not local", (index, "placement"))


@pytest.mark.parametrize(("placement", "good"), [("local", False), ("claim", True), ("", True)])
def test_a_rule_is_judged_by_its_vendor_with_the_vendors_placement_where_it_says_none(
    found: list[VendorPlugin], placement: str, good: bool
) -> None:
    said = f", placement: {placement}" if placement else ""
    config = parse(f"vendors:\n acme:\n  resources:\n   - {{name: a/x{said}}}", "f", "n")
    own = replace(vendor("acme", "acme.com/x"), offers=Offers(placement="auto", check_rules=slicing))
    found.append(VendorPlugin("acme", "here", "1", own))

    if good:
        vendors_in_service.check(config)
    else:
        with pytest.raises(
            ConfigError, match=r"^f:4: vendors\.acme\.resources\[0\]\.placement: is not local$"
        ):
            vendors_in_service.check(config)


def test_a_complete_config_says_what_a_vendor_takes_where_nothing_is_said(found: list[VendorPlugin]) -> None:
    rules = "[{name: a/x}, {name: a/y, placement: claim, sharing: {kind: exclusive}}]"
    text = f"vendors: {{acme: {{settings: {{a: 1}}, resources: {rules}}}, b: {{}}}}"
    defaults, sharing = {"a": 0, "b": [], "library": "/l"}, Sharing("replicas", 4)
    offers = Offers(placement="auto", sharing=sharing)
    own = replace(vendor("acme", "acme.com/x"), settings=Settings(defaults=defaults), offers=offers)
    found.append(VendorPlugin("acme", "here", "1", own))

    made = vendors_in_service.complete(parse(text, "f", "n"))

    assert made.vendor("acme").settings == {"a": 1, "b": []}
    said = [(it.sharing, it.placement) for it in made.vendor("acme").resources]
    assert said == [(sharing, "auto"), (Sharing(), "claim")]
    assert made.vendor("b") == VendorSettings()


def test_a_plugin_that_is_broken_itself_is_not_the_config_s_fault(found: list[VendorPlugin]) -> None:
    found.append(plugin("acme", reason="ImportError: no module named acme"))

    vendors_in_service.check(Config(vendors={"acme": VendorSettings()}))


def clashes(found: list[VendorPlugin], config: Config | None = None) -> dict[str, str]:
    return {
        it.name: it.reason
        for it in vendors_in_service._without_clashes(found, config or Config())
        if not it.vendor
    }


def test_the_second_vendor_of_a_resource_is_left_out_and_says_how_to_mend_it(
    found: list[VendorPlugin],
) -> None:
    found += [plugin("acme", "acme.com/x"), plugin("copy", "acme.com/x")]

    assert clashes(found) == {
        "copy": "acme already serves acme.com/x; name another in vendors.copy.resources"
    }


def test_two_vendors_of_one_resource_get_along_once_the_config_names_another(
    found: list[VendorPlugin],
) -> None:
    found += [plugin("acme", "acme.com/x"), plugin("copy", "acme.com/x")]
    other = Config(vendors={"copy": VendorSettings(resources=(ResourceRule("copy.com/x"),))})

    assert clashes(found, other) == {}


def test_a_broken_plugin_of_the_same_name_does_not_harm_the_good_one(found: list[VendorPlugin]) -> None:
    found += [plugin("acme", reason="clash"), plugin("acme", "acme.com/x")]

    assert [it.vendor is not None for it in vendors_in_service._without_clashes(found, Config())] == [True]


class FakeProcess:
    """Stands for a vendor's process; remembers how many there were."""

    started = 0
    away: frozenset[str] = frozenset()

    def __init__(self, vendor: Vendor, node: NodeState, memory_limit: Callable[[], MemoryLimit]) -> None:
        FakeProcess.started += 1
        self._ask = memory_limit
        self.memory_limit = MemoryLimit()
        self.waits = vendor.name in FakeProcess.away
        self.sign = anyio.Event()
        self.after: FakeProcess | None = None
        self.early = False
        self.required = False
        self.sought = self.sought_when_early = True

    def configure(self, *, required: bool, sought: bool) -> None:
        self.required, self.sought = required, sought

    def start_early(self) -> None:
        self.early, self.sought_when_early = True, self.sought
        self.memory_limit = self._ask()

    async def run(self, after: FakeProcess | None = None) -> None:
        self.after = after
        if self.waits:
            await self.sign.wait()
            self.waits = False
        self.memory_limit = self._ask()
        await anyio.sleep_forever()


async def test_a_process_is_replaced_only_when_it_would_be_started_otherwise(
    found: list[VendorPlugin],
) -> None:
    """Functions and resources are the agent's: to share a card in another way costs no driver session."""
    FakeProcess.started = 0
    state = ConfigState(Config(), "defaults")
    cell = Cell(state)
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess)  # type: ignore[arg-type]

    async def apply(offered: Vendor, number: int) -> None:
        found[:] = [VendorPlugin("acme", "here", "1", offered)]
        cell.set(replace(state, config=Config(vendors={"acme": VendorSettings(settings={"n": number})})))
        await eventually(lambda: node.vendors.get("acme") is offered)

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await apply(vendor("acme", "acme.com/x"), 1)
        assert FakeProcess.started == 1
        await apply(vendor("acme", "acme.com/y"), 2)
        assert FakeProcess.started == 1
        await apply(replace(vendor("acme", "acme.com/y"), settings=Settings({"library": "/other"})), 3)
        assert FakeProcess.started == 2
        group.cancel_scope.cancel()


async def test_a_process_knows_whether_the_config_insists_on_its_vendor_also_after_a_change(
    found: list[VendorPlugin],
) -> None:
    found[:] = [plugin("acme", "acme.com/x")]
    state = ConfigState(Config(), "defaults")
    cell = Cell(state)
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]
    seen = []

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        for enabled in ("auto", True, "auto"):
            settings = VendorSettings(enabled=enabled)
            cell.set(replace(state, config=Config(vendors={"acme": settings})))
            await anyio.wait_all_tasks_blocked()
            seen.append(process_of(fleet_).required)
        group.cancel_scope.cancel()

    assert seen == [False, True, False]


def process_of(fleet_: vendors_in_service.VendorsInService, name: str = "acme") -> FakeProcess:
    process = fleet_.processes[name]
    assert isinstance(process, FakeProcess)
    return process


@pytest.mark.parametrize(
    ("its", "sought"),
    [
        (VendorSettings(), False),
        (VendorSettings(resources=(ResourceRule("acme.com/y"),)), False),
        (VendorSettings(enabled=True), True),
        (VendorSettings(library="/opt/libacme.so"), True),
        (VendorSettings(settings={"mode": "whole"}), True),
    ],
)
async def test_a_process_is_started_without_a_sign_where_the_config_speaks_of_the_vendor(
    its: VendorSettings, sought: bool, found: list[VendorPlugin]
) -> None:
    found[:] = [plugin("acme", "acme.com/x")]
    cell = Cell(ConfigState(Config(vendors={"acme": its}), "file"))
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    process = process_of(fleet_)
    assert (process.early, process.sought_when_early) == (True, sought)


async def test_vendors_in_a_container_share_what_it_may_have_and_it_is_said(
    found: list[VendorPlugin],
) -> None:
    found[:] = [plugin("acme", "acme.com/x"), plugin("beta", "beta.com/x")]
    cell = Cell(ConfigState(Config(), "defaults"))
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, 1 << 30)  # type: ignore[arg-type]

    with structlog.testing.capture_logs() as logs:
        async with anyio.create_task_group() as group:
            group.start_soon(fleet_.run, cell)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    walls = [it.memory_limit.wall for it in fleet_.processes.values()]  # type: ignore[attr-defined]
    assert walls == [(768 << 20) // 2] * 2
    of = "its part of the container's limit of 1024 MiB is 307 MiB"
    assert [(it["vendor"], it["limit"]) for it in logs if "bounded" in it["event"]] == [
        (name, f"{of} (vendors.{name}.memoryLimit is 1024 MiB)") for name in ("acme", "beta")
    ]


async def test_a_process_is_replaced_for_another_vendor_only_where_it_must_have_less_memory(
    found: list[VendorPlugin],
) -> None:
    cell = Cell(ConfigState(Config(), "defaults"))
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, 1 << 30)  # type: ignore[arg-type]

    async def serving(*names: str, n: int = 0) -> dict[str, FakeProcess]:
        found[:] = [plugin(it, f"{it}.com/x") for it in names]
        vendors = {it: VendorSettings(settings={"n": n}) for it in names}
        cell.set(replace(cell.value, config=Config(vendors=vendors)))
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return dict(fleet_.processes)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        alone = await serving("acme")
        both = await serving("acme", "beta")
        assert both["acme"] is not alone["acme"]  # it had all
        assert both["acme"].after is alone["acme"]
        assert await serving("acme", "beta", n=1) == both
        less = await serving("beta")
        assert less == {"beta": both["beta"]}
        again = await serving("beta", "core")
        assert again["beta"] is both["beta"]
        assert {it.memory_limit.wall for it in again.values()} == {(768 << 20) // 2}
        group.cancel_scope.cancel()


async def test_a_vendor_that_is_not_here_takes_no_memory_of_others_until_there_is_a_sign_of_it(
    found: list[VendorPlugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "away", frozenset({"beta", "core"}))
    found[:] = [plugin(it, f"{it}.com/x") for it in ("acme", "beta", "core")]
    cell = Cell(ConfigState(Config(), "defaults"))
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, 1 << 30)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await anyio.wait_all_tasks_blocked()
        first, beta = process_of(fleet_), process_of(fleet_, "beta")
        assert (first.memory_limit.wall, beta.early) == (768 << 20, False)

        beta.sign.set()
        await anyio.wait_all_tasks_blocked()

        second = process_of(fleet_)
        assert second.after is first
        assert process_of(fleet_, "beta") is beta
        assert second.memory_limit.wall == beta.memory_limit.wall == (768 << 20) // 2
        group.cancel_scope.cancel()


async def test_another_memory_limit_is_another_process_that_waits_for_the_end_of_the_first(
    found: list[VendorPlugin],
) -> None:
    found[:] = [plugin("acme", "acme.com/x")]
    cell = Cell(ConfigState(Config(), "defaults"))
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async def serving(limit: int, enabled: bool = True) -> FakeProcess | None:
        settings = VendorSettings(enabled=enabled or False, memory_limit=limit)
        found[:] = [plugin("acme", "acme.com/x")] if enabled else []
        cell.set(replace(cell.value, config=Config(vendors={"acme": settings})))
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return fleet_.processes.get("acme")  # type: ignore[return-value]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        first = await serving(1 << 30)
        second = await serving(2 << 30)
        assert first is not None
        assert second is not None
        assert [it.memory_limit.size for it in (first, second)] == [1 << 30, 2 << 30]
        assert (first.after, first.early) == (None, True)
        assert (second.after, second.early) == (first, False)
        assert await serving(2 << 30, enabled=False) is None
        third = await serving(2 << 30)
        assert third is not None
        assert (third.after, third.early) == (second, False)
        group.cancel_scope.cancel()
