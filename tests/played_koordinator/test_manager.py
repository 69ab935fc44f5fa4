"""The manager that the tests play leaves on a Node what the real one did."""

from __future__ import annotations

import json
from pathlib import Path

from .amounts import amounts
from .manager import Manager

RECORDED = json.loads((Path(__file__).parent / "data" / "koord-manager-node.json").read_text())["cases"]


def test_a_node_has_after_each_device_what_the_real_manager_left_on_it() -> None:
    manager = Manager()
    for case in RECORDED:
        devices = case["devices"]
        gone = case["case"] == "deleted"
        device = {"metadata": {"labels": case["deviceLabels"] or {}}, "spec": {"devices": devices}}

        manager.sees(None if gone else device)

        assert (manager.labels, manager.resources) == (
            case["node"]["labels"],
            amounts(case["node"]["allocatable"]),
        ), case["case"]
