"""Checks the kubelet's device-plugins directory and its two sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.kubelet.directory import KUBELET_SOCKET
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

KUBELET = "kubelet"
POD_RESOURCES = "pod-resources"

NO_DIRECTORY = FindingKind(
    KUBELET,
    "kubelet-directory-missing",
    Severity.STOPS,
    "the kubelet's device-plugins directory is not there",
    "Every device plugin puts its socket there and finds the kubelet's there. The kubelet makes it when it "
    "starts, always at /var/lib/kubelet/device-plugins, whatever its --root-dir says.",
    "start the kubelet: systemctl start kubelet; in a container mount the host's directory {directory} at "
    "the same path (the directory, not the socket); elsewhere name it with --kubelet-dir",
)
CLOSED_DIRECTORY = FindingKind(
    KUBELET,
    "kubelet-directory-closed",
    Severity.STOPS,
    "no socket can be made in the kubelet's directory",
    "The agent serves each resource on a socket of its own there; without one it cannot register with the "
    "kubelet.",
    "run the agent as root, and mount {directory} without readOnly",
)
NO_SOCKET = FindingKind(
    KUBELET,
    "kubelet-socket-missing",
    Severity.STOPS,
    "there is no kubelet.sock",
    "The agent registers its resources there. Until the kubelet has made it the node has none of them.",
    "systemctl status kubelet; journalctl -u kubelet -n 50; in a container mount the host's directory "
    "{directory}, not another one",
)
NO_SUCH_SOCKET = FindingKind(
    KUBELET,
    "kubelet-socket-wrong",
    Severity.STOPS,
    "what is called kubelet.sock is no socket",
    "No kubelet can answer there. A container runtime makes a directory of a hostPath that did not exist.",
    "remove it (rmdir {socket}, or rm where it is a file), then systemctl restart kubelet; mount the "
    "directory, never the socket",
)
DEAF_SOCKET = FindingKind(
    KUBELET,
    "kubelet-socket-deaf",
    Severity.STOPS,
    "no process listens at kubelet.sock",
    "A kubelet that has ended left it, or a container still has the socket of an earlier kubelet, because "
    "the socket itself was mounted and not its directory.",
    "systemctl start kubelet; in a container mount the directory {directory}, never the socket",
)

NO_POD_RESOURCES = FindingKind(
    POD_RESOURCES,
    "pod-resources-missing",
    Severity.WARNS,
    "there is no PodResources socket",
    "It shows which pods hold which devices. Without it the agent serves, knows owners from the kubelet's "
    "checkpoint alone, and is slow to see that a pod has ended.",
    "mount the host's directory {directory} at the same path; where the kubelet has another --root-dir, name "
    "the socket with --pod-resources-socket",
)
DEAF_POD_RESOURCES = FindingKind(
    POD_RESOURCES,
    "pod-resources-deaf",
    Severity.WARNS,
    "the PodResources socket does not answer",
    "The agent releases nothing before it can see which pods hold devices.",
    "systemctl restart kubelet; in a container mount the directory {directory}, never the socket",
)
OFF_POD_RESOURCES = FindingKind(
    POD_RESOURCES,
    "pod-resources-off",
    Severity.WARNS,
    "the kubelet does not serve PodResources",
    "The kubelet has the socket and not the API v1: it is older than 1.20, or its feature gate is off.",
    "set featureGates: {{KubeletPodResources: true}} in the kubelet's configuration and restart it, or "
    "update the kubelet",
)


def kubelet(around: Surroundings) -> Iterator[Finding]:
    """The directory, and the process that listens at kubelet.sock."""
    directory = around.config.agent.kubelet_dir
    if not directory.is_dir():
        yield NO_DIRECTORY.found(f"there is no directory {directory}", directory=directory)
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield CLOSED_DIRECTORY.found(f"{directory} cannot be written from here", directory=directory)
    path = directory / KUBELET_SOCKET
    found = around.sockets.kubelet
    kind = {"missing": NO_SOCKET, "not-a-socket": NO_SUCH_SOCKET, "deaf": DEAF_SOCKET}.get(found.state)
    if kind is not None:
        yield kind.found(found.found, directory=directory, socket=path)
    elif found.state == "denied":
        yield not_made(KUBELET, f"{found.found}; ask as root")
    else:
        yield well(KUBELET, f"{found} listens at {path}")


def pod_resources(around: Surroundings) -> Iterator[Finding]:
    """Whether PodResources answers."""
    path = around.config.agent.pod_resources_socket
    answer, place = around.pod_resources, {"directory": path.parent}
    if answer.pods is not None:
        yield well(POD_RESOURCES, f"{path} lists {answer.pods} pods")
    elif answer.status == "UNIMPLEMENTED":
        yield OFF_POD_RESOURCES.found(f"{path}: {answer.error}")
    elif not os.path.lexists(path):
        yield NO_POD_RESOURCES.found(f"there is no {path}", **place)
    else:
        yield DEAF_POD_RESOURCES.found(answer.error, **place)
