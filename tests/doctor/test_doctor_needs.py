"""What the configured features ask of the API server."""

from __future__ import annotations

import pytest

from agent.doctor.needs import required

DEVICES = [
    f"{verb} devices.scheduling.koordinator.sh" for verb in ("get", "list", "watch", "create", "update")
]


@pytest.mark.parametrize(("device", "wanted"), [(True, DEVICES), (False, [])])
def test_devices_are_asked_for_where_koordinator_is_told_by_one(device: bool, wanted: list[str]) -> None:
    rights = required("n", "ours", None, device=device)

    assert [str(it) for it in rights if it.group == "scheduling.koordinator.sh"] == wanted


def test_each_feature_asks_for_its_own_rights_and_no_more() -> None:
    nodes = ["get nodes/n", "list nodes/n", "watch nodes/n"]

    assert [str(it) for it in required("n", "ours", None, events=False, pods=False)] == nodes
    assert [str(it) for it in required("n", "ours", "node", events=False, pods=False)] == [
        *nodes,
        "patch nodes/n",
    ]
