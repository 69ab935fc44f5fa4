"""A node that ran NVIDIA's plugin: its files, its variables and its resources, and what it did wrong."""

from __future__ import annotations

import json
from asyncio import to_thread
from pathlib import Path
from typing import Any

import pytest

from agent.config import ConfigSource
from agent.core.model import VendorState
from agent.core.publishing.agent_status import UNKNOWN
from agent.core.publishing.event_texts import notices
from agent.testing.kubelet import SimKubelet
from agent.vendor_api.agent import State

from .cards import Mig, Nvidia
from .conftest import ONLY_NVIDIA
from .node import Node, confirmed, device, vendor_is

pytestmark = ONLY_NVIDIA

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"


@pytest.fixture
def count() -> int:
    return 2


def nvidia(node: Node) -> Nvidia:
    assert isinstance(node.cards, Nvidia)
    return node.cards


def sliced(replicas: int) -> str:
    """NVIDIA's file: each card shared so often."""
    resource = {"name": GPU, "replicas": replicas}
    return json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [resource]}}})


async def start(node: Node, text: str = "version: v1", **environ: str) -> None:
    node.write(text)
    await node.start_from(ConfigSource(node.config), environ)


async def start_with_mig(node: Node, strategy: str, **settings: Any) -> None:
    """Start with three MIG devices on each card."""
    stub = nvidia(node).stub
    for index in range(len(node.cards.uuids)):
        stub.mig(index)
    stub.write_minors(node.root / "proc")
    mine = node.cards.settings["settings"]
    extra = {**mine, "procfs": str(node.root / "proc"), "migStrategy": strategy, **settings}
    node.configure(nvidia={**node.cards.settings, "enabled": True, "settings": extra})
    await node.start()


# The documents that people follow


async def test_five_pods_of_a_deployment_share_two_cards(node: Node) -> None:
    """Time-slicing as people set it up: a config named `any`, a Deployment of five, and all of them run."""
    configs = node.root / "configs"
    configs.mkdir()
    (configs / "any").write_text(sliced(10))
    await node.start_from(ConfigSource(configs, default_config="any"))
    await node.counts({GPU: (20, 20)})

    pods = [await node.admit(f"time-slicing-verification-{n}", {GPU: 1}) for n in range(5)]

    shown = [await node.cards_of(pod) for pod in pods]
    assert all(len(cards) == 1 for cards in shown)
    assert sorted(map(shown.count, ({uuid} for uuid in node.cards.uuids))) == [2, 3]
    await node.until(lambda it: confirmed(it, *pods))


async def test_two_of_four_pods_run_on_two_cards_and_all_once_these_are_virtual(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (2, 2)})
    whole = [await node.admit(f"whole-{n}", {GPU: 1}) for n in range(2)]
    refusal = await node.refused("third", {GPU: 1})
    assert refusal.reason == "UnexpectedAdmissionError"
    await node.until(lambda it: confirmed(it, *whole))
    for pod in whole:
        await node.kubelet.delete(pod.uid)

    node.write(sliced(10))

    await node.counts({GPU: (20, 20)})
    shown = [await node.cards_of(await node.admit(f"virtual-{n}", {GPU: 1})) for n in range(4)]
    assert [shown.count({uuid}) for uuid in node.cards.uuids] == [2, 2]


async def test_a_part_of_the_cards_is_shared_under_a_name_of_its_own(node: Node) -> None:
    resource = {"name": GPU, "rename": "gpu.shared", "replicas": 4, "devices": [1]}
    file = {"version": "v1", "sharing": {"timeSlicing": {"resources": [resource]}}}
    await start(node, json.dumps(file))

    await node.counts({GPU: (1, 1), "nvidia.com/gpu.shared": (4, 4)})

    whole, shared = (
        await node.admit("whole", {GPU: 1}),
        await node.admit("part", {"nvidia.com/gpu.shared": 1}),
    )
    assert await node.cards_of(whole) == {node.cards.uuids[0]}
    assert await node.cards_of(shared) == {node.cards.uuids[1]}


# MIG


async def test_mig_devices_are_resources_of_their_profile(node: Node) -> None:
    await start_with_mig(node, "mixed", passDeviceSpecs=True)
    await node.counts({MIG: (6, 6)})

    pod = await node.admit("slice", {MIG: 1})

    (uuid,) = await node.cards_of(pod)
    paths = device(node.view, uuid).device.paths
    assert uuid.startswith("MIG-")
    assert len(paths) == 3
    options = await node.kubelet.run_options(pod.uid, "main")
    assert {path for _, path, _ in options.devices} >= set(paths)


async def test_mig_devices_are_gpus_where_all_are_alike(node: Node) -> None:
    await start_with_mig(node, "single")

    await node.counts({GPU: (6, 6)})


async def test_unlike_mig_devices_are_not_called_gpus_and_the_reason_is_said(node: Node) -> None:
    await start_with_mig(node, "single")
    await node.counts({GPU: (6, 6)})

    nvidia(node).stub.mig_mode(1, enabled=False)

    view = await node.until(lambda it: it.complaints)
    assert "all devices on the node must be configured with the same migEnabled value" in view.troubles[0]
    nvidia(node).stub.mig_mode(1, enabled=True)
    await node.until(lambda it: not it.troubles)
    await node.counts({GPU: (6, 6)})


async def test_replicas_of_mig_devices_are_shared_slices(node: Node) -> None:
    sharing = {"resources": [{"name": "mig-1g.10gb", "rename": "mig-1g.10gb.shared", "replicas": 2}]}
    await start_with_mig(node, "mixed", timeSlicing=sharing)

    await node.counts({f"{MIG}.shared": (12, 12)})


async def test_a_cdi_name_that_a_container_gets_is_in_a_spec_on_disk(node: Node) -> None:
    await start_with_mig(node, "mixed", deviceListStrategy=["cdi-cri", "cdi-annotations"])
    await node.counts({MIG: (6, 6)})

    pod = await node.admit("slice", {MIG: 1})

    options = await node.kubelet.run_options(pod.uid, "main")
    annotated = [value for key, value in options.annotations.items() if key.startswith("cdi.k8s.io/")]
    (name,) = options.cdi_devices or annotated
    assert annotated == [name]
    kind, _, wanted = name.partition("=")
    spec = json.loads((node.cdi / f"{kind.replace('/', '-')}.json").read_text())
    assert spec["kind"] == kind
    assert wanted in {it["name"] for it in spec["devices"]}


async def test_without_a_cdi_spec_no_card_is_given_to_a_container_that_would_not_start(node: Node) -> None:
    await to_thread(node.cdi.write_text, "in the way")
    await start(node, DEVICE_LIST_STRATEGY="cdi-cri")
    await node.counts({GPU: (2, 0)})
    view = await node.until(lambda it: it.troubles)
    assert str(node.cdi) in view.troubles[0]

    await to_thread(node.cdi.unlink)

    await node.counts({GPU: (2, 2)})
    await node.until(lambda it: not it.troubles)


# Labels


async def test_the_labels_are_in_the_file_that_gpu_feature_discovery_would_write(node: Node) -> None:
    file = node.root / "gfd"
    await start(node, sliced(4), GFD_OUTPUT_FILE=str(file))

    labels = await node.read(file, "nvidia.com/gpu.count=2\n")

    assert "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED\n" in labels
    assert "nvidia.com/gpu.replicas=4\n" in labels
    await node.stop()
    assert file.exists()  # pods select by it


# What NVIDIA's plugin does wrong, one test for each


async def test_siblings_not_marked_all_replicas_of_a_card_are(node: Node) -> None:
    await start(node, sliced(4))
    await node.counts({GPU: (8, 8)})

    await node.fail(1)

    await node.counts({GPU: (8, 4)})


async def test_siblings_not_marked_all_mig_devices_of_a_card_are(node: Node) -> None:
    await start_with_mig(node, "mixed")
    await node.counts({MIG: (6, 6)})

    await node.fail(1)

    await node.counts({MIG: (6, 3)})
    nvidia(node).reset(1)
    await node.counts({MIG: (6, 6)})


async def test_siblings_not_marked_an_instance_alone_where_the_event_is_its_own(node: Node) -> None:
    await start_with_mig(node, "mixed")
    await node.counts({MIG: (6, 6)})
    await node.watched()

    nvidia(node).stub.xid(1, 79, gi=8, ci=0)

    await node.counts({MIG: (6, 5)})
    sick = [it.uuid for it in node.view.snapshot.devices if not it.told_healthy]
    assert sick == [nvidia(node).stub.mig_uuid(1, 1)]


async def test_wait_error_storm_a_wait_that_fails_for_good_sends_no_list(node: Node, sim: SimKubelet) -> None:
    await start(node, sliced(10))
    await node.counts({GPU: (20, 20)})
    await node.watched()
    lists = sim.journal.lists[GPU]

    nvidia(node).stub.wait_error()

    view = await node.until(lambda it: all(s.health.reason == "events-lost" for s in it.snapshot.devices))
    assert {it.health.state for it in view.snapshot.devices} == {State.UNKNOWN}
    looked = nvidia(node).stub.calls("nvmlDeviceGetCount_v2")
    await node.until(lambda _: nvidia(node).stub.calls("nvmlDeviceGetCount_v2") >= looked + 5)
    assert sim.journal.lists[GPU] - lists <= 2
    nvidia(node).stub.clear()
    await node.until(lambda it: all(s.health.state is State.HEALTHY for s in it.snapshot.devices))


async def test_stale_stream_eats_an_event_the_stream_of_today_gets_it(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (2, 2)})
    await node.kubelet.restart()
    await node.until(lambda it: it.sessions[GPU].registrations == 2 and node.streams(GPU) == 2)

    await node.fail(0)

    await node.counts({GPU: (2, 1)})


async def test_disable_all_with_enable_what_is_enabled_is_watched(node: Node) -> None:
    await start(node, DP_DISABLE_HEALTHCHECKS="all", DP_ENABLE_HEALTHCHECKS="79")
    await node.counts({GPU: (2, 2)})
    await node.watched()

    nvidia(node).stub.xid(0, 48)
    nvidia(node).stub.xid(1, 79)

    await node.counts({GPU: (2, 1)})
    assert device(node.view, node.cards.uuids[0]).health.state is State.HEALTHY


async def test_no_recovery_a_card_comes_back_after_its_reset(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (2, 2)})
    await node.fail(0)
    await node.counts({GPU: (2, 1)})

    nvidia(node).reset(0)

    await node.counts({GPU: (2, 2)})


async def test_health_forgotten_on_restart_a_fault_outlasts_kubelet_and_agent(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (2, 2)})
    await node.fail(0)
    await node.counts({GPU: (2, 1)})

    await node.kubelet.restart()
    await node.until(lambda it: it.sessions[GPU].registrations == 2)
    await node.counts({GPU: (2, 1)})
    await node.stop()
    await start(node)

    await node.until(lambda it: it.sessions and it.sessions[GPU].state == "registered")
    await node.counts({GPU: (2, 1)})


async def test_no_re_enumeration_a_driver_that_comes_late_is_served(node: Node) -> None:
    node.cards.unload()
    await start(node)
    view = await node.until(lambda it: vendor_is(it, "nvidia", VendorState.UNAVAILABLE))
    assert "driver-not-loaded" in view.troubles[0]

    node.cards.load()

    await node.counts({GPU: (2, 2)})
    await node.until(lambda it: not it.troubles)


async def test_no_re_enumeration_another_mig_layout_is_picked_up(node: Node) -> None:
    await start_with_mig(node, "mixed")
    await node.counts({MIG: (6, 6)})
    pod = await node.admit("slice", {MIG: 1})
    (used,) = await node.cards_of(pod)
    (index,) = (it.device.index for it in node.view.snapshot.devices if it.uuid == used)
    await node.until(lambda it: confirmed(it, pod))
    stub = nvidia(node).stub

    stub.mig(1 - index, ())

    await node.counts({MIG: (3, 3)})
    stub.mig(index, ())
    await node.counts({MIG: (1, 0)})  # the one in use stays, for its pod
    await node.kubelet.delete(pod.uid)
    await node.counts({MIG: (0, 0)})


@pytest.mark.parametrize("count", [1])
async def test_no_re_enumeration_a_slice_that_a_pod_holds_keeps_no_other_layout_away(node: Node) -> None:
    await start_with_mig(node, "single")
    await node.counts({GPU: (3, 3)})
    pod = await node.admit("slice", {GPU: 1})
    await node.until(lambda it: confirmed(it, pod))

    nvidia(node).stub.mig(0, (Mig("3g.40gb", gi=1), Mig("3g.40gb", gi=2)))

    await node.counts({GPU: (3, 2)})  # two of the new layout, and the one in use
    assert not node.view.troubles


async def test_lost_card_breaks_start_the_others_are_served(node: Node) -> None:
    nvidia(node).stub.lose(0)

    await start(node)

    await node.counts({GPU: (1, 1)})
    view = await node.until(lambda it: not it.troubles)
    assert device(view, "nvidia-nameless-0").health.reason == "lost"


async def test_lost_card_breaks_start_one_that_is_known_from_before_is_listed_as_sick(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (2, 2)})
    await node.saved(node.cards.uuids[0])
    await node.stop()
    nvidia(node).stub.lose(0)

    await start(node)

    await node.counts({GPU: (2, 1)})
    assert device(node.view, node.cards.uuids[0]).health.reason == "lost"
    nvidia(node).stub.restore(0)
    await node.counts({GPU: (2, 2)})


@pytest.mark.parametrize("count", [4])
async def test_lost_card_breaks_placement_the_others_are_placed(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (4, 4)})
    await node.until(lambda it: all(card.device.links for card in it.snapshot.devices))

    nvidia(node).stub.lose(1)

    await node.counts({GPU: (4, 3)})
    assert await node.cards_of(await node.admit("pair", {GPU: 2})) == {node.cards.uuids[it] for it in (2, 3)}


@pytest.mark.parametrize("count", [8])
async def test_nil_panic_on_a_flat_topology_three_of_five_cards_are_placed(node: Node) -> None:
    stub = nvidia(node).stub
    for left in range(8):
        for right in range(left):
            stub.level(left, right, 50)
            stub.nvlinks(left, right, 12 if left ^ right == 1 else 0)
    await start(node)
    await node.counts({GPU: (8, 8)})
    await node.until(lambda it: all(len(card.device.links) == 7 for card in it.snapshot.devices))
    for sick in (1, 3, 5):
        await node.fail(sick)
    await node.counts({GPU: (8, 5)})

    pod = await node.admit("three", {GPU: 3})

    pair = {node.cards.uuids[6], node.cards.uuids[7]}
    assert pair < await node.cards_of(pod)


async def test_own_socket_deleted_it_is_made_anew(node: Node) -> None:
    await start(node)
    await node.counts({GPU: (2, 2)})

    for path in node.kubelet.plugin_dir.glob("xpu-*.sock"):
        path.unlink()

    await node.until(lambda it: it.sessions[GPU].registrations == 2)
    await node.counts({GPU: (2, 2)})
    await node.admit("after", {GPU: 1})


async def test_configmap_edit_ignored_an_edit_takes_effect_in_the_process_that_runs(node: Node) -> None:
    mounted = ConfigMap(node.root / "configs", any=sliced(2), other=sliced(3))
    await node.start_from(ConfigSource(mounted.path, default_config="any"))
    await node.counts({GPU: (4, 4)})
    calls = nvidia(node).stub.calls("nvmlInitWithFlags")

    mounted.edit(any=sliced(5), other=sliced(3))

    await node.counts({GPU: (10, 10)})
    assert nvidia(node).stub.calls("nvmlInitWithFlags") == calls  # nor does the driver notice


async def test_unknown_config_name_crash_loop_the_last_good_one_stays_and_the_reason_is_said(
    node: Node,
) -> None:
    name = node.root / "name"
    mounted = ConfigMap(node.root / "configs", default=sliced(2), big=sliced(8))
    await node.start_from(ConfigSource(mounted.path, node_config_file=name))
    await node.counts({GPU: (4, 4)})
    name.write_text("big")
    await node.counts({GPU: (16, 16)})

    name.write_text("bgi")

    view = await node.until(lambda it: it.config_error)
    assert "specified config bgi does not exist" in view.config_error
    assert (await node.kubelet.capacity())[GPU].capacity == 16
    name.unlink()
    await node.counts({GPU: (4, 4)})
    await node.until(lambda it: not it.config_error)


async def test_unknown_config_name_crash_loop_a_start_with_one_waits_and_the_reason_is_said(
    node: Node,
) -> None:
    name = node.root / "name"
    name.write_text("bgi")
    mounted = ConfigMap(node.root / "configs", big=sliced(8))

    await node.start_from(ConfigSource(mounted.path, node_config_file=name))

    view = await node.until(lambda it: it.troubles and not it.standby)
    assert "specified config bgi does not exist; there are: big" in view.troubles[0]
    assert view.snapshot.vendors == ()
    name.write_text("big")
    await node.counts({GPU: (16, 16)})
    await node.until(lambda it: not it.troubles)


async def test_unknown_config_name_crash_loop_a_start_after_a_good_one_goes_on_with_it(node: Node) -> None:
    mounted = ConfigMap(node.root / "configs", default=sliced(2))
    await node.start_from(ConfigSource(mounted.path))
    await node.counts({GPU: (4, 4)})
    await node.read(node.state / "agent.last-config.json", '"name":"default"')
    await node.stop()
    mounted.edit(default=sliced(8).replace(": 8", ": many"))

    await node.start_from(ConfigSource(mounted.path))

    await node.counts({GPU: (4, 4)})
    view = await node.until(lambda it: not it.troubles)
    assert f"{mounted.path}/default" in view.config_error
    assert view.config_error.endswith("Z, stays in force")
    view = node.agent.view()
    assert "ConfigRefused" in {it.reason for it in notices(UNKNOWN, view)}
    mounted.edit(default=sliced(8))
    await node.counts({GPU: (16, 16)})
    await node.until(lambda it: not it.config_error)


class ConfigMap:
    """A ConfigMap as the kubelet mounts it: files are links into a directory that is swapped whole."""

    def __init__(self, path: Path, **files: str) -> None:
        self.path = path
        self._edits = 0
        path.mkdir()
        self.edit(**files)
        for name in files:
            (path / name).symlink_to(Path("..data") / name)

    def edit(self, **files: str) -> None:
        self._edits += 1
        fresh = self.path / f"..{self._edits}"
        fresh.mkdir()
        for name, text in files.items():
            (fresh / name).write_text(text)
        unfinished = self.path / "..data_tmp"
        unfinished.symlink_to(fresh.name)
        unfinished.replace(self.path / "..data")
