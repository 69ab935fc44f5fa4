"""The MetaX vendor keeps the contract that all vendors keep, in each mode, on the scripted library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from metax_host import Host
from mxsml_stub import EVENTS, SGPU, MxsmlStub

from agent.testing.conformance import check_vendor
from agent.vendors.metax.child.abi import Code
from agent.vendors.metax.plugin import register_backend

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

DOES_NOT = "the vendor does not prepare"
#: Mode to the checks that are not made.
NO_KEYS, NO_FORMATS, NO_CHECKS = (
    "the vendor has no annotations and no extended resources",
    "the vendor has no formats",
    "the vendor has no checks of the doctor",
)
NOT_MADE = {
    "native": [*[DOES_NOT] * 5, NO_KEYS, NO_FORMATS, NO_CHECKS],
    "shared": [*[DOES_NOT] * 5, NO_KEYS, NO_FORMATS, NO_CHECKS],
    "sgpu": [NO_FORMATS, NO_CHECKS],
}


class MxsmlFaults:
    """Breaks the stub for the conformance kit."""

    def __init__(self, host: Host) -> None:
        self._stub = host.stub
        self._settings = host.settings()
        self._planted = 0

    def inject(self, uuid: str) -> None:
        self._stub.ecc(int(uuid[-12:]), dram=1)
        self._stub.event(int(uuid[-12:]))

    def clear(self, uuid: str) -> None:
        self._stub.ecc(int(uuid[-12:]))

    def blind(self) -> None:
        self._stub.fail("EventSetWait", Code.FAILURE)

    def sees(self) -> None:
        self._stub.clear("EventSetWait")

    def plant(self, uuid: str) -> None:
        slot = int(uuid[-12:])
        self._stub.enable_sgpu(slot)
        self._stub.make_slice(slot, 1024, 5)
        self._planted = slot

    def uproot(self) -> None:
        (theirs,) = (it for it in self._stub.slices(self._planted) if not it.alias)
        self._stub.vanish(self._planted, theirs.id)

    def steps(self) -> Sequence[str]:
        return ("CreateSgpu", "SetSgpuAlias")

    def crash_at(self, step: str) -> None:
        self._stub.kill_after(step)

    def absent(self) -> Mapping[str, Any]:
        return {**self._settings, "library": "/nowhere/libmxsml.so", "mode": "sgpu"}


@pytest.mark.parametrize("mode", NOT_MADE)
async def test_the_metax_vendor_keeps_the_contract(host: Host, stub: MxsmlStub, mode: str) -> None:
    vendor = register_backend(host.settings(mode=mode))

    findings = [it async for it in check_vendor(vendor, MxsmlFaults(host))]

    assert [it for it in findings if it.ok is False] == []
    assert [it.detail for it in findings if it.ok is None] == NOT_MADE[mode]


async def test_the_contract_is_kept_with_virtual_functions(host: Host, stub: MxsmlStub) -> None:
    """Without faults: the stub breaks a card with all its functions."""
    for slot in range(8):
        stub.physical(slot)

    findings = [it async for it in check_vendor(register_backend(host.settings(mode="vgpu")))]

    assert [it for it in findings if it.ok is False] == []
    assert {it.detail for it in findings if it.ok is None} == {
        "there is no fault injector",
        NO_KEYS,
        NO_FORMATS,
        NO_CHECKS,
    }


async def test_the_contract_is_kept_by_a_library_without_events_and_slices(host: Host) -> None:
    stub = MxsmlStub(host.stub.control.parent, without=[EVENTS, SGPU])

    findings = [it async for it in check_vendor(register_backend(host.settings(**stub.settings)))]

    assert [it for it in findings if it.ok is False] == []
