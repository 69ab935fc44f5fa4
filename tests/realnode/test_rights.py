"""What the agent may: of the API server with its own token, and of the node from its container."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from deploy.chart import CHART

from .api import Api, KubectlFailed
from .cluster import Cluster
from .kubelet import NODE
from .release import NAMESPACE, Release, merged
from .space import Space, pod
from .until import until

#: Labels straight on the Node take the most rights of all outputs.
VALUES = {"labels": {"output": "node"}}
#: Nodes that there are none of: such a release is its rights alone.
NOWHERE = {"pools": {"nvidia": {"nodeSelector": {"nowhere": "true"}}}}

ALWAYS = {"get nodes", "list nodes", "watch nodes"}
PODS = {"list pods", "watch pods"}
EVENTS = {"create events.events.k8s.io", "patch events.events.k8s.io"}
#: Also to take back what another output told.
REMOVES = {"patch nodes", "get nodefeatures.nfd.k8s-sigs.io", "delete nodefeatures.nfd.k8s-sigs.io"}
TELLS = {"create nodefeatures.nfd.k8s-sigs.io", "update nodefeatures.nfd.k8s-sigs.io"}
#: Values to every right that they give: the table in docs/security.md.
MODES: Mapping[str, tuple[dict[str, Any], set[str]]] = {
    "file": ({}, ALWAYS | PODS | EVENTS | REMOVES),
    "node": (VALUES, ALWAYS | PODS | EVENTS | REMOVES),
    "feature": ({"labels": {"output": "nodeFeature"}}, ALWAYS | PODS | EVENTS | REMOVES | TELLS),
    "none": ({"labels": {"output": "none"}}, ALWAYS | PODS | EVENTS),
    "silent": ({"events": {"enabled": False}, "pods": {"enabled": False}}, ALWAYS | REMOVES),
    "alone": ({"api": {"enabled": False}}, set()),
}
OTHER = "node-2"


@pytest.fixture
async def telling(cluster: Cluster) -> Release:
    """The agent that labels its Node itself."""
    await cluster.agent.hold(VALUES)
    return cluster.agent


async def test_the_account_of_each_mode_has_the_rights_that_are_documented_and_no_others(
    cluster: Cluster, telling: Release
) -> None:
    everybody = await rights(cluster.api, "default")

    given = await asyncio.gather(*(rights_of(cluster, name) for name in MODES))

    assert {name: its - everybody for name, its in zip(MODES, given, strict=True)} == {
        name: wanted for name, (_, wanted) in MODES.items()
    }


async def rights_of(cluster: Cluster, mode: str) -> set[str]:
    """Install the chart with the mode's values and without pods, ask for the rights, remove it."""
    release = f"rights-{mode}"
    values = yaml.safe_dump(merged(NOWHERE, MODES[mode][0]))
    await cluster.agent.helm("install", release, str(CHART), "--values=-", stdin=values)
    try:
        return await rights(cluster.api, f"{release}-xpu-agent")
    finally:
        await cluster.agent.helm("uninstall", release)


async def rights(api: Api, account: str) -> set[str]:
    """VERB RESOURCE[.GROUP] of everything that the account may in the agent's namespace."""
    token = await api.kubectl("create", "token", account, f"--namespace={NAMESPACE}")
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": NAMESPACE},
    }
    # Without the right to look up what kinds there are, kubectl cannot judge the object beforehand.
    options = ["--filename=-", "--validate=false", "--output=json", f"--token={token.strip()}"]
    told = json.loads(await api.kubectl("create", *options, stdin=json.dumps(asked)))
    return {
        f"{verb} {'.'.join(filter(None, (resource, group)))}"
        for rule in told["status"]["resourceRules"]
        for verb in rule["verbs"]
        for resource in rule.get("resources", ())
        for group in rule.get("apiGroups", ())
    }


async def test_with_the_agents_token_its_own_node_is_labelled_and_no_other(
    cluster: Cluster, telling: Release
) -> None:
    token = await token_in(telling)
    await cluster.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}})
    try:
        assert await said(cluster.api, token, "label", "node", NODE, "nvidia.com/try=x") == ""
        assert await said(cluster.api, token, "label", "node", NODE, "nvidia.com/try-") == ""
        refusal = await said(cluster.api, token, "label", "node", OTHER, "nvidia.com/try=x")
        assert f"xpu-agent on node '{NODE}' may write to that node alone, not to '{OTHER}'" in refusal
    finally:
        await cluster.api.kubectl("delete", "node", OTHER)


async def test_the_agent_labels_its_node_by_that_right(cluster: Cluster, telling: Release) -> None:
    async def count() -> str | None:
        label = (await cluster.node())["metadata"]["labels"].get("nvidia.com/gpu.count")
        return None if label is None else str(label)

    await until(count, lambda it: it == "4", "the Node's label of its cards")


#: What a token that was taken from a node might try, and with what words it is refused. SPACE is a namespace.
ATTEMPTS = {
    "read secrets": ("get secrets --all-namespaces", "forbidden"),
    "read config maps": ("get configmaps --all-namespaces", "forbidden"),
    "read one pod": ("get pod other --namespace=SPACE", "forbidden"),
    "enter a pod": ("exec other --namespace=SPACE -- true", "forbidden"),
    "read a pod's log": ("logs other --namespace=SPACE", "forbidden"),
    "remove a pod": ("delete pod other --namespace=SPACE --wait=false", "forbidden"),
    "make a pod": ("run mine --image=x --namespace=SPACE", "forbidden"),
    "make itself mighty": (
        "create clusterrolebinding mighty --clusterrole=cluster-admin --user=agent",
        "forbidden",
    ),
    "make a token of another": ("create token default --namespace=kube-system", "forbidden"),
    "remove its node": (f"delete node {NODE} --wait=false", "forbidden"),
    "offer cards": (
        f"patch node {NODE} --subresource=status --patch={{}}",
        "forbidden",
    ),
    "cordon its node": (
        f'patch node {NODE} --patch={{"spec":{{"unschedulable":true}}}}',
        "may change the labels and annotations of its node",
    ),
}


async def test_nothing_else_is_allowed_with_the_agents_token(
    cluster: Cluster, telling: Release, space: Space
) -> None:
    await space.apply(pod("other", cards=0))
    await space.running(1)
    token = await token_in(telling)

    told = await asyncio.gather(
        *(said(cluster.api, token, *it.replace("SPACE", space.name).split()) for it, _ in ATTEMPTS.values())
    )

    let = {
        what: words
        for (what, (_, refusal)), words in zip(ATTEMPTS.items(), told, strict=True)
        if refusal not in words
    }
    assert let == {}, "what was let, or refused in other words"


async def token_in(agent: Release) -> str:
    """What the agent's pod has, bound to pod and node."""
    return (await agent.run("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")).strip()


async def said(api: Api, token: str, *arguments: str) -> str:
    """What the server has against it; empty where it lets it."""
    verb, *rest = arguments
    try:
        await api.kubectl(verb, f"--token={token}", *rest)
    except KubectlFailed as refused:
        return str(refused).replace(token, "TOKEN")
    return ""


async def test_every_process_of_the_agent_is_root_without_any_capability(telling: Release) -> None:
    told = await telling.run("sh", "-c", "for it in /proc/[0-9]*/status; do cat $it 2>/dev/null; echo; done")

    processes = [fields(it) for it in told.split("\n\n") if "Name:" in it]
    assert {"tini", "xpu-agent"} <= {it["Name"] for it in processes}, "the agent itself is among them"
    without = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    wanted = {"Uid": "0\t0\t0\t0", "Gid": "0\t0\t0\t0", **without, "NoNewPrivs": "1", "Seccomp": "2"}
    assert [{key: it[key] for key in wanted} for it in processes] == [wanted] * len(processes)


def fields(status: str) -> dict[str, str]:
    rows = (line.partition(":\t") for line in status.splitlines())
    return {key: value.strip() for key, _, value in rows}


async def test_the_agent_writes_in_its_own_places_alone(telling: Release) -> None:
    places = {
        "/": False,
        "/opt/xpu-agent": False,
        "/etc/xpu-agent": False,
        "/sys/fs/cgroup": False,
        "/driver-root/dev": False,
        "/var/lib/kubelet/pod-resources": False,
        "/var/lib/kubelet/device-plugins": True,
        "/var/lib/xpu-agent": True,
        "/var/run/cdi": True,
        "/tmp": True,
    }
    tries = "; ".join(f"(: >{it}/.tried) 2>/dev/null && rm {it}/.tried && echo {it}" for it in places)

    told = await telling.run("sh", "-c", f"{tries}; true")

    assert told.split() == [it for it, writable in places.items() if writable]
