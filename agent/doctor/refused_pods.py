"""Checks the pods of this node: pods that the kubelet refused, and pods that choose cards themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.cluster.api_protocol import Object
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.text import shorten

REFUSED = "pods-refused"
AROUND = "pods-around"

#: Pods that are named; the others are counted.
MAX_SHOWN = 10
#: Characters of the kubelet's message that are shown.
MAX_MESSAGE_LENGTH = 300
#: Values of such a variable for which the container gets no device.
NOTHING = ("", "void", "none")
CONFIG_MAP = "ConfigMap"
#: Priority classes of agents, exporters and plugins, which see all cards on purpose.
OF_THE_NODE = ("system-node-critical", "system-cluster-critical")

STUCK = FindingKind(
    REFUSED,
    "pod-refused",
    Severity.WARNS,
    "the kubelet refused a pod with UnexpectedAdmissionError",
    "The pod stays Failed until the pod is deleted. Its controller makes another pod. The kubelet's "
    "message names what to correct first.",
    "{advice}; then kubectl -n {namespace} delete pod {pod}",
)
CHOOSES = FindingKind(
    AROUND,
    "pod-chooses-devices",
    Severity.WARNS,
    "a pod sets the vendor's variable of visible devices itself",
    "The pod's value replaces the agent's value. A container without a limit gets cards that were not "
    "assigned to the pod: `all` takes all cards, and most programs then use the first card.",
    "remove {variable} from the container's env, or from the named ConfigMap, and ask for cards with "
    "resources.limits",
)
PRIVILEGED = FindingKind(
    AROUND,
    "pod-privileged",
    Severity.WARNS,
    "a privileged pod asks for devices",
    "A privileged container sees every device node of the host. Its program uses the first card, "
    "whichever card was assigned to the pod.",
    "remove privileged: true from the securityContext; add only the capabilities that the container needs",
)

#: Advice where nothing is to be mended.
ANOTHER_CARD = "the next pod of its controller gets another card"
#: Advice where a message says which of the pod's own words is wrong.
AS_IT_SAYS = "change the pod's request as the message says"
#: Words of the message on a refused pod to what helps; the first row with words of the message counts. The
#: first messages are the kubelet's (pkg/kubelet/cm/devicemanager/manager.go, 1.36), others are the agent's,
#: which the kubelet passes on. The pod has no other field for the reason. Where the vendor's process or a
#: plugin fails, only the gRPC code is always there (`agent/kubelet/rpc.py` gives it, grpc-go writes it).
ADVICE = (
    ("cannot allocate unregistered device", "see that the agent is ready: xpu-agent inspect"),
    ("no healthy devices present", "see what the cards have: xpu-agent health list"),
    ("previously allocated devices are no longer healthy", "see what its card has: xpu-agent health list"),
    ("requested number of devices unavailable", "ask for fewer devices, or wait until some are free"),
    ("is cordoned by", "uncordon the card when its maintenance is over: xpu-agent health uncordon UUID"),
    ("the vendor refuses the request", AS_IT_SAYS),
    ("no room for the request", "ask for less, or wait until a card has as much room"),
    ("is unhealthy:", "see what the card has: xpu-agent health list"),
    ("unknown device", "look for another plugin on the resource (check device-plugins)"),
    ("and the kubelet has lost its record of that", "delete the pod that holds the device"),
    ("the kubelet gave", "the scheduler chooses again for the next pod of its controller"),
    ("is held by", ANOTHER_CARD),
    ("is in-other-mode", ANOTHER_CARD),
    ("the config no longer has this resource", "ask for a resource of the current configuration"),
    ("is listed only for the pod that held it", ANOTHER_CARD),
    ("is closed to new pods", "see what the message waits for, or take another card"),
    ("no scheduler has chosen a card", "give the pod a schedulerName that chooses cards"),
    ("maximum request size for shared resources", "ask for one"),
    ("invalid request:", AS_IT_SAYS),
    ("the resource is not served here", "ask for a resource that the agent serves: xpu-agent inspect"),
    ("and each card needs one ID", "ask for as many of the resource as of cards"),
    ("units of one container lie on one card", "ask for less memory, or wait until a card has as much free"),
    ("all shares of one container must be on", "ask for fewer shares, or wait until a card has as many free"),
    ("container edits:", "correct the vendor's plugin, or the setting that the message names"),
    ("rpc failed", "look at the log of the device plugin that serves the resource"),
    ("changed request for resource", "delete the pod, and create the pod again"),
    ("code = Unavailable", "see that the agent is ready, and what the vendor has: xpu-agent inspect"),
    ("code = DeadlineExceeded", "look in the agent's log for what took so long"),
    ("code = Internal", "look in the agent's log for the error of a plugin or of the disk"),
)


def refused(around: Surroundings) -> Iterator[Finding]:
    """Pods that the kubelet refused at admission."""
    pods = around.cluster.pods.value
    if pods is None:
        yield not_made(REFUSED, around.cluster.pods.why)
        return
    stuck = [it for it in pods if part_of(it, "status").get("reason") == "UnexpectedAdmissionError"]
    for number, pod in enumerate(stuck[:MAX_SHOWN], start=1):
        message = str(part_of(pod, "status").get("message") or "")
        namespace, name = _name(pod)
        more = f" (and {len(stuck) - MAX_SHOWN} more pods)" if number == MAX_SHOWN < len(stuck) else ""
        shown = shorten(message, MAX_MESSAGE_LENGTH) or "the kubelet gave no reason"
        what = f"{namespace}/{name}: {shown}{more}"
        yield STUCK.found(what, advice=_advice(message), namespace=namespace, pod=name)
    if not stuck:
        yield well(REFUSED, f"none of {len(pods)} pods was refused at admission")


def _advice(message: str) -> str:
    return next((advice for words, advice in ADVICE if words in message), "read the kubelet's message")


def around(around: Surroundings) -> Iterator[Finding]:
    """Pods that use cards without asking the kubelet, or other cards than the kubelet assigned."""
    pods = around.cluster.pods.value
    if pods is None:
        yield not_made(AROUND, around.cluster.pods.why)
        return
    variables = variables_of(around.configuration.plugins)
    running = [it for it in pods if _is_running(it) and not _is_of_the_node(it)]
    read = around.cluster.config_maps
    found = [it for pod in running for it in _findings_of(pod, variables, around.names, read)]
    for number, finding in enumerate(found[:MAX_SHOWN], start=1):
        more = f" (and {len(found) - MAX_SHOWN} more like these)" if number == MAX_SHOWN < len(found) else ""
        yield replace(finding, what=f"{finding.what}{more}")
    unread = [it for pod in running for it in unread_sources(pod, variables, read)]
    if unread:
        yield not_made(AROUND, _unread(unread))
    elif not found:
        yield well(AROUND, f"none of {len(pods)} pods chooses its cards by itself")


def variables_of(plugins: Iterable[VendorPlugin]) -> frozenset[str]:
    """The variables that name the devices of a container."""
    variables = (it.vendor.host.devices_variable for it in plugins if it.vendor is not None)
    return frozenset(filter(None, variables))


def _unread(found: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    shown = "; ".join(f"{where} from {source}" for where, source, _ in found[:MAX_SHOWN])
    more = f"; and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    variables = ", ".join(dict.fromkeys(variable for _, _, names in found for variable in names))
    return (
        f"containers that may set {variables} by envFrom: {shown}{more}; ConfigMaps are read with a "
        "kubeconfig (--kubeconfig) that has the right, Secrets never"
    )


def unread_sources(
    pod: Object, variables: frozenset[str], read: Mapping[tuple[str, str], Mapping[str, str]]
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Containers that may get such a variable from a source that was not read.

    Yields the container, the source, and the variables.
    """
    namespace, name = _name(pod)
    for container in _containers(pod):
        where = f"{namespace}/{name}, container {shorten(str(container.get('name')))}"
        for kind, source, prefix in _sources(container):
            possible = [it for it in sorted(variables) if _may_have(container, prefix, it)]
            if possible and (kind != CONFIG_MAP or (namespace, source) not in read):
                yield where, f"{kind} {shorten(source)}", possible


def config_maps(pods: Iterable[Object], variables: frozenset[str]) -> list[tuple[str, str]]:
    """(namespace, name) of the ConfigMaps that may give containers one of the variables."""
    running = [it for it in pods if _is_running(it) and not _is_of_the_node(it)]
    named = [
        (_name(pod)[0], source)
        for pod in running
        for container in _containers(pod)
        for kind, source, prefix in _sources(container)
        if kind == CONFIG_MAP and any(_may_have(container, prefix, it) for it in variables)
    ]
    return list(dict.fromkeys(named))


def _sources(container: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The sources of a container's variables: kind, name, and prefix of the variables (v1.EnvFromSource)."""
    for source in rows_of(container, "envFrom"):
        for key, kind in (("configMapRef", CONFIG_MAP), ("secretRef", "Secret")):
            if name := part_of(source, key).get("name"):
                yield kind, str(name), str(source.get("prefix") or "")


def _may_have(container: Mapping[str, Any], prefix: str, variable: str) -> bool:
    """Whether a source with this prefix may set the variable; a variable in `env` overrides all sources."""
    own = {it.get("name") for it in rows_of(container, "env")}
    return variable.startswith(prefix) and variable not in own


def _is_of_the_node(pod: Object) -> bool:
    return part_of(pod, "spec").get("priorityClassName") in OF_THE_NODE


def _findings_of(
    pod: Object,
    variables: frozenset[str],
    resources: frozenset[str],
    read: Mapping[tuple[str, str], Mapping[str, str]],
) -> Iterator[Finding]:
    namespace, name = _name(pod)
    for container in _containers(pod):
        where = f"{namespace}/{name}, container {shorten(str(container.get('name')))}"
        asks = sorted(resources.intersection(part_of(part_of(container, "resources"), "limits")))
        asked = f"asks for {', '.join(asks)}" if asks else "asks for no device"
        for variable, value in (
            *_own_variables(container, variables),
            *_config_map_variables(container, variables, namespace, read),
        ):
            yield CHOOSES.found(f"{where} {asked} and sets {variable}={value}", variable=variable)
        if asks and part_of(container, "securityContext").get("privileged") is True:
            yield PRIVILEGED.found(f"{where} {asked} and is privileged")


def _own_variables(container: Mapping[str, Any], variables: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The variables in `env` with their values; (name, value)."""
    for variable in rows_of(container, "env"):
        is_reference, value = bool(variable.get("valueFrom")), variable.get("value")
        if variable.get("name") in variables and (is_reference or value not in (*NOTHING, None)):
            yield str(variable["name"]), "(from elsewhere)" if is_reference else shorten(str(value), 60)


def _config_map_variables(
    container: Mapping[str, Any],
    variables: frozenset[str],
    namespace: str,
    read: Mapping[tuple[str, str], Mapping[str, str]],
) -> Iterator[tuple[str, str]]:
    """The variables from ConfigMaps that were read; (name, value). The last of two equal keys counts."""
    found: dict[str, str] = {}
    for kind, source, prefix in _sources(container):
        data = read.get((namespace, source), {}) if kind == CONFIG_MAP else {}
        for variable in variables:
            value = data.get(variable.removeprefix(prefix))
            if value is not None and _may_have(container, prefix, variable):
                found[variable] = (
                    "" if value in NOTHING else f"{shorten(value, 60)} (ConfigMap {shorten(source)})"
                )
    yield from ((variable, value) for variable, value in found.items() if value)


def _containers(pod: Object) -> list[Mapping[str, Any]]:
    spec = part_of(pod, "spec")
    return [*rows_of(spec, "initContainers"), *rows_of(spec, "containers")]


def _is_running(pod: Object) -> bool:
    return part_of(pod, "status").get("phase") not in ("Succeeded", "Failed")


def _name(pod: Object) -> tuple[str, str]:
    metadata = part_of(pod, "metadata")
    return shorten(str(metadata.get("namespace"))), shorten(str(metadata.get("name")))
