"""Which cards an answer of another plugin names."""

from __future__ import annotations

import pytest

from agent.vendor_api.agent import ContainerEdits, Device
from agent.vendors.metax.agent.options import Options
from agent.vendors.metax.agent.replaced_plugins import cards_of_answer

CARDS = (Device("GPU-a", 0), Device("GPU-b", 1))


@pytest.mark.parametrize(
    ("variable", "env", "cards"),
    [
        ("CARDS", {"CARDS": "GPU-b,GPU-gone"}, ("GPU-b",)),
        ("CARDS", {"CARDS": "GPU-gone"}, ()),
        ("CARDS", {"OTHERS": "GPU-b"}, None),
        ("", {"": "GPU-b"}, None),
    ],
)
def test_cards_are_named_by_the_variable_that_the_settings_name(
    variable: str, env: dict[str, str], cards: tuple[str, ...] | None
) -> None:
    options = Options.read({"visibleDevices": variable} if variable else {})

    assert cards_of_answer(options, ContainerEdits(env=env), CARDS) == cards
