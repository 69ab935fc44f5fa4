"""The double of koordlet answers as the real one did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schedulers.koordinator.cards import RECORDED
from schedulers.koordinator.koordlet import made, read, refused

#: The API server refused the Device, and the one before stayed.
REFUSED = "reason with a space (API server refuses)"


@pytest.mark.parametrize("case", [it for it in RECORDED if it["file"] is not None], ids=lambda it: it["case"])
def test_the_double_makes_the_device_that_koordlet_made(case: dict[str, Any]) -> None:
    entries = read([json.dumps(case["file"])])
    if entries is None:
        assert "decode error" in case["case"]
        return

    device = made(entries)

    if any(refused(it | {"conditions": stamped(it)}) for it in device["devices"]):
        assert case["case"] == REFUSED
        return
    annotations = case["device"]["metadata"]["annotations"]
    recorded = {key: json.loads(text) for key, text in annotations.items()} if annotations else None
    assert device["devices"] == case["device"]["spec"].get("devices", [])
    assert device["labels"] == case["device"]["metadata"]["labels"]
    assert device["annotations"] == recorded


def stamped(device: dict[str, Any]) -> list[dict[str, Any]]:
    return [it | {"lastTransitionTime": "2026-11-22T07:00:00Z"} for it in device.get("conditions", ())]
