"""Checks for other device plugins on our resources or cards.

The kubelet uses the plugin that registered last, and fails the resource when one of them ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from agent.core.devices.device_ids import short_forms
from agent.doctor.socket_listeners import SocketListener
from agent.doctor.surroundings import Surroundings
from agent.kubelet.checkpoint_reader import CheckpointReader
from agent.kubelet.kubelet_directory import KUBELET_CHECKPOINT
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.plugin_sockets import OWN_NAME
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.quantities import whole
from agent.vendor_api.text import shorten

CHECK = "device-plugins"
#: Letters of a vendor's name that mark a socket as its plugin's; a shorter name is part of many names.
SHORTEST_MARK = 3

SOCKET = FindingKind(
    CHECK,
    "foreign-plugin",
    Severity.STOPS,
    "another device plugin of the same vendor runs here",
    "Two plugins on one resource replace each other's registration. The kubelet sends Allocate to the "
    "plugin that registered last. When the stream of the other plugin ends, the kubelet marks the "
    "devices of both plugins unhealthy (kubelet up to 1.36).",
    "remove the other plugin, which serves {socket}, from this node: kubectl -n kube-system get "
    "daemonsets | grep device-plugin, then kubectl delete daemonset NAME, or give the DaemonSet a "
    "nodeSelector without this node",
)
YIELDED = FindingKind(
    CHECK,
    "yielded-plugin",
    Severity.WARNS,
    "another device plugin serves the cards, as the configuration wants",
    "With foreign `yield` the agent registers nothing of a vendor while another plugin of the vendor's "
    "cards runs. Pods get what the other plugin gives, and not what the agent would give.",
    "do nothing while the other plugin shall serve the cards; the agent takes over when the other "
    "plugin is removed from this node: {socket}",
)
UNSEEN = FindingKind(
    CHECK,
    "plugin-of-unseen-cards",
    Severity.WARNS,
    "another device plugin runs for cards that the agent does not see",
    "The agent serves nothing of a vendor while it sees no card of the vendor. Once the agent sees the "
    "cards, two plugins serve the same cards. Unless foreign is `yield`, the agent is then not ready "
    "and registers none of the cards.",
    "to leave the cards to the other plugin set vendors.{vendor}.enabled to false; to let the agent "
    "serve the cards follow the check vendor-library, and remove the other plugin, which serves "
    "{socket}, from this node",
)
AGENT = FindingKind(
    CHECK,
    "foreign-agent",
    Severity.STOPS,
    "another xpu-agent serves resources to this kubelet",
    "An agent of an earlier release locks its state directory alone. With another state directory than "
    "this agent's that agent registers the same resources.",
    "end the agent of the earlier release: {end}; or give both agents the same state directory "
    "(--state-dir, the chart's stateDir), so that the second agent stands by",
)
REGISTERED = FindingKind(
    CHECK,
    "foreign-devices",
    Severity.STOPS,
    "the kubelet has devices of the agent's resource that the agent never listed",
    "Another plugin registered the resource after the agent. The kubelet gives pods devices of the "
    "other plugin's list, and the agent's Allocate refuses these devices as unknown.",
    "find the socket of the other plugin in {directory} and remove the plugin, then run systemctl "
    "restart kubelet",
)
UNKNOWN = FindingKind(
    CHECK,
    "unknown-cards",
    Severity.WARNS,
    "a pod has cards that are not on this node",
    "The kubelet's checkpoint has an answer with cards of a vendor that the agent serves, and the "
    "vendor lists none of these cards. A card may have been removed. The agent does not know which card "
    "the pod uses.",
    "delete the pod, so that its controller makes a new pod with cards of this node: kubectl get pods "
    "-A --field-selector spec.nodeName={node} -o "
    "custom-columns=UID:.metadata.uid,NS:.metadata.namespace,NAME:.metadata.name | grep {uid}",
)
ON_NODE = FindingKind(
    CHECK,
    "foreign-capacity",
    Severity.STOPS,
    "the Node offers a resource of the config, and no agent serves the resource",
    "Another plugin registered the resource, or a client patched the Node's status. The agent would "
    "conflict with the other plugin at its first registration. Right after an agent has ended the Node "
    "still offers the agent's own resources: run the doctor again in 10 s.",
    "remove the other device plugin from this node before the agent starts: kubectl get daemonsets -A | grep "
    "device-plugin",
)


def device_plugins(around: Surroundings) -> Iterator[Finding]:
    """Compares the sockets, the kubelet's checkpoint and the Node with the agent's resources."""
    found = [*_sockets(around), *_registered(around), *_unknown(around), *_offered(around)]
    yield from found
    if not found:
        yield well(CHECK, _no_conflict(around))


def _no_conflict(around: Surroundings) -> str:
    directory, names = around.config.agent.kubelet_dir, ", ".join(sorted(around.names))
    if names:
        return f"no other plugin serves {names} in {directory}"
    return f"no vendor has cards here, and no other plugin for cards listens in {directory}"


def _sockets(around: Surroundings) -> Iterator[Finding]:
    others = around.sockets.others
    if others.why:
        yield not_made(CHECK, others.why)
    serving = around.sockets.admin.pid
    marks, yielding = _marks(around), _yielded_sockets(around)
    for path, found in (others.value or {}).items():
        if found.state != "listens":
            continue
        if OWN_NAME.fullmatch(path.name):
            yield from _agent(path, found, serving)
        elif any(fnmatchcase(path.name, it) for it in yielding):
            yield YIELDED.found(f"{found} listens at {path}", socket=path)
        else:
            yield from _foreign(around, path, found, marks)


def _foreign(
    around: Surroundings, path: Path, found: SocketListener, marks: frozenset[str]
) -> Iterator[Finding]:
    """A plugin of a vendor's cards, whether the agent sees these cards now or not."""
    vendors = _vendors_of_socket(around, path.name)
    if _is_marked(path.name, marks) or any(map(around.has_cards, vendors)):
        yield SOCKET.found(f"{found} listens at {path}", socket=path)
    elif vendors:
        what = f"{found} listens at {path}, and no card of {vendors[0]} is seen here"
        yield UNSEEN.found(what, socket=path, vendor=vendors[0])


def _is_marked(name: str, marks: frozenset[str]) -> bool:
    return any(mark in name.lower() for mark in marks)


def _agent(path: Path, found: SocketListener, serving: int) -> Iterator[Finding]:
    # Without the pid of the agent of this state directory, which another pid namespace hides, nothing
    # compares.
    if not serving or found.is_busy or found.pid == serving:
        return
    end = f"kill {found.pid}" if found.pid else "kubectl get daemonsets -A -l xpu-agent.io/pool"
    yield AGENT.found(f"{path} is served by {found}, the admin socket by pid {serving}", end=end)


def _marks(around: Surroundings) -> frozenset[str]:
    """Words in the names of the sockets of vendors' own plugins, such as NVIDIA's nvidia-gpu.sock.

    Source: k8s-device-plugin v0.20, internal/plugin/server.go.
    """
    vendors = {it.name for it in around.configuration.plugins if around.has_cards(it.name)}
    domains = {name.partition("/")[0].split(".")[0] for name in around.names}
    return frozenset(it for it in vendors | domains if len(it) >= SHORTEST_MARK)


def _vendors_of_socket(around: Surroundings, name: str) -> list[str]:
    """The vendors that name the socket as one of another plugin for their cards."""
    vendors = (it.vendor for it in around.configuration.plugins if it.vendor is not None)
    return [it.name for it in vendors if any(fnmatchcase(name, socket) for socket in it.replaces.sockets)]


def _yielded_sockets(around: Surroundings) -> tuple[str, ...]:
    """The sockets of other plugins to which the configuration leaves the cards."""
    vendors = (it.vendor for it in around.configuration.plugins if it.vendor is not None)
    yielding = (it for it in vendors if around.config.vendor(it.name).foreign == "yield")
    return tuple(name for vendor in yielding for name in vendor.replaces.sockets)


def _registered(around: Surroundings) -> Iterator[Finding]:
    directory = around.config.agent.kubelet_dir
    try:
        found = CheckpointReader(directory / KUBELET_CHECKPOINT).read()
    except KubeletError as exc:
        yield not_made(CHECK, str(exc))
        return
    if found is None:
        return
    known = _known_ids(around)
    for name in around.resources:
        # Sorted, because the kubelet writes them in any order.
        unlisted = sorted(it for it in found.registered.get(name, ()) if not _is_known(it, known))
        if known and unlisted:
            shown = ", ".join(shorten(it) for it in unlisted[:3])
            what = f"{directory / KUBELET_CHECKPOINT} has {len(unlisted)} devices of {name} such as {shown}"
            yield REGISTERED.found(what, directory=directory)


def _unknown(around: Surroundings) -> Iterator[Finding]:
    for answer in around.document.unknown_cards:
        uid, resource = shorten(answer.pod_uid), shorten(answer.resource)
        yield UNKNOWN.found(f"the pod with uid {uid} has {resource}", uid=uid, node=around.node or "NODE")


def _known_ids(around: Surroundings) -> frozenset[str]:
    """The beginnings of the agent's device IDs in every form, and the IDs of allocations."""
    document = around.document
    uuids = [*(it.uuid for it in document.devices), *(it.uuid for it in document.absent)]
    minors = (str(it.minor) for it in document.devices if it.minor is not None)
    held = (id for it in document.allocations for id in it.ids)
    return frozenset((*uuids, *minors, *short_forms(uuids).values(), *held))


def _is_known(device: str, known: frozenset[str]) -> bool:
    return device in known or device.partition("::")[0] in known


def _offered(around: Surroundings) -> Iterator[Finding]:
    if around.serves or around.sockets.agent is not None:
        return
    offered = part_of(part_of(around.cluster.node.value or {}, "status"), "allocatable")
    for name in sorted(around.names):
        count = offered.get(name, 0)
        if whole(count) != 0:
            what = f"Node {shorten(around.node)} offers {shorten(str(count))} of {name}"
            yield ON_NODE.found(f"{what}, and no agent serves the resource")
