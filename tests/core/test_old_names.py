"""Plugins of the last release import the contract by its old names."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("agent.core.backend", "agent.vendor_api.backend"),
        ("agent.core.hooks", "agent.vendor_api.hooks"),
        ("agent.core.vendor", "agent.vendor_api.agent"),
    ],
)
def test_the_contract_answers_by_its_old_name_too(old: str, new: str) -> None:
    contract = vars(importlib.import_module(new))
    public = {name for name, value in contract.items() if getattr(value, "__module__", "") == new}

    assert public
    for name in public:
        assert getattr(importlib.import_module(old), name) is contract[name]


def test_the_old_names_go_with_the_version_that_they_promise() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    major, minor, *_ = map(int, project["version"].split("."))

    assert (major, minor) < (0, 3), "remove agent/core/backend.py, hooks.py and vendor.py"
