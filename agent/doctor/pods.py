"""The pods of this node: those that the kubelet refused, and those that go around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agent.cluster.api import Object
from agent.core.parts import part_of, rows_of
from agent.core.text import shorten
from agent.doctor.finding import Ailment, Finding, Severity, not_made, well
from agent.doctor.surroundings import Surroundings

REFUSED = "pods-refused"
AROUND = "pods-around"

#: Pods that are named one by one; the rest is counted.
SHOWN = 10
#: Characters of the kubelet's sentence.
LONGEST = 300
#: Values by which a variable of this kind says that the container gets no device.
NOTHING = ("", "void", "none")
#: Agents, exporters and plugins see all cards on purpose.
OF_THE_NODE = ("system-node-critical", "system-cluster-critical")

STUCK = Ailment(
    REFUSED,
    "pod-refused",
    Severity.WARNS,
    "a pod was refused with UnexpectedAdmissionError",
    "Such a pod stays Failed for ever: its controller makes another one, it itself is only deleted. What the "
    "kubelet said of it says what to mend first.",
    "{advice}; then kubectl -n {namespace} delete pod {pod}",
)
CHOOSES = Ailment(
    AROUND,
    "pod-chooses-devices",
    Severity.WARNS,
    "a pod sets the vendor's variable of visible devices itself",
    "Its value takes the place of ours, or without a limit takes cards that nobody gave it: all of them for "
    "`all`, and the first is the one that everybody then uses.",
    "remove {variable} from the container's env, and ask for cards with resources.limits",
)
PRIVILEGED = Ailment(
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
    ("of which each needs one of its own", "ask for as many of the resource as of cards"),
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
    variables = frozenset(
        it.vendor.visible
        for it in around.configuration.plugins
        if it.vendor is not None and it.vendor.visible
    )
    found = [it for pod in pods if _lives(pod) for it in _judged(pod, variables, around.names)]
    for number, it in enumerate(found[:SHOWN], start=1):
        more = f" (and {len(found) - SHOWN} more like these)" if number == SHOWN < len(found) else ""
        yield replace(it, what=f"{it.what}{more}")
    if not found:
        yield well(AROUND, f"none of {len(pods)} pods chooses its cards by itself")


def _judged(pod: Object, variables: frozenset[str], resources: frozenset[str]) -> Iterator[Finding]:
    if part_of(pod, "spec").get("priorityClassName") in OF_THE_NODE:
        return
    namespace, name = _name(pod)
    for it in _containers(pod):
        where = f"{namespace}/{name}, container {shorten(str(it.get('name')))}"
        asks = sorted(resources.intersection(part_of(part_of(it, "resources"), "limits")))
        asked = f"asks for {', '.join(asks)}" if asks else "asks for no device"
        for variable, value in _set(it, variables):
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


def _containers(pod: Object) -> list[Mapping[str, Any]]:
    spec = part_of(pod, "spec")
    return [*rows_of(spec, "initContainers"), *rows_of(spec, "containers")]


def _lives(pod: Object) -> bool:
    return part_of(pod, "status").get("phase") not in ("Succeeded", "Failed")


def _name(pod: Object) -> tuple[str, str]:
    metadata = part_of(pod, "metadata")
    return shorten(str(metadata.get("namespace"))), shorten(str(metadata.get("name")))
