"""Gathers what the checks look at: files, agent, kubelet, vendors, API server, writes nothing."""

from __future__ import annotations

import http.client
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from agent.cluster.api import Api, Object
from agent.cluster.api_errors import ApiAway
from agent.cluster.client import open_api
from agent.cluster.credentials import ApiAccess, NamedKubeconfig, find
from agent.config import (
    CONFIG_LABEL,
    AgentSettings,
    Config,
    ConfigSource,
    LabelsUnknown,
    NodeLabels,
    configured,
    given_flags,
    given_source,
    parse_address,
    stated,
    with_flags,
)
from agent.config.known_labels import NOWHERE, remembered_labels, seen_labels
from agent.core.errors import AgentError, ConfigError, VendorError
from agent.daemon.labels_once import first_list
from agent.daemon.scheduler_plugins import registered
from agent.daemon.vendor_plugins import VendorPlugin
from agent.daemon.vendors_in_service import check, in_service
from agent.doctor import api_questions, refused_pods, required_rights, scheduler_objects
from agent.doctor.socket_listeners import SocketListener, beside, listener
from agent.doctor.surroundings import (
    Cluster,
    Configuration,
    PodResourcesAnswer,
    Sockets,
    Surroundings,
)
from agent.host.report_directory import other_files
from agent.host.version import version
from agent.http.admin_client import answer, fetch
from agent.kubelet.directory import KUBELET_SOCKET
from agent.kubelet.kubelet_errors import KubeletError, KubeletRefused
from agent.kubelet.pod_resources import PodResources
from agent.scheduler_api import Scheduler
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.node_checks import Observed, OtherFile, SchedulerObjects
from agent.state.uninstall_record import NAME as REMAINS
from agent.state.uninstall_record import UninstallRecord
from agent.vendor_api.agent import Device

NO_SERVER = "no API server is known here; give --kubeconfig, or run this in the agent's pod"
#: Why what the API server alone knows was not looked at; its own check says the rest, once.
NOT_ASKED = "the API server could not be asked (see check api-server)"
#: Seconds for the kubelet, for an agent, and for a vendor that wakes its cards.
KUBELET_PATIENCE = 5.0
AGENT_PATIENCE = 5.0
VENDOR_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class DoctorArguments:
    """What the command line says. `given`: its arguments, called as flags."""

    node: str
    given: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    kubeconfig: NamedKubeconfig = field(default_factory=NamedKubeconfig)
    root: Path = Path("/")
    vendor_patience: float = VENDOR_PATIENCE


_UNSEEN: Observed[Any] = Observed(why=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class _Door:
    """The way to the API server, and the Node at its end; `away` and `broken` as Cluster has them."""

    api: Api | None = None
    node: Observed[Object] = _UNSEEN
    away: str = ""
    broken: bool = False
    namespace: str = "default"


async def survey(
    question: DoctorArguments, open: Callable[[ApiAccess], Awaitable[Api]] = open_api
) -> Surroundings:
    """Ask everybody once, the slow ones at the same time."""
    door = await _door(question, open)
    try:
        configuration = _configuration(question, door)
        return await _gathered(question, door, configuration)
    finally:
        if door.api is not None:
            await door.api.close()


async def _gathered(question: DoctorArguments, door: _Door, configuration: Configuration) -> Surroundings:
    agent = configuration.config.agent
    found: dict[str, Any] = {}
    vendors: dict[str, Observed[tuple[Device, ...]]] = {}

    async def take(name: str, asking: Awaitable[Any]) -> None:
        found[name] = await asking

    async def ask(plugin: VendorPlugin) -> None:
        vendors[plugin.name] = await _devices(plugin, question.vendor_patience)

    async with anyio.create_task_group() as group:
        for plugin in configuration.plugins:
            if plugin.vendor is not None:
                group.start_soon(ask, plugin)
        group.start_soon(take, "told", _told(agent.state_dir / "agent.sock"))
        group.start_soon(take, "told_on_port", _told_on_port(agent.http))
        group.start_soon(take, "pod_resources", _pod_resources(agent.pod_resources_socket))
        group.start_soon(take, "sockets", anyio.to_thread.run_sync(_sockets, agent))
        group.start_soon(take, "cluster", _cluster(question, door, configuration))
        for scheduler in configuration.schedulers:
            if scheduler.report is not None and not configuration.error:
                reading = partial(_report_files, configuration.config, scheduler)
                group.start_soon(take, "report_files", anyio.to_thread.run_sync(reading))
    found["cluster"] = await _with_stale(question, door, configuration, found["cluster"], vendors)
    return Surroundings(
        question.node,
        version(),
        question.root,
        configuration,
        dict(sorted(vendors.items())),
        **found,
    )


async def _door(question: DoctorArguments, open: Callable[[ApiAccess], Awaitable[Api]]) -> _Door:
    try:
        access = find(question.kubeconfig.path, question.environ, by=question.kubeconfig.by)
        if access is None:
            return _Door(away="; ".join(it for it in (NO_SERVER, question.kubeconfig.warning) if it))
        api = await open(access)
    except (ConfigError, ApiAway) as exc:
        return _Door(away=str(exc), broken=True)
    node, away = await api_questions.node_of(api, question.node)
    return _Door(api, node, away, bool(away), access.namespace)


def _configuration(question: DoctorArguments, door: _Door) -> Configuration:
    """As `run` would read it, which goes on without a vendor that nobody brings.

    Where it cannot be used, flags and what is good of its `agent` still say where things are. Of the
    vendors, though, they say nothing: none is asked then.
    """
    known, source = _labels(door), ConfigSource()
    try:
        source = given_source(question.given, question.environ)
        config = check(configured(question.given, question.environ, question.node, labels=known))
        # Who has no such label gets the default of the directory, and lacks nothing.
        chosen = source.is_directory and known.get(CONFIG_LABEL)
        asks = {*config.asks, *([CONFIG_LABEL] if chosen else [])}
        its = in_service(config)
        return Configuration(
            config, source.look(known).source, "", its, registered(), labels=tuple(sorted(asks))
        )
    except ConfigError as exc:
        source_name = str(question.given.get("config") or "defaults")
        awaits = isinstance(exc, LabelsUnknown)
        said = stated(source.look(known), question.node)
        config, known_ones = _flags_over(said, question), registered()
        return Configuration(config, source_name, str(exc), schedulers=known_ones, awaits_labels=awaits)


def _labels(door: _Door) -> NodeLabels:
    if door.node.value is None:
        return NOWHERE if door.api is None and not door.broken else remembered_labels({})
    given = part_of(part_of(door.node.value, "metadata"), "labels")
    return seen_labels({str(key): str(value) for key, value in given.items()})


def _flags_over(said: AgentSettings, question: DoctorArguments) -> Config:
    """Each flag that can be used, over what the file says of where things are."""
    config = Config(agent=said)
    alone: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [
        *(({}, {name: value}) for name, value in question.environ.items()),
        *(({name: value}, {}) for name, value in question.given.items()),
    ]
    for argument, variable in alone:
        with suppress(ConfigError):
            config = with_flags(config, given_flags(argument, variable))
    return config


async def _devices(plugin: VendorPlugin, patience: float) -> Observed[tuple[Device, ...]]:
    assert plugin.vendor is not None
    try:
        return Observed(tuple(await first_list(plugin.vendor, patience)))
    except VendorError as exc:
        return Observed(why=str(exc).removeprefix(f"{plugin.name}: "))


async def _told(path: Path) -> Observed[Mapping[str, Any]]:
    try:
        body = await anyio.to_thread.run_sync(fetch, path, "/inspect", AGENT_PATIENCE)
        return _document(body)
    except AgentError as exc:
        return Observed(why=str(exc))


async def _told_on_port(address: str) -> Observed[Mapping[str, Any]]:
    """Only loopback tells more than whether an agent is ready."""
    if not address:
        return Observed(why="the views are switched off")
    try:
        return _document(await anyio.to_thread.run_sync(_get, address))
    except (OSError, ValueError, http.client.HTTPException, AgentError) as exc:
        return Observed(why=f"{address}: {exc}")


def _get(address: str) -> bytes:
    place = parse_address(address)
    connection = http.client.HTTPConnection(place.host, place.port, timeout=AGENT_PATIENCE)
    return answer(connection, "GET", "/inspect")[1]


def _document(body: bytes) -> Observed[Mapping[str, Any]]:
    try:
        return Observed(msgspec.json.decode(body, type=dict[str, Any]))
    except msgspec.MsgspecError as exc:
        return Observed(why=f"what answers is no agent: {exc}")


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
        others: Mapping[Path, SocketListener] = {path: listener(path) for path in beside(agent.kubelet_dir)}
    except OSError as exc:
        return Sockets(kubelet, admin, Observed(why=f"{agent.kubelet_dir}: {exc.strerror}"))
    return Sockets(kubelet, admin, Observed(others))


async def _cluster(question: DoctorArguments, door: _Door, configuration: Configuration) -> Cluster:
    if door.api is None or door.away:
        unseen = {it.name: _unseen_objects(it) for it in configuration.schedulers}
        return Cluster(_UNSEEN, _UNSEEN, _UNSEEN, door.away, door.broken, unseen)
    config = configuration.config
    report, namespace = config.report, config.report.namespace or door.namespace
    shown = {
        it.name: await scheduler_objects.objects_of(door.api, question.node, it)
        for it in configuration.schedulers
        if it.report is not None or it.checks is not None
    }
    has_kind = any(it.has_kind.value is True for it in shown.values())
    rights = required_rights.required(
        question.node,
        namespace,
        report.told_as,
        events=report.events,
        pods=config.agent.watch_pods,
        device=report.mode == "device" or (report.mode == "auto" and has_kind),
        withdraws=has_kind and bool(_noted(config)),
        locks=_is_locked(door.node.value, configuration.locks) or _heeds(config),
        annotates=_annotates(configuration.plugins),
        extends=_extends(configuration.plugins),
        receipts=_gives_receipts(configuration.plugins),
    )
    found = await api_questions.asked(door.api, door.node, question.node, rights, shown)
    if question.kubeconfig.path is None:
        return found  # in a pod the rights are the agent's, which has none to ConfigMaps
    named = refused_pods.config_maps(found.pods.value or (), refused_pods.variables_of(configuration.plugins))
    return replace(found, config_maps=await api_questions.config_maps(door.api, named))


async def _with_stale(
    question: DoctorArguments,
    door: _Door,
    configuration: Configuration,
    found: Cluster,
    vendors: Mapping[str, Observed[tuple[Device, ...]]],
) -> Cluster:
    """With the report objects of other names that list cards of this node, which are known by now."""
    cards = {it.uuid for look in vendors.values() for it in look.value or ()}
    objects = dict(found.schedulers)
    for scheduler in configuration.schedulers:
        its_objects = objects.get(scheduler.name, SchedulerObjects())
        if door.api is None or scheduler.report is None or not its_objects.has_kind.value:
            continue
        kind, noted = scheduler.report.object, _noted(configuration.config)
        stale = await scheduler_objects.stale(door.api, question.node, kind, cards, noted)
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


def _noted(config: Config) -> tuple[str, ...]:
    """The Devices that agents here have written. What keeps that from being read its own check says."""
    try:
        return UninstallRecord(config.agent.state_dir / REMAINS).devices()
    except OSError:
        return ()


def _is_locked(node: Object | None, keys: Collection[str]) -> bool:
    return not part_of(part_of(node, "metadata"), "annotations").keys().isdisjoint(keys)


def _annotates(plugins: Iterable[VendorPlugin]) -> bool:
    """Whether a vendor makes annotations of the Node."""
    return any(it.vendor is not None and it.vendor.publishes.annotations is not None for it in plugins)


def _extends(plugins: Iterable[VendorPlugin]) -> bool:
    """Whether a vendor counts extended resources for the Node."""
    return any(it.vendor is not None and it.vendor.publishes.extended_resources is not None for it in plugins)


def _gives_receipts(plugins: Iterable[VendorPlugin]) -> bool:
    """Whether a scheduler is to read on pods that they have their devices."""
    dialects = (dialect for it in plugins if it.vendor is not None for dialect in it.vendor.schedulers)
    return any(it.receipt is not None for it in dialects)


def _heeds(config: Config) -> bool:
    """Whether schedulers choose the cards of a resource."""
    return any(rule.placement != "local" for it in config.vendors.values() for rule in it.resources)
