"""The ports of a node: who listens on them comes later, and nobody may have got them by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import place
from .release import STATE


def test_ports_are_all_different_and_none_of_those_that_the_kernel_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few_are_left = tmp_path / "ip_local_port_range"
    few_are_left.write_text("10000\t65335\n")
    monkeypatch.setattr(place, "PORTS_OF_ANY", few_are_left)

    found = place.free_ports(100)

    assert len(set(found)) == 100
    assert all(port > 65335 for port in found)


@pytest.mark.usefixtures("place")
def test_an_agent_of_the_node_has_nothing_of_what_one_of_the_host_has_kept() -> None:
    """The host's /var shows through; what is mounted on its directory is this node's alone."""
    assert STATE.is_mount()
