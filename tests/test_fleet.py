"""Which vendors are in service: what the config wants, and nobody twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest

from agent import fleet
from agent.config import Config, ConfigState, VendorSettings
from agent.core.cell import Cell
from agent.core.errors import ConfigError
from agent.core.inventory import Inventory
from agent.core.ledger import Ledger
from agent.core.vendor import ContainerEdits, ResourceRule, Vendor
from agent.node import Node
from agent.plugins import Plugin


def vendor(name: str, resource: str) -> Vendor:
    return Vendor(name, "a.b:C", lambda devices, request: ContainerEdits(), resource)


def plugin(name: str, resource: str = "", reason: str = "") -> Plugin:
    offered = vendor(name, resource) if resource else None
    return Plugin(name, "here", "1", offered, reason, broken=offered is None)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plugin]]:
    found: list[Plugin] = []
    monkeypatch.setattr(fleet, "load", lambda settings, wanted: tuple(found))
    return found  # type: ignore[return-value]


def test_settings_that_a_named_vendor_does_not_know_are_the_config_s_fault(found: list[Plugin]) -> None:
    found.append(plugin("acme", reason="settings: 'devicez' is not known"))

    with pytest.raises(ConfigError, match=r"vendors\.acme\.settings: 'devicez' is not known"):
        fleet.check(Config(vendors={"acme": VendorSettings()}))


def test_a_plugin_that_is_broken_itself_is_not_the_config_s_fault(found: list[Plugin]) -> None:
    found.append(plugin("acme", reason="ImportError: no module named acme"))

    fleet.check(Config(vendors={"acme": VendorSettings()}))


def clashes(found: list[Plugin], config: Config | None = None) -> dict[str, str]:
    return {it.name: it.reason for it in fleet._without_clashes(found, config or Config()) if not it.vendor}


def test_the_second_vendor_of_a_resource_is_left_out_and_says_how_to_mend_it(found: list[Plugin]) -> None:
    found += [plugin("acme", "acme.com/x"), plugin("copy", "acme.com/x")]

    assert clashes(found) == {
        "copy": "acme already serves acme.com/x; name another in vendors.copy.resources"
    }


def test_two_vendors_of_one_resource_get_along_once_the_config_names_another(found: list[Plugin]) -> None:
    found += [plugin("acme", "acme.com/x"), plugin("copy", "acme.com/x")]
    other = Config(vendors={"copy": VendorSettings(resources=(ResourceRule("copy.com/x"),))})

    assert clashes(found, other) == {}


def test_a_broken_plugin_of_the_same_name_does_not_harm_the_good_one(found: list[Plugin]) -> None:
    found += [plugin("acme", reason="clash"), plugin("acme", "acme.com/x")]

    assert [it.vendor is not None for it in fleet._without_clashes(found, Config())] == [True]


class FakeProcess:
    """Stands for a vendor's process; remembers how many there were."""

    started = 0

    def __init__(self, vendor: Vendor, node: Node) -> None:
        FakeProcess.started += 1
        self.vendor = vendor

    def start_early(self) -> None:
        """Nothing to start."""

    async def run(self) -> None:
        await anyio.sleep_forever()


async def test_a_process_is_replaced_only_when_it_would_be_started_otherwise(found: list[Plugin]) -> None:
    """Functions and resources are the agent's: to share a card in another way costs no driver session."""
    FakeProcess.started = 0
    state = ConfigState(Config(), "defaults")
    cell = Cell(state)
    node = Node(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = fleet.Fleet(node, FakeProcess)  # type: ignore[arg-type]

    async def apply(offered: Vendor, number: int) -> None:
        found[:] = [Plugin("acme", "here", "1", offered)]
        cell.set(replace(state, config=Config(vendors={"acme": VendorSettings(settings={"n": number})})))
        with anyio.fail_after(30):
            while True:
                if node.vendors.get("acme") is offered:
                    return
                await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await apply(vendor("acme", "acme.com/x"), 1)
        assert FakeProcess.started == 1
        await apply(vendor("acme", "acme.com/y"), 2)
        assert FakeProcess.started == 1
        await apply(replace(vendor("acme", "acme.com/y"), settings={"library": "/other"}), 3)
        assert FakeProcess.started == 2
        group.cancel_scope.cancel()
