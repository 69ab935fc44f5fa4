"""The annotation by which HAMi's scheduler knows the cards of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.vendor_api.agent import Device, Fault, Grant, Request, ResourceRule
from agent.vendors.metax.agent.nodedevices import ANNOTATION, node_annotations
from agent.vendors.metax.agent.options import Options
from agent.vendors.metax.shared import constants

SGPU = "metax-tech.com/sgpu"
GIB = 1 << 30
OPTIONS = Options(mode="sgpu")


def card(index: int = 0, fault: Fault | None = None, numa: int | None = 1, **attributes: str) -> Device:
    said = {key.replace("_", "-"): it for key, it in attributes.items()}
    return Device(
        f"GPU-{index}",
        index,
        None,
        f"0000:0{index}:00.0",
        numa,
        64 * GIB,
        "MXC500",
        attributes=said,
        fault=fault,
    )


#: Allocations as the agent calls them.
OURS, OTHER, THIRD = "0123456789abcdef", "fedcba9876543210", "00112233aabbccdd"


def grant(uuid: str = "GPU-0", resource: str = SGPU, of: str = OURS, **parameters: str) -> Grant:
    return Grant(Request(of, resource, (f"{uuid}::0",), parameters), (uuid,))


def told(devices: list[Device], *grants: Grant) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node_annotations(OPTIONS, (), devices, grants)[ANNOTATION])
    return found


def test_an_idle_card_is_told_in_the_fields_and_the_order_of_metaxs_own_plugin() -> None:
    assert node_annotations(OPTIONS, (), [card(link_zone="1")], ()) == {
        ANNOTATION: '[{"uuid":"GPU-0","bdf":"0000:00:00.0","model":"MXC500","totalDevCount":16,'
        '"totalCompute":100,"totalVRam":65536,"availableDevCount":16,"availableCompute":100,'
        '"availableVRam":65536,"numa":1,"healthy":true,"linkZone":1}]'
    }


def test_slices_of_ours_are_no_more_to_be_had_and_give_the_card_its_policy() -> None:
    (it,) = told(
        [card()],
        grant(core="10", memory=str(GIB), qos="fixed-share"),
        grant(core="20", memory=str(2 * GIB), qos="fixed-share"),
    )
    assert (it["totalDevCount"], it["totalCompute"], it["totalVRam"]) == (16, 100, 65536)
    assert (it["availableDevCount"], it["availableCompute"], it["availableVRam"]) == (14, 70, 62464)
    assert it["qosPolicy"] == "fixed-share"


def test_what_is_zero_false_or_unknown_is_left_out() -> None:
    (it,) = told([card(numa=None, fault=Fault("sick"))], grant(core="100"))
    assert it.keys() == {
        "uuid",
        "bdf",
        "model",
        "totalDevCount",
        "totalCompute",
        "totalVRam",
        "availableDevCount",
    }


def test_slices_of_others_are_no_part_of_the_totals_and_keep_their_policy() -> None:
    (it,) = told([card(foreign_slices="2", foreign_compute="30", foreign_memory="4096", qos="burst-share")])
    assert (it["totalDevCount"], it["totalCompute"], it["totalVRam"]) == (14, 70, 61440)
    assert (it["availableDevCount"], it["qosPolicy"]) == (14, "burst-share")


def test_the_policy_of_a_card_without_slices_is_not_told() -> None:
    (it,) = told([card(qos="burst-share")])
    assert "qosPolicy" not in it


def sliced() -> Device:
    """With two slices that bear our mark."""
    return card(own_slice_0=f"{OURS}:10:1024", own_slice_1=f"{OTHER}:20:3072", qos="burst-share")


def free(it: dict[str, Any]) -> tuple[int, int, int, int]:
    return (
        it["totalDevCount"],
        *(it[f"available{key}"] for key in ("DevCount", "Compute", "VRam")),
    )


def test_slices_of_ours_that_nobody_has_any_more_are_not_free_while_they_lie_there() -> None:
    (it,) = told([sliced()])
    assert free(it) == (16, 14, 70, 61440)
    assert (it["totalCompute"], it["qosPolicy"]) == (100, "burst-share")


def test_what_lies_there_counts_as_it_is_and_what_was_not_yet_seen_there_as_it_is_promised() -> None:
    (it,) = told(
        [sliced()],
        grant(core="90", memory=str(9 * GIB), qos="fixed-share"),
        grant(of=THIRD, core="40", memory=str(GIB), qos="fixed-share"),
    )
    assert free(it) == (16, 13, 30, 60416)
    assert it["qosPolicy"] == "fixed-share"  # of the promise, which is newer


@pytest.mark.parametrize("unclaimed", ["share", "whole", "refuse"])
def test_a_slice_without_a_claim_counts_as_it_was_made_whatever_is_set_now(unclaimed: Any) -> None:
    had = Grant(Request(OURS, SGPU, ("GPU-0::0",)), ("GPU-0",), ("s",))
    it = card(own_slice_0=f"{OURS}:6:4096", qos="best-effort")
    said = node_annotations(Options(mode="sgpu", unclaimed=unclaimed), (), [it], [had])
    assert free(json.loads(said[ANNOTATION])[0]) == (16, 15, 94, 61440)


@pytest.mark.parametrize("text", ["", "2", "x:y:z", f"{OURS}:-1:1", f"{OURS}:1"])
def test_what_is_no_slice_of_ours_takes_nothing(text: str) -> None:
    (it,) = told([card(own_slice_0=text)])
    assert it["availableDevCount"] == 16


def test_a_card_that_is_gone_leaves_the_others_of_its_request_taken() -> None:
    request = Request("a", SGPU, ("GPU-0::0", "GPU-1::0"), {"core": "100"})
    (it,) = told([card(1)], Grant(request, ("GPU-0", "GPU-1")))
    assert (it["availableDevCount"], "availableCompute" in it) == (15, False)


@pytest.mark.parametrize(
    ("unclaimed", "partitions", "expected"),
    [("refuse", ("s",), (16, 15, 94, 61440)), ("refuse", (), (16, 16, 100, 65536))],
)
def test_a_slice_that_was_made_while_that_was_allowed_stays_taken(
    unclaimed: Any, partitions: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    had = Grant(Request("a", SGPU, ("GPU-0::0",)), ("GPU-0",), partitions)
    said = node_annotations(Options(mode="sgpu", unclaimed=unclaimed), (), [card()], [had])
    assert free(json.loads(said[ANNOTATION])[0]) == expected


def test_the_policy_that_a_slice_of_ours_took_as_it_was_is_told() -> None:
    (it,) = told([card(qos="burst-share", slices="1")], grant(**{"core": "10", "any-qos": "true"}))
    assert it["qosPolicy"] == "burst-share"


def test_the_memory_is_what_slices_may_take() -> None:
    (it,) = told([card(slice_memory="64678")])
    assert it["totalVRam"] == 64678


def test_a_card_that_a_pod_has_as_a_whole_by_another_resource_is_not_to_be_had() -> None:
    first, second = told([card(), card(1)], grant(resource="metax-tech.com/gpu"))
    assert ("healthy" in first, "healthy" in second) == (False, True)


def test_a_resource_of_another_name_is_counted_by_that() -> None:
    said = node_annotations(
        OPTIONS, [ResourceRule("a.com/x")], [card()], [grant(resource="a.com/x", core="10")]
    )
    assert json.loads(said[ANNOTATION])[0]["availableCompute"] == 90


@pytest.mark.parametrize("parameters", [{"refused": "no"}, {"core": "10", "memory": str(100 * GIB)}])
def test_a_request_that_is_being_refused_takes_nothing(parameters: dict[str, str]) -> None:
    (it,) = told([card()], grant(**parameters))
    assert it["availableDevCount"] == 16


def test_virtual_functions_and_split_cards_are_not_told() -> None:
    split = card(0, virtual_functions="2")
    part = Device("VF-0", 2, parent="GPU-0", attributes={constants.VIRTUALISATION: constants.VF})
    assert [it["uuid"] for it in told([split, part, card(1)])] == ["GPU-1"]
    assert node_annotations(OPTIONS, (), [split, part], ()) == {}


def test_numbers_that_hardware_can_not_have_are_held_to_what_hami_reads() -> None:
    (it,) = told([card(foreign_slices="99", foreign_compute="many", slice_memory="9" * 30)])
    assert ("totalDevCount" in it, it["totalCompute"]) == (False, 100)
    assert it["totalVRam"] <= (1 << 31) - 1
