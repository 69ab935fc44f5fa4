"""Compares the Node's resources and labels, which koord-manager writes from the Device, with the Device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeLook
from agent.scheduler_api.node_report import ApiDocument
from agent.scheduler_api.quantities import whole
from agent.schedulers.common.resource_names import CORE, GPU, RATIO
from agent.schedulers.koordinator.device_object import MODEL, VENDOR
from agent.schedulers.koordinator.doctor.device_check import entries
from agent.schedulers.koordinator.doctor.report_mode_check import unconcerned
from agent.vendor_api.text import shorten

NODE = "koord-node"

NOTHING = FindingKind(
    NODE,
    "koordinator-resources-missing",
    Severity.STOPS,
    "the Device lists healthy cards, and the Node offers none of Koordinator's resources",
    "koord-manager writes Koordinator's resources from the Device to the Node. Until then no pod that "
    "asks for these resources is placed here.",
    "see the check koord-programs; see that koord-manager runs and has the controller noderesource; see "
    "that colocation is enabled: kubectl -n koordinator-system get configmap slo-controller-config -o "
    "yaml",
)
DIFFERS = FindingKind(
    NODE,
    "koordinator-resources-differ",
    Severity.WARNS,
    "the Node offers another amount of cards than the Device lists",
    "koord-manager delays changes of up to a tenth for 5 minutes. When the vendor of the cards changes, "
    "koord-manager never removes koordinator.sh/gpu.",
    "run the doctor again in 5 minutes; if the amounts still differ look at koord-manager's log; remove "
    "an amount that no program updates with kubectl edit node {node} --subresource=status",
)
LABELS = FindingKind(
    NODE,
    "koordinator-labels-differ",
    Severity.WARNS,
    "the Node's labels name another vendor or model of cards than the Device",
    "koord-scheduler chooses templates of shares by the Node's labels. koord-manager updates these "
    "labels with the next change of a card, and removes no label.",
    "kubectl label node {node} --overwrite {key}={value}",
)


def nodes(look: NodeLook) -> Iterator[Finding]:
    """The Node's koordinator.sh/ resources and gpu labels against the Device."""
    if idle := unconcerned(NODE, look):
        yield idle
        return
    node, device = look.node_object, look.objects.object
    if node.value is None or device.value is None:
        yield not_made(NODE, node.why if node.value is None else device.why)
        return
    healthy = [it for it in entries(device.value[0]) if it.get("health") is True] if device.value else []
    offered = part_of(part_of(node.value, "status"), "allocatable")
    found = [*_amounts(look, device.value, healthy, offered), *_labels(look, device.value, node.value)]
    yield from found or [well(NODE, f"the Node offers {shorten(str(offered.get(RATIO, 0)))} of {RATIO}")]


def _amounts(
    look: NodeLook,
    device: tuple[ApiDocument, ...],
    healthy: list[Mapping[str, Any]],
    offered: Mapping[str, Any],
) -> Iterator[Finding]:
    for name in (RATIO, CORE):
        wanted = sum(whole(part_of(it, "resources").get(name, 0)) or 0 for it in healthy)
        offers = whole(offered.get(name, 0)) or 0
        if wanted and not offers:
            yield NOTHING.found(f"the Device has {wanted} of {name}, the Node has none")
        elif wanted != offers:
            yield DIFFERS.found(f"the Device has {wanted} of {name}, the Node {offers}", node=look.node)
    vendor = _label(device[0], VENDOR) if device else ""
    if vendor not in ("", "nvidia") and whole(offered.get(GPU, 0)):
        what = f"the Node offers {offered[GPU]} of {GPU}, which cards of {vendor} do not have"
        yield DIFFERS.found(what, node=look.node)


def _labels(look: NodeLook, device: tuple[ApiDocument, ...], node: ApiDocument) -> Iterator[Finding]:
    for key in (VENDOR, MODEL) if device else ():
        wanted, offers = _label(device[0], key), _label(node, key)
        if wanted and wanted != offers:
            what = f"the Device has {key}={wanted}, the Node {offers or 'none'}"
            yield LABELS.found(what, node=look.node, key=key, value=wanted)


def _label(of: ApiDocument, key: str) -> str:
    return shorten(str(part_of(part_of(of, "metadata"), "labels").get(key, "")))
