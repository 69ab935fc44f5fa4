"""Configurations that a node of each vendor may be given one after another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from support.vendor_inputs import parse

from agent.config import Config
from agent.core.devices.offers import VendorRules
from agent.daemon.vendor_config import check_config, rules_by_vendor


def _rules(vendor: str, *rules: Mapping[str, Any], modes: str = "", **settings: Any) -> str:
    its: dict[str, Any] = {"enabled": True}
    its |= {"resources": rules} if rules else {}
    its |= {"settings": settings} if settings else {}
    its |= {"modes": modes} if modes else {}
    return json.dumps({"version": "v1", "vendors": {vendor: its}})


def _shares(count: int) -> Mapping[str, Any]:
    return {"kind": "replicas", "replicas": count}


def _time_slicing(**more: Any) -> str:
    its = {"name": "nvidia.com/gpu", "replicas": 2, **more}
    return json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [its]}}})


_MEMORY = {"name": "example.com/memory", "sharing": {"kind": "memory", "unit": "1"}}

OF: Mapping[str, Sequence[str]] = {
    "nvidia": (
        _rules("nvidia"),
        _rules("nvidia", {"name": "nvidia.com/gpu", "sharing": _shares(2)}),
        _rules("nvidia", {"name": "nvidia.com/gpu", "sharing": _shares(4)}),
        _rules("nvidia", {"name": "nvidia.com/gpu", "ids": "minor", "sharing": _shares(2)}),
        _rules("nvidia", {"name": "example.com/card"}),
        _rules("nvidia", {"name": "example.com/card", "ids": "short"}),
        _rules("nvidia", {"name": "example.com/card", "sharing": _shares(3)}),
        _rules(
            "nvidia",
            {"name": "nvidia.com/gpu", "devices": 1},
            {"name": "nvidia.com/gpu.shared", "sharing": _shares(4)},
        ),
        _rules("nvidia", {"name": "nvidia.com/gpu", "sharing": _shares(4), "placement": "auto"}),
        _rules("nvidia", {"name": "nvidia.com/gpu", "placement": "auto"}),
        _rules("nvidia", _MEMORY),
        _rules("nvidia", {"name": "nvidia.com/gpu"}, _MEMORY, modes="dynamic"),
        json.dumps({"version": "v1", "resources": {"gpus": [{"pattern": "*", "name": "a100"}]}}),
        json.dumps({"version": "v1", "flags": {"plugin": {"deviceIDStrategy": "index"}}}),
        _time_slicing(),
        _time_slicing(rename="nvidia.com/gpu.shared"),
        _time_slicing(rename="nvidia.com/gpu.shared", devices=2),
    ),
    "metax": (
        _rules("metax", mode="native"),
        _rules("metax", mode="shared", shareNums=4),
        _rules("metax", mode="sgpu"),
        _rules("metax", {"name": "example.com/metax"}, mode="native"),
        _rules("metax", {"name": "example.com/slice"}, mode="sgpu", unclaimed="whole"),
    ),
    "enflame": (
        _rules("enflame"),
        _rules("enflame", dialect="gcushare-v1"),
        _rules("enflame", dialect="gcushare-v4"),
        _rules("enflame", dialect="gcushare-v4", sliceCount=4),
        _rules("enflame", dialect="hami"),
        _rules("enflame", dialect="gcushare-v4", registerResource="example.com/gcu"),
        _rules("enflame", {"name": "example.com/third", "sharing": _shares(3)}, dialect="none"),
    ),
}


@cache
def read(text: str) -> tuple[Config, tuple[VendorRules, ...]]:
    """The configuration, and what it asks of each vendor."""
    config = check_config(parse(text, "config.yaml", "node"))
    return config, tuple(rules_by_vendor(config).values())
