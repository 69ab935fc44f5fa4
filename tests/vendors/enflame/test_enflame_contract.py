"""Enflame keeps the contract that all vendors keep, with slices and without, on the stubs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from efml_stub import HANDLES, INDICES, NEWER, EfmlStub
from enflame_host import Host

from agent.daemon.scheduler_parts import with_named_parts
from agent.testing.conformance import check_vendor
from agent.vendor_api.agent import Vendor
from agent.vendors.enflame.child.abi import Code, EventType
from agent.vendors.enflame.plugin import register_backend

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]

DOES_NOT = "the vendor does not prepare"


def _vendor(host: Host, dialect: str = "gcushare-v4", **more: Any) -> Vendor:
    settings = host.settings(dialect=dialect, **more)
    del settings["drs"]  # which follows from the dialect
    return with_named_parts(register_backend(settings))


class EfmlFaults:
    """Breaks the stubs for the conformance kit."""

    def __init__(self, host: Host) -> None:
        self._stub = host.stub
        self._settings = host.settings()

    def inject(self, uuid: str) -> None:
        self._stub.ecc(_slot(uuid), double=1)
        self._stub.event(_slot(uuid), EventType.EID, 5, "an error")

    def clear(self, uuid: str) -> None:
        self._stub.ecc(_slot(uuid))

    def blind(self) -> None:
        self._stub.fail("EfmlGetEventV2", Code.FAIL)

    def sees(self) -> None:
        self._stub.clear("EfmlGetEventV2")

    def plant(self, uuid: str) -> None:
        self._planted = self._stub.make_instance(_slot(uuid))

    def uproot(self) -> None:
        self._stub.vanish(self._planted.uuid)
        self._stub.set_drs(self._planted.slot, on=False)

    def steps(self) -> Sequence[str]:
        return ("drs-on", "create")

    def crash_at(self, step: str) -> None:
        self._stub.efsmi_kills(step, "after", caller=True)

    def absent(self) -> Mapping[str, Any]:
        return {**self._settings, "library": "/nowhere/libefml.so", "sysfs": "/nowhere"}


def _slot(uuid: str) -> int:
    return int(uuid[-5:])


@pytest.mark.parametrize(("dialect", "sliced"), [("none", False), ("gcushare-v4", True)])
async def test_the_enflame_backend_keeps_the_contract(host: Host, dialect: str, sliced: bool) -> None:
    findings = [it async for it in check_vendor(_vendor(host, dialect), EfmlFaults(host))]

    assert [it for it in findings if it.ok is False] == []
    assert [it.detail for it in findings].count(DOES_NOT) == (0 if sliced else 5)


@pytest.mark.parametrize("part", [INDICES, HANDLES, NEWER])
async def test_the_contract_is_kept_by_libraries_that_lack_a_part(host: Host, part: str) -> None:
    stub = EfmlStub(host.stub.control.parent, without=[part])

    findings = [it async for it in check_vendor(_vendor(host, **stub.settings))]

    assert [it for it in findings if it.ok is False] == []
