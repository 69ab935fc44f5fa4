"""What is known of the processes in a sample: their pods, the allocations then, and what cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from core.usage.cards_in_use import CARD, GIB, card, held, moment, pod, process

from agent.core.usage.cgroup_paths import Kind
from agent.core.usage.usage_report import VendorSample
from agent.daemon.usage.sample_joiner import SampleJoiner
from agent.host.node_processes import ProcessReader

UID = "0f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0"
OF_A_PROCESS = VendorSample((card(GIB),), (process(7),))
NOTHING_KNOWN = moment()
OF_POD = moment(pods=[replace(pod("p"), uid=UID)])


class Node:
    """A joiner with /proc and the kubelet's directories of logs."""

    def __init__(self, proc: Path, *logs: str) -> None:
        self.logs = logs
        self.logs_read = 0
        self.joiner = SampleJoiner("acme", ProcessReader(proc), self._log_directories)
        (proc / "7").mkdir()
        (proc / "7" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{'ab' * 32}")
        (proc / "7" / "stat").write_text(f"7 (python3) S {'0 ' * 18}1 0")

    def _log_directories(self) -> tuple[str, ...]:
        self.logs_read += 1
        return self.logs


def test_a_process_is_joined_with_its_pod_and_the_sample_with_the_allocations_then(tmp_path: Path) -> None:
    node = Node(tmp_path)
    joined = node.joiner.join(OF_A_PROCESS, moment(held("p")))
    owner = joined.known.processes[7].owner
    assert (owner.kind, owner.uid) == (Kind.POD, UID)
    assert joined.known.held == joined.holdings.places == {("uid-p", "main", CARD)}
    assert joined.trouble == ""


def test_log_directories_are_read_once_for_a_pod_and_only_if_nothing_else_names_the_pod(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, f"ns_q_{UID}", "no pod", "ns_other_uid")
    assert node.joiner.join(OF_A_PROCESS, OF_POD).known.logs == {}
    assert node.logs_read == 0
    for _ in range(2):
        assert node.joiner.join(OF_A_PROCESS, NOTHING_KNOWN).known.logs == {UID: ("ns", "q")}
        assert node.logs_read == 1


def test_holdings_are_made_again_only_where_an_allocation_changes(tmp_path: Path) -> None:
    joiner, now = Node(tmp_path).joiner, moment(held("p"))
    before = joiner.join(OF_A_PROCESS, now).holdings
    assert joiner.join(OF_A_PROCESS, now).holdings is before
    assert joiner.join(OF_A_PROCESS, moment(held("q"))).holdings.places == {("uid-q", "main", CARD)}


def test_a_sample_without_any_process_of_the_node_has_a_word_for_that(tmp_path: Path) -> None:
    joiner = Node(tmp_path).joiner
    strangers = VendorSample((card(GIB),), (process(8), process(9)))
    assert joiner.join(strangers, NOTHING_KNOWN).trouble == (
        f"none of the processes is in {tmp_path}: the agent does not see the host's pids"
    )
    assert joiner.join(VendorSample((card(GIB),), ()), NOTHING_KNOWN).trouble == ""
