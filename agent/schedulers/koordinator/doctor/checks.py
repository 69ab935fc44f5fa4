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
    report_mode_check,
    scheduled_pods,
)

_MODULES = (report_mode_check, koordlet_check, device_infos_check, device_check, node_check, scheduled_pods)

CHECKS = SchedulerChecks(
    node_checks=(
        NodeCheck(report_mode_check.REPORT_MODE, report_mode_check.report_mode),
        NodeCheck(report_mode_check.PROGRAMS, report_mode_check.programs),
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
