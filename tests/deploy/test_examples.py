"""The examples: the chart takes their values, the agent their config, and the pod asks for what there is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.vendor_inputs import INPUTS

from agent.config import Config, parse
from agent.core.devices.offers import OfferedResources, VendorRules
from agent.core.devices.plan import plan
from agent.core.model import DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.daemon.vendor_config import check_config, wanted_plugins
from agent.schedulers.common.resource_names import PREFIX
from agent.vendor_api.agent import Device, State

from .chart import ROOT, Chart, Rendered

EXAMPLES = sorted(it for it in (ROOT / "deploy/examples").iterdir() if it.is_dir())


#: Where the chart mounts a vendor's own ConfigMap, and what stands in MetaX's.
MOUNTED = "/etc/xpu-agent-metax"
DEVICE_CONFIG = {"version": "v1", "cluster-config": 'mode: "native"\n', "nodes-config": ""}


def devices(vendor: str, *, split: bool) -> list[Device]:
    """Four cards; `split` into one slice each, of NVIDIA's."""
    if vendor == "enflame":
        said = {"virtual": "Disable", "product": "S60"}
        return [Device(f"GCU-{n}", n, minor=n, memory=48 << 30, attributes=said) for n in range(4)]
    if vendor == "metax":
        can = {"virtualisation": "none", "sgpu-capable": "true"}
        return [Device(f"GPU-{n}", n, minor=n, memory=64 << 30, attributes=can) for n in range(4)]
    mode = {"mig-capable": "true", "mig-mode": "enabled"} if split else {"mig-capable": "false"}
    cards = [
        Device(f"GPU-{n}", n, minor=n, model="H100", paths=(f"/dev/x{n}",), attributes=mode) for n in range(4)
    ]
    if vendor != "nvidia" or not split:
        return cards
    profile = {"mig-profile": "1g.10gb"}
    return cards + [
        replace(it, uuid=f"MIG-{it.index}", parent=it.uuid, slice=0, minor=None, attributes=profile)
        for it in cards
    ]


def offered(config: Config, vendor: str, *, split: bool) -> dict[str, int]:
    """The resources that the agent would register on a node of this vendor, and how many IDs each has."""
    plugins = [it for it in wanted_plugins(config) if it.vendor and it.name == vendor]
    snapshot = NodeSnapshot(
        tuple(VendorStatus(it.name, VendorState.OPEN) for it in plugins),
        tuple(
            DeviceStatus(it.name, device, Health(State.HEALTHY), told_healthy=True)
            for it in plugins
            for device in devices(it.name, split=split)
        ),
    )
    offers = OfferedResources(
        [
            VendorRules(it.vendor, its.resources, dynamic=(its.modes or it.vendor.offers.modes) == "dynamic")
            for it in plugins
            if it.vendor and (its := config.vendor(it.name))
        ]
    )
    made = plan(offers.of(snapshot), snapshot)
    assert not offers.complaints
    return {name: it.capacity for name, it in made.items()}


def rendered(chart: Chart, example: Path, **more: Any) -> Rendered:
    return chart.render(yaml.safe_load((example / "values.yaml").read_text()) | more)


def configs(shown: Rendered, directory: Path) -> dict[str, Config]:
    """Each config of the chart's; `directory` stands for a vendor's own ConfigMap."""
    data = shown.one("ConfigMap")["data"]
    for key, text in DEVICE_CONFIG.items():
        (directory / key).write_text(text)
    there = {name: text.replace(MOUNTED, str(directory)) for name, text in data.items()}
    return {name: check_config(parse(text, name, "a-node", inputs=INPUTS)) for name, text in there.items()}


def vendor_of(shown: Rendered) -> str:
    """Whose cards the nodes of its pool have: a pool that is no vendor's has NVIDIA's."""
    pool = pool_of(shown)
    return pool if pool in ("enflame", "metax", "simulated") else "nvidia"


def pod(example: Path) -> tuple[dict[str, Any], int]:
    """The spec of the example's pod, and how many of them there are."""
    asked = yaml.safe_load((example / "pod.yaml").read_text())
    if asked["kind"] == "Pod":
        return asked["spec"], 1
    return asked["spec"]["template"]["spec"], asked["spec"]["replicas"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda it: it.name)
def test_the_pods_of_an_example_find_what_they_ask_for(chart: Chart, example: Path, tmp_path: Path) -> None:
    shown = rendered(chart, example)
    held = configs(shown, tmp_path)[shown.env(pool_of(shown)).get("XPU_AGENT_DEFAULT_CONFIG", "default")]
    spec, count = pod(example)

    limits = spec["containers"][0]["resources"]["limits"]
    # What koord-manager writes on the Node is asked of its scheduler, not of the kubelet.
    [(resource, each)] = [it for it in limits.items() if not it[0].startswith(PREFIX)]

    found = offered(held, vendor_of(shown), split="mig" in example.name)
    assert found.get(resource, 0) >= each * count
    assert (spec.get("schedulerName") == "koord-scheduler") == ("koordinator" in example.name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda it: it.name)
def test_the_pods_of_an_example_are_let_onto_the_nodes_of_its_pool(chart: Chart, example: Path) -> None:
    shown = rendered(chart, example)
    spec, _ = pod(example)

    taints = {it["key"] for it in shown.pod(pool_of(shown)).get("tolerations", ())}

    assert taints & {it["key"] for it in spec["tolerations"]} or "simulated" in example.name


def pool_of(shown: Rendered) -> str:
    [name] = [it["metadata"]["labels"]["xpu-agent.io/pool"] for it in shown.all("DaemonSet")]
    assert isinstance(name, str)
    return name


def test_every_config_of_the_time_slicing_example_is_good(chart: Chart, tmp_path: Path) -> None:
    held = configs(rendered(chart, ROOT / "deploy/examples/nvidia-time-slicing"), tmp_path)

    assert {name: offered(it, "nvidia", split=False) for name, it in held.items()} == {
        "any": {"nvidia.com/gpu": 40},
        "whole": {"nvidia.com/gpu": 4},
    }


def test_every_example_is_in_the_table_of_the_docs() -> None:
    page = (ROOT / "docs/install.md").read_text()

    assert re.findall(r"^\| `([a-z]+-[a-z0-9-]+)` \|", page, re.MULTILINE) == [
        it.name for it in sorted(EXAMPLES, key=lambda it: page.index(f"`{it.name}`"))
    ]


@pytest.mark.parametrize(
    "example", [it for it in EXAMPLES if "koordinator" in it.name], ids=lambda it: it.name
)
def test_an_example_beside_koordinator_may_tell_it_of_the_cards_and_hears_its_scheduler(
    chart: Chart, example: Path, tmp_path: Path
) -> None:
    shown = rendered(chart, example)
    [held] = configs(shown, tmp_path).values()
    rules = {tuple(it["resources"]): set(it["verbs"]) for it in shown.one("ClusterRole")["rules"]}

    assert "kubectl get devices.scheduling.koordinator.sh" in chart.notes({"koordinator": {"enabled": True}})
    assert rules[("devices",)] >= {"get", "list", "watch", "create", "update"}
    assert rules[("pods",)] >= {"list", "watch"}
    assert held.report.device_infos_dir in shown.mounts(pool_of(shown))
    assert held.report.mode != "none"
    rules_of = [it for vendor in held.vendors.values() if vendor.enabled for it in vendor.resources]
    assert {it.placement for it in rules_of} in ({"auto"}, {"claim"})


def test_an_example_of_metax_s_slices_may_tell_hami_of_them_whatever_the_cluster_has(
    chart: Chart, tmp_path: Path
) -> None:
    shown = rendered(chart, ROOT / "deploy/examples/koordinator-metax", admissionPolicy={"enabled": False})
    [held] = configs(shown, tmp_path).values()
    rules = {tuple(it["resources"]): set(it["verbs"]) for it in shown.one("ClusterRole")["rules"]}

    assert held.vendor("metax").settings["mode"] == "sgpu"
    assert "patch" in rules[("nodes",)]


@pytest.mark.parametrize(
    ("example", "dialect", "found"),
    [
        ("enflame-gcushare-v1", "gcushare-v1", {"enflame.com/gcu": 4, "enflame.com/gcu-memory": 192}),
        (
            "enflame-gcushare-v4",
            "gcushare-v4",
            {"enflame.com/gcu": 4, "enflame.com/shared-gcu": 24, "enflame.com/drs-gcu": 24},
        ),
    ],
)
def test_an_example_of_gcushare_offers_its_resources_beside_whole_cards_to_the_nodes_of_its_label(
    chart: Chart, tmp_path: Path, example: str, dialect: str, found: dict[str, int]
) -> None:
    shown = rendered(chart, ROOT / "deploy/examples" / example)
    [held] = configs(shown, tmp_path).values()

    assert held.vendor("enflame").settings["dialect"] == dialect
    assert shown.pod("enflame")["nodeSelector"] == {"enflame.com/gcushare": "true"}
    assert offered(held, "enflame", split=False) == found


@pytest.mark.parametrize("example", ["enflame-gcushare-v1", "enflame-gcushare-v4"])
def test_an_example_of_gcushare_may_write_all_that_its_scheduler_reads(
    chart: Chart, tmp_path: Path, example: str
) -> None:
    values = yaml.safe_load((ROOT / "deploy/examples" / example / "values.yaml").read_text())
    shown = chart.render(values)
    [held] = configs(shown, tmp_path).values()
    [vendor] = [it.vendor for it in wanted_plugins(held) if it.vendor and it.name == "enflame"]
    rules = {tuple(it["resources"]): set(it["verbs"]) for it in shown.one("ClusterRole")["rules"]}

    assert set(values["pods"]["receipts"]) == {key for it in vendor.dialects for key in it.receipt_keys}
    assert set(values["nodeStatus"]["resources"]) == set(vendor.publishes.extended_resource_keys)
    assert rules[("nodes/status",)] == {"patch"}
    assert not vendor.publishes.annotation_keys or "patch" in rules[("nodes",)]


@pytest.mark.parametrize("example", ["enflame-gcushare-v1", "enflame-gcushare-v4"])
def test_b10_an_agent_of_gcushare_s_nodes_may_delete_no_node_or_pod_and_reach_no_other_kubelet(
    chart: Chart, example: str
) -> None:
    shown = rendered(chart, ROOT / "deploy/examples" / example)
    rules = {
        resource: set(it["verbs"])
        for role in (*shown.all("ClusterRole"), *shown.all("Role"))
        for it in role["rules"]
        for resource in it["resources"]
    }

    assert rules.keys() >= {"nodes", "pods", "nodes/status"}
    assert all(not {"delete", "deletecollection", "update", "*"} & rules[it] for it in ("nodes", "pods"))
    assert not {"nodes/proxy", "configmaps", "secrets", "*"} & rules.keys()
    assert shown.all("ValidatingAdmissionPolicy"), "what may be patched of pods and nodes is its own node's"
