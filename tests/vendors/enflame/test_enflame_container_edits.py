"""What a container on Enflame's cards gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request
from agent.vendors.enflame.agent.container_edits import VISIBLE, container_edits
from agent.vendors.enflame.agent.options import Options
from agent.vendors.enflame.shared import constants

GIB = 1 << 30


def card(minor: int, memory: int = 48 * GIB) -> Device:
    return Device(
        f"GCU-{minor}",
        7 - minor,
        minor=minor,
        memory=memory,
        paths=(f"/dev/gcu{minor}",),
        attributes={constants.CONTROL_NODE: "/dev/gcuctl"},
    )


def asked(resource: str = "enflame.com/gcu", count: int = 1) -> Request:
    return Request("0123456789abcdef", resource, tuple(f"x::{n}" for n in range(count)))


def test_a_container_is_told_the_minors_of_its_cards_and_not_their_indices() -> None:
    edits = container_edits(Options(), [card(3), card(1)], asked())

    assert edits.env == {VISIBLE: "1,3"}
    paths = ["/dev/gcuctl", "/dev/gcu3", "/dev/gcu1"]
    assert edits.device_nodes == tuple(DeviceNode(path, path) for path in paths)
    assert edits.cdi_devices == ()


def test_nodes_are_left_to_enflames_runtime_where_the_setting_says_so() -> None:
    edits = container_edits(Options(device_nodes=False), [card(3)], asked())

    assert (edits.env, edits.device_nodes) == ({VISIBLE: "3"}, ())


def test_a_container_with_a_slice_of_the_hardware_names_it_by_its_allocation() -> None:
    """And by nothing of its card, which the spec says: until its container starts it may be another one."""
    edits = container_edits(Options(), [card(3)], asked("enflame.com/drs-gcu"))

    assert edits == ContainerEdits(cdi_devices=("enflame.com/drs-gcu=0123456789abcdef",))


def test_a_container_with_a_slice_of_the_hardware_is_told_its_uuid_where_the_setting_says_so() -> None:
    options, request = Options(drs_variable="env"), asked("enflame.com/drs-gcu")

    edits = container_edits(options, [card(3)], replace(request, partitions=("2:0a1b-2c",)))

    assert (edits.env, edits.cdi_devices) == ({VISIBLE: "3", "TOPS_VISIBLE_DEVICES": "DRS-0a1b-2c"}, ())
    assert container_edits(options, [card(3)], asked()).env == {VISIBLE: "3"}


@pytest.mark.parametrize(
    ("count", "sub", "processors", "shared", "memory"),
    [(6, "false", "24", "64", "48"), (3, "true", "12", "32", "24"), (1, "true", "4", "10", "8")],
)
def test_a_share_is_kept_apart_by_the_variables_of_the_second_generation(
    count: int, sub: str, processors: str, shared: str, memory: str
) -> None:
    edits = container_edits(Options(isolation=True), [card(3)], asked("enflame.com/shared-gcu", count))

    assert edits.env == {
        VISIBLE: "3",
        "ENFLAME_CONTAINER_SUB_CARD": sub,
        "ENFLAME_CONTAINER_USABLE_PROCESSOR": processors,
        "ENFLAME_CONTAINER_USABLE_SHARED_MEM": shared,
        "ENFLAME_CONTAINER_USABLE_GLOBAL_MEM": memory,
    }


def test_a_whole_card_and_units_of_memory_are_not_kept_apart() -> None:
    for resource in ("enflame.com/gcu", "enflame.com/gcu-memory"):
        assert container_edits(Options(isolation=True), [card(3)], asked(resource)).env == {VISIBLE: "3"}
