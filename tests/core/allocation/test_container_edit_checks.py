"""Container edits of a vendor are fit for the kubelet, or are refused with the field that is not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agent.core.allocation.container_edit_checks import UnusableEdits, check_edits
from agent.core.errors import AllocationError
from agent.vendor_api.agent import ContainerEdits, DeviceNode, Mount


def loose(**fields: Any) -> ContainerEdits:
    """Edits as a vendor writes them who checks no types."""
    return ContainerEdits(**fields)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "the whole is None; wanted: ContainerEdits"),
        (loose(env=["A=1"]), "env is ['A=1']; wanted: a mapping of text to text"),
        (loose(env={"A": 1}), "env[A] is 1; wanted: text"),
        (loose(env={1: "A"}), "a key of env is 1; wanted: text"),
        (loose(env={"A": "\udc80"}), "env[A] is \\udc80; wanted: text that UTF-8 can carry"),
        (loose(annotations={"a": None}), "annotations[a] is None; wanted: text"),
        (loose(device_nodes="/dev/x"), "device_nodes is /dev/x; wanted: a tuple"),
        (loose(device_nodes=("/dev/x",)), "device_nodes[0] is /dev/x; wanted: a DeviceNode"),
        (
            loose(device_nodes=(DeviceNode("dev/x", "/dev/x"),)),
            "device_nodes[0].path is dev/x; wanted: an absolute path",
        ),
        (
            loose(device_nodes=(DeviceNode("/dev/x", "/dev/x", "rwx"),)),
            'device_nodes[0].permissions is rwx; wanted: some of "rwm"',
        ),
        (loose(mounts=(Mount("/lib", ""),)), "mounts[0].host_path is ; wanted: an absolute path"),
        (
            loose(mounts=(Mount("/lib", "/lib", cast("bool", "no")),)),
            "mounts[0].read_only is no; wanted: True or False",
        ),
        (loose(cdi_devices=(7,)), "cdi_devices[0] is 7; wanted: text"),
    ],
)
def test_edits_that_the_kubelet_cannot_take_are_refused_with_the_field(
    answer: ContainerEdits, told: str
) -> None:
    with pytest.raises(UnusableEdits) as refused:
        check_edits("acme", answer)

    assert str(refused.value) == f"vendor acme: container edits: {told}"
    assert isinstance(refused.value, AllocationError)


def test_edits_with_every_field_are_taken_as_they_are() -> None:
    full = ContainerEdits(
        env={"A": "é", "B": ""},
        device_nodes=(DeviceNode("/dev/x", "/dev/x", "rwm"),),
        mounts=(Mount("/lib", "/usr/lib"),),
        annotations={"a/b": "c"},
        cdi_devices=("acme.com/x=0",),
    )

    assert check_edits("acme", full) is full
