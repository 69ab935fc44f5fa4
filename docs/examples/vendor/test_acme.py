"""Acme's vendor against the contract, with a stub of the library that breaks on demand."""

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from acme_xpu.plugin import register_backend

from agent.testing.conformance import Finding, check_vendor

STUB = Path(__file__).with_name("stub") / "libacme.c"


class Cards:
    """The stub's file: the injector that the conformance kit breaks cards with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._states = {"ACME-0001": "ok", "ACME-0002": "ok"}
        self._write()

    def inject(self, uuid: str) -> None:
        self._states[uuid] = "down"
        self._write()

    def clear(self, uuid: str) -> None:
        self._states[uuid] = "ok"
        self._write()

    def absent(self) -> Mapping[str, Any]:
        return {"library": "/nonexistent/libacme.so"}

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text("".join(f"{uuid} {state}\n" for uuid, state in self._states.items()))
        fresh.replace(self._path)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    library = tmp_path / "libacme.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, STUB], check=True)
    return library


async def findings(library: Path, cards: Cards) -> list[Finding]:
    vendor = register_backend({"library": str(library)})
    return [finding async for finding in check_vendor(vendor, cards)]


def test_the_vendor_keeps_the_contract(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = Cards(tmp_path / "cards")
    monkeypatch.setenv("XPU_ACME_CARDS", str(tmp_path / "cards"))

    found = asyncio.run(findings(library, cards))

    assert {it.name: it.detail for it in found if it.ok is False} == {}
    assert any(it.ok and "fault of a device" in it.name for it in found)
    assert any(it.ok and "`processes`" in it.name for it in found)
