"""The chart on a real API server: what it renders is taken, and what an agent may do then."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from deploy.test_chart import MATRIX
from deploy.test_examples import EXAMPLES

from agent.cluster.extended_resource_writer import patches
from agent.cluster.own_node import OwnNode, own_node
from agent.core.publishing.extended_resource_rules import Extended
from deploy.chart import ROOT, Chart, Rendered, helm_of

from .apiserver import KubectlFailed, RealApiServer
from .nodefeatures import node_features

PATIENCE = 30.0
#: How the policy refuses.
ALONE = "may write to that node alone"
LOOK = 0.1
#: Kinds that the Prometheus operator brings.
FOREIGN = "monitoring.coreos.com"
#: As node-feature-discovery has it, as far as the policy looks at it.
NODE_FEATURES = node_features({"type": "object", "x-kubernetes-preserve-unknown-fields": True})


@pytest.fixture(scope="session")
def chart(request: pytest.FixtureRequest) -> Chart:
    return Chart(helm_of(request))


@pytest.fixture
async def namespace(api_server: RealApiServer) -> str:
    return await new_namespace(api_server)


async def new_namespace(server: RealApiServer) -> str:
    name = f"test-{secrets.token_hex(4)}"
    await server.kubectl("create", "namespace", name)
    await server.kubectl("create", "serviceaccount", "default", "--namespace", name)
    return name


async def installed(
    chart: Chart, server: RealApiServer, values: Mapping[str, Any], namespace: str = ""
) -> str:
    """The namespace that has what the chart renders; none given: one of its own."""
    namespace = namespace or await new_namespace(server)
    shown = chart.render(values, namespace=namespace)
    await server.kubectl("apply", "--filename", "-", stdin=shown.text)
    return namespace


async def tried(server: RealApiServer, text: str, namespace: str) -> None:
    """Have the server judge the objects as if they were applied; unknown fields are errors."""
    options = ["--dry-run=server", "--validate=strict", "--namespace", namespace]
    await server.kubectl("apply", *options, "--filename", "-", stdin=text)


def known(shown: Rendered) -> str:
    return yaml.safe_dump_all(it for it in shown.objects if FOREIGN not in it["apiVersion"])


@pytest.mark.parametrize("name", MATRIX)
async def test_the_server_takes_what_the_chart_renders(
    chart: Chart, api_server: RealApiServer, namespace: str, name: str
) -> None:
    await tried(api_server, known(chart.render(MATRIX[name], namespace=namespace)), namespace)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda it: it.name)
async def test_the_server_takes_the_examples(
    chart: Chart, api_server: RealApiServer, namespace: str, example: Path
) -> None:
    values, pod = ((example / name).read_text() for name in ("values.yaml", "pod.yaml"))

    await tried(api_server, known(chart.render(yaml.safe_load(values), namespace=namespace)), namespace)
    await tried(api_server, pod, namespace)


async def test_the_server_takes_the_plain_manifests(api_server: RealApiServer, namespace: str) -> None:
    text = (ROOT / "deploy/manifests/xpu-agent.yaml").read_text()
    cleaning = (ROOT / "deploy/manifests/uninstall.yaml").read_text()
    more = (ROOT / "deploy/manifests/uninstall-koordinator.yaml").read_text()

    # A namespace that is only tried is not there for what goes into it.
    for each in (text, cleaning, more):
        await tried(api_server, each.replace("namespace: xpu-agent", f"namespace: {namespace}"), namespace)


async def test_defaults_are_upgraded_to_other_values_and_back(
    chart: Chart, api_server: RealApiServer, namespace: str, tmp_path: Path
) -> None:
    admin = api_server.kubeconfig(tmp_path / "kubeconfig")
    told = await asyncio.to_thread(chart.release, "install", admin, namespace)
    try:
        for name in ("the host's network", "a host port", "labels on the Node", "defaults"):
            values = {**MATRIX[name], "metrics": {}}
            await asyncio.to_thread(chart.release, "upgrade", admin, namespace, values)
    finally:
        await asyncio.to_thread(chart.release, "uninstall", admin, namespace)

    assert f"kubectl -n {namespace} exec POD -- xpu-agent inspect" in told


async def until(tried: Callable[[], Awaitable[str]], words: str) -> None:
    """Try until the server says these words against it; empty: nothing."""
    async with asyncio.timeout(PATIENCE):
        while True:
            said = await tried()
            if words in said and bool(words) is bool(said):
                return
            await asyncio.sleep(LOOK)


#: What `kubectl cordon` sends; that one ends well whatever the server says.
CORDON = '{"spec": {"unschedulable": true}}'


class Agent:
    """An agent's pod on a node, as far as the API server knows it, and its token."""

    def __init__(self, server: RealApiServer, namespace: str, node: str, account: str = "xpu-agent") -> None:
        self.server, self.namespace, self.node, self.account = server, namespace, node, account
        self.token = ""

    async def placed(self) -> Agent:
        """On a node that is made for it."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.node, "namespace": self.namespace},
            "spec": {
                "nodeName": self.node,
                "serviceAccountName": self.account,
                "containers": [{"name": "agent", "image": "agent"}],
            },
        }
        both = {"apiVersion": "v1", "kind": "List", "items": [node, pod]}
        await self.server.kubectl("create", "--filename", "-", stdin=json.dumps(both))
        bound = ["--bound-object-kind", "Pod", "--bound-object-name", self.node]
        self.token = await self.server.kubectl(
            "create", "token", self.account, "--namespace", self.namespace, *bound
        )
        return self

    async def does(self, *arguments: str, stdin: str = "") -> str:
        """What the server says against it; empty where it lets it."""
        # Without the admin's certificate or token: the kubeconfig's user is overruled by the token.
        try:
            await self.server.kubectl(*arguments, stdin=stdin, token=self.token.strip())
        except KubectlFailed as refused:
            return str(refused)
        return ""

    async def labels(self, node: str) -> str:
        return await self.does("label", "node", node, "--overwrite", f"nvidia.com/x={secrets.token_hex(4)}")


#: The values with which an agent labels its Node.
LABELLING: Mapping[str, Any] = {"labels": {"output": "node"}}


@pytest.fixture
async def agents(chart: Chart, api_server: RealApiServer) -> list[Agent]:
    """Two agents on nodes of their own, the policy in force, and an installation that the test may change."""
    return await two(api_server, await installed(chart, api_server, LABELLING), "xpu-agent")


async def two(server: RealApiServer, namespace: str, account: str) -> list[Agent]:
    """Two pods of this account on nodes of their own, once its rights and its policy are in force."""
    made = await more(server, namespace, account)
    # The server takes rights and policies in within a second or two.
    await until(lambda: made[0].labels(made[0].node), "")
    await until(lambda: made[0].labels(made[1].node), ALONE)
    return made


async def more(server: RealApiServer, namespace: str, account: str = "xpu-agent") -> list[Agent]:
    """Two pods of this account on nodes of their own, where rights and policy are in force already."""
    made = [Agent(server, namespace, f"node-{secrets.token_hex(4)}", account) for _ in range(2)]
    return list(await asyncio.gather(*(it.placed() for it in made)))


class Installations:
    """One for each set of values, kept from test to test for as long as no other was installed after it.

    The chart's ClusterRoleBinding has one name in all namespaces: what was installed last has the rights.
    """

    def __init__(self, chart: Chart, server: RealApiServer) -> None:
        self._chart, self._server = chart, server
        self._namespaces: dict[str, str] = {}

    async def kept(
        self, values: Mapping[str, Any], in_force: Callable[[str], Awaitable[object]]
    ) -> tuple[Agent, Agent]:
        """Two agents on nodes of their own. `in_force` waits, in a new namespace, for rights and policy."""
        key = json.dumps(values)
        if self._namespaces.get(key, "") != await self._last():
            namespace = await installed(self._chart, self._server, values)
            await in_force(namespace)
            self._namespaces[key] = namespace
        one, other = await more(self._server, self._namespaces[key])
        return one, other

    async def _last(self) -> str | None:
        """The namespace whose agents have rights."""
        where = "jsonpath={.subjects[0].namespace}"
        binding = ("clusterrolebinding", "xpu-agent", "--ignore-not-found")
        return await self._server.kubectl("get", *binding, "--output", where) or None


@pytest.fixture(scope="module")
def installations(chart: Chart, api_server: RealApiServer) -> Installations:
    return Installations(chart, api_server)


@pytest.fixture
async def labelling(installations: Installations, api_server: RealApiServer) -> tuple[Agent, Agent]:
    """Two agents on nodes of their own; the installation is that of other tests, too."""
    return await installations.kept(LABELLING, lambda name: two(api_server, name, "xpu-agent"))


async def test_an_agent_labels_its_own_node_and_no_other(labelling: tuple[Agent, Agent]) -> None:
    one, other = labelling

    assert await one.labels(one.node) == ""
    refusal = await one.labels(other.node)
    assert f"xpu-agent on node '{one.node}' may write to that node alone, not to '{other.node}'" in refusal


#: What else of its Node a token might change. An owner that is not there has the Node deleted.
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "00000000-0000-4000-8000-000000000000"}
CHANGES = {
    "cordon": CORDON,
    "owner": json.dumps({"metadata": {"ownerReferences": [OWNER]}}),
    "finalizer": json.dumps({"metadata": {"finalizers": ["example.com/kept"]}}),
    "no finalizers": json.dumps({"metadata": {"finalizers": None}}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_of_its_own_node_an_agent_changes_labels_and_annotations_alone(
    labelling: tuple[Agent, Agent], api_server: RealApiServer, change: str
) -> None:
    one = labelling[0]
    kept = json.dumps({"metadata": {"finalizers": ["example.com/admin"]}})
    await api_server.kubectl("patch", "node", one.node, "--type=merge", "-p", kept)

    refusal = await one.does("patch", "node", one.node, "--type=merge", "-p", CHANGES[change])

    assert "may change the labels and annotations" in refusal
    assert await one.does("annotate", "node", one.node, "xpu-agent.io/x=y") == ""


@pytest.mark.parametrize(
    "label",
    [
        "node-restriction.kubernetes.io/tenant=x",
        "kubernetes.io/hostname=x",
        "kubernetes.io/hostname-",
        "topology.k8s.io/zone=x",
        "pool=x",
        "cloud.example.com/pool=x",
        "evil-nvidia.com/x=y",
        "a.nvidia.com/x=y",
    ],
)
async def test_labels_of_its_node_that_are_no_vendor_s_are_not_the_agent_s(
    labelling: tuple[Agent, Agent], api_server: RealApiServer, label: str
) -> None:
    one = labelling[0]
    await api_server.kubectl("label", "node", one.node, "--overwrite", "kubernetes.io/hostname=one")

    refusal = await one.does("label", "node", one.node, "--overwrite", label)

    assert "xpu-agent may change labels of its node that are of enflame.com, metax-tech.com" in refusal
    assert await one.labels(one.node) == ""


LOCK = "hami.io/mutex.lock"


@pytest.mark.parametrize(
    "annotation",
    [
        "volumes.kubernetes.io/attach=false",
        "volumes.kubernetes.io/attach-",
        "autoscaler.k8s.io/keep=true",
        "hami.io/node-handshake=x",
        f"{LOCK}=another",
    ],
)
async def test_an_agent_annotates_its_own_node_and_changes_nothing_that_is_no_vendor_s(
    labelling: tuple[Agent, Agent], api_server: RealApiServer, annotation: str
) -> None:
    one, other = labelling
    there = ["volumes.kubernetes.io/attach=true", f"{LOCK}=a-scheduler"]
    await api_server.kubectl("annotate", "node", one.node, "--overwrite", *there)

    refusal = await one.does("annotate", "node", one.node, "--overwrite", annotation)

    assert "xpu-agent may change annotations of its node that are of enflame.com" in refusal
    vendors = "metax-tech.com/node-gpu-devices=[]"
    assert await one.does("annotate", "node", one.node, vendors) == ""
    assert await one.does("annotate", "node", one.node, "metax-tech.com/node-gpu-devices-") == ""
    assert "may write to that node alone" in await one.does("annotate", "node", other.node, vendors)


async def test_a_scheduler_s_lock_may_go_from_its_node_and_an_agent_may_set_none(
    labelling: tuple[Agent, Agent], api_server: RealApiServer
) -> None:
    one = labelling[0]
    await api_server.kubectl("annotate", "node", one.node, f"{LOCK}=a-scheduler")

    assert await one.does("annotate", "node", one.node, f"{LOCK}-") == ""
    assert "may change annotations of its node" in await one.does(
        "annotate", "node", one.node, f"{LOCK}=of-ours"
    )


async def test_domains_that_the_values_name_may_be_written_too(
    chart: Chart, api_server: RealApiServer, namespace: str
) -> None:
    await installed(chart, api_server, {**LABELLING, "nodeKeys": ["brand.example.com"]}, namespace)
    one = (await two(api_server, namespace, "xpu-agent"))[0]

    assert await one.does("label", "node", one.node, "brand.example.com/cards=8") == ""
    assert "brand.example.com" in await one.does("label", "node", one.node, "other.example.com/cards=8")


async def test_who_cleans_a_node_writes_to_that_node_alone(
    chart: Chart, api_server: RealApiServer, namespace: str
) -> None:
    values = {"labels": {"output": "node"}, "uninstall": {"hook": True}}
    hooks = [
        it
        for it in chart.render(values, namespace=namespace).objects
        if it["metadata"].get("annotations", {}).get("helm.sh/hook-weight") == "-1"
    ]
    await api_server.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(hooks))

    one, other = await two(api_server, namespace, "xpu-agent-uninstall")

    assert await one.labels(one.node) == ""
    assert ALONE in await one.labels(other.node)
    assert "may change the labels and annotations" in await one.does("patch", "node", one.node, "-p", CORDON)


async def test_a_token_without_a_node_writes_nowhere(labelling: tuple[Agent, Agent]) -> None:
    one = labelling[0]
    one.token = await one.server.service_account_token("xpu-agent", one.namespace)

    assert ALONE in await one.labels(one.node)


#: The annotation that an agent may write to pods, and another.
GIVEN, OTHER = "acme.com/assigned", "acme.com/gpus"


@pytest.fixture
async def marking(installations: Installations, api_server: RealApiServer) -> tuple[Agent, Agent]:
    """Two agents on nodes of their own that may write an annotation to pods; on each a pod named like it."""

    async def in_force(namespace: str) -> None:
        one, other = await two(api_server, namespace, "xpu-agent")
        await may_read_pods(api_server, namespace)
        await until(lambda: one.does(*marked(one, one)), "")
        await until(lambda: one.does(*marked(one, other)), ALONE)

    made = await installations.kept({**LABELLING, "pods": {"receipts": [GIVEN]}}, in_force)
    for it in made:
        await api_server.kubectl("annotate", "pod", it.node, "--namespace", it.namespace, f"{OTHER}=0")
    return made


async def may_read_pods(server: RealApiServer, namespace: str) -> None:
    """kubectl reads a pod before it patches it, which an agent does not."""
    reads = ("reads", "--namespace", namespace)
    await server.kubectl("create", "role", *reads, "--verb=get", "--resource=pods")
    account = f"--serviceaccount={namespace}:xpu-agent"
    await server.kubectl("create", "rolebinding", *reads, "--role=reads", account)


def marked(by: Agent, of: Agent, key: str = GIVEN) -> tuple[str, ...]:
    """The words of kubectl that write an annotation to the pod on an agent's node."""
    value = secrets.token_hex(4)
    return "annotate", "pod", of.node, "--namespace", by.namespace, "--overwrite", f"{key}={value}"


async def test_an_agent_writes_its_annotation_to_pods_of_its_own_node_alone(
    marking: tuple[Agent, Agent],
) -> None:
    one, other = marking

    assert await one.does(*marked(one, one)) == ""
    refusal = await one.does(*marked(one, other))
    assert f"xpu-agent on node '{one.node}' may write to that node alone, not to '{other.node}'" in refusal
    one.token = await one.server.service_account_token("xpu-agent", one.namespace)
    assert ALONE in await one.does(*marked(one, one))


@pytest.mark.parametrize(
    "annotation",
    [f"{OTHER}=1", f"{OTHER}-", "acme.com/new=1", "autoscaler.kubernetes.io/safe-to-evict=false"],
)
async def test_of_a_pods_annotations_an_agent_changes_those_that_are_named(
    marking: tuple[Agent, Agent], annotation: str
) -> None:
    one = marking[0]
    pod = ("annotate", "pod", one.node, "--namespace", one.namespace, "--overwrite")

    assert f"those that pods.receipts names, {GIVEN}" in await one.does(*pod, annotation)

    assert await one.does(*pod, f"{GIVEN}-") == ""


#: What else of a pod a token might change. By its image it would run what it likes.
OF_PODS = {
    "image": {"spec": {"containers": [{"name": "agent", "image": "another"}]}},
    "deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "label": {"metadata": {"labels": {"app": "another"}}},
    "owner": {"metadata": {"ownerReferences": [OWNER]}},
    "finalizer": {"metadata": {"finalizers": ["example.com/kept"]}},
    "with the annotation": {"metadata": {"annotations": {GIVEN: "1"}, "labels": {"app": "another"}}},
}


@pytest.mark.parametrize("change", OF_PODS)
async def test_of_a_pod_an_agent_changes_an_annotation_and_nothing_else(
    marking: tuple[Agent, Agent], change: str
) -> None:
    one = marking[0]
    pod = ("patch", "pod", one.node, "--namespace", one.namespace)

    refusal = await one.does(*pod, "--type=strategic", "-p", json.dumps(OF_PODS[change]))

    assert "may change annotations of pods, and nothing else of them" in refusal


async def test_who_may_write_an_annotation_to_pods_may_do_nothing_else_with_them(
    marking: tuple[Agent, Agent], api_server: RealApiServer
) -> None:
    one = marking[0]
    pod = ("patch", "pod", one.node, "--namespace", one.namespace)

    failed = ("--subresource", "status", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')
    assert 'resource "pods/status"' in await one.does(*pod, *failed)
    assert "cannot delete resource" in await one.does("delete", *pod[1:])
    await api_server.kubectl("label", *pod[1:], "by=admin")


#: The extended resource that an agent may count for its node.
COUNT = "enflame.com/gcu-count"
RECORD = "xpu-agent.io/extended-resources"


@pytest.fixture
async def counting(installations: Installations, api_server: RealApiServer) -> tuple[Agent, Agent]:
    """Two agents on nodes of their own that count for them; a kubelet has told its status of each."""

    async def in_force(namespace: str) -> None:
        one, other = await two(api_server, namespace, "xpu-agent")
        await may_read_status(api_server, namespace, "xpu-agent")
        await until(lambda: one.does(*counted(one)), "")
        await until(lambda: one.does(*counted(other)), ALONE)

    made = await installations.kept({**LABELLING, "nodeStatus": {"resources": [COUNT]}}, in_force)
    kubelets = {"cpu": "8", "enflame.com/gcu": "8"}
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}]
    images = [{"names": [f"registry/image:{n}"], "sizeBytes": n} for n in range(50)]
    lists = {"capacity": kubelets, "allocatable": kubelets}
    for it in made:
        await api_server.kubectl(*status(it, {**lists, "conditions": conditions, "images": images}))
    assert await made[0].does(*counted(made[0])) == ""
    return made


async def may_read_status(server: RealApiServer, namespace: str, account: str, more: str = "") -> None:
    """kubectl reads a status before it patches it, which an agent does not."""
    role = f"{account}-reads-{namespace}"
    await server.kubectl("create", "clusterrole", role, f"--verb=get{more}", "--resource=nodes/status")
    to = f"--serviceaccount={namespace}:{account}"
    await server.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", to)


def status(of: Agent, changes: object, metadata: object = None) -> tuple[str, ...]:
    """The words of kubectl that patch the status of an agent's node."""
    patch = json.dumps({"status": changes, **({"metadata": metadata} if metadata else {})})
    return "patch", "node", of.node, "--subresource=status", "--type=merge", "-p", patch


def counted(of: Agent, count: str | None = "8") -> tuple[str, ...]:
    lists = {"capacity": {COUNT: count}, "allocatable": {COUNT: count}}
    return status(of, lists, {"annotations": {RECORD: COUNT if count else None}})


async def test_an_agent_counts_for_its_own_node_and_no_other(
    counting: tuple[Agent, Agent], api_server: RealApiServer
) -> None:
    one, other = counting

    for count in ("7", None, "8"):
        assert await one.does(*counted(one, count)) == ""
    refusal = await one.does(*counted(other))
    assert f"xpu-agent on node '{one.node}' may write to that node alone, not to '{other.node}'" in refusal

    shown = json.loads(await api_server.kubectl("get", "node", one.node, "-o", "json"))
    assert shown["metadata"]["annotations"][RECORD] == COUNT
    assert shown["status"]["capacity"] == {"cpu": "8", "enflame.com/gcu": "8", COUNT: "8"}
    one.token = await one.server.service_account_token("xpu-agent", one.namespace)
    assert ALONE in await one.does(*counted(one))


_NAMED = f"may count for its node what nodeStatus.resources names, {COUNT}"
_LISTS = "may change capacity and allocatable of its node's status, and nothing else of it"
_NOTES = "may note with the status of its node which extended resources are its own, and nothing else"
#: What else a token might write to its Node's status, and the words against it.
OF_STATUS: dict[str, tuple[object, object, str]] = {
    "another resource": ({"capacity": {"enflame.com/gcu": "9"}}, None, _NAMED),
    "a new resource": ({"allocatable": {"nvidia.com/gpu": "9"}}, None, _NAMED),
    "no resource": ({"allocatable": {"cpu": None}}, None, _NAMED),
    "no list": ({"capacity": None}, None, _NAMED),
    "a condition": ({"conditions": [{"type": "Ready", "status": "False"}]}, None, _LISTS),
    "an address": ({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}, None, _LISTS),
    "no images": ({"images": None}, None, _LISTS),
    "with the count": ({"capacity": {COUNT: "7"}, "phase": "Terminated"}, None, _LISTS),
    "a label": ({"capacity": {COUNT: "7"}}, {"labels": {"pool": "train"}}, _NOTES),
    "an annotation": ({"capacity": {COUNT: "7"}}, {"annotations": {"acme.com/x": "1"}}, _NOTES),
    "an owner": ({"capacity": {COUNT: "7"}}, {"ownerReferences": [OWNER]}, "and nothing else of it"),
}


@pytest.mark.parametrize("change", OF_STATUS)
async def test_of_its_nodes_status_an_agent_changes_the_counts_that_are_named(
    counting: tuple[Agent, Agent], change: str
) -> None:
    one = counting[0]
    changes, metadata, words = OF_STATUS[change]

    assert words in await one.does(*status(one, changes, metadata))


async def test_a_name_that_the_chart_has_no_more_stays_and_holds_up_none_that_it_has(
    counting: tuple[Agent, Agent], api_server: RealApiServer
) -> None:
    one, old = counting[0], {"acme.com/gcu-count": "8"}
    lists, notes = {"capacity": old, "allocatable": old}, {"annotations": {RECORD: ",".join(old)}}
    await api_server.kubectl(*status(one, lists, notes))

    first, last = patches(await told(api_server, one), Extended({COUNT: 9}))
    assert await one.does(*status(one, first["status"], first["metadata"])) == ""
    assert _NAMED in await one.does(*status(one, last["status"], last["metadata"]))

    shown = await told(api_server, one)
    assert (shown.allocatable[COUNT], shown.allocatable["acme.com/gcu-count"]) == (9, 8)
    assert patches(shown, Extended({COUNT: 9})) == [last]


async def told(server: RealApiServer, of: Agent) -> OwnNode:
    """The agent's node, as the server tells it to an agent."""
    shown = own_node(json.loads(await server.kubectl("get", "node", of.node, "-o", "json")))
    assert shown is not None
    return shown


async def test_who_cleans_a_node_takes_back_what_was_counted_for_it_alone(
    chart: Chart, api_server: RealApiServer, namespace: str
) -> None:
    values = {"nodeStatus": {"resources": [COUNT]}, "uninstall": {"hook": True}}
    hooks = [
        it
        for it in chart.render(values, namespace=namespace).objects
        if it["metadata"].get("annotations", {}).get("helm.sh/hook-weight") == "-1"
    ]
    await api_server.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(hooks))

    one, other = await two(api_server, namespace, "xpu-agent-uninstall")
    await may_read_status(api_server, namespace, "xpu-agent-uninstall")
    await until(lambda: one.does(*counted(one)), "")

    assert await one.does(*counted(one, None)) == ""
    assert ALONE in await one.does(*counted(other, None))
    assert _NAMED in await one.does(*status(one, {"capacity": {"nvidia.com/gpu": "9"}}))


async def test_without_a_name_a_nodes_status_is_not_the_agents_whoever_gave_it_the_right(
    agents: list[Agent], api_server: RealApiServer
) -> None:
    one = agents[0]
    assert 'resource "nodes/status"' in await one.does(*counted(one))

    await may_read_status(api_server, one.namespace, "xpu-agent", ",patch")

    await until(lambda: one.does(*counted(one)), "names, which is nothing")


async def test_others_are_not_touched_by_the_policy(
    labelling: tuple[Agent, Agent], api_server: RealApiServer
) -> None:
    await api_server.kubectl("label", "node", labelling[0].node, "by=admin")


#: What an agent may, and things that it may not.
MAY = (
    "watch nodes",
    "list pods --all-namespaces",
    "create events.events.k8s.io --namespace default",
    "patch nodes",
)
MAY_NOT = (
    "get pods --all-namespaces",
    "delete nodes",
    "create nodes",
    "patch nodes --subresource status",
    "get secrets --all-namespaces",
    "get configmaps --all-namespaces",
    "create pods --all-namespaces",
    "delete pods --all-namespaces",
    "impersonate users",
    "create clusterrolebindings",
)


async def test_the_agent_s_account_may_do_what_it_needs_and_nothing_else(
    labelling: tuple[Agent, Agent],
) -> None:
    asked = {right: await labelling[0].does("auth", "can-i", *right.split()) for right in (*MAY, *MAY_NOT)}

    assert tuple(right for right, refusal in asked.items() if not refusal) == MAY


def feature(namespace: str, named: str, told_of: str, value: str = "x") -> str:
    """A NodeFeature object by the name of one node, with labels of another or the same."""
    metadata = {
        "name": f"xpu-agent-features-for-{named}",
        "namespace": namespace,
        "labels": {"nfd.node.kubernetes.io/node-name": told_of},
    }
    spec = {"labels": {"nvidia.com/x": value}}
    kind = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature"}
    return json.dumps({**kind, "metadata": metadata, "spec": spec})


async def tells(by: Agent) -> str:
    """What the server says against its NodeFeature object; empty where that is there."""
    said = await by.does("create", "--filename", "-", stdin=feature(by.namespace, by.node, by.node))
    return "" if "AlreadyExists" in said else said


@pytest.fixture
async def telling(installations: Installations, api_server: RealApiServer) -> tuple[Agent, Agent]:
    """Two agents on nodes of their own, each of which has told its labels by a NodeFeature object."""

    async def in_force(namespace: str) -> None:
        one, other = await more(api_server, namespace)
        for it in (one, other):
            await until(lambda it=it: tells(it), "")  # type: ignore[misc]
        # Of a kind that is new the policy hears a little later.
        refused = feature(namespace, one.node, other.node)
        await until(lambda: one.does("replace", "--filename", "-", stdin=refused), ALONE)

    await api_server.kubectl("apply", "--filename", "-", stdin=json.dumps(NODE_FEATURES))
    await api_server.kubectl("wait", "crd/nodefeatures.nfd.k8s-sigs.io", "--for=condition=Established")
    one, other = await installations.kept({"labels": {"output": "nodeFeature"}}, in_force)
    assert [await tells(it) for it in (one, other)] == ["", ""]
    return one, other


async def test_an_agent_updates_and_removes_the_node_feature_of_its_own_node(
    telling: tuple[Agent, Agent],
) -> None:
    one, _ = telling
    changed = feature(one.namespace, one.node, one.node, "y")

    assert await one.does("replace", "--filename", "-", stdin=changed) == ""
    assert await one.does("delete", "--wait=false", "--filename", "-", stdin=changed) == ""


#: What a token that was taken from one node might try: verb, and of which node are name and label.
ATTEMPTS = {
    "take over another's": ("replace", "other", "one"),
    "change another's": ("replace", "other", "other"),
    "remove another's": ("delete", "other", "other"),
    "tell of another": ("replace", "one", "other"),
    "take the name of another that has none yet": ("create", "third", "one"),
    "tell of another that has none yet": ("create", "third", "third"),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_an_agent_writes_no_node_feature_of_another_node(
    telling: tuple[Agent, Agent], attempt: str
) -> None:
    one, other = telling
    verb, named, told_of = ATTEMPTS[attempt]
    nodes = {"one": one.node, "other": other.node, "third": "a-third-node"}
    text = feature(one.namespace, nodes[named], nodes[told_of], "stolen")
    options = ["--wait=false"] if verb == "delete" else []

    assert ALONE in await one.does(verb, *options, "--filename", "-", stdin=text)


def device(node: str, healthy: bool = True) -> str:
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    spec = {"devices": [{"type": "gpu", "id": "GPU-0", "minor": 0, "health": healthy}]}
    return json.dumps({**kind, "metadata": {"name": node}, "spec": spec})


async def test_an_agent_writes_the_device_of_its_own_node_and_no_other(
    chart: Chart, api_server: RealApiServer, agents: list[Agent]
) -> None:
    crd = ROOT / "deploy/crd/devices.scheduling.koordinator.sh.yaml"
    await api_server.kubectl("apply", "--server-side", "--filename", str(crd))
    await api_server.kubectl(
        "wait", "crd/devices.scheduling.koordinator.sh", "--for=condition=Established", "--timeout=30s"
    )
    one, other = agents
    await installed(chart, api_server, {"koordinator": {"enabled": True}}, one.namespace)

    async def told(by: Agent, node: str) -> str:
        said = await by.does("create", "--filename", "-", stdin=device(node))
        return "" if "AlreadyExists" in said else said

    for it in agents:
        await until(lambda it=it: told(it, it.node), "")  # type: ignore[misc]
    stolen = device(other.node, healthy=False)
    await until(lambda: one.does("replace", "--filename", "-", stdin=stolen), ALONE)

    assert await one.does("replace", "--filename", "-", stdin=device(one.node, healthy=False)) == ""
    assert ALONE in await told(one, "a-third-node")
    assert ALONE in await one.does("delete", "--wait=false", "--filename", "-", stdin=device(other.node))
    assert await one.does("delete", "--wait=false", "--filename", "-", stdin=device(one.node)) == ""


ALLOCATED = "scheduling.koordinator.sh/device-allocated"
#: The scheduler's words that a pod's author would write, and those of others.
WORDS = (
    ALLOCATED,
    "metax-tech.com/gpu-devices-allocated",
    "hami.io/vgpu-devices-allocated",
    "hami.io/metax-sgpu-devices-to-allocate",
    "enflame.com/gcu-device-id",
    "enflame.com/gcu-assigned-minor",
    "assigned-containers",
)
#: Users' own words on the same pods.
FREE = {
    "metax-tech.com/sgpu-qos-policy": "burst-share",
    "scheduling.koordinator.sh/gpu-partition-spec": "{}",
    "scheduling.koordinator.sh/device-allocate-hint": "{}",
    "hami.io/gpu-scheduler-policy": "binpack",
    "acme.com/team": "x",
}
#: What the values say beside the defaults: an admin's group, a user, and a key of a vendor out of tree.
OPS, ROBOT, OUT_OF_TREE = "card-operators", "backup", "acme.com/*-cards"
ACCOUNTS = "system:serviceaccount"
KOORD_SCHEDULER = f"{ACCOUNTS}:koordinator-system:koord-scheduler"
REPLICA_SETS = f"{ACCOUNTS}:kube-system:replicaset-controller"
NOT_THEIRS = "is how schedulers say which cards a pod gets, and"


class Asker:
    """Somebody who may do everything but what an admission policy keeps from him."""

    def __init__(self, server: RealApiServer, namespace: str, name: str, *groups: str) -> None:
        self._server, self._namespace, self._who = server, namespace, (name, "system:masters", *groups)

    async def does(self, *arguments: str, stdin: str = "") -> str:
        """What the server says against it; empty where it lets it."""
        name, *groups = self._who
        given = [f"--as={name}", *(f"--as-group={it}" for it in groups), "--namespace", self._namespace]
        try:
            await self._server.kubectl(*given, *arguments, stdin=stdin)
        except KubectlFailed as refused:
            return str(refused)
        return ""

    async def makes(self, name: str = "", **annotations: str) -> str:
        """A pod."""
        return await self.does("create", "--filename", "-", stdin=bare_pod(name or fresh(), annotations))

    async def writes(self, pod: str, annotations: dict[str, str | None], *more: str) -> str:
        patch = json.dumps({"metadata": {"annotations": annotations}})
        return await self.does("patch", "pod", pod, "--type=merge", *more, "-p", patch)

    async def binds(self, pod: str, annotations: dict[str, str], path: str) -> str:
        """By the API itself, as schedulers do: kubectl has no word for it."""
        target = {"kind": "Node", "name": "no-node"}
        metadata = {"name": pod, "namespace": self._namespace, "annotations": annotations}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        where = f"/api/v1/namespaces/{self._namespace}/{path}"
        return await self.does("create", "--raw", where, "--filename", "-", stdin=json.dumps(binding))


def fresh() -> str:
    return f"pod-{secrets.token_hex(4)}"


def bare_pod(name: str, annotations: dict[str, str]) -> str:
    metadata = {"name": name, "annotations": annotations}
    spec = {"containers": [{"name": "main", "image": "main"}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


class Guarded:
    """A namespace in which schedulers alone write their annotations; other tests' pods are left alone."""

    def __init__(self, server: RealApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace

    def by(self, name: str, *groups: str) -> Asker:
        return Asker(self.server, self.namespace, name, *groups)

    async def pod(self, **annotations: str) -> str:
        """A pod that koord-scheduler has written these annotations to."""
        name = fresh()
        assert await self.by(KOORD_SCHEDULER).makes(name, **annotations) == ""
        return name


#: All that the schedulers' policy is about.
OF_SCHEDULERS = "xpu-agent-schedulers"


def within(shown: Rendered, namespace: str) -> str:
    """The policy, for one namespace: the server is every test's."""
    its = [it for it in shown.objects if it["metadata"]["name"].startswith(OF_SCHEDULERS)]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for it in its:
        if it["kind"] == "ValidatingAdmissionPolicy":
            it["spec"]["matchConstraints"]["namespaceSelector"] = selector
    return yaml.safe_dump_all(its)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(chart: Chart, api_server: RealApiServer) -> Guarded:
    name = await new_namespace(api_server)
    writers = {"ops": {"groups": [OPS], "users": [ROBOT]}}
    values = {"schedulerAnnotations": {"enabled": True, "writers": writers, "keys": [OUT_OF_TREE]}}
    await api_server.kubectl(
        "apply", "--filename", "-", stdin=within(chart.render(values, namespace=name), name)
    )
    made = Guarded(api_server, name)
    await until(lambda: made.by("alice").makes(**{ALLOCATED: "{}"}), NOT_THEIRS)
    return made


@pytest.mark.parametrize("key", [*WORDS, "acme.com/gpu-cards"])
async def test_who_makes_a_pod_says_in_no_schedulers_name_which_cards_it_gets(
    guarded: Guarded, key: str
) -> None:
    alice = guarded.by("alice")

    refusal = await alice.makes(**{key: "{}", **FREE})

    assert f"the annotation {key} {NOT_THEIRS} alice is none of them. Leave it out of the pod" in refusal
    assert "schedulerAnnotations.writers of xpu-agent's chart" in refusal
    assert await alice.makes(**FREE) == ""


@pytest.mark.parametrize(
    "change",
    [
        {ALLOCATED: "other"},
        {ALLOCATED: None},
        {"assigned-containers": ""},
        {"hami.io/a-devices-allocated": None},
    ],
    ids=["changed", "removed", "set to nothing", "one of a made name removed"],
)
@pytest.mark.parametrize("place", [(), ("--subresource", "status")], ids=["pod", "status"])
async def test_nor_does_who_changes_one_by_whichever_path(
    guarded: Guarded, change: dict[str, str | None], place: tuple[str, ...]
) -> None:
    pod = await guarded.pod(**{ALLOCATED: "{}", "hami.io/a-devices-allocated": ""})

    assert NOT_THEIRS in await guarded.by("alice").writes(pod, change, *place)
    assert NOT_THEIRS in await guarded.by("system:node:a", "system:nodes").writes(pod, change, *place)
    assert await guarded.by(KOORD_SCHEDULER).writes(pod, change, *place) == ""


@pytest.mark.parametrize("path", ["bindings", "pods/{}/binding"])
async def test_a_binding_brings_none_along_but_a_schedulers(guarded: Guarded, path: str) -> None:
    """The server writes the annotations of a Binding to the pod."""
    pod, scheduler = await guarded.pod(), guarded.by(KOORD_SCHEDULER)
    where = path.format(pod)

    assert f"{ALLOCATED} {NOT_THEIRS} alice" in await guarded.by("alice").binds(pod, {ALLOCATED: "{}"}, where)

    other = await guarded.pod()
    assert await guarded.by("alice").binds(other, FREE, path.format(other)) == ""
    assert await scheduler.binds(pod, {ALLOCATED: "{}"}, where) == ""
    shown = json.loads(await guarded.server.kubectl("get", "pod", pod, "-n", guarded.namespace, "-o", "json"))
    assert shown["metadata"]["annotations"][ALLOCATED] == "{}"


@pytest.mark.parametrize(
    "writer",
    [
        (KOORD_SCHEDULER,),
        (f"{ACCOUNTS}:kube-system:hami-scheduler",),
        (f"{ACCOUNTS}:kube-system:hami-device-plugin",),
        (f"{ACCOUNTS}:kube-system:gcushare-scheduler-plugin",),
        (f"{ACCOUNTS}:kube-system:gcushare-device-plugin",),
        (ROBOT,),
        ("bob", OPS),
    ],
    ids=lambda it: it[-1],
)
async def test_the_schedulers_and_whom_the_values_name_write_them(
    guarded: Guarded, writer: tuple[str, ...]
) -> None:
    pod = await guarded.pod()
    changes: list[dict[str, str | None]] = [
        dict.fromkeys(WORDS, "1"),
        {"acme.com/gpu-cards": "1"},
        dict.fromkeys(WORDS),
    ]

    for change in changes:
        assert await guarded.by(*writer).writes(pod, change) == ""


@pytest.mark.parametrize(
    "name", ["koord-scheduler", f"{ACCOUNTS}:default:koord-scheduler", f"{ACCOUNTS}:koordinator-system:other"]
)
async def test_who_is_only_called_like_a_scheduler_is_none(guarded: Guarded, name: str) -> None:
    assert NOT_THEIRS in await guarded.by(name).makes(**{ALLOCATED: "{}"})


async def test_a_write_that_leaves_them_as_they_are_is_anybodys(guarded: Guarded) -> None:
    """Users label their pods, the kubelet tells their status, controllers take finalizers away."""
    pod = await guarded.pod(**dict.fromkeys(WORDS, "1"), **FREE)
    running = json.dumps({"status": {"phase": "Running", "message": "it runs"}})
    same = json.dumps({"metadata": {"annotations": {ALLOCATED: "1", "acme.com/team": "y"}}})

    alice, kubelet = guarded.by("alice"), guarded.by("system:node:a", "system:nodes")
    assert await alice.does("label", "pod", pod, "app=x") == ""
    assert await alice.does("patch", "pod", pod, "--type=merge", "-p", same) == ""
    status = ("--subresource", "status", "--type=merge", "-p", running)
    assert await kubelet.does("patch", "pod", pod, *status) == ""
    debugger = {"spec": {"ephemeralContainers": [{"name": "debugger", "image": "debugger"}]}}
    containers = ("--subresource", "ephemeralcontainers", "--type=strategic", "-p", json.dumps(debugger))
    assert await alice.does("patch", "pod", pod, *containers) == ""
    assert await alice.does("delete", "pod", pod, "--wait=false", "--grace-period=0", "--force") == ""


@pytest.mark.parametrize(
    "annotations",
    [
        {f"hami.io/{n}-devices-allocatec": "x" * 200 for n in range(1000)},
        {"acme.com/text": "x" * (255 << 10)},
    ],
    ids=["many", "large"],
)
async def test_a_pod_with_many_annotations_is_looked_through(
    guarded: Guarded, annotations: dict[str, str]
) -> None:
    alice, pod = guarded.by("alice"), fresh()

    assert await alice.makes(pod, **annotations) == ""
    assert await alice.writes(pod, dict.fromkeys(annotations)) == ""
    annotations.popitem()
    assert NOT_THEIRS in await alice.makes(**annotations, **{"hami.io/a-devices-allocated": ""})


async def test_a_pod_with_more_annotations_than_are_looked_through_at_once_is_refused_and_its_status_is_not(
    guarded: Guarded,
) -> None:
    """The API server takes seconds for tens of thousands, for each write of anybody's."""
    many, pod = {f"{n:x}": "" for n in range(40_000)}, fresh()
    assert "the pod has more than 1000 annotations" in await guarded.by("alice").makes(**many)
    assert await guarded.by(KOORD_SCHEDULER).makes(pod, **many) == ""

    kubelet = guarded.by("system:node:a", "system:nodes")
    running = ("--subresource", "status", "--type=merge", "-p", '{"status": {"message": "it runs"}}')
    assert await kubelet.does("patch", "pod", pod, *running) == ""
    assert "the pod has more than" in await guarded.by("alice").writes(pod, {"acme.com/x": ""})
    assert "denied request" in await guarded.by("alice").writes(pod, {ALLOCATED: ""})


async def test_the_page_names_the_pods_that_have_one_already(guarded: Guarded) -> None:
    [way] = re.findall(r"kubectl get pods -A -o (jsonpath='.*?')`", (ROOT / "docs/security.md").read_text())
    old, new = await guarded.pod(**{ALLOCATED: "{}"}), await guarded.pod()

    shown = await guarded.server.kubectl("get", "pods", "-A", "-o", way.replace("'", ""))

    assert f"{guarded.namespace}/{old}" in shown.splitlines()
    assert new not in shown


async def test_names_that_are_too_long_for_an_answer_are_refused_all_the_same(guarded: Guarded) -> None:
    key = f"hami.io/{'x' * 40}-devices-allocated"

    refusal = await guarded.by("a" * 6000).makes(**{key: ""})

    assert "an annotation of the pod is how schedulers say which cards a pod gets" in refusal


async def test_pods_of_a_template_are_refused_as_those_that_somebody_makes_himself(
    guarded: Guarded, cluster_binary: Path, tmp_path: Path
) -> None:
    """The controller that makes them is no scheduler; the user finds the reason on the ReplicaSet."""
    assert f"and {REPLICA_SETS} is none" in await guarded.by(REPLICA_SETS).makes(**{ALLOCATED: "{}"})
    pod = json.loads(bare_pod("x", {}))
    for name, words in (("self-written", {ALLOCATED: "{}"}), ("free", FREE)):
        labels = {"app": name}
        template = {"metadata": {"labels": labels, "annotations": words}, "spec": pod["spec"]}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}
        assert await guarded.by("alice").does("create", "--filename", "-", stdin=json.dumps(made)) == ""

    async with replica_sets(guarded.server, cluster_binary, tmp_path):
        failed = ("self-written", "--for=condition=ReplicaFailure", "--timeout=30s")
        assert await guarded.by("alice").does("wait", "replicaset", *failed) == ""
        await until(lambda: guarded.by("alice").does("wait", "--for=create", "pod", "-l", "app=free"), "")

    named = ("self-written", "--namespace", guarded.namespace, "-o", "yaml")
    refused = " ".join((await guarded.server.kubectl("get", "replicaset", *named)).split())
    assert f"the annotation {ALLOCATED} {NOT_THEIRS} {REPLICA_SETS} is none of them" in refused
    assert "or of the template that the pod is made from" in refused
    got = await guarded.server.kubectl(
        "get", "pods", "--namespace", guarded.namespace, "-l", "app in (free, self-written)", "-o", "name"
    )
    assert [it.split("-")[0] for it in got.split()] == ["pod/free"]


@asynccontextmanager
async def replica_sets(server: RealApiServer, binary: Path, place: Path) -> AsyncIterator[None]:
    """The real controller of ReplicaSets at work, by its own account."""
    admin = server.kubeconfig(place / "kubeconfig")
    options = {
        "kubeconfig": admin,
        "authentication-kubeconfig": admin,
        "authorization-kubeconfig": admin,
        "use-service-account-credentials": "true",
        "controllers": "replicaset",
        "leader-elect": "false",
        "secure-port": "0",
    }
    namespaces = await server.kubectl("get", "namespaces", "-o", "name")
    if "namespace/kube-system" not in namespaces:
        await server.kubectl("create", "namespace", "kube-system")
    with (place / "log").open("wb") as log:
        flags = [f"--{key}={value}" for key, value in options.items()]
        started = await asyncio.create_subprocess_exec(
            binary, "attached", "kube-controller-manager", *flags, stdin=asyncio.subprocess.PIPE, stderr=log
        )
    try:
        yield
    finally:
        started.terminate()
        await started.wait()


RECEIPTS = ["assigned-containers", "enflame.com/gcu-assigned"]


@pytest.mark.parametrize("receipts", [[], RECEIPTS], ids=["none", "two"])
async def test_the_agents_account_writes_its_receipts_and_no_other_word_of_a_schedulers(
    chart: Chart, api_server: RealApiServer, namespace: str, receipts: list[str]
) -> None:
    """By this policy alone; the one that keeps it to its node is not there."""
    values = {"pods": {"receipts": receipts}, "schedulerAnnotations": {"enabled": True}}
    shown = chart.render(values, namespace=namespace)
    await api_server.kubectl("apply", "--filename", "-", stdin=within(shown, namespace))
    agent = Asker(api_server, namespace, f"{ACCOUNTS}:{namespace}:xpu-agent")
    await until(lambda: agent.makes(**{ALLOCATED: "{}"}), NOT_THEIRS)
    pod = fresh()
    assert await agent.makes(pod) == ""

    for key in WORDS:
        assert (NOT_THEIRS in await agent.writes(pod, {key: "1"})) is (key not in receipts)
    assert bool(await agent.writes(pod, dict.fromkeys(RECEIPTS, "true"))) is not bool(receipts)
    assert NOT_THEIRS in await agent.writes(pod, {RECEIPTS[0]: "2", ALLOCATED: "{}"})


async def test_an_agent_with_its_own_token_writes_its_receipts_where_users_can_not(
    chart: Chart, api_server: RealApiServer, namespace: str
) -> None:
    more = {"pods": {"receipts": RECEIPTS}, "schedulerAnnotations": {"enabled": True}}
    shown = chart.render({"labels": {"output": "node"}, **more}, namespace=namespace)
    others = [it for it in shown.objects if not it["metadata"]["name"].startswith(OF_SCHEDULERS)]
    await api_server.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(others))
    await api_server.kubectl("apply", "--filename", "-", stdin=within(shown, namespace))
    one, other = await two(api_server, namespace, "xpu-agent")
    await may_read_pods(api_server, namespace)
    alice = Asker(api_server, namespace, "alice")
    await until(lambda: alice.makes(**{ALLOCATED: "{}"}), NOT_THEIRS)

    for key in RECEIPTS:
        await until(lambda key=key: one.does(*marked(one, one, key)), "")  # type: ignore[misc]
        assert NOT_THEIRS in await alice.writes(one.node, {key: "true"})
        assert ALONE in await one.does(*marked(one, other, key))
    assert "denied request" in await one.does(*marked(one, one, ALLOCATED))
