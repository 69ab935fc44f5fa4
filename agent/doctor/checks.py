"""All checks, in the order of repair: an earlier finding may be the cause of later ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps

from agent.daemon.scheduler_plugins import registered
from agent.doctor import (
    agent_processes,
    api_server,
    cdi_setup,
    configuration,
    files_left_behind,
    host_parts,
    kept_memory_unit,
    kubelet_sockets,
    measured_use,
    node_locks,
    node_object,
    plugin_conflicts,
    refused_pods,
    runtime_processes,
    servable_resources,
    state_directory,
    vendor_libraries,
)
from agent.doctor.scheduler_look import node_look
from agent.doctor.surroundings import Surroundings
from agent.doctor.vendor_look import vendor_look
from agent.scheduler_api import Scheduler
from agent.scheduler_api.findings import Finding, FindingKind, not_made
from agent.scheduler_api.node_checks import NodeCheck, SchedulerChecks
from agent.vendor_api.agent import VendorCheck
from agent.vendor_api.text import error_text


@dataclass(frozen=True, slots=True)
class Check:
    """A check. It returns at least one finding, if only that nothing is wrong.

    `by_config`: the configuration says what is right, so without a usable one the check is not made.
    """

    name: str
    make: Callable[[Surroundings], Iterable[Finding]]
    by_config: bool = False

    def made(self, around: Surroundings) -> Iterable[Finding]:
        """The findings. A check that raises counts as not made, and does not stop the other checks."""
        if self.by_config and around.configuration.error:
            return [
                not_made(
                    self.name, "not checked, because the configuration cannot be used (see check config)"
                )
            ]
        try:
            found = tuple(self.make(around))
            if (wrong := next((it for it in found if not isinstance(it, Finding)), None)) is not None:
                return [not_made(self.name, f"the check failed: it returned a {type(wrong).__name__}")]
            return found or [not_made(self.name, "the check found nothing to look at")]
        except Exception as exc:
            return [not_made(self.name, f"the check failed: {error_text(exc)}")]


def _of_schedulers(chosen: Callable[[SchedulerChecks], tuple[NodeCheck, ...]]) -> Iterator[Check]:
    """The checks of the registered schedulers, in the order in which the schedulers are heard."""
    for scheduler in registered():
        for check in chosen(scheduler.checks) if scheduler.checks is not None else ():
            yield Check(check.name, _with_look(scheduler, check), by_config=True)


def _with_look(scheduler: Scheduler, check: NodeCheck) -> Callable[[Surroundings], Iterable[Finding]]:
    @wraps(check.make)
    def make(around: Surroundings) -> Iterable[Finding]:
        return check.make(node_look(around, scheduler))

    return make


def _of_vendors(around: Surroundings) -> Iterator[Check]:
    """The checks of the vendors with cards on this node, vendor by vendor."""
    for vendor in host_parts.vendors_with_cards(around):
        for check in vendor.checks:
            yield Check(check.name, _with_vendor_look(vendor.name, check), by_config=True)


def _with_vendor_look(vendor: str, check: VendorCheck) -> Callable[[Surroundings], Iterable[Finding]]:
    @wraps(check.make)
    def make(around: Surroundings) -> Iterable[Finding]:
        return check.make(vendor_look(around, vendor, check))

    return make


CHECKS = (
    Check(configuration.CHECK, configuration.configuration),
    Check(kubelet_sockets.KUBELET, kubelet_sockets.kubelet),
    Check(kubelet_sockets.POD_RESOURCES, kubelet_sockets.pod_resources),
    Check(vendor_libraries.LIBRARY, vendor_libraries.libraries, by_config=True),
    Check(vendor_libraries.DRIVER, vendor_libraries.drivers, by_config=True),
    Check(host_parts.CHECK, host_parts.parts, by_config=True),
    Check(runtime_processes.CHECK, runtime_processes.containers, by_config=True),
    Check(servable_resources.CHECK, servable_resources.served, by_config=True),
    Check(state_directory.STATE, state_directory.state),
    Check(state_directory.DISK, state_directory.disk),
    Check(state_directory.CHECKPOINT, state_directory.checkpoint),
    Check(cdi_setup.CHECK, cdi_setup.cdi, by_config=True),
    Check(files_left_behind.CHECK, files_left_behind.remains, by_config=True),
    Check(agent_processes.AGENT, agent_processes.agent),
    Check(agent_processes.SECOND, agent_processes.second),
    Check(plugin_conflicts.CHECK, plugin_conflicts.device_plugins, by_config=True),
    Check(kept_memory_unit.CHECK, kept_memory_unit.units),
    Check(measured_use.CHECK, measured_use.use, by_config=True),
    Check(api_server.SERVER, api_server.server),
    Check(api_server.RIGHTS, api_server.rights, by_config=True),
    Check(node_object.LABELS, node_object.labels, by_config=True),
    Check(node_object.ALLOCATABLE, node_object.allocatable),
    Check(refused_pods.REFUSED, refused_pods.refused),
    Check(refused_pods.AROUND, refused_pods.around, by_config=True),
    *_of_schedulers(lambda checks: checks.node_checks),
    Check(node_locks.CHECK, node_locks.locks),
    *_of_schedulers(lambda checks: checks.pod_checks),
)


def _kinds_of_node_checks() -> Iterator[FindingKind]:
    """The kinds of findings in the modules of this room, in the order of their checks."""
    names = dict.fromkeys(check.make.__module__ for check in CHECKS)
    for module in [sys.modules[name] for name in names if name.startswith(f"{__package__}.")]:
        yield from (value for value in vars(module).values() if isinstance(value, FindingKind))


#: All kinds of findings, check by check.
FINDING_KINDS = (
    *_kinds_of_node_checks(),
    *(kind for it in registered() if it.checks is not None for kind in it.checks.kinds),
)


def examined(around: Surroundings) -> Iterator[Finding]:
    """The findings of all checks. The vendors' own checks come after the check of the vendors' parts."""
    for check in CHECKS:
        yield from check.made(around)
        if check.name == host_parts.CHECK:
            yield from (finding for own in _of_vendors(around) for finding in own.made(around))
