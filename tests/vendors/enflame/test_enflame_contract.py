"""Enflame's backend keeps the contract that all vendors keep, with slices and without, on the stubs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

import pytest
from efml_stub import HANDLES, INDICES, NEWER, EfmlStub
from enflame_host import DRS, Host

from agent.core.vendor import Vendor
from agent.testing.conformance import check_vendor
from agent.vendors.enflame.abi import Code, EventType
from agent.vendors.enflame.edits import container_edits
from agent.vendors.enflame.options import SETTINGS, DialectName, Options
from agent.vendors.enflame.plugin import register_backend

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]

DOES_NOT = "the vendor does not prepare"


def _vendor(host: Host, **more: Any) -> Vendor:
    """The child's half, with as much of the other one as its checks need."""
    settings = host.settings(**more)
    return Vendor(
        name="enflame",
        backend="agent.vendors.enflame.backend:EnflameBackend",
        container_edits=partial(container_edits, Options()),
        resource=DRS if settings["drs"] else "enflame.com/gcu",
        settings=settings,
        prepares=settings["drs"],
    )


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


@pytest.mark.parametrize("drs", [False, True])
async def test_the_enflame_backend_keeps_the_contract(host: Host, drs: bool) -> None:
    findings = [it async for it in check_vendor(_vendor(host, drs=drs), EfmlFaults(host))]

    broken = [it for it in findings if it.ok is False]
    assert broken == []
    assert [it.detail for it in findings].count(DOES_NOT) == (0 if drs else 5)


@pytest.mark.parametrize("dialect", get_args(DialectName))
async def test_both_halves_keep_the_contract_in_each_dialect(host: Host, dialect: str) -> None:
    settings = {key: it for key, it in host.settings().items() if key in SETTINGS}
    vendor = register_backend({**settings, "dialect": dialect})

    findings = [it async for it in check_vendor(vendor)]

    assert [it for it in findings if it.ok is False] == []


@pytest.mark.parametrize("part", [INDICES, HANDLES, NEWER])
async def test_the_contract_is_kept_by_libraries_that_lack_a_part(host: Host, part: str) -> None:
    stub = EfmlStub(host.stub.control.parent, without=[part])

    findings = [it async for it in check_vendor(_vendor(host, **stub.settings))]

    assert [it for it in findings if it.ok is False] == []
