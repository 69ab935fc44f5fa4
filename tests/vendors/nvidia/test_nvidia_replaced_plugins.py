"""Which cards an answer of another plugin names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.vendor_api.agent import ContainerEdits, Device, Mount
from agent.vendors.nvidia.agent.replaced_plugins import cards_of_answer

CARDS = (
    Device("GPU-a", 0),
    Device("GPU-b", 1),
    Device("MIG-b-0", 1, parent="GPU-b", slice=0),
)
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
LIST = "/var/run/nvidia-container-devices"


def env(value: str) -> ContainerEdits:
    return ContainerEdits(env={VARIABLE: value})


@pytest.mark.parametrize(
    ("answer", "cards"),
    [
        pytest.param(env("GPU-b,GPU-a"), ("GPU-b", "GPU-a"), id="uuids"),
        pytest.param(env("1,0"), ("GPU-b", "GPU-a"), id="indices"),
        pytest.param(env("1:0"), ("MIG-b-0",), id="the index of a MIG device"),
        pytest.param(env("all"), ("GPU-a", "GPU-b"), id="all"),
        pytest.param(
            ContainerEdits(env={VARIABLE: LIST}, mounts=(Mount(f"{LIST}/GPU-b", "/dev/null"),)),
            ("GPU-b",),
            id="a mounted list",
        ),
        pytest.param(ContainerEdits(cdi_devices=("nvidia.com/gpu=1",)), ("GPU-b",), id="a CDI device"),
        pytest.param(
            ContainerEdits(annotations={"cdi.k8s.io/nvidia-device-plugin_x": "nvidia.com/gpu=GPU-a"}),
            ("GPU-a",),
            id="a CDI annotation",
        ),
        pytest.param(env("GPU-gone,GPU-a"), ("GPU-a",), id="one that is not here, too"),
        pytest.param(env("GPU-gone"), (), id="one that is not here"),
        pytest.param(env("void"), None, id="void"),
        pytest.param(env(""), None, id="nothing"),
        pytest.param(ContainerEdits(env={"PATH": "/"}), None, id="no word of NVIDIA's"),
        pytest.param(ContainerEdits(cdi_devices=("nvidia.com/gds=all",)), None, id="what is no card"),
    ],
)
def test_cards_are_named_in_every_way_in_which_nvidias_stack_takes_a_list(
    answer: ContainerEdits, cards: tuple[str, ...] | None
) -> None:
    assert cards_of_answer(answer, CARDS) == cards


@given(strategies.hostile_texts | st.sampled_from(["0,1", "GPU-a", "all,0"]), strategies.hostile_texts)
def test_no_answer_names_a_card_that_is_not_here(value: str, name: str) -> None:
    told = cards_of_answer(ContainerEdits(env={VARIABLE: value}, cdi_devices=(name,)), CARDS)

    assert {*(told or ())} <= {it.uuid for it in CARDS}
