"""Checks the kubelet's device-plugins directory and its two sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.kubelet.kubelet_directory import KUBELET_SOCKET
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

KUBELET = "kubelet"
POD_RESOURCES = "pod-resources"

NO_DIRECTORY = FindingKind(
    KUBELET,
    "kubelet-directory-missing",
    Severity.STOPS,
    "the kubelet's device-plugins directory does not exist",
    "Every device plugin makes its socket in this directory and finds the kubelet's socket there. The "
    "kubelet makes the directory at its start, always at /var/lib/kubelet/device-plugins, whatever its "
    "--root-dir is.",
    "start the kubelet: systemctl start kubelet; in a container mount the host's directory {directory} "
    "at the same path (the directory, not the socket); give another directory with --kubelet-dir",
)
CLOSED_DIRECTORY = FindingKind(
    KUBELET,
    "kubelet-directory-closed",
    Severity.STOPS,
    "the agent cannot make sockets in the kubelet's directory",
    "The agent serves each resource on its own socket in this directory. Without a socket the agent "
    "cannot register the resource with the kubelet.",
    "run the agent as root, and mount {directory} without readOnly",
)
NO_SOCKET = FindingKind(
    KUBELET,
    "kubelet-socket-missing",
    Severity.STOPS,
    "there is no kubelet.sock",
    "The agent registers its resources at this socket. Until the kubelet has made the socket, the node "
    "has none of the resources.",
    "see why the kubelet does not run: systemctl status kubelet; journalctl -u kubelet -n 50; in a "
    "container mount the host's directory {directory}, and no other directory",
)
NO_SUCH_SOCKET = FindingKind(
    KUBELET,
    "kubelet-socket-wrong",
    Severity.STOPS,
    "kubelet.sock is no socket",
    "No kubelet can listen at this path. A container runtime makes a directory for a hostPath that does "
    "not exist.",
    "remove the path (rmdir {socket}, or rm for a file), then run systemctl restart kubelet; mount the "
    "directory, never the socket",
)
DEAF_SOCKET = FindingKind(
    KUBELET,
    "kubelet-socket-deaf",
    Severity.STOPS,
    "no process listens at kubelet.sock",
    "Either a kubelet that has ended left the socket, or a container has the socket of an earlier "
    "kubelet. The second happens if the container mounts the socket itself and not its directory.",
    "start the kubelet: systemctl start kubelet; in a container mount the directory {directory}, never "
    "the socket",
)

NO_POD_RESOURCES = FindingKind(
    POD_RESOURCES,
    "pod-resources-missing",
    Severity.WARNS,
    "there is no PodResources socket",
    "The socket shows which pods hold which devices. Without the socket the agent serves, and learns "
    "owners from the kubelet's checkpoint alone. The agent notices later that a pod has ended.",
    "mount the host's directory {directory} at the same path; if the kubelet has another --root-dir "
    "give the socket with --pod-resources-socket",
)
DEAF_POD_RESOURCES = FindingKind(
    POD_RESOURCES,
    "pod-resources-deaf",
    Severity.WARNS,
    "the PodResources socket does not answer",
    "The agent releases no allocation before the socket shows which pods hold devices.",
    "restart the kubelet: systemctl restart kubelet; in a container mount the directory {directory}, "
    "never the socket",
)
OFF_POD_RESOURCES = FindingKind(
    POD_RESOURCES,
    "pod-resources-off",
    Severity.WARNS,
    "the kubelet does not serve PodResources",
    "The kubelet has the socket and does not serve the API v1. Either the kubelet is older than 1.20, "
    "or its feature gate is off.",
    "set featureGates: {{KubeletPodResources: true}} in the kubelet's configuration and restart the "
    "kubelet, or update the kubelet",
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
        yield not_made(KUBELET, f"{found.found}; run the doctor as root")
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
