"""The host's files and files of one's own."""

from __future__ import annotations

import json
from pathlib import Path

from agent.vendor_api.agent import Fault
from agent.vendors.common import host, own_files
from agent.vendors.common.earlier_readings import CounterBaseline


def test_a_directory_is_no_device_node_and_without_a_mount_the_nodes_are_our_own(tmp_path: Path) -> None:
    (tmp_path / "dev/gcu0").mkdir(parents=True)

    assert not host.is_node(str(tmp_path), "/dev/gcu0")
    assert host.is_node("/nowhere", "/dev/null")


def test_a_file_of_ones_own_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    own_files.write(tmp_path / "it.json", {"a": 1})

    assert json.loads((tmp_path / "it.json").read_text()) == own_files.read(tmp_path / "it.json") == {"a": 1}
    assert (tmp_path / "it.json").stat().st_mode & 0o777 == 0o600
    assert [it.name for it in tmp_path.iterdir()] == ["it.json"]


def test_an_error_that_came_while_nobody_looked_counts_once(tmp_path: Path) -> None:
    def grown(name: str, before: int, now: int) -> Fault:
        return Fault(name, f"{before} to {now}")

    assert CounterBaseline(tmp_path, grown).new_faults("card", {"dbe": 2}) == []

    later = CounterBaseline(tmp_path, grown)

    assert later.new_faults("card", {"dbe": 5}) == [grown("dbe", 2, 5)]
    assert later.new_faults("card", {"dbe": 5}) == []
