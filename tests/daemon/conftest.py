"""Schedulers' plugins of other distributions, for the tests of this room."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installed_schedulers import Installed

from agent.daemon import scheduler_plugins, vendor_config
from agent.daemon.vendor_plugins import VendorPlugin


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield Installed(tmp_path)
    for name in [name for name in sys.modules if name.startswith("scheduler_of_")]:
        del sys.modules[name]
    _forget()


def _forget() -> None:
    scheduler_plugins.load.cache_clear()
    scheduler_plugins.registered.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[VendorPlugin]]:
    """The plugins that a config check finds; a test adds them."""
    found: list[VendorPlugin] = []
    monkeypatch.setattr(vendor_config, "load", lambda settings, wanted: tuple(found))
    return found  # type: ignore[return-value]
