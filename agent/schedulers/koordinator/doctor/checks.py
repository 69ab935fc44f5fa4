"""Koordinator's checks, in the order in which their findings are mended."""

from __future__ import annotations

from agent.scheduler_api.findings import FindingKind
from agent.scheduler_api.node_checks import NodeCheck, SchedulerChecks
from agent.schedulers.koordinator.doctor import (
    device_check,
    device_infos_check,
    koordlet_check,
    node_check,
    queries,
    report_path,
    scheduled_pods,
)

_MODULES = (report_path, koordlet_check, device_infos_check, device_check, node_check, scheduled_pods)

CHECKS = SchedulerChecks(
    node_checks=(
        NodeCheck(report_path.WAY, report_path.way),
        NodeCheck(report_path.PROGRAMS, report_path.programs),
        NodeCheck(koordlet_check.KOORDLET, koordlet_check.koordlets),
        NodeCheck(device_infos_check.CHECK, device_infos_check.daemons),
        NodeCheck(device_check.DEVICE, device_check.devices),
        NodeCheck(node_check.NODE, node_check.nodes),
    ),
    pod_checks=(NodeCheck(scheduled_pods.PODS, scheduled_pods.pods),),
    kinds=tuple(
        kind for module in _MODULES for kind in vars(module).values() if isinstance(kind, FindingKind)
    ),
    pods=queries.PODS,
    config_map=queries.SETTINGS_QUERY,
    # Of Cambricon's cards (koordinator device_plugin_adapter.go, a7a1b76b).
    unfreed_locks=("cambricon.com/dsmlu.lock",),
)
