"""The MetaX vendor keeps the contract that all vendors keep, in each mode, on the scripted library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from metax_host import Host
from mxsml_stub import MxsmlStub

from agent.testing.conformance import check_vendor
from agent.vendors.metax.abi import Code
from agent.vendors.metax.plugin import register_backend

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

MODES = ["native", "shared", "sgpu", "vgpu"]


class MxsmlFaults:
    """Breaks the stub for the conformance kit."""

    def __init__(self, host: Host) -> None:
        self._stub = host.stub
        self._settings = host.settings()

    def inject(self, uuid: str) -> None:
        self._stub.ecc(int(uuid[-12:]), dram=1)
        self._stub.event(int(uuid[-12:]))

    def clear(self, uuid: str) -> None:
        self._stub.ecc(int(uuid[-12:]))

    def blind(self) -> None:
        self._stub.fail("EventSetWait", Code.FAILURE)

    def sees(self) -> None:
        self._stub.clear("EventSetWait")

    def absent(self) -> Mapping[str, Any]:
        return {**self._settings, "library": "/nowhere/libmxsml.so", "mode": "sgpu"}


@pytest.mark.parametrize("mode", MODES)
async def test_the_metax_vendor_keeps_the_contract(host: Host, stub: MxsmlStub, mode: str) -> None:
    if mode == "vgpu":
        for slot in range(8):
            stub.physical(slot)
    vendor = register_backend(host.settings(mode=mode))

    findings = [it async for it in check_vendor(vendor, MxsmlFaults(host))]

    assert [it for it in findings if it.ok is False] == []
    assert [it for it in findings if it.ok is None] == []
