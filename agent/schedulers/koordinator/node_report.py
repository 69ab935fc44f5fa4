"""How Koordinator gets the report of a node's cards: by the Device, or by the file that koordlet reads."""

from __future__ import annotations

from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.managed_fields import AGENT_MANAGER, UPDATE, entries
from agent.scheduler_api.node_report import (
    ApiDocument,
    NodeReport,
    ObjectOwner,
    Report,
    ReportFile,
    ReportObject,
)
from agent.schedulers.common.resource_names import WHOLE_CARDS
from agent.schedulers.koordinator import device_infos_file, device_object, koordlet_signs
from agent.schedulers.koordinator.koordlet_verdict import judge
from agent.schedulers.koordinator.report_mode import UNCONCERNED, choice
from agent.schedulers.koordinator.reported_cards import is_served, passed_over, report


def listed(device: ApiDocument | None) -> Any:
    """The Device's list of devices, as it is there."""
    return part_of(device, "spec").get("devices")


def uuids(device: ApiDocument) -> frozenset[str]:
    """The ids of all devices, whatever their type."""
    return frozenset(text(entry, "id") for entry in rows_of(part_of(device, "spec"), "devices"))


def is_of_agent(device: ApiDocument) -> bool:
    """Whether an agent wrote the cards, and the last writer of other fields left them as they were."""
    if koordlet_signs.wrote_devices(device):
        return False
    labels = ("metadata", "labels", device_object.VENDOR)
    updates = [it for it in entries(device) if (it.manager, it.operation) == (AGENT_MANAGER, UPDATE)]
    return any(it.owns("spec", "devices") or it.owns(*labels) for it in updates)


def _wanted(
    owner: ObjectOwner, cards: Report, existing: ApiDocument | None, now: float
) -> ApiDocument | None:
    return device_object.device(owner.name, owner.uid, cards, existing, now)


DEVICE = ReportObject(
    device_object.GROUP,
    device_object.VERSION,
    device_object.KIND,
    device_object.PLURAL,
    programs=koordlet_signs.LABEL,
    shows_program=koordlet_signs.reporting_sign,
    judge=judge,
    wanted=_wanted,
    withdrawn=device_object.without_cards,
    report=device_object.report_in,
    listed=listed,
    uuids=uuids,
    is_of_agent=is_of_agent,
    is_of_program=koordlet_signs.wrote_devices,
)
DEVICE_INFOS = ReportFile(
    text=device_infos_file.device_infos,
    cards=device_infos_file.cards,
    report=device_infos_file.report_in,
    without=device_infos_file.unlisted,
)
NODE_REPORT = NodeReport(
    "Koordinator",
    "koordlet",
    report=report,
    is_served=is_served,
    passed_over=passed_over,
    choose=choice,
    object=DEVICE,
    file=DEVICE_INFOS,
    unconcerned=UNCONCERNED,
    whole_cards=tuple(sorted(WHOLE_CARDS)),
    granted_by="koordinator.enabled of the chart",
)
