"""Gathers what the checks look at: configuration, agent, kubelet, vendors, API server. Writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from agent.cluster.api_client import open_api
from agent.cluster.api_errors import ApiAway
from agent.cluster.api_protocol import Api, Object
from agent.cluster.credentials import ApiAccess, find
from agent.config import AgentSettings, Config, NodeLabels
from agent.config.known_labels import NOWHERE, remembered_labels, seen_labels
from agent.core.errors import ConfigError, VendorError
from agent.daemon.labels_once import first_list
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor import api_questions, inspect_questions, refused_pods, required_rights, scheduler_objects
from agent.doctor.configuration_reading import read_configuration
from agent.doctor.doctor_arguments import DoctorArguments
from agent.doctor.socket_listeners import SocketListener, listener, plugin_sockets
from agent.doctor.surroundings import (
    Cluster,
    Configuration,
    PodResourcesAnswer,
    Sockets,
    Surroundings,
)
from agent.host.scheduler_report_file import other_files
from agent.host.version import version
from agent.kubelet.kubelet_directory import KUBELET_SOCKET
from agent.kubelet.kubelet_errors import KubeletError, KubeletRefused
from agent.kubelet.pod_resources import PodResources
from agent.scheduler_api import Scheduler
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.node_checks import Observed, OtherFile, SchedulerObjects
from agent.scheduler_api.node_report import NodeReport
from agent.scheduler_api.scheduler import common_dialects
from agent.state.uninstall_record import NAME as REMAINS
from agent.state.uninstall_record import UninstallRecord
from agent.vendor_api.agent import Device

NO_SERVER = "no API server is known here; give --kubeconfig, or run the doctor in the agent's pod"
#: Why facts are missing that only the API server has. The check api-server has the error, so that it appears
#: once in the output.
NOT_ASKED = "the API server could not be asked (see check api-server)"
#: Seconds for the kubelet.
KUBELET_PATIENCE = 5.0

_UNSEEN: Observed[Any] = Observed(why=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class _ApiContact:
    """The client of the API server with the Node that it answered, or in `away` why there is none.

    `broken`: a way to the API server is configured and does not work.
    """

    api: Api | None = None
    node: Observed[Object] = _UNSEEN
    away: str = ""
    broken: bool = False
    namespace: str = "default"


async def survey(
    arguments: DoctorArguments, open: Callable[[ApiAccess], Awaitable[Api]] = open_api
) -> Surroundings:
    """Ask each source once; slow sources are asked at the same time."""
    contact = await _contact_of(arguments, open)
    try:
        configuration = read_configuration(arguments, _labels(contact))
        return await _gather(arguments, contact, configuration)
    finally:
        if contact.api is not None:
            await contact.api.close()


async def _gather(
    arguments: DoctorArguments, contact: _ApiContact, configuration: Configuration
) -> Surroundings:
    agent = configuration.config.agent
    found: dict[str, Any] = {}
    vendors: dict[str, Observed[tuple[Device, ...]]] = {}

    async def take(name: str, asking: Awaitable[Any]) -> None:
        found[name] = await asking

    async def ask(plugin: VendorPlugin) -> None:
        vendors[plugin.name] = await _devices(plugin, arguments.vendor_patience)

    async with anyio.create_task_group() as group:
        for plugin in configuration.plugins:
            if plugin.vendor is not None:
                group.start_soon(ask, plugin)
        group.start_soon(take, "inspected", inspect_questions.inspected(agent.state_dir / "agent.sock"))
        if configuration.config.usage.enabled:
            group.start_soon(take, "use", inspect_questions.use(agent.state_dir / "agent.sock"))
        group.start_soon(take, "inspected_on_port", inspect_questions.inspected_on_port(agent.http))
        group.start_soon(take, "pod_resources", _pod_resources(agent.pod_resources_socket))
        group.start_soon(take, "sockets", anyio.to_thread.run_sync(_sockets, agent))
        group.start_soon(take, "cluster", _cluster(arguments, contact, configuration))
        for scheduler in configuration.schedulers:
            if scheduler.report is not None and not configuration.error:
                reading = partial(_report_files, configuration.config, scheduler)
                group.start_soon(take, "report_files", anyio.to_thread.run_sync(reading))
    found["cluster"] = await _with_stale(arguments, contact, configuration, found["cluster"], vendors)
    return Surroundings(
        arguments.node,
        version(),
        arguments.root,
        configuration,
        dict(sorted(vendors.items())),
        **found,
    )


async def _contact_of(arguments: DoctorArguments, open: Callable[[ApiAccess], Awaitable[Api]]) -> _ApiContact:
    try:
        access = find(arguments.kubeconfig.path, arguments.environ, by=arguments.kubeconfig.by)
        if access is None:
            return _ApiContact(away="; ".join(it for it in (NO_SERVER, arguments.kubeconfig.warning) if it))
        api = await open(access)
    except (ConfigError, ApiAway) as exc:
        return _ApiContact(away=str(exc), broken=True)
    node, away = await api_questions.node_of(api, arguments.node)
    return _ApiContact(api, node, away, bool(away), access.namespace)


def _labels(contact: _ApiContact) -> NodeLabels:
    if contact.node.value is None:
        return NOWHERE if contact.api is None and not contact.broken else remembered_labels({})
    given = part_of(part_of(contact.node.value, "metadata"), "labels")
    return seen_labels({str(key): str(value) for key, value in given.items()})


async def _devices(plugin: VendorPlugin, patience: float) -> Observed[tuple[Device, ...]]:
    assert plugin.vendor is not None
    try:
        return Observed(tuple(await first_list(plugin.vendor, patience)))
    except VendorError as exc:
        return Observed(why=str(exc).removeprefix(f"{plugin.name}: "))


async def _pod_resources(socket: Path) -> PodResourcesAnswer:
    try:
        return PodResourcesAnswer(len(await PodResources(socket, timeout=KUBELET_PATIENCE).in_use()))
    except KubeletRefused as exc:
        return PodResourcesAnswer(status=exc.status, error=str(exc))
    except KubeletError as exc:
        return PodResourcesAnswer(error=str(exc))


def _sockets(agent: AgentSettings) -> Sockets:
    kubelet, admin = listener(agent.kubelet_dir / KUBELET_SOCKET), listener(agent.state_dir / "agent.sock")
    try:
        others: Mapping[Path, SocketListener] = {
            path: listener(path) for path in plugin_sockets(agent.kubelet_dir)
        }
    except OSError as exc:
        return Sockets(kubelet, admin, Observed(why=f"{agent.kubelet_dir}: {exc.strerror}"))
    return Sockets(kubelet, admin, Observed(others))


async def _cluster(arguments: DoctorArguments, contact: _ApiContact, configuration: Configuration) -> Cluster:
    if contact.api is None or contact.away:
        unseen = {it.name: _unseen_objects(it) for it in configuration.schedulers}
        return Cluster(_UNSEEN, _UNSEEN, _UNSEEN, contact.away, contact.broken, unseen)
    config = configuration.config
    report, namespace = config.report, config.report.namespace or contact.namespace
    shown = {
        scheduler.name: await scheduler_objects.objects_of(contact.api, arguments.node, scheduler)
        for scheduler in configuration.schedulers
        if scheduler.report is not None or scheduler.checks is not None
    }
    report_plugin = next((it.report for it in configuration.schedulers if it.report is not None), None)
    has_kind = any(it.has_kind.value is True for it in shown.values())
    rights = required_rights.required(
        arguments.node,
        namespace,
        report.published_as,
        events=report.events,
        pods=config.agent.watch_pods,
        report=report_plugin,
        writes=report.mode == "device" or (report.mode == "auto" and has_kind),
        withdraws=has_kind and report_plugin is not None and bool(_recorded_names(config, report_plugin)),
        locks=_is_locked(contact.node.value, configuration.locks) or _has_scheduler_placement(configuration),
        annotates=_annotates(configuration.plugins),
        extends=_extends(configuration.plugins),
        receipts=_gives_receipts(configuration),
    )
    found = await api_questions.cluster_of(contact.api, contact.node, arguments.node, rights, shown)
    if arguments.kubeconfig.path is None:
        return found  # without a kubeconfig the rights are the agent's, which may not read ConfigMaps
    named = refused_pods.config_maps(found.pods.value or (), refused_pods.variables_of(configuration.plugins))
    return replace(found, config_maps=await api_questions.config_maps(contact.api, named))


async def _with_stale(
    arguments: DoctorArguments,
    contact: _ApiContact,
    configuration: Configuration,
    found: Cluster,
    vendors: Mapping[str, Observed[tuple[Device, ...]]],
) -> Cluster:
    """The cluster with the report objects of other names that list cards of this node.

    They are found by the uuids of the cards, so the vendors have to be asked before.
    """
    cards = {it.uuid for look in vendors.values() for it in look.value or ()}
    objects = dict(found.schedulers)
    for scheduler in configuration.schedulers:
        its_objects = objects.get(scheduler.name, SchedulerObjects())
        if contact.api is None or scheduler.report is None or not its_objects.has_kind.value:
            continue
        kind, noted = scheduler.report.object, _recorded_names(configuration.config, scheduler.report)
        stale = await scheduler_objects.stale(contact.api, arguments.node, kind, cards, noted)
        objects[scheduler.name] = replace(its_objects, stale=stale)
    return replace(found, schedulers=objects)


def _unseen_objects(scheduler: Scheduler) -> SchedulerObjects:
    queries = scheduler.checks.pods if scheduler.checks is not None else ()
    return SchedulerObjects(_UNSEEN, pods={name: Observed() for name in queries})


def _report_files(config: Config, scheduler: Scheduler) -> Observed[tuple[OtherFile, ...]]:
    """The other files in the directory of the report, for the scheduler that gets one."""
    if scheduler.report is None or config.report.mode not in ("auto", "feed"):
        return Observed(why="report.mode excludes a file")
    try:
        directory = Path(config.report.device_infos_dir)
        return Observed(other_files(directory, scheduler.report.file))
    except OSError as exc:
        return Observed(why=str(exc.strerror))


def _recorded_names(config: Config, report: NodeReport) -> tuple[str, ...]:
    """Names of the objects of the report's kind that agents of this node have written.

    An unreadable record gives none; the check of files left behind reports the reason.
    """
    try:
        recorded = UninstallRecord(config.agent.state_dir / REMAINS).objects()
    except OSError:
        return ()
    return tuple(dict.fromkeys(it.name for it in recorded if it.kind in ("", report.object.name)))


def _is_locked(node: Object | None, keys: Collection[str]) -> bool:
    return not part_of(part_of(node, "metadata"), "annotations").keys().isdisjoint(keys)


def _annotates(plugins: Iterable[VendorPlugin]) -> bool:
    """Whether a vendor gives the Node annotations."""
    return any(it.vendor is not None and it.vendor.publishes.annotations is not None for it in plugins)


def _extends(plugins: Iterable[VendorPlugin]) -> bool:
    """Whether a vendor counts extended resources for the Node."""
    return any(it.vendor is not None and it.vendor.publishes.extended_resources is not None for it in plugins)


def _gives_receipts(configuration: Configuration) -> bool:
    """Whether a scheduler wants a receipt on pods that have their devices.

    The schedulers' own dialects are heard for resources with cards that schedulers choose.
    """
    vendors = [it.vendor for it in configuration.plugins if it.vendor is not None]
    dialects = [dialect for vendor in vendors for dialect in vendor.dialects]
    if _has_scheduler_placement(configuration):
        dialects += common_dialects(configuration.schedulers)
    return any(it.receipt is not None for it in dialects)


def _has_scheduler_placement(configuration: Configuration) -> bool:
    """Whether schedulers may choose the cards of a resource, by the config or by a vendor's own default."""
    rules = [rule for it in configuration.config.vendors.values() for rule in it.resources]
    offers = [it.vendor.offers for it in configuration.plugins if it.vendor is not None]
    by_default = any(it.placement != "local" or it.default_rule is not None for it in offers)
    return by_default or any(it.placement != "local" for it in rules)
