"""The pods of this node: those that the kubelet refused, and those that go around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.cluster.api import Object
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.text import shorten

REFUSED = "pods-refused"
AROUND = "pods-around"

#: Pods that are named one by one; the rest is counted.
SHOWN = 10
#: Characters of the kubelet's sentence.
LONGEST = 300
#: Values by which a variable of this kind says that the container gets no device.
NOTHING = ("", "void", "none")
CONFIG_MAP = "ConfigMap"
#: Agents, exporters and plugins see all cards on purpose.
OF_THE_NODE = ("system-node-critical", "system-cluster-critical")

STUCK = FindingKind(
    REFUSED,
    "pod-refused",
    Severity.WARNS,
    "a pod was refused with UnexpectedAdmissionError",
    "Such a pod stays Failed for ever: its controller makes another one, it itself is only deleted. What the "
    "kubelet said of it says what to mend first.",
    "{advice}; then kubectl -n {namespace} delete pod {pod}",
)
CHOOSES = FindingKind(
    AROUND,
    "pod-chooses-devices",
    Severity.WARNS,
    "a pod sets the vendor's variable of visible devices itself",
    "Its value takes the place of ours, or without a limit takes cards that nobody gave it: all of them for "
    "`all`, and the first is the one that everybody then uses.",
    "remove {variable} from the container's env, or from the ConfigMap that is named, and ask for cards with "
    "resources.limits",
)
PRIVILEGED = FindingKind(
    AROUND,
    "pod-privileged",
    Severity.WARNS,
    "a privileged pod asks for devices",
    "A privileged container sees every device node of the host: it uses the first card, whichever it was "
    "given.",
    "remove privileged: true from the securityContext; add the capabilities that it really needs",
)

#: What the kubelet says (pkg/kubelet/cm/devicemanager/manager.go, 1.36), and what to do about it.
ADVICE = (
    ("cannot allocate unregistered device", "see that the agent is ready: xpu-agent inspect"),
    ("no healthy devices present", "see what the cards have: xpu-agent health list"),
    ("previously allocated devices are no longer healthy", "see what its card has: xpu-agent health list"),
    ("requested number of devices unavailable", "ask for fewer devices, or wait until some are free"),
    ("is cordoned by", "uncordon the card when its work is done: xpu-agent health uncordon UUID"),
    ("is unhealthy:", "see what the card has: xpu-agent health list"),
    ("unknown device", "look for a second plugin on the resource (check device-plugins)"),
    ("is held by", "delete the pod that it names"),
    ("maximum request size for shared resources", "ask for one"),
    ("and each card needs one ID", "ask for as many of the resource as of cards"),
    ("rpc failed", "look at the log of the device plugin that serves the resource"),
    ("changed request for resource", "delete the pod and make it anew"),
)


def refused(around: Surroundings) -> Iterator[Finding]:
    """Pods that failed at admission."""
    pods = around.cluster.pods.value
    if pods is None:
        yield not_made(REFUSED, around.cluster.pods.why)
        return
    stuck = [it for it in pods if part_of(it, "status").get("reason") == "UnexpectedAdmissionError"]
    for number, pod in enumerate(stuck[:SHOWN], start=1):
        said = shorten(str(part_of(pod, "status").get("message") or ""), LONGEST)
        namespace, name = _name(pod)
        more = f" (and {len(stuck) - SHOWN} more pods)" if number == SHOWN < len(stuck) else ""
        what = f"{namespace}/{name}: {said or 'the kubelet gave no reason'}{more}"
        yield STUCK.found(what, advice=_advice(said), namespace=namespace, pod=name)
    if not stuck:
        yield well(REFUSED, f"none of {len(pods)} pods was refused at admission")


def _advice(said: str) -> str:
    return next((advice for words, advice in ADVICE if words in said), "read what the kubelet says of it")


def around(around: Surroundings) -> Iterator[Finding]:
    """Pods that reach for cards without the kubelet, or past what it gave them."""
    pods = around.cluster.pods.value
    if pods is None:
        yield not_made(AROUND, around.cluster.pods.why)
        return
    variables = variables_of(around.configuration.plugins)
    living, read = [it for it in pods if _lives(it) and not _is_of_the_node(it)], around.cluster.config_maps
    found = [it for pod in living for it in _judged(pod, variables, around.names, read)]
    for number, it in enumerate(found[:SHOWN], start=1):
        more = f" (and {len(found) - SHOWN} more like these)" if number == SHOWN < len(found) else ""
        yield replace(it, what=f"{it.what}{more}")
    unread = [it for pod in living for it in unknown(pod, variables, read)]
    if unread:
        yield not_made(AROUND, _unread(unread))
    elif not found:
        yield well(AROUND, f"none of {len(pods)} pods chooses its cards by itself")


def variables_of(plugins: Iterable[VendorPlugin]) -> frozenset[str]:
    """The variables by which containers are told their devices."""
    variables = (it.vendor.host.devices_variable for it in plugins if it.vendor is not None)
    return frozenset(filter(None, variables))


def _unread(found: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    shown = "; ".join(f"{where} from {source}" for where, source, _ in found[:SHOWN])
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    variables = ", ".join(dict.fromkeys(variable for _, _, its in found for variable in its))
    return (
        f"containers that may set {variables} by envFrom: {shown}{more}; ConfigMaps are read with a "
        "kubeconfig (--kubeconfig) that may, Secrets never"
    )


def unknown(
    pod: Object, variables: frozenset[str], read: Mapping[tuple[str, str], Mapping[str, str]]
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Containers with variables of which nobody has read whether they are ours: where, whence, and which."""
    namespace, name = _name(pod)
    for it in _containers(pod):
        where = f"{namespace}/{name}, container {shorten(str(it.get('name')))}"
        for kind, source, prefix in _sources(it):
            its = [one for one in sorted(variables) if _may_have(it, prefix, one)]
            if its and (kind != CONFIG_MAP or (namespace, source) not in read):
                yield where, f"{kind} {shorten(source)}", its


def config_maps(pods: Iterable[Object], variables: frozenset[str]) -> list[tuple[str, str]]:
    """The ConfigMaps, by namespace and name, from which containers may have one of the variables."""
    living = [it for it in pods if _lives(it) and not _is_of_the_node(it)]
    named = [
        (_name(pod)[0], source)
        for pod in living
        for it in _containers(pod)
        for kind, source, prefix in _sources(it)
        if kind == CONFIG_MAP and any(_may_have(it, prefix, one) for one in variables)
    ]
    return list(dict.fromkeys(named))


def _sources(container: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What a container has variables from: kind, name and the prefix of their names (v1.EnvFromSource)."""
    for it in rows_of(container, "envFrom"):
        for key, kind in (("configMapRef", CONFIG_MAP), ("secretRef", "Secret")):
            if name := part_of(it, key).get("name"):
                yield kind, str(name), str(it.get("prefix") or "")


def _may_have(container: Mapping[str, Any], prefix: str, variable: str) -> bool:
    """Whether such a source may say the variable; what stands in `env` itself wins over all of them."""
    said = {it.get("name") for it in rows_of(container, "env")}
    return variable.startswith(prefix) and variable not in said


def _is_of_the_node(pod: Object) -> bool:
    return part_of(pod, "spec").get("priorityClassName") in OF_THE_NODE


def _judged(
    pod: Object,
    variables: frozenset[str],
    resources: frozenset[str],
    read: Mapping[tuple[str, str], Mapping[str, str]],
) -> Iterator[Finding]:
    namespace, name = _name(pod)
    for it in _containers(pod):
        where = f"{namespace}/{name}, container {shorten(str(it.get('name')))}"
        asks = sorted(resources.intersection(part_of(part_of(it, "resources"), "limits")))
        asked = f"asks for {', '.join(asks)}" if asks else "asks for no device"
        for variable, value in (*_set(it, variables), *_set_from(it, variables, namespace, read)):
            yield CHOOSES.found(f"{where} {asked} and sets {variable}={value}", variable=variable)
        if asks and part_of(it, "securityContext").get("privileged") is True:
            yield PRIVILEGED.found(f"{where} {asked} and is privileged")


def _set(container: Mapping[str, Any], variables: frozenset[str]) -> Iterator[tuple[str, str]]:
    for it in rows_of(container, "env"):
        if it.get("name") in variables and (it.get("valueFrom") or it.get("value") not in (*NOTHING, None)):
            yield (
                str(it["name"]),
                "(from elsewhere)" if it.get("valueFrom") else shorten(str(it["value"]), 60),
            )


def _set_from(
    container: Mapping[str, Any],
    variables: frozenset[str],
    namespace: str,
    read: Mapping[tuple[str, str], Mapping[str, str]],
) -> Iterator[tuple[str, str]]:
    """What ConfigMaps that were read say; of two with one key the last one holds."""
    said: dict[str, str] = {}
    for kind, source, prefix in _sources(container):
        its = read.get((namespace, source), {}) if kind == CONFIG_MAP else {}
        for variable in variables:
            value = its.get(variable.removeprefix(prefix)) if _may_have(container, prefix, variable) else None
            if value is not None:
                said[variable] = (
                    "" if value in NOTHING else f"{shorten(value, 60)} (ConfigMap {shorten(source)})"
                )
    yield from ((variable, value) for variable, value in said.items() if value)


def _containers(pod: Object) -> list[Mapping[str, Any]]:
    spec = part_of(pod, "spec")
    return [*rows_of(spec, "initContainers"), *rows_of(spec, "containers")]


def _lives(pod: Object) -> bool:
    return part_of(pod, "status").get("phase") not in ("Succeeded", "Failed")


def _name(pod: Object) -> tuple[str, str]:
    metadata = part_of(pod, "metadata")
    return shorten(str(metadata.get("namespace"))), shorten(str(metadata.get("name")))
