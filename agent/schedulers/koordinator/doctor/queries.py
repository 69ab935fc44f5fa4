"""The pods and the ConfigMap that Koordinator's checks need from the API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.node_checks import ConfigMapQuery, Observed, PodQuery, SchedulerObjects
from agent.scheduler_api.node_report import ApiDocument
from agent.schedulers.common.resource_names import PREFIX

#: The queries by name: pods of koord-scheduler and koord-manager, and pods that wait for a scheduler.
PROGRAMS_QUERY, WAITING_QUERY = "programs", "waiting"
#: Where Koordinator's chart puts everything, and the settings of koord-manager.
NAMESPACE, SETTINGS = "koordinator-system", "slo-controller-config"


def asks(pod: ApiDocument) -> bool:
    """Whether a label or a limit of the pod is one of Koordinator's."""
    labels = part_of(part_of(pod, "metadata"), "labels")
    containers = rows_of(part_of(pod, "spec"), "containers")
    limits = [part_of(part_of(container, "resources"), "limits") for container in containers]
    return any(str(name).startswith(PREFIX) for names in (labels, *limits) for name in names)


def namespace(pods: Mapping[str, Observed[tuple[ApiDocument, ...]]]) -> str:
    """The namespace of koord-manager, which has the settings in its own namespace."""
    programs = pods[PROGRAMS_QUERY].value or ()
    metadata = [part_of(pod, "metadata") for pod in programs]
    managers = (it for it in metadata if part_of(it, "labels").get("koord-app") == "koord-manager")
    return next((text(it, "namespace") for it in managers), NAMESPACE)


def colocation_off(objects: SchedulerObjects) -> str:
    """Why koord-manager does not work for the nodes; empty where it does, or where that is not known.

    Source: koordinator pkg/util/sloconfig (colocation-config), pkg/slo-controller/noderesource.
    """
    place = f"{objects.namespace}/{SETTINGS}"
    if objects.config_map.value is None:
        return ""
    if not objects.config_map.value:
        return f"there is no ConfigMap {place}"
    data = part_of(objects.config_map.value[0], "data")
    try:
        settings: Any = json.loads(text(data, "colocation-config") or "{}")
    except RecursionError:
        return f"colocation-config of {place} is nested too deeply"
    except ValueError as exc:
        return f"colocation-config of {place} is no JSON: {exc}"
    if not isinstance(settings, dict):
        return f"colocation-config of {place} is no object"
    if settings.get("nodeConfigs") or settings.get("enable") is True:
        return ""  # settings that differ from node to node are not judged
    return f"{place} has no colocation-config with enable: true"


PODS = {
    PROGRAMS_QUERY: PodQuery(label_selector="koord-app in (koord-scheduler,koord-manager)"),
    # koord-scheduler may run under any name, so pods of every scheduler are looked at.
    WAITING_QUERY: PodQuery(field_selector="spec.nodeName=,status.phase=Pending", keep=asks),
}
SETTINGS_QUERY = ConfigMapQuery(SETTINGS, namespace)
