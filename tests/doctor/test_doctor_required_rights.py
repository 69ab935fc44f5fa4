"""What the configured features ask of the API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.required_rights import required
from agent.schedulers.koordinator.node_report import NODE_REPORT

TELLS = ["get", "list", "watch", "create", "update", "delete"]
TAKES_BACK = ["get", "update", "delete"]


@pytest.mark.parametrize(
    ("tells", "told_before", "verbs"),
    [(True, False, TELLS), (True, True, TELLS), (False, True, TAKES_BACK), (False, False, [])],
)
def test_devices_are_asked_for_where_koordinator_is_or_was_told_by_one(
    tells: bool, told_before: bool, verbs: list[str]
) -> None:
    rights = required("n", "ours", None, report=NODE_REPORT, writes=tells, withdraws=told_before)

    found = [str(it) for it in rights if it.group == "scheduling.koordinator.sh"]
    assert found == [f"{verb} devices.scheduling.koordinator.sh" for verb in verbs]


def test_each_feature_asks_for_its_own_rights_and_no_more() -> None:
    nodes = ["get nodes/n", "list nodes/n", "watch nodes/n"]

    assert [str(it) for it in required("n", "ours", None, events=False, pods=False)] == nodes
    assert [str(it) for it in required("n", "ours", "node", events=False, pods=False)] == [
        *nodes,
        "patch nodes/n",
    ]
    for rights in (
        required("n", "ours", None, events=False, pods=False, locks=True),
        required("n", "ours", None, events=False, pods=False, annotates=True),
    ):
        assert [str(it) for it in rights] == [*nodes, "patch nodes/n"]


def test_the_nodes_status_is_written_to_where_vendors_count_for_it() -> None:
    rights = required("n", "ours", None, events=False, pods=False, extends=True)

    assert [str(it) for it in rights][3:] == ["patch nodes/status/n"]
    assert rights[-1].attributes == {
        "verb": "patch",
        "resource": "nodes",
        "subresource": "status",
        "name": "n",
    }


def test_pods_are_written_to_where_schedulers_read_there_and_pods_are_seen() -> None:
    def asked(*, pods: bool, receipts: bool) -> list[str]:
        rights = required("n", "ours", None, events=False, pods=pods, receipts=receipts)
        return [str(it) for it in rights if it.resource == "pods"]

    assert asked(pods=True, receipts=True) == ["list pods", "watch pods", "patch pods"]
    assert asked(pods=True, receipts=False) == ["list pods", "watch pods"]
    assert asked(pods=False, receipts=True) == []


def test_the_rights_on_the_report_are_those_of_the_registered_kind() -> None:
    kind = replace(NODE_REPORT.object, group="acme.com", kind="Rack", plural="racks")
    acme = replace(NODE_REPORT, scheduler="Acme", object=kind, granted_by="")

    rights = required("n", "ours", None, events=False, pods=False, report=acme, withdraws=True)[3:]

    assert [str(it) for it in rights] == [f"{verb} racks.acme.com" for verb in TAKES_BACK]
    assert rights[0].feature == "the Rack with the node's cards for Acme (report.mode)"
