"""A container gets what NVIDIA's own plugin would have given it, and the vendor's settings are checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.core.vendor import ContainerEdits, Device, Request, SettingsError
from agent.vendors.nvidia.edits import container_edits
from agent.vendors.nvidia.plugin import register_backend

RECORDED = json.loads((Path(__file__).parent / "recorded_allocations.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"{case['case']}-{len(case['ids'])}")
def test_the_edits_equal_the_recorded_ones(case: Mapping[str, Any]) -> None:
    uuids = dict.fromkeys(device_id.split("::")[0] for device_id in case["ids"])
    devices = [Device(uuid=uuid, index=0) for uuid in uuids]

    edits = container_edits(devices, Request("a1", case["resource"], tuple(case["ids"])))

    assert case["response"] == [{"envs": edits.env}]
    assert edits == ContainerEdits(env=edits.env)


def test_the_vendor_offers_whole_cards() -> None:
    vendor = register_backend({"library": "/opt/driver"})

    assert (vendor.name, vendor.resource) == ("nvidia", "nvidia.com/gpu")
    assert vendor.backend == "agent.vendors.nvidia.backend:NvmlBackend"
    assert vendor.settings == {"library": "/opt/driver"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"libary": "/x"}, "did you mean 'library'"),
        ({"colour": 1}, "there are ignoreXids, library, sysfs"),
        ({"library": 7}, "nvidia.library is 7; use the path"),
        ({"ignoreXids": [13, "31"]}, "a list of XID numbers"),
        ({"ignoreXids": [True]}, "a list of XID numbers"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_work(settings: Mapping[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        register_backend(settings)
