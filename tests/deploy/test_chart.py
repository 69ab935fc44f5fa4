"""The chart: what each value does, which values make no sense, and what an agent may and may not."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.vendor_inputs import given_flags, parse

from agent.config import parse_address
from agent.core.publishing.label_rules import domain
from agent.daemon.scheduler_plugins import registered
from agent.daemon.vendor_plugins import load
from agent.doctor.agent_processes import TWO_AGENTS

from .chart import CHART, ROOT, Chart, Rendered

#: Where every kubelet has its device plugins.
KUBELET = "/var/lib/kubelet/device-plugins"
POOL = {"vendors": ["nvidia"]}
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
ONE_BY_ONE = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
NO_DELAY = {"probes": {"readiness": {"initialDelaySeconds": 0}}}

ADDRESSES = ["0.0.0.0", "127.0.0.1", "10.255.0.9", "localhost", "[::]", "[::1]", "[fd00:1::a]"]
NO_ADDRESSES = ["banana", "", "1.2.3", "1.2.3.256", "1.2.3.4.", "::", "[banana]", "[1.2.3.4]", "0.0.0.0:80"]
QUANTITIES = ["1", "0.5", "100m", "1536Mi", "2G", 2, 0.5]
NO_QUANTITIES = ["lots", "1 Gi", "1gb", "-1", -1, "Mi", "", "1.2.3"]

#: Values that people set together, each of which has to pass `helm lint --strict` and to render.
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two pools": {
        "pools": {
            "nvidia": {**POOL, "nodeSelector": {"pool": "gpu"}},
            "test": {"vendors": ["simulated"], "nodeSelector": {"pool": "cpu"}},
        }
    },
    "a mixed node": {
        "pools": {"nvidia": {"vendors": ["nvidia", "simulated"], "nodeSelector": {"pool": "x"}}}
    },
    "the host's network": {"hostNetwork": True, "metrics": {"podMonitor": {"enabled": True}}},
    "use": {"usage": {"enabled": True}, "metrics": {"compat": ["dcgm", "hami"]}},
    "a host port": {"http": {"hostPort": 9808}, "metrics": {"serviceMonitor": {"enabled": True}}},
    "MetaX's nodes": {
        "pools": {"nvidia": {"enabled": False}, "metax": {"vendors": ["metax"]}},
        "vendors": {"metax": {"writableSys": True, "configMap": "metax-device-config"}},
        "uninstall": {"hook": True},
    },
    "MetaX's nodes beside NVIDIA's": {
        "pools": {
            "nvidia": {**POOL, "nodeSelector": {"cards": "nvidia"}},
            "metax": {"vendors": ["metax"], "nodeSelector": {"cards": "metax"}},
        },
        "vendors": {"metax": {"securityContext": {"privileged": True}}},
    },
    "Enflame's nodes": {
        "log": {"dir": "/var/log/topscloud/gcushare"},
        "pools": {
            "nvidia": {"enabled": False},
            "enflame": {"vendors": ["enflame"], "nodeSelector": {"enflame.com/gcushare": "true"}},
        },
        "vendors": {"enflame": {"configMap": "topscloud"}},
        "nodeAnnotations": {"enabled": True},
        "pods": {"receipts": ["assigned-containers", "enflame.com/gcu-assigned"]},
        "uninstall": {"hook": True},
    },
    "no API server": {"api": {"enabled": False}, "labels": {"output": "none"}},
    "another way to the API server": {"api": {"host": "127.0.0.1", "port": "6443"}},
    "cleaning up labels": {"labels": {"output": "nodeFeature"}, "uninstall": {"hook": True}},
    "NodeFeature objects": {"labels": {"output": "nodeFeature"}, "events": {"enabled": False}},
    "beside Koordinator": {"koordinator": {"enabled": True}, "crd": {"install": True}},
    "labels on the Node": {"labels": {"output": "node"}, "pods": {"enabled": False}},
    "receipts on pods": {"pods": {"receipts": ["acme.com/assigned", "assigned-containers"]}},
    "schedulers' annotations": {
        "schedulerAnnotations": {
            "enabled": True,
            "writers": {"hami": None, "mine": {"groups": ["card-operators"], "users": ["jane@example.com"]}},
            "keys": ["acme.com/*-cards", "cardcloud.com/card-assigned"],
        },
        "pods": {"receipts": ["assigned-containers"]},
    },
    "counts for the Node": {
        "nodeStatus": {"resources": ["enflame.com/gcu-count"]},
        "labels": {"output": "none"},
        "uninstall": {"hook": True},
    },
    "configs of one's own": {
        "config": {"map": {"any": "version: v1\n", "big": "version: v1\n"}, "default": "any"}
    },
    "a ConfigMap that exists": {"config": {"name": "plugin-configs", "default": "any"}},
    "everything of the monitoring": {
        "metrics": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True},
            "dashboard": {"enabled": True},
        }
    },
    "scrapes from one namespace alone": {
        "networkPolicy": {
            "enabled": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        }
    },
    "other places on the host": {
        "kubelet": {"dir": "/var/lib/k0s/kubelet"},
        "stateDir": "/mnt/disk/xpu-agent",
        "cdi": {"dir": "/etc/cdi"},
        "labels": {"directory": "/opt/nfd/features.d"},
        "uninstall": {"hook": True},
    },
    "what is left": {
        "imagePullSecrets": [{"name": "registry"}],
        "nameOverride": "xpu",
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
        "serviceAccount": {"annotations": {"e": "f"}},
        "extraEnv": [{"name": "DP_DISABLE_HEALTHCHECKS", "value": "94"}],
        "extraVolumes": [{"name": "x", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
        "uninstall": {"hook": True},
        "config": {"map": {"big": "version: v1\n"}},
        "pools": {"nvidia": {"runtimeClassName": "nvidia", "defaultConfig": "big"}},
    },
}


@pytest.mark.parametrize("name", MATRIX)
def test_values_that_people_set_pass_lint_and_make_objects_with_names_of_their_own(
    chart: Chart, name: str
) -> None:
    chart.lint(MATRIX[name])

    objects = chart.render(MATRIX[name]).objects

    names = [(it["kind"], it["metadata"]["name"]) for it in objects]
    assert len(names) == len(set(names))
    assert {"DaemonSet", "ServiceAccount"} <= {kind for kind, _ in names}


#: Values, and what helm has to say against them.
CLAIMED = "vendors: {nvidia: {resources: [{name: nvidia.com/gpu, 'placement' : claim}]}}"

REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"imgae": {}}, ("imgae", "not allowed")),
    ({"pools": {"nvidia": {"vendors": []}}}, ("/pools/nvidia", "minItems")),
    (
        {"pools": {"nvidia": {"vendors": ["nvidea"]}}},
        ("'nvidea' is no vendor here; there are enflame, metax, nvidia, simulated",),
    ),
    ({"pools": {"nvidia": {"enabled": False}}}, ("pools: none is on",)),
    ({"pools": {"Big": POOL}}, ("Big",)),
    (
        {"pools": {"other": {"vendors": ["simulated"], "nodeSelector": {"pool": "x"}}}},
        ("'nvidia' and 'other' may pick the same node", "one pool with vendors [nvidia, simulated]"),
    ),
    (
        {
            "pools": {
                "nvidia": {**POOL, "nodeSelector": {"a": "1"}},
                "b": {**POOL, "nodeSelector": {"c": "1"}},
            }
        },
        ("'b' and 'nvidia' may pick the same node",),
    ),
    ({"config": {"name": "x", "map": {"any": ""}}}, ("config: name", "both set")),
    ({"config": {"map": {"a": "", "b": ""}}}, ("config.map has a, b and config.default names none",)),
    (
        {"config": {"map": {"a": ""}, "default": "b"}},
        ("config.default: 'b' is not in config.map, which has a",),
    ),
    (
        {"config": {"map": {"a": ""}, "fallbackStrategies": ["named"]}},
        ("config.map has a and config.default names none",),
    ),
    ({"config": {"default": "b"}}, ("config.default: 'b' is not in the chart's example, which has default",)),
    (
        {"config": {"map": {"a": ""}}, "pools": {"nvidia": {"defaultConfig": "b"}}},
        ("pools.nvidia.defaultConfig: 'b' is not in config.map, which has a",),
    ),
    ({"config": {"fallbackStrategies": ["best"]}}, ("/config/fallbackStrategies/0", "named")),
    ({"http": {"port": 99999}}, ("/http/port", "65,535")),
    *(({"http": {"address": it}}, ("/http/address", "pattern")) for it in NO_ADDRESSES),
    *(({"resources": {"limits": {"memory": it}}}, ("/resources/limits/memory",)) for it in NO_QUANTITIES),
    (
        {"pools": {"nvidia": {"vendors": ["nvidia"], "resources": {"requests": {"cpu": "much"}}}}},
        ("/pools/nvidia", "requests/cpu"),
    ),
    (
        {"hostNetwork": True, "probes": {"readiness": {"initialDelaySeconds": 0}}},
        ("initialDelaySeconds: 0 with hostNetwork", "Set 5 or more"),
    ),
    (
        {"hostNetwork": True, "updateStrategy": SURGE, "probes": {"readiness": {"initialDelaySeconds": 4}}},
        ("initialDelaySeconds: 4 with hostNetwork",),
    ),
    ({"http": {"hostPort": 9808}, "hostNetwork": True}, ("http.hostPort and hostNetwork are both set",)),
    ({"http": {"hostPort": 9808}, "updateStrategy": SURGE}, ("maxSurge with http.hostPort",)),
    (
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        ("one of maxSurge and maxUnavailable must be 0", "maxUnavailable is 1 where it is not said"),
    ),
    (
        {"updateStrategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 0}}},
        ("one of maxSurge and maxUnavailable must be 0 and the other not",),
    ),
    (
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 1}}},
        ("rollingUpdate with type OnDelete",),
    ),
    ({"probes": {"liveness": {"successThreshold": 2}}}, ("/probes/liveness/successThreshold",)),
    ({"podLabels": {"xpu-agent.io/pool": "x"}}, ("podLabels: xpu-agent.io/pool is how the DaemonSet",)),
    ({"fullnameOverride": "My Agent"}, ("/fullnameOverride",)),
    (
        {"vendors": {"nvidia": {"nodes": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}}},
        ("/vendors/nvidia/nodes/0/matchExpressions/0", "values"),
    ),
    ({"labels": {"output": "crd"}}, ("/labels/output", "nodeFeature")),
    ({"labels": {"directory": ""}}, ("labels.directory is empty, and labels.output is file",)),
    (
        {"labels": {"output": "node"}, "api": {"enabled": False}},
        ("labels.output: node is told to the API server", "set file or none"),
    ),
    (
        {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        ("scraped twice",),
    ),
    (
        {"metrics": {"compat": ["dcgm"]}},
        ("metrics.compat: dcgm has series of use, and usage.enabled is false",),
    ),
    ({"usage": {"enabled": True}, "metrics": {"compat": ["nvtop"]}}, ("/metrics/compat/0", "gpu-manager")),
    (
        {"networkPolicy": {"enabled": True}, "hostNetwork": True},
        ("networkPolicy.enabled and hostNetwork are both set", "http.address 127.0.0.1"),
    ),
    ({"networkPolicy": {"from": [{}]}}, ("/networkPolicy/from/0", "minProperties")),
    ({"networkPolicy": {"from": [{"podSelectors": {}}]}}, ("/networkPolicy/from/0", "podSelectors")),
    ({"serviceAccount": {"create": False}}, ("serviceAccount", "Name one")),
    ({"securityContext": {"runAsUser": 1000}}, ("/securityContext/runAsUser",)),
    ({"stateDir": "state"}, ("/stateDir",)),
    ({"stateDir": "/"}, ("/stateDir",)),
    ({"stateDir": "/opt"}, ("/stateDir",)),
    ({"cdi": {"dir": "/etc/../cdi"}}, ("/cdi/dir",)),
    ({"log": {"dir": "/logs"}}, ("/log/dir",)),
    (
        {"log": {"dir": "/var/lib/xpu-agent"}},
        ("log.dir and stateDir are both /var/lib/xpu-agent",),
    ),
    (
        {"vendors": {"enflame": {"logDir": "/tmp/logs"}}},
        ("vendors.enflame.logDir: /tmp/logs would hide what the container has",),
    ),
    (
        {"cdi": {"dir": "/opt/xpu-agent/cdi"}},
        ("cdi.dir: /opt/xpu-agent/cdi would hide what the container has",),
    ),
    (
        {"cdi": {"dir": "/var/lib/xpu-agent"}},
        ("cdi.dir and stateDir are both /var/lib/xpu-agent",),
    ),
    (
        {"stateDir": "/var/lib/kubelet/device-plugins"},
        ("stateDir: /var/lib/kubelet/device-plugins is in", "which is the kubelet's"),
    ),
    (
        {"stateDir": "/var/lib/kubelet/device-plugins/own"},
        ("device-plugins/own is in /var/lib/kubelet/device-plugins, which is the kubelet's",),
    ),
    (
        {"cdi": {"dir": "/var/lib/kubelet/pod-resources"}},
        ("cdi.dir: /var/lib/kubelet/pod-resources is in",),
    ),
    (
        {"kubelet": {"dir": "/data/kubelet"}, "labels": {"directory": "/data/kubelet/pod-resources/x"}},
        ("labels.directory: /data/kubelet/pod-resources/x is in /data/kubelet/pod-resources",),
    ),
    (
        {"koordinator": {"enabled": True, "directory": "/var/lib/kubelet/device-plugins"}},
        ("koordinator.directory: /var/lib/kubelet/device-plugins is in", "which is the kubelet's"),
    ),
    (
        {"koordinator": {"enabled": True, "directory": "/var/run/cdi"}},
        ("cdi.dir and koordinator.directory are both /var/run/cdi",),
    ),
    (
        {"config": {"map": {"a": CLAIMED}}, "pods": {"enabled": False}},
        ("config.map.a has placement: claim, and pods.enabled is false",),
    ),
    (
        {"config": {"map": {"a": CLAIMED}}, "api": {"enabled": False}},
        ("config.map.a has placement: claim, and api.enabled is false",),
    ),
    (
        {"pods": {"enabled": False, "receipts": ["acme.com/assigned"]}},
        ("pods.receipts names annotations, and pods.enabled is false",),
    ),
    (
        {"api": {"enabled": False}, "pods": {"receipts": ["acme.com/assigned"]}},
        ("pods.receipts names annotations, and api.enabled is false",),
    ),
    (
        {"admissionPolicy": {"enabled": False}, "pods": {"receipts": ["acme.com/assigned"]}},
        ("pods.receipts gives the right to patch pods, which the admission policy alone keeps",),
    ),
    ({"pods": {"receipts": ["a.kubernetes.io/x"]}}, ("/pods/receipts/0",)),
    (
        {"api": {"enabled": False}, "nodeStatus": {"resources": ["acme.com/count"]}},
        ("nodeStatus.resources names extended resources, and api.enabled is false",),
    ),
    (
        {"admissionPolicy": {"enabled": False}, "nodeStatus": {"resources": ["acme.com/count"]}},
        ("nodeStatus.resources gives the right to patch nodes/status, which the admission policy alone",),
    ),
    ({"nodeKeys": ["a.kubernetes.io"]}, ("/nodeKeys/0",)),
    ({"nodeKeys": ["k8s.io"]}, ("/nodeKeys/0",)),
    ({"nodeKeys": ["com"]}, ("/nodeKeys/0",)),
    ({"nodeKeys": ['x.com)/" || true || "(']}, ("/nodeKeys/0",)),
    ({"nodeStatus": {"resources": ["cpu"]}}, ("/nodeStatus/resources/0",)),
    ({"nodeStatus": {"resources": ["a.kubernetes.io/x"]}}, ("/nodeStatus/resources/0",)),
    ({"nodeStatus": {"resources": ['x"] || true || k in ["']}}, ("/nodeStatus/resources/0",)),
    ({"pods": {"receipts": ['x"] || true || k in ["']}}, ("/pods/receipts/0",)),
    ({"stateDir": "/var/run/secrets"}, ("stateDir: /var/run/secrets would hide what the container has",)),
    ({"stateDir": "/run/secrets/own"}, ("stateDir: /run/secrets/own would hide what the container has",)),
    ({"vendors": {"nvidia": {"libraries": ["usr/lib"]}}}, ("/vendors/nvidia/libraries/0",)),
    ({"admissionPolicy": {"enabled": "yes"}}, ("/admissionPolicy/enabled", "auto")),
]


@pytest.mark.parametrize(
    "values",
    [
        {"config": {"map": {"a": CLAIMED}}},
        {"config": {"map": {"a": "# placement: claim\n" + CLAIMED.replace("claim}", "auto}")}}},
    ],
)
def test_cards_by_claim_are_rendered_with_pods_and_others_without(
    chart: Chart, values: dict[str, Any]
) -> None:
    without = {"pods": {"enabled": False}} if "auto}" in values["config"]["map"]["a"] else {}

    assert chart.refusal({**values, **without}) == ""


@pytest.mark.parametrize(("values", "words"), REFUSED, ids=[" ".join(words) for _, words in REFUSED])
def test_values_that_make_no_sense_are_refused_with_their_place_and_what_would_work(
    chart: Chart, values: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = chart.refusal(values)

    assert said
    for word in words:
        assert word in said


def affinity(key: str, operator: str, *values: str) -> dict[str, Any]:
    need = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


#: Two ways to pick nodes, and whether no node can be picked by both.
PICKS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "2"}}, True),
    ({"nodeSelector": {"a": "1", "b": "x"}}, {"nodeSelector": {"a": "1", "b": "y"}}, True),
    ({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"b": "2"}}, False),
    ({"nodeSelector": {"a": "1"}}, affinity("a", "NotIn", "1"), True),
    ({"nodeSelector": {"a": "1"}}, affinity("a", "NotIn", "2"), False),
    (affinity("a", "In", "1", "2"), affinity("a", "In", "3"), True),
    (affinity("a", "In", "1", "2"), affinity("a", "In", "2", "3"), False),
    (affinity("a", "Exists"), affinity("a", "DoesNotExist"), True),
    ({"nodeSelector": {"a": "1"}}, affinity("a", "DoesNotExist"), True),
    (affinity("a", "Exists"), affinity("a", "In", "1"), False),
    (affinity("a", "Gt", "1"), affinity("a", "Lt", "1"), False),
    ({"nodeSelector": {"nvidia.com/gpu.present": "false"}}, {}, False),
]


@pytest.mark.parametrize(("one", "other", "disjoint"), PICKS)
def test_two_pools_must_be_seen_to_pick_no_node_in_common(
    chart: Chart, one: dict[str, Any], other: dict[str, Any], disjoint: bool
) -> None:
    for first, second in ((one, other), (other, one)):
        said = chart.refusal({"pools": {"nvidia": {**POOL, **first}, "b": {**POOL, **second}}})

        assert ("may pick the same node" in said) is not disjoint


def test_one_agent_stands_by_before_the_last_one_ends(chart: Chart) -> None:
    assert chart.render().one("DaemonSet")["spec"]["updateStrategy"] == SURGE


@pytest.mark.parametrize(
    ("values", "kubernetes", "strategy"),
    [
        ({"http": {"hostPort": 9808}}, "1.36.0", ONE_BY_ONE),
        ({}, "1.21.0", ONE_BY_ONE),
        ({"hostNetwork": True}, "1.36.0", SURGE),
        ({"updateStrategy": {"type": "OnDelete"}}, "1.36.0", {"type": "OnDelete"}),
    ],
)
def test_where_two_pods_can_not_stand_side_by_side_one_goes_first(
    chart: Chart, values: dict[str, Any], kubernetes: str, strategy: dict[str, Any]
) -> None:
    assert chart.render(values, kubernetes).one("DaemonSet")["spec"]["updateStrategy"] == strategy


def test_a_port_of_the_host_is_taken_where_it_is_named(chart: Chart) -> None:
    ports = chart.render(MATRIX["a host port"]).agent()["ports"]

    assert ports == [{"name": "http", "containerPort": 9808, "hostPort": 9808}]


def test_on_the_host_s_network_no_port_is_declared_for_two_pods_could_not_have_it(chart: Chart) -> None:
    assert "ports" not in chart.render({"hostNetwork": True}).agent()
    assert chart.render().agent()["ports"] == [{"name": "http", "containerPort": 9808}]


def test_nothing_of_the_host_is_shared_unless_it_is_asked_for(chart: Chart) -> None:
    pod = chart.render().pod()

    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys()


def test_an_agent_that_measures_use_shares_the_host_s_pids_and_nothing_else(chart: Chart) -> None:
    plain, measured = chart.render(), chart.render(MATRIX["use"])

    assert measured.pod()["hostPID"] is True
    added = {"XPU_AGENT_USAGE_ENABLED": "true", "XPU_AGENT_METRICS_COMPAT": "dcgm,hami"}
    assert measured.env() == plain.env() | added
    assert measured.mounts() == plain.mounts()
    assert measured.agent()["securityContext"] == plain.agent()["securityContext"]


@pytest.mark.parametrize("without", [{"api": {"enabled": False}}, {"pods": {"enabled": False}}], ids=str)
def test_the_names_of_pods_come_from_their_logs_directory_where_the_api_server_does_not_name_them(
    chart: Chart, without: dict[str, Any]
) -> None:
    logs = chart.render({"usage": {"enabled": True}, **without}).mounts()["/var/log/pods"]

    assert logs["mountPath"] == "/var/log/pods"
    assert logs["readOnly"] is True
    assert "/var/log/pods" not in chart.render(without).mounts()


def test_the_agent_is_root_without_rights_on_a_read_only_system(chart: Chart) -> None:
    assert chart.render().agent()["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize("more", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}])
def test_what_the_api_server_refuses_beside_no_escalation_goes_without_it(
    chart: Chart, more: dict[str, Any]
) -> None:
    context = chart.render({"vendors": {"nvidia": {"securityContext": more}}}).agent()["securityContext"]

    assert "allowPrivilegeEscalation" not in context
    assert context["readOnlyRootFilesystem"] is True


def test_a_vendor_s_rights_are_given_to_pools_of_that_vendor_alone(chart: Chart) -> None:
    rendered = chart.render(
        {
            "pools": {
                "nvidia": {**POOL, "nodeSelector": {"a": "1"}},
                "other": {"vendors": ["simulated"], "nodeSelector": {"a": "2"}},
            },
            "vendors": {"nvidia": {"securityContext": {"privileged": True}}},
        }
    )

    assert rendered.agent("nvidia")["securityContext"]["privileged"] is True
    assert "privileged" not in rendered.agent("other")["securityContext"]


def test_a_mixed_pool_has_one_pod_with_what_all_its_vendors_need(chart: Chart) -> None:
    simulated = {
        "tolerations": [{"key": "xpu-agent.io/simulated", "operator": "Exists"}],
        "libraries": ["/opt/sim"],
    }
    rendered = chart.render(
        {
            "pools": {"nvidia": {"vendors": ["nvidia", "simulated"], "nodeSelector": {"mixed": "yes"}}},
            "vendors": {"nvidia": {"libraries": ["/usr/lib64"]}, "simulated": simulated},
        }
    )

    assert len(rendered.all("DaemonSet")) == 1
    assert {it["key"] for it in rendered.pod()["tolerations"]} == {
        "CriticalAddonsOnly",
        "nvidia.com/gpu",
        "xpu-agent.io/simulated",
    }
    assert {"/usr/lib64", "/opt/sim"} <= rendered.mounts().keys()


def test_the_tolerations_are_those_of_nvidia_s_own_chart(chart: Chart) -> None:
    """k8s-device-plugin v0.20, deployments/helm/nvidia-device-plugin/values.yaml."""
    assert chart.render().pod()["tolerations"] == [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]


def test_the_agent_is_not_evicted_for_pods_of_lower_priority_and_has_bounds(chart: Chart) -> None:
    rendered = chart.render()

    assert rendered.pod()["priorityClassName"] == "system-node-critical"
    assert rendered.agent()["resources"] == {
        "requests": {"cpu": "50m", "memory": "100Mi"},
        "limits": {"memory": "4Gi"},
    }


def test_a_pool_may_have_resources_of_its_own(chart: Chart) -> None:
    own = {"limits": {"memory": "4Gi"}}

    assert chart.render({"pools": {"nvidia": {"resources": own}}}).agent()["resources"] == own


def test_every_pod_may_pull_from_the_registry(chart: Chart) -> None:
    rendered = chart.render(MATRIX["what is left"])

    pods = [it["spec"]["template"]["spec"] for it in (*rendered.all("DaemonSet"), rendered.one("Job"))]
    assert [it["imagePullSecrets"] for it in pods] == [[{"name": "registry"}]] * 3


def test_a_variable_is_told_once_and_whoever_is_nearer_to_the_pool_has_the_last_word(chart: Chart) -> None:
    rendered = chart.render(
        {
            "pools": {"nvidia": {"env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}]}},
            "extraEnv": [{"name": "XPU_AGENT_LOG_LEVEL", "value": "debug"}, {"name": "A", "value": "b"}],
        }
    )

    names = [it["name"] for it in rendered.agent()["env"]]
    assert len(names) == len(set(names))
    env = rendered.env()
    assert (env["NVIDIA_DRIVER_CAPABILITIES"], env["XPU_AGENT_LOG_LEVEL"], env["A"]) == (
        "utility",
        "debug",
        "b",
    )


def test_vendors_pick_the_nodes_where_the_pool_does_not(chart: Chart) -> None:
    picked = chart.render().pod()
    chosen = chart.render({"pools": {"nvidia": {"nodeSelector": {"a": "1"}}}}).pod()

    terms = picked["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert "nvidia.com/gpu.present" in json.dumps(terms)
    assert (chosen["nodeSelector"], "affinity" in chosen) == ({"a": "1"}, False)


#: Host directories, and whether the agent may write there.
MOUNTS = {
    "/var/lib/kubelet/device-plugins": True,
    "/var/lib/kubelet/pod-resources": False,
    "/var/lib/xpu-agent": True,
    "/var/run/cdi": True,
    "/etc/kubernetes/node-feature-discovery/features.d": True,
    "/sys/fs/cgroup": False,
    "/dev": False,
    "/usr/lib64": False,
}


def test_of_the_host_there_is_what_the_agent_needs_as_directories_and_no_more(chart: Chart) -> None:
    rendered = chart.render({"vendors": {"nvidia": {"libraries": ["/usr/lib64"]}}})

    mounts = rendered.mounts()
    assert {path: not it.get("readOnly", False) for path, it in mounts.items()} == MOUNTS
    types = {it["hostPath"]["type"] for it in rendered.pod()["volumes"] if "hostPath" in it}
    assert types == {"Directory", "DirectoryOrCreate"}


#: What MetaX's nodes have beside it.
OF_METAX = {"/opt/mxdriver": False}


@pytest.mark.parametrize(("writes", "more"), [(False, OF_METAX), (True, {**OF_METAX, "/sys": True})])
def test_only_where_slices_are_made_may_metax_s_agents_write_to_the_host_s_sysfs(
    chart: Chart, writes: bool, more: dict[str, bool]
) -> None:
    pools = {"nvidia": {"enabled": False}, "metax": {"vendors": ["metax"]}}
    rendered = chart.render({"pools": pools, "vendors": {"metax": {"writableSys": writes}}})

    mounts = rendered.mounts("metax")
    without = {path: its for path, its in MOUNTS.items() if path != "/usr/lib64"}
    assert {path: not it.get("readOnly", False) for path, it in mounts.items()} == {**without, **more}
    assert mounts["/opt/mxdriver"]["mountPath"] == "/driver-root/opt/mxdriver"
    assert rendered.env("metax")["LD_LIBRARY_PATH"] == "/driver-root/opt/mxdriver/lib"
    context = rendered.agent("metax")["securityContext"]
    assert (context["readOnlyRootFilesystem"], context.get("privileged")) == (True, None)


def test_a_vendor_s_sysfs_and_config_map_go_to_pools_of_that_vendor_alone(chart: Chart) -> None:
    pools = {
        "nvidia": {**POOL, "nodeSelector": {"a": "1"}},
        "metax": {"vendors": ["metax"], "nodeSelector": {"a": "2"}},
    }
    metax = {"writableSys": True, "configMap": "metax-device-config"}
    rendered = chart.render({"pools": pools, "vendors": {"metax": metax}})

    [volume] = [it for it in rendered.pod("metax")["volumes"] if it["name"] == "config-metax"]
    # One that is not there is for the agent to tell of, which must start for that.
    assert volume["configMap"] == {"name": "metax-device-config", "optional": True}
    assert {it["name"]: it["mountPath"] for it in rendered.agent("metax")["volumeMounts"]}.items() >= {
        "config-metax": "/etc/xpu-agent-metax",
        "sys": "/sys",
    }.items()
    assert not {"config-metax", "sys"} & {it["name"] for it in rendered.pod("nvidia")["volumes"]}


@pytest.mark.parametrize(
    ("vendor", "pool", "expected"),
    [
        ({"libraries": ["/opt/maca"]}, {}, "/driver-root/opt/maca/lib"),
        ({}, {"libraries": ["/opt/mxn100"]}, "/driver-root/opt/mxdriver/lib:/driver-root/opt/mxn100/lib"),
        ({"libraries": ["/opt/maca"], "libraryFolder": "lib64"}, {}, "/driver-root/opt/maca/lib64"),
        ({"libraryFolder": ""}, {}, None),
        ({"libraries": []}, {}, None),
        ({"env": [{"name": "LD_LIBRARY_PATH", "value": "/own"}]}, {}, "/own"),
    ],
)
def test_the_loader_looks_below_the_libraries_that_are_mounted_unless_told_otherwise(
    chart: Chart, vendor: Mapping[str, Any], pool: Mapping[str, Any], expected: str | None
) -> None:
    pools = {"nvidia": {"enabled": False}, "metax": {"vendors": ["metax"], **pool}}

    rendered = chart.render({"pools": pools, "vendors": {"metax": vendor}})

    assert rendered.env("metax").get("LD_LIBRARY_PATH") == expected


def test_metax_s_agents_are_on_nodes_with_its_cards_or_its_operator_s_word(chart: Chart) -> None:
    pod = chart.render(MATRIX["MetaX's nodes"]).pod("metax")

    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [it["matchExpressions"][0]["key"] for it in terms["nodeSelectorTerms"]]
    assert keys == ["feature.node.kubernetes.io/pci-9999.present", "metax-tech.com/gpu.installed"]
    assert "metax-tech.com/gpu" in {it["key"] for it in pod["tolerations"]}


ENFLAME = {"nvidia": {"enabled": False}, "enflame": {"vendors": ["enflame"]}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"log": {"dir": "/var/log/xpu"}}, "/var/log/xpu"),
        ({"pools": ENFLAME}, "/var/log/xpu-agent"),
        ({"pools": ENFLAME, "log": {"dir": "/var/log/topscloud/gcushare"}}, "/var/log/topscloud/gcushare"),
        ({"pools": ENFLAME, "vendors": {"enflame": {"logDir": ""}}}, None),
    ],
)
def test_the_log_lies_on_the_host_where_that_is_asked_for_or_the_vendor_s_own_did(
    chart: Chart, values: dict[str, Any], expected: str | None
) -> None:
    rendered = chart.render({**values, "uninstall": {"hook": True}})
    pool = "enflame" if "pools" in values else "nvidia"

    assert rendered.env(pool).get("XPU_AGENT_LOG_DIR") == expected
    [*logs] = (it for it in rendered.pod(pool)["volumes"] if it["name"] == "logs")
    assert [it["hostPath"] for it in logs] == (
        [{"path": expected, "type": "DirectoryOrCreate"}] if expected else []
    )
    if expected:
        mount = rendered.mounts(pool)[expected]
        assert (mount["mountPath"], mount.get("readOnly", False)) == (expected, False)
    # It survives what cleans the node, which does not even see it.
    cleaning = rendered.one("DaemonSet", f"xpu-agent-uninstall-{pool}")["spec"]["template"]["spec"]
    assert "logs" not in {it["name"] for it in cleaning["volumes"]}


def test_enflame_s_agents_are_on_nodes_with_its_cards_or_with_gcushare_s_label(chart: Chart) -> None:
    pod = chart.render({"pools": ENFLAME}).pod("enflame")

    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [it["matchExpressions"][0]["key"] for it in terms["nodeSelectorTerms"]]
    assert keys == [
        "feature.node.kubernetes.io/pci-1200_1e36.present",
        "feature.node.kubernetes.io/pci-1e36.present",
        "enflame.com/gcu.present",
        "enflame.com/gcushare",
    ]
    assert "enflame.com/gcu" in {it["key"] for it in pod["tolerations"]}


def test_enflame_s_library_comes_by_its_runtime_or_from_its_directory_on_the_host(chart: Chart) -> None:
    shown = chart.render({"pools": ENFLAME})

    assert shown.env("enflame")["ENFLAME_VISIBLE_DEVICES"] == "all"
    assert shown.env("enflame")["ENFLAME_DRIVER_CAPABILITIES"] == "utility"
    # Where `searched` of the vendor's library.py looks for packages.
    mount = shown.mounts("enflame")["/usr/local/efsmi"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/driver-root/usr/local/efsmi", True)
    assert shown.agent("enflame")["securityContext"].get("privileged") is None


def test_the_notes_say_how_a_node_gets_gcushare_s_label_and_loses_it_where_a_pool_is_enflame_s(
    chart: Chart,
) -> None:
    notes = chart.notes({"pools": ENFLAME})

    assert "kubectl label node NODE enflame.com/gcushare=true\n" in notes
    assert "kubectl label node NODE enflame.com/gcushare-\n" in notes
    assert "gcushare" not in chart.notes()


def test_libraries_and_device_nodes_lie_where_the_vendor_looks_for_its_driver(chart: Chart) -> None:
    mounts = chart.render({"pools": {"nvidia": {"libraries": ["/usr/lib64"]}}}).mounts()

    assert mounts["/usr/lib64"]["mountPath"] == "/driver-root/usr/lib64"
    assert mounts["/dev"]["mountPath"] == "/driver-root/dev"


def test_the_pods_cgroups_are_where_the_agent_looks_for_them(chart: Chart) -> None:
    assert chart.render().mounts()["/sys/fs/cgroup"]["mountPath"] == "/sys/fs/cgroup"


@pytest.mark.parametrize(("kubernetes", "recursively"), [("1.36.0", "IfPossible"), ("1.32.0", None)])
def test_what_is_mounted_below_is_read_only_too_where_the_kubelet_knows_how(
    chart: Chart, kubernetes: str, recursively: str | None
) -> None:
    mounts = chart.render(kubernetes=kubernetes).mounts()

    assert mounts["/dev"].get("recursiveReadOnly") == recursively
    assert mounts["/sys/fs/cgroup"].get("recursiveReadOnly") == recursively


@pytest.mark.parametrize("values", [{}, MATRIX["other places on the host"]], ids=["defaults", "others"])
def test_what_the_agent_says_of_a_directory_is_true_of_the_host(chart: Chart, values: dict[str, Any]) -> None:
    """Its doctor compares the directory of CDI specs with what the runtime reads, and remedies name paths."""
    rendered = chart.render(values)

    elsewhere = {host: it["mountPath"] for host, it in rendered.mounts().items() if host != it["mountPath"]}
    assert elsewhere == {"/dev": "/driver-root/dev"}


@pytest.mark.parametrize("values", [{}, MATRIX["other places on the host"]], ids=["defaults", "others"])
def test_the_agent_is_told_where_everything_is(chart: Chart, values: dict[str, Any]) -> None:
    rendered = chart.render(values)
    elsewhere = "agent: {cdiDir: /c, stateDir: /s, kubeletDir: /k, podResourcesSocket: /p}"

    config = parse(
        elsewhere, "f", "n", flags=given_flags({}, rendered.env() | {"XPU_AGENT_KUBELET_DIR": KUBELET})
    )

    agent, mounts = config.agent, rendered.mounts()
    places = {agent.kubelet_dir, agent.state_dir, agent.cdi_dir, Path(config.report.features_file).parent}
    assert {path for path, it in mounts.items() if not it.get("readOnly")} == {str(it) for it in places}
    assert str(agent.pod_resources_socket.parent) in mounts


def test_device_plugins_are_where_the_kubelet_has_them_whatever_its_directory_is(chart: Chart) -> None:
    """Its path is compiled in, while PodResources follows --root-dir (pkg/kubelet/cm/devicemanager)."""
    mounts = chart.render({"kubelet": {"dir": "/var/lib/k0s/kubelet"}}).mounts()

    assert mounts[KUBELET]["mountPath"] == KUBELET
    assert "/var/lib/k0s/kubelet/pod-resources" in mounts


FEATURES_D = "/etc/kubernetes/node-feature-discovery/features.d"


@pytest.mark.parametrize(
    ("labels", "agent", "hook"),
    [
        ({"output": "file"}, True, True),
        ({"output": "nodeFeature"}, True, True),
        ({"output": "node"}, True, True),
        ({"output": "none"}, False, True),
        ({"output": "node", "directory": ""}, False, False),
    ],
)
def test_a_file_of_labels_that_an_earlier_output_left_can_be_removed(
    chart: Chart, labels: dict[str, Any], agent: bool, hook: bool
) -> None:
    rendered = chart.render({"labels": labels, "uninstall": {"hook": True}})

    assert (FEATURES_D in rendered.mounts()) is agent
    assert (FEATURES_D in {it["mountPath"] for it in cleaner(rendered)["volumeMounts"]}) is hook


def cleaner(rendered: Rendered, pool: str = "nvidia") -> dict[str, Any]:
    """The container that removes what the agent left."""
    pod = rendered.one("DaemonSet", f"xpu-agent-uninstall-{pool}")["spec"]["template"]["spec"]
    [container] = pod["initContainers"]
    assert isinstance(container, dict)
    return container


def test_the_probes_ask_at_the_pod_s_own_address(chart: Chart) -> None:
    rendered = chart.render({"http": {"port": 9900}})

    agent = rendered.agent()
    assert rendered.env()["XPU_AGENT_HTTP"] == "0.0.0.0:9900"
    assert agent["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 9900}
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 9900}


def test_the_probes_can_ask_elsewhere(chart: Chart) -> None:
    agent = chart.render({"hostNetwork": True, "probes": {"host": "127.0.0.1"}}).agent()

    assert {agent[it]["httpGet"]["host"] for it in ("livenessProbe", "readinessProbe")} == {"127.0.0.1"}


def test_the_example_config_is_one_that_the_agent_takes(chart: Chart) -> None:
    data = chart.render().one("ConfigMap")["data"]

    assert list(data) == ["default"]
    parse(data["default"], "config.yaml", "a-node")


def test_configs_become_files_by_their_names_and_the_default_is_named(chart: Chart) -> None:
    rendered = chart.render(MATRIX["configs of one's own"])

    assert rendered.one("ConfigMap")["data"] == {"any": "version: v1\n", "big": "version: v1\n"}
    env = rendered.env()
    assert env["XPU_AGENT_CONFIG"] == rendered.agent()["volumeMounts"][1]["mountPath"]
    assert env["XPU_AGENT_DEFAULT_CONFIG"] == "any"
    assert env["XPU_AGENT_FALLBACK_STRATEGIES"] == "named,single"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, (True, True, True)),
        ({"labels": {"output": "none"}}, (False, True, True)),
        ({"events": {"enabled": False}}, (True, False, True)),
        ({"pods": {"enabled": False}}, (True, True, False)),
    ],
)
def test_what_the_values_switch_off_the_agent_leaves_whatever_its_config_says(
    chart: Chart, values: dict[str, Any], told: tuple[bool, bool, bool]
) -> None:
    env = chart.render(values).env()
    flags = given_flags({}, {key: it for key, it in env.items() if key.startswith("XPU_AGENT_")})
    file = "report: {labels: true, events: true}\nagent: {watchPods: true}"

    config = parse(file, "f", "n", flags=flags)

    assert (config.report.labels, config.report.events, config.agent.watch_pods) == told


def test_a_pool_may_have_a_default_of_its_own(chart: Chart) -> None:
    values = {"pools": {"nvidia": {"defaultConfig": "big"}}, **MATRIX["configs of one's own"]}

    assert chart.render(values).env()["XPU_AGENT_DEFAULT_CONFIG"] == "big"


def test_a_config_map_that_exists_is_mounted_and_none_is_made(chart: Chart) -> None:
    rendered = chart.render(MATRIX["a ConfigMap that exists"])

    [volume] = [it for it in rendered.pod()["volumes"] if it["name"] == "config"]
    assert volume["configMap"] == {"name": "plugin-configs"}
    assert not rendered.all("ConfigMap")


READ_NODES = {("", "nodes", verb) for verb in ("get", "list", "watch")}
EVENTS = {("events.k8s.io", "events", verb) for verb in ("create", "patch")}
PODS = {("", "pods", verb) for verb in ("list", "watch")}
READ = READ_NODES | PODS
PATCH = {("", "nodes", "patch")}
STATUS = {("", "nodes/status", "patch")}
UNDO = {("nfd.k8s-sigs.io", "nodefeatures", verb) for verb in ("get", "delete")}
FEATURES = UNDO | {("nfd.k8s-sigs.io", "nodefeatures", verb) for verb in ("create", "update")}
DEVICES = {
    ("scheduling.koordinator.sh", "devices", verb)
    for verb in ("get", "list", "watch", "create", "update", "delete")
}
#: What no policy could limit is not given.
NO_POLICY = {"admissionPolicy": {"enabled": False}}


@pytest.mark.parametrize(
    ("values", "rights"),
    [
        ({}, READ | EVENTS | PATCH | UNDO),
        ({"events": {"enabled": False}}, READ | PATCH | UNDO),
        ({"labels": {"output": "node"}}, READ | EVENTS | PATCH | UNDO),
        ({"labels": {"output": "nodeFeature"}}, READ | EVENTS | PATCH | FEATURES),
        ({"labels": {"output": "none"}}, READ | EVENTS),
        (NO_POLICY, READ | EVENTS | UNDO),
        ({"labels": {"output": "nodeFeature"}, **NO_POLICY}, READ | EVENTS | FEATURES),
        ({"labels": {"output": "node"}, **NO_POLICY}, READ | EVENTS | PATCH | UNDO),
        ({"labels": {"output": "none"}, "nodeAnnotations": {"enabled": True}}, READ | EVENTS | PATCH),
        ({"nodeAnnotations": {"enabled": True}, **NO_POLICY}, READ | EVENTS | PATCH | UNDO),
        ({"pods": {"enabled": False}}, READ_NODES | EVENTS | PATCH | UNDO),
        ({"pods": {"receipts": ["a.com/x"]}}, READ | EVENTS | PATCH | UNDO | {("", "pods", "patch")}),
        ({"nodeStatus": {"resources": ["a.com/x"]}}, READ | EVENTS | PATCH | UNDO | STATUS),
        ({"labels": {"output": "none"}, "nodeStatus": {"resources": ["a.com/x"]}}, READ | EVENTS | STATUS),
        ({"koordinator": {"enabled": True}}, READ | EVENTS | PATCH | UNDO | DEVICES),
        ({"api": {"enabled": False}}, set()),
        ({"rbac": {"create": False}}, set()),
    ],
)
def test_an_agent_has_the_rights_that_its_mode_needs_or_that_undo_another_one_and_no_others(
    chart: Chart, values: dict[str, Any], rights: set[tuple[str, str, str]]
) -> None:
    rendered = chart.render(values)

    assert rights == {
        (group, resource, verb)
        for role in (*rendered.all("ClusterRole"), *rendered.all("Role"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_rights_of_a_namespace_are_given_in_the_release_s_alone(chart: Chart) -> None:
    rendered = chart.render({"labels": {"output": "nodeFeature"}})

    assert rendered.one("Role")["metadata"]["namespace"] == "xpu"
    assert "nfd.k8s-sigs.io" not in str(rendered.one("ClusterRole"))


def test_without_the_api_server_a_pod_has_no_token(chart: Chart) -> None:
    assert chart.render({"api": {"enabled": False}}).pod()["automountServiceAccountToken"] is False


def test_the_way_to_the_api_server_can_be_another_one(chart: Chart) -> None:
    env = chart.render(MATRIX["another way to the API server"]).env()

    assert (env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6443")


@pytest.mark.parametrize(
    ("values", "kubernetes", "there"),
    [
        ({}, "1.36.0", True),
        ({}, "1.29.0", False),
        ({"admissionPolicy": {"enabled": False}}, "1.36.0", False),
        ({"admissionPolicy": {"enabled": True}}, "1.29.0", True),
        ({"api": {"enabled": False}}, "1.36.0", False),
    ],
)
def test_the_admission_policy_is_there_where_tokens_name_their_node(
    chart: Chart, values: dict[str, Any], kubernetes: str, there: bool
) -> None:
    rendered = chart.render(values, kubernetes)

    assert bool(rendered.all("ValidatingAdmissionPolicy")) is there
    assert bool(rendered.all("ValidatingAdmissionPolicyBinding")) is there


def test_the_admission_policy_is_about_the_agent_s_account_alone(chart: Chart) -> None:
    rendered = chart.render({"serviceAccount": {"name": "robot"}})

    [condition] = rendered.one("ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert '"system:serviceaccount:xpu:robot"' in condition["expression"]


def test_what_the_policy_lets_the_agent_write_on_its_node_is_what_vendors_in_tree_write() -> None:
    listed = yaml.safe_load((CHART / "files/node-keys.yaml").read_text())
    written, locks = {"xpu-agent.io"}, {key for it in registered() for key in it.locks}
    for vendor in (it.vendor for it in load({}) if it.vendor is not None):
        keys = (
            vendor.resource,
            vendor.publishes.machine_label,
            vendor.publishes.time_label,
            *vendor.publishes.annotation_keys,
        )
        written |= {domain(it) for it in keys if it}
        locks |= {key for it in vendor.dialects for key in it.locks}

    assert listed == {"domains": sorted(written), "locks": sorted(locks)}


def test_only_where_the_agent_may_write_to_pods_the_policy_looks_at_them(chart: Chart) -> None:
    """Nobody else's write to a pod is to wait for it."""

    def looks_at(values: dict[str, Any]) -> set[str]:
        spec = chart.render(values).one("ValidatingAdmissionPolicy")["spec"]
        return {kind for rule in spec["matchConstraints"]["resourceRules"] for kind in rule["resources"]}

    assert looks_at(MATRIX["receipts on pods"]) - looks_at({}) == {"pods"}


def test_after_an_uninstall_every_pool_s_nodes_are_cleaned_and_helm_waits(chart: Chart) -> None:
    rendered = chart.render({**MATRIX["two pools"], "uninstall": {"hook": True}})

    hooks = [it for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})]
    assert {it["metadata"]["name"] for it in hooks} == {
        "xpu-agent-uninstall-nvidia",
        "xpu-agent-uninstall-test",
        "xpu-agent-uninstall",
        "xpu-agent-uninstall-wait",
    }
    [waiter] = rendered.one("Job")["spec"]["template"]["spec"]["containers"]
    assert waiter["args"][:3] == [
        "uninstall",
        "--await-nodes=xpu-agent-uninstall-nvidia",
        "--await-nodes=xpu-agent-uninstall-test",
    ]
    pod = rendered.one("DaemonSet", "xpu-agent-uninstall-test")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert pod["initContainers"][0]["args"] == ["uninstall"]


def test_who_waits_for_the_nodes_may_look_at_what_cleans_them_and_nothing_else(chart: Chart) -> None:
    rendered = chart.render({"uninstall": {"hook": True}})
    account = rendered.one("Job")["spec"]["template"]["spec"]["serviceAccountName"]

    [binding] = [
        it
        for it in (*rendered.all("RoleBinding"), *rendered.all("ClusterRoleBinding"))
        if account in {subject["name"] for subject in it["subjects"]}
    ]

    [rule] = rendered.one("Role", binding["roleRef"]["name"])["rules"]
    assert rule == {
        "apiGroups": ["apps"],
        "resources": ["daemonsets"],
        "verbs": ["get"],
        "resourceNames": ["xpu-agent-uninstall-nvidia"],
    }


@pytest.mark.parametrize("more", [MATRIX["no API server"], {"rbac": {"create": False}}])
def test_where_nobody_may_look_at_the_nodes_they_are_given_their_time(
    chart: Chart, more: dict[str, Any]
) -> None:
    pod = chart.render({**more, "uninstall": {"hook": True, "seconds": 30}}).one("Job")["spec"]["template"]

    assert pod["spec"]["containers"][0]["command"] == ["sleep", "30"]
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_on_the_host_s_network_the_hook_is_so_too_and_a_rollout_does_not_trust_the_first_answer(
    chart: Chart,
) -> None:
    rendered = chart.render({"hostNetwork": True, "uninstall": {"hook": True}})

    pods = [it["spec"]["template"]["spec"] for it in (*rendered.all("DaemonSet"), rendered.one("Job"))]
    assert [it.get("hostNetwork") for it in pods] == [True] * 3
    assert rendered.agent()["readinessProbe"]["initialDelaySeconds"] == 10
    assert "initialDelaySeconds" not in chart.render().agent()["readinessProbe"]


@pytest.mark.parametrize(
    "values",
    [
        {"hostNetwork": True, "probes": {"readiness": {"initialDelaySeconds": 5}}},
        {"hostNetwork": True, "updateStrategy": ONE_BY_ONE, **NO_DELAY},
        {"hostNetwork": True, "updateStrategy": {"type": "OnDelete"}, **NO_DELAY},
        NO_DELAY,
    ],
    ids=["time enough", "one by one", "by hand", "networks of their own"],
)
def test_the_first_probe_may_come_early_where_no_other_agent_can_answer_it(
    chart: Chart, values: dict[str, Any]
) -> None:
    given = values["probes"]["readiness"]["initialDelaySeconds"]

    assert chart.render(values).agent()["readinessProbe"]["initialDelaySeconds"] == given


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_agent_serves_at_any_address_of_the_machine(chart: Chart, address: str) -> None:
    env = chart.render({"http": {"address": address}}).env()

    assert parse_address(env["XPU_AGENT_HTTP"]).port == 9808


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_bounds_are_quantities_as_kubernetes_writes_them(chart: Chart, quantity: str | float) -> None:
    limits = chart.render({"resources": {"limits": {"memory": quantity}}}).agent()["resources"]["limits"]

    assert limits == {"memory": quantity}


@pytest.mark.parametrize("more", [{}, MATRIX["other places on the host"]], ids=["defaults", "others"])
def test_what_cleans_a_node_sees_each_place_where_the_agent_wrote(chart: Chart, more: dict[str, Any]) -> None:
    rendered = chart.render({"uninstall": {"hook": True}, **more})
    container = cleaner(rendered)

    cleaned = {it["mountPath"] for it in container["volumeMounts"]}

    written = {it["mountPath"] for it in rendered.mounts().values() if not it.get("readOnly")}
    assert cleaned == written
    state = {"name": "XPU_AGENT_STATE_DIR", "value": rendered.env()["XPU_AGENT_STATE_DIR"]}
    assert state in container["env"]


def test_a_hook_runs_in_a_namespace_that_asks_for_bounds(chart: Chart) -> None:
    rendered = chart.render({"uninstall": {"hook": True}})

    hooks = [rendered.one("DaemonSet", "xpu-agent-uninstall-nvidia"), rendered.one("Job")]
    pods = [it["spec"]["template"]["spec"] for it in hooks]
    containers = [it for pod in pods for it in (*pod.get("initContainers", ()), *pod["containers"])]
    assert [it["resources"] for it in containers] == [rendered.agent()["resources"]] * 3


UNLABEL = {"nodes get", "nodes patch", "nodefeatures get", "nodefeatures delete"}
WITHDRAW = {f"devices {verb}" for verb in ("get", "update", "delete")}


@pytest.mark.parametrize(
    ("output", "koordinator", "rights"),
    [
        ("file", False, set()),
        ("node", False, UNLABEL),
        ("nodeFeature", False, UNLABEL),
        ("file", True, UNLABEL | WITHDRAW),
        ("none", True, {"nodes get"} | WITHDRAW),
    ],
)
def test_what_cleans_a_node_may_take_back_what_the_api_server_was_told_where_that_is_something(
    chart: Chart, output: str, koordinator: bool, rights: set[str]
) -> None:
    values = {"labels": {"output": output}, "koordinator": {"enabled": koordinator}}
    rendered = chart.render({"uninstall": {"hook": True}, **values})
    pod = rendered.one("DaemonSet", "xpu-agent-uninstall-nvidia")["spec"]["template"]["spec"]

    rules = [
        rule
        for role in (*rendered.all("ClusterRole"), *rendered.all("Role"))
        if role["metadata"]["name"] == "xpu-agent-uninstall"
        for rule in role["rules"]
    ]

    assert {f"{it['resources'][0]} {verb}" for it in rules for verb in it["verbs"]} == rights
    assert pod["automountServiceAccountToken"] is bool(rights)
    assert pod.get("serviceAccountName") == ("xpu-agent-uninstall" if rights else None)


@pytest.mark.parametrize(("output", "rights"), [("file", UNLABEL), ("none", {"nodes get", "nodes patch"})])
def test_what_cleans_a_node_may_take_back_the_annotations_of_vendors(
    chart: Chart, output: str, rights: set[str]
) -> None:
    values = {"labels": {"output": output}, "nodeAnnotations": {"enabled": True}}
    rendered = chart.render({"uninstall": {"hook": True}, **values})

    assert {
        f"{rule['resources'][0]} {verb}"
        for role in (*rendered.all("ClusterRole"), *rendered.all("Role"))
        if role["metadata"]["name"] == "xpu-agent-uninstall"
        for rule in role["rules"]
        for verb in rule["verbs"]
    } == rights


def test_what_cleans_a_node_may_take_back_what_was_counted_for_it(chart: Chart) -> None:
    rendered = chart.render(MATRIX["counts for the Node"])

    assert {
        f"{rule['resources'][0]} {verb}"
        for role in (*rendered.all("ClusterRole"), *rendered.all("Role"))
        if role["metadata"]["name"] == "xpu-agent-uninstall"
        for rule in role["rules"]
        for verb in rule["verbs"]
    } == {"nodes get", "nodes/status patch"}


def test_what_cleans_a_node_removes_node_features_of_the_release_s_namespace_alone(chart: Chart) -> None:
    rendered = chart.render(MATRIX["cleaning up labels"])

    assert rendered.one("Role", "xpu-agent-uninstall")["metadata"]["namespace"] == "xpu"
    assert "nfd.k8s-sigs.io" not in str(rendered.all("ClusterRole"))


@pytest.mark.parametrize(("more", "there"), [({}, True), (NO_POLICY, False)])
def test_what_cleans_a_node_is_under_a_policy_of_its_own_as_the_agent_s_is_gone_by_then(
    chart: Chart, more: dict[str, Any], there: bool
) -> None:
    rendered = chart.render({**MATRIX["cleaning up labels"], **more})

    hooked = [
        condition["expression"]
        for it in rendered.all("ValidatingAdmissionPolicy")
        if it["metadata"].get("annotations", {}).get("helm.sh/hook") == "post-delete"
        for condition in it["spec"]["matchConditions"]
    ]
    account = '"system:serviceaccount:xpu:xpu-agent-uninstall"'
    assert hooked == ([f"request.userInfo.username == {account}"] if there else [])


def test_no_hook_runs_unless_it_is_asked_for(chart: Chart) -> None:
    assert "helm.sh/hook" not in chart.render().text


def test_monitors_and_rules_scrape_and_alert_by_node(chart: Chart) -> None:
    rendered = chart.render(MATRIX["everything of the monitoring"])

    [endpoint] = rendered.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0]["targetLabel"] == "node"
    assert endpoint["honorLabels"], "Prometheus would rename the labels of pods that use cards"
    assert rendered.one("PodMonitor")["metadata"]["labels"]["release"] == "prometheus"
    assert rendered.one("PrometheusRule")["spec"]["groups"][0]["rules"]
    assert json.loads(rendered.one("ConfigMap", "xpu-agent-dashboard")["data"]["xpu-agent.json"])["panels"]


def test_a_service_monitor_finds_the_agents_by_a_service_of_their_own(chart: Chart) -> None:
    rendered = chart.render({"metrics": {"serviceMonitor": {"enabled": True, "labels": {"a": "b"}}}})
    service, monitor = rendered.one("Service"), rendered.one("ServiceMonitor")
    pod = rendered.one("DaemonSet")["spec"]["template"]["metadata"]

    assert monitor["metadata"]["labels"]["a"] == "b"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {it["name"] for it in service["spec"]["ports"]}
    assert endpoint["relabelings"][0]["targetLabel"] == "node"


def test_who_is_named_alone_may_connect_and_to_the_port_of_the_views_alone(chart: Chart) -> None:
    values = MATRIX["scrapes from one namespace alone"]
    rendered = chart.render({**values, "http": {"port": 9900}})
    policy = rendered.one("NetworkPolicy")["spec"]
    pod = rendered.one("DaemonSet")["spec"]["template"]["metadata"]["labels"]

    assert policy["podSelector"]["matchLabels"].items() <= pod.items()
    assert policy["policyTypes"] == ["Ingress"]
    [rule] = policy["ingress"]
    assert rule == {"from": values["networkPolicy"]["from"], "ports": [{"protocol": "TCP", "port": 9900}]}


def test_where_nobody_is_named_nobody_but_the_node_may_connect(chart: Chart) -> None:
    rendered = chart.render({"networkPolicy": {"enabled": True}})

    assert rendered.one("NetworkPolicy")["spec"]["ingress"] == []


def test_everybody_may_connect_unless_a_policy_is_asked_for(chart: Chart) -> None:
    named = {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}

    assert not chart.render().all("NetworkPolicy")
    assert not chart.render(named).all("NetworkPolicy")


def test_nothing_of_the_monitoring_is_made_unless_it_is_asked_for(chart: Chart) -> None:
    kinds = {it["kind"] for it in chart.render().objects}

    assert not kinds & {"PodMonitor", "ServiceMonitor", "Service", "PrometheusRule"}


def test_the_doctor_s_way_to_every_daemonset_finds_one_of_another_name(chart: Chart) -> None:
    [label] = re.findall(r"get daemonsets -A -l (\S+)", TWO_AGENTS.remedy)
    rendered = chart.render({"fullnameOverride": "cards", "nameOverride": "gpu"})

    assert [label in it["metadata"]["labels"] for it in rendered.all("DaemonSet")] == [True]


def test_after_an_install_helm_says_what_to_run_next(chart: Chart) -> None:
    notes = chart.notes(MATRIX["two pools"])

    for pool in ("nvidia", "test"):
        assert f"kubectl -n xpu rollout status daemonset/xpu-agent-{pool}" in notes
    for verb in ("inspect", "doctor"):
        assert f"kubectl -n xpu exec POD -- xpu-agent {verb}" in notes
    assert "kubectl label namespace xpu pod-security.kubernetes.io/enforce=privileged" in notes
    assert "any Node" not in notes


def test_helm_says_it_where_a_token_is_not_kept_to_its_node(chart: Chart) -> None:
    assert "may label any Node" in chart.notes({"labels": {"output": "node"}, **NO_POLICY})


def test_the_monitor_finds_a_port_that_is_declared(chart: Chart) -> None:
    here, on_host = {"metrics": {"podMonitor": {"enabled": True}}}, MATRIX["the host's network"]

    assert chart.render(here).one("PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert chart.render(on_host).one("PodMonitor")["spec"]["podMetricsEndpoints"][0]["portNumber"] == 9808


def test_the_chart_and_its_image_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    meta = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (meta["version"], meta["appVersion"]) == (version, version)


def test_every_value_has_its_place_in_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert values.keys() == schema["properties"].keys() - {"global"}


def test_every_value_is_in_the_table_of_the_docs() -> None:
    page = (ROOT / "docs/install.md").read_text()
    told = {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)", row)
    }

    assert yaml.safe_load((CHART / "values.yaml").read_text()).keys() <= told


def test_a_vendor_of_another_distribution_brings_its_values_for_the_chart(chart: Chart) -> None:
    preset = yaml.safe_load((ROOT / "docs/examples/vendor/acme_xpu/chart_values.yaml").read_text())
    rendered = chart.render(
        {**preset, "pools": {"nvidia": {"enabled": False}, "acme": {"vendors": ["acme"]}}}
    )

    acme, pod = preset["vendors"]["acme"], rendered.pod("acme")
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"] == acme["nodes"]
    assert acme["tolerations"][0] in pod["tolerations"]
    assert "/opt/acme/lib" in rendered.mounts("acme")
    assert rendered.agent("acme")["securityContext"]["privileged"] is True
