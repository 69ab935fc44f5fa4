"""What `xpu-agent uninstall` takes away, what it leaves, and when it refuses."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from agent.cli import main
from agent.cli.common_arguments import MISUSED
from agent.cluster.api_client import open_api
from agent.cluster.credentials import find
from agent.cluster.label_patches import feature_name, features_path
from agent.cluster.label_writer import LabelWriter
from agent.cluster.own_node import own_node, path
from agent.core.cell import Cell
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures
from agent.daemon.agent_locks import AgentLocks
from agent.daemon.guarded_scheduler import guarded
from agent.host.cdi_directory import keep
from agent.logs.log_file import LogFile
from agent.scheduler_api import Scheduler
from agent.schedulers.koordinator.node_report import NODE_REPORT
from agent.state import vendor_directories
from agent.state.state_directory_lock import StateDirectoryLock
from agent.state.uninstall_record import NAME, RecordedObject, UninstallRecord
from agent.testing.simapi import SimApiServer


class Machine:
    """Directories of a node on which an agent has been."""

    def __init__(self, root: Path) -> None:
        self.state, self.kubelet, self.cdi = root / "state", root / "dp", root / "cdi"
        for it in (self.state, self.kubelet, self.cdi):
            it.mkdir()
        self.spec, self.features = self.cdi / "acme.com-card.json", root / "features"
        remains = UninstallRecord(self.state / NAME)
        for it in (self.spec, self.features):
            it.write_text("ours")
            remains.note(it)
        for name in (*KEPT, "agent.lock", "agent.last-config.json"):
            (self.state / name).touch()

    def uninstall(self, *more: str) -> int:
        return main(["uninstall", "--state-dir", str(self.state), "--kubelet-dir", str(self.kubelet), *more])

    def left(self) -> set[str]:
        return {it.name for it in self.state.iterdir()}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have one."""
    for name in ("KUBECONFIG", "XPU_AGENT_KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(short_path: Path) -> Machine:
    return Machine(short_path)


KEPT = {"checkpoint.json", "checkpoint.json.corrupt-1-x", "xpu-agent.log", "xpu-agent.log.1"}


def test_nothing_is_left_but_checkpoints_and_logs(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.uninstall() == 0

    assert machine.left() == KEPT
    assert not machine.spec.exists()
    assert not machine.features.exists()
    assert f"{machine.spec}: removed" in capsys.readouterr().out


def test_a_log_of_its_own_directory_survives_with_what_has_turned(machine: Machine, tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "logs"), max_bytes=100, keep=2)
    for n in range(5):
        file.write(f"{n} {'x' * 60}")
    file.close()

    assert machine.uninstall() == 0

    kept = sorted(it.name for it in (tmp_path / "logs").iterdir())
    assert kept == ["xpu-agent.log", "xpu-agent.log.1", "xpu-agent.log.2"]
    assert file.path.read_text().startswith("4 ")


def test_directories_of_vendors_go_where_they_hold_nothing(machine: Machine) -> None:
    for name in ("one", "other"):
        assert vendor_directories.of(machine.state, name) is not None
    (machine.state / "vendors" / "other" / "journal").touch()

    assert machine.uninstall() == 0
    assert machine.left() == {*KEPT, "vendors"}
    assert [it.name for it in (machine.state / "vendors").iterdir()] == ["other"]

    (machine.state / "vendors" / "other" / "journal").unlink()
    assert machine.uninstall() == 0
    assert machine.left() == KEPT


def test_files_of_others_beside_ours_stay(machine: Machine) -> None:
    theirs = machine.cdi / "nvidia.yaml"
    theirs.touch()
    (machine.kubelet / "nvidia-gpu.sock").touch()

    assert machine.uninstall() == 0

    assert theirs.exists()
    assert (machine.kubelet / "nvidia-gpu.sock").exists()


def test_what_a_killed_agent_left_unfinished_goes_too(machine: Machine) -> None:
    torn = machine.cdi / f".{machine.spec.name}.4711"
    another = machine.cdi / f".{machine.spec.name}.swp"
    torn.touch()
    another.touch()

    machine.uninstall()

    assert not torn.exists()
    assert another.exists()


def test_what_a_killed_agent_left_unfinished_in_its_own_directory_goes_too(machine: Machine) -> None:
    for name in ("agent.new", "agent.last-config.new", "agent.of-a-release-to-come"):
        (machine.state / name).touch()

    assert machine.uninstall() == 0

    assert machine.left() == KEPT


def test_the_list_goes_last(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.state / "agent.sock").touch()

    machine.uninstall()

    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{machine.state / NAME}: removed"
    assert f"{machine.state / 'agent.sock'}: removed" in said


def test_a_socket_of_a_dead_agent_goes_from_the_kubelets_directory(machine: Machine) -> None:
    path = machine.kubelet / "xpu-0123abcd-99999999-1.sock"
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))

    machine.uninstall()

    assert not path.exists()


def test_it_refuses_while_an_agent_serves(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with StateDirectoryLock(machine.state / "agent.lock") as lock:
        assert lock.take() == ""

        assert machine.uninstall() == 1

    assert machine.spec.exists()
    assert "an agent serves this node (pid " in capsys.readouterr().err


def test_it_refuses_while_an_agent_with_another_state_directory_serves(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    with AgentLocks(
        machine.kubelet, StateDirectoryLock(machine.kubelet.parent / "another" / "agent.lock")
    ) as lock:
        assert lock.take() == ""

        assert machine.uninstall() == 1

    assert machine.spec.exists()
    assert "an agent serves this node (another process); end it first" in capsys.readouterr().err


def test_it_refuses_while_an_agent_of_an_earlier_release_serves_the_kubelet(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = machine.kubelet / "xpu-0a0b0c0d-4711-1.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        assert machine.uninstall() == 1

    assert f"an agent serves this node (the agent that serves {path})" in capsys.readouterr().err


def test_it_refuses_while_an_agent_serves_whose_state_directory_was_removed(machine: Machine) -> None:
    with AgentLocks(machine.kubelet, StateDirectoryLock(machine.state / "agent.lock")) as lock:
        assert lock.take() == ""
        machine.state.rename(machine.state.with_name("removed"))

        assert machine.uninstall("--also", str(machine.spec)) == 1

    assert machine.spec.exists()
    assert not machine.state.exists()


def test_force_goes_on_and_leaves_the_running_agent_its_lock_and_its_list(machine: Machine) -> None:
    with StateDirectoryLock(machine.state / "agent.lock") as lock:
        assert lock.take() == ""

        assert machine.uninstall("--force") == 0

    assert not machine.spec.exists()
    assert {"agent.lock", NAME} <= machine.left()


def test_a_second_time_there_is_nothing_to_do(machine: Machine) -> None:
    machine.uninstall()

    assert machine.uninstall() == 0


def test_a_node_that_never_had_an_agent_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "none"

    assert main(["uninstall", "--state-dir", str(directory), "--kubelet-dir", str(tmp_path)]) == 0
    assert f"{directory}: not there" in capsys.readouterr().out
    assert not directory.exists()


def test_what_can_not_be_removed_is_told_and_stays_on_the_list(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.spec.unlink()
    machine.spec.mkdir()  # not even root unlinks a directory

    assert machine.uninstall() == 1

    assert not machine.features.exists()
    assert str(machine.spec) in capsys.readouterr().err
    assert NAME in machine.left()


def test_what_can_not_be_seen_from_a_pod_is_not_taken_for_gone(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is one of the node's that is not mounted in this container."""
    elsewhere = machine.state.parent / "not-mounted" / "xpu-agent"
    UninstallRecord(machine.state / NAME).note_features(elsewhere)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert machine.uninstall() == 1

    assert f"on the node: rm -f {elsewhere}" in capsys.readouterr().err
    assert not machine.spec.exists()
    assert elsewhere in UninstallRecord(machine.state / NAME).all()

    elsewhere.parent.mkdir()
    elsewhere.touch()
    assert machine.uninstall() == 0
    assert not elsewhere.exists()
    assert machine.left() == KEPT


def test_on_the_node_itself_what_lies_in_no_directory_is_gone(machine: Machine) -> None:
    UninstallRecord(machine.state / NAME).note_features(machine.state.parent / "removed" / "xpu-agent")

    assert machine.uninstall() == 0

    assert machine.left() == KEPT


def test_a_pod_that_sees_no_state_at_all_has_nothing_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert main(["uninstall", "--state-dir", str(tmp_path / "none"), "--kubelet-dir", str(tmp_path)]) == 0


def test_a_file_that_is_named_counts_as_ours(machine: Machine, tmp_path: Path) -> None:
    named = tmp_path / "labels"
    named.touch()

    machine.uninstall("--also", str(named))

    assert not named.exists()


def test_a_spec_that_another_program_has_written_since_stays_and_is_told(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, nvidias = tmp_path / "ours.json", tmp_path / "k8s.device-plugin.nvidia.com-gpu.json"
    for it in (ours, nvidias):
        keep(tmp_path, {"nvidia": {it.name: "ours"}}, UninstallRecord(machine.state / "agent.remains").note)
    nvidias.write_text("NVIDIA's plugin is back")

    assert machine.uninstall() == 0

    assert nvidias.read_text() == "NVIDIA's plugin is back"
    assert not ours.exists()
    assert f"{nvidias}: stays: another program has written it since" in capsys.readouterr().out
    assert "agent.remains" not in machine.left()


def test_a_spec_that_another_program_has_written_goes_where_it_is_named(
    machine: Machine, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.json"
    keep(tmp_path, {"nvidia": {spec.name: "ours"}}, UninstallRecord(machine.state / "agent.remains").note)
    spec.write_text("another's")

    assert machine.uninstall("--also", str(spec)) == 0

    assert not spec.exists()


async def labelled(server: SimApiServer, kubeconfig: Path) -> None:
    """A Node with a label of its own and one that an agent told."""
    server.put_object(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"pool": "a"}}}
    )
    access = find(kubeconfig, {})
    assert access is not None
    api = await open_api(access)
    try:
        node = Cell(own_node(await api.get(path("n"))))
        wanted: Cell[WantedFeatures | None] = Cell(
            WantedFeatures("node", VendorLabels({"acme.com/count": "2"}))
        )
        await LabelWriter(api, "n", "ours", wanted, node).once()
    finally:
        await api.close()


async def unlabelled(machine: Machine, kubeconfig: Path) -> int:
    more = ("--kubeconfig", str(kubeconfig), "--node-name", "n")
    return await anyio.to_thread.run_sync(lambda: machine.uninstall(*more))


def labels(server: SimApiServer) -> object:
    node = server.find("Node", "n")
    assert node is not None
    return node["metadata"]["labels"]


async def test_labels_that_agents_told_go_where_there_is_an_api_server(
    machine: Machine, tmp_path: Path
) -> None:
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        assert labels(server) == {"pool": "a", "acme.com/count": "2"}

        assert await unlabelled(machine, kubeconfig) == 0
        assert labels(server) == {"pool": "a"}


async def test_annotations_that_vendors_had_written_go_and_those_of_others_stay(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotations = {"acme.com/devices": "1", "xpu-agent.io/annotations": "acme.com/devices", "their.io/x": "2"}
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        metadata = {"name": "n", "annotations": annotations}
        server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        server.forbid("patch", "/api/v1/nodes/n")
        assert await unlabelled(machine, kubeconfig) == 1
        assert "annotations of n are not removed: 403" in capsys.readouterr().err
        server.permit("patch", "/api/v1/nodes/n")

        assert await unlabelled(machine, kubeconfig) == 0

        node = server.find("Node", "n")
    assert node is not None
    assert node["metadata"]["annotations"] == {"their.io/x": "2"}
    assert "annotations of n: removed" in capsys.readouterr().out


async def test_extended_resources_that_vendors_had_counted_go_and_those_of_others_stay(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"acme.com/card-count": "8", "acme.com/card": "8", "cpu": "4"}
    annotations = {"xpu-agent.io/extended-resources": "acme.com/card-count"}
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        metadata = {"name": "n", "annotations": annotations}
        status = {"capacity": counts, "allocatable": counts}
        server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
        server.forbid("patch", "/api/v1/nodes/n/status")
        assert await unlabelled(machine, kubeconfig) == 1
        refusal = capsys.readouterr().err
        assert "extended resources of n are not removed: 403" in refusal
        by_hand = json.loads(refusal.partition("-p '")[2].partition("'")[0])
        assert by_hand["metadata"] == {"annotations": dict.fromkeys(annotations)}
        assert by_hand["status"] == {"capacity": {"NAME": None}, "allocatable": {"NAME": None}}
        server.permit("patch", "/api/v1/nodes/n/status")

        assert await unlabelled(machine, kubeconfig) == 0

        node = server.find("Node", "n")
    assert node is not None
    del counts["acme.com/card-count"]
    assert node["status"] == {"capacity": counts, "allocatable": counts}
    assert not node["metadata"].get("annotations")
    assert "extended resources of n: removed" in capsys.readouterr().out


async def test_labels_that_can_not_be_removed_are_told_when_all_else_is_gone(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")

        said = await anyio.to_thread.run_sync(
            lambda: machine.uninstall("--kubeconfig", str(kubeconfig), "--node-name", "nobody")
        )

    assert said == 1
    assert machine.left() == KEPT
    assert "labels of nobody are not removed: 404" in capsys.readouterr().err


def feature_in(server: SimApiServer, namespace: str) -> None:
    server.put_object(
        {
            "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
            "kind": "NodeFeature",
            "metadata": {"name": feature_name("n"), "namespace": namespace},
            "spec": {"labels": {"acme.com/count": "2"}},
        }
    )


async def test_a_node_feature_goes_from_the_namespace_where_it_was_made(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    UninstallRecord(machine.state / NAME).note_namespace("gpu")
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        feature_in(server, "gpu")
        at = f"{features_path('gpu')}/{feature_name('n')}"
        server.forbid("delete", at)

        assert await unlabelled(machine, kubeconfig) == 1
        said = capsys.readouterr()
        assert "stays in gpu: 403" in said.err
        assert "labels of n: removed" not in said.out
        assert NAME in machine.left()  # the next try needs it

        server.permit("delete", at)
        assert await unlabelled(machine, kubeconfig) == 0
        assert server.find("NodeFeature", feature_name("n"), "gpu") is None
    assert machine.left() == KEPT


async def test_a_file_that_can_not_be_removed_keeps_no_label(machine: Machine, tmp_path: Path) -> None:
    machine.spec.unlink()
    machine.spec.mkdir()
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)

        assert await unlabelled(machine, kubeconfig) == 1

        assert labels(server) == {"pool": "a"}


#: Full name of the kind of DEVICE.
DEVICES = "devices.scheduling.koordinator.sh"
DEVICE = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "n"}}
CARD = {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True}
NIC = {"type": "rdma", "id": "0000:09:00.0", "minor": 0, "health": True}


@pytest.mark.parametrize(
    ("writers", "left"),
    [
        ([("xpu-agent", [CARD])], None),
        ([("xpu-agent", [CARD, NIC])], [NIC]),
        ([("xpu-agent", [CARD]), ("koordlet", [{**CARD, "id": "GPU-1"}])], [{**CARD, "id": "GPU-1"}]),
        ([("somebody", [CARD])], [CARD]),
    ],
)
async def test_cards_that_agents_told_in_the_device_go_and_those_of_others_stay(
    machine: Machine, tmp_path: Path, writers: list[tuple[str, list[Any]]], left: list[Any] | None
) -> None:
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        for manager, devices in writers:
            server.put_object({**DEVICE, "spec": {"devices": devices}}, manager=manager)

        assert await unlabelled(machine, kubeconfig) == 0

        shown = server.find("Device", "n")
        assert (shown["spec"]["devices"] if shown else None) == left
    assert machine.left() == KEPT


async def test_the_device_of_a_node_that_was_renamed_goes_by_the_name_that_is_written_down(
    machine: Machine, tmp_path: Path
) -> None:
    UninstallRecord(machine.state / NAME).note_object(DEVICES, "before")
    named = {**DEVICE, "metadata": {"name": "before"}, "spec": {"devices": [CARD]}}
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        server.put_object(named, manager="xpu-agent")

        assert await unlabelled(machine, kubeconfig) == 0
        assert server.find("Device", "before") is None


async def test_cards_that_a_scheduler_s_plugin_cannot_take_out_are_named_and_stay_on_the_list(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(document: Any) -> Any:
        raise KeyError("spec")

    report = replace(NODE_REPORT, object=replace(NODE_REPORT.object, withdrawn=fails))
    koordinator = guarded(Scheduler("koordinator", report=report))
    monkeypatch.setattr("agent.daemon.scheduler_plugins.registered", lambda: (koordinator,))
    UninstallRecord(machine.state / NAME).note_object(DEVICES, "n")
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        server.put_object({**DEVICE, "spec": {"devices": [CARD]}}, manager="xpu-agent")

        assert await unlabelled(machine, kubeconfig) == 1

        refusal = capsys.readouterr().err
        assert "koordinator: its plugin fails in report.object.withdrawn: KeyError: 'spec'" in refusal
        assert "kubectl edit devices.scheduling.koordinator.sh n removes them by hand" in refusal
        assert NAME in machine.left()
        assert labels(server) == {"pool": "a"}


@pytest.mark.parametrize("verb", ["get", "delete"])
async def test_a_device_that_can_not_be_taken_back_is_told_and_stays_on_the_list(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    UninstallRecord(machine.state / NAME).note_object(DEVICES, "n")
    at = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        server.put_object({**DEVICE, "spec": {"devices": [CARD]}}, manager="xpu-agent")
        server.forbid(verb, at)

        assert await unlabelled(machine, kubeconfig) == 1
        assert "cards in the Device n are not removed: 403" in capsys.readouterr().err
        assert NAME in machine.left()
        assert labels(server) == {"pool": "a"}

        server.permit(verb, at)
        assert await unlabelled(machine, kubeconfig) == 0
        assert server.find("Device", "n") is None
    assert machine.left() == KEPT


async def test_who_may_not_see_devices_and_never_wrote_one_is_clean(machine: Machine, tmp_path: Path) -> None:
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        server.forbid("*", "/apis/scheduling.koordinator.sh/v1alpha1/devices")

        assert await unlabelled(machine, kubeconfig) == 0


def test_without_an_api_server_a_device_that_may_be_there_counts_as_not_removed(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    UninstallRecord(machine.state / NAME).note_object(DEVICES, "n")

    assert machine.uninstall() == 1

    assert "Device n: not looked for" in capsys.readouterr().err
    assert UninstallRecord(machine.state / NAME).objects() == (RecordedObject("n", DEVICES),)


@pytest.mark.parametrize(
    ("entry", "what", "kind"),
    [
        (f"object:{DEVICES}:n", f"{DEVICES} n", DEVICES),
        ("device:n", "object n with cards of the node", "KIND"),
    ],
)
async def test_an_object_whose_scheduler_has_no_plugin_here_is_named_and_stays_in_the_record(
    machine: Machine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    entry: str,
    what: str,
    kind: str,
) -> None:
    monkeypatch.setattr("agent.daemon.scheduler_plugins.registered", lambda: ())
    (machine.state / NAME).write_text(f"{entry}\n")

    assert machine.uninstall() == 1
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        await labelled(server, kubeconfig)
        assert await unlabelled(machine, kubeconfig) == 1

    sentences = capsys.readouterr().err
    assert (
        sentences.count(f"{what}: not removed: no installed scheduler plugin has objects of this kind") == 2
    )
    assert sentences.count(f"kubectl edit {kind} n") == 2
    assert NAME in machine.left()


def test_without_an_api_server_a_node_feature_that_may_be_there_counts_as_not_removed(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    UninstallRecord(machine.state / NAME).note_namespace("gpu")

    assert machine.uninstall() == 1

    assert "NodeFeature in gpu: not looked for" in capsys.readouterr().err
    assert not machine.spec.exists()
    assert NAME in machine.left(), "it may be there, and the list is what knows of it"
    assert UninstallRecord(machine.state / NAME).namespaces() == ("gpu",)


async def awaited(kubeconfig: Path, within: str) -> int:
    """Wait for the DaemonSet `cleaner` of the namespace `default`."""
    verb = ["uninstall", "--await-nodes=cleaner", f"--within={within}", "--kubeconfig", str(kubeconfig)]
    return await anyio.to_thread.run_sync(main, verb)


async def test_who_waits_for_nodes_hears_when_all_are_clean_or_how_many_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cleaner(clean: int) -> dict[str, Any]:
        status = {"numberReady": clean, "desiredNumberScheduled": 2}
        metadata = {"name": "cleaner", "namespace": "default"}
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "status": status}

    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        server.put_object(cleaner(1))
        assert await awaited(kubeconfig, "0.1") == 1
        assert "cleaner: done on 1 of 2 nodes; which: kubectl -n default get" in capsys.readouterr().err

        server.put_object(cleaner(2))
        assert await awaited(kubeconfig, "60") == 0
    assert "cleaner: every node is clean" in capsys.readouterr().out


async def test_of_several_daemonsets_each_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SimApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        for name, clean in (("first", 1), ("second", 2)):
            status = {"numberReady": clean, "desiredNumberScheduled": 2}
            metadata = {"name": name, "namespace": "default"}
            kind = {"apiVersion": "apps/v1", "kind": "DaemonSet"}
            server.put_object({**kind, "metadata": metadata, "status": status})
        verb = ["uninstall", "--await-nodes=first", "--await-nodes=second", "--within=0.1"]

        assert await anyio.to_thread.run_sync(main, [*verb, "--kubeconfig", str(kubeconfig)]) == 1

    assert "first: done on 1 of 2 nodes" in capsys.readouterr().err


def test_nobody_can_wait_for_nodes_without_an_api_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["uninstall", "--await-nodes", "cleaner"]) == MISUSED

    assert "no API server is known here" in capsys.readouterr().err
