"""Plugins of the last release import the contract by its old names."""

from __future__ import annotations

import importlib

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
