"""The process around the agent: signals, the config, the status on sockets, and the API connection."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from importlib import import_module

import anyio
import anyio.to_thread
import structlog

from agent import logs
from agent.cluster.credentials import ApiAccess
from agent.cluster.object_record import ObjectRecord, ObjectRecords
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.config import AgentSettings, Config, ConfigState, ConfigWatch, Labels
from agent.core.backoff import Pauses
from agent.core.cell import Cell, first
from agent.core.endless_tasks import for_ever
from agent.core.event_notices import Notice
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.node_agent import NodeAgent
from agent.host.version import version
from agent.state.uninstall_record import UninstallRecord

log = structlog.get_logger()

#: Seconds that the views of the status wait for the first registration, which they must not slow down.
VIEWS_AFTER = 0.5
#: The same for the connection to the API server: loading its library takes half a second of processor time.
CONNECT_AFTER = 5.0
#: Seconds from the first registration to the first collection of garbage: what is loaded then stays loaded.
COLLECT_AFTER = 2.0
#: Seconds between two tries to listen at an address that is in use, the shortest and the longest.
RETRY_BIND = (0.1, 5.0)


async def serve(
    watch: ConfigWatch,
    node_name: str,
    timing: AgentTiming | None = None,
    access: ApiAccess | None = None,
    labels: Cell[Labels | None] | None = None,
) -> None:
    """Run the agent until SIGTERM or SIGINT; SIGHUP reads the config again.

    `access` leads to the API server, where there is one. `labels` are the Node's, which that server shows.
    """
    agent = NodeAgent(watch.cell, node_name, timing, api=access is not None, recall=watch.recall)
    settings = agent.settings
    log.info(
        "starting",
        version=version(),
        node=node_name,
        config=watch.cell.value.source,
        kubelet_dir=str(settings.kubelet_dir),
        state_dir=str(settings.state_dir),
    )
    try:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(for_ever, watch.run)
                group.start_soon(for_ever, agent.run)
                group.start_soon(for_ever, _views, agent)
                if access is not None:
                    cells = labels or Cell(None), watch.cell
                    group.start_soon(for_ever, _cluster, agent, access, node_name, *cells)
                group.start_soon(for_ever, _follow, watch)
                group.start_soon(_collect_garbage, agent)
                await _until_signalled(signals, watch)
                group.cancel_scope.cancel()
    except Exception as exc:
        # The log outlasts the process and its standard error.
        log.critical("ending, a part of the agent has failed", error=_cause(exc))
        raise
    log.info("ended")


def _cause(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return f"{type(exc).__name__}: {exc}"


async def _collect_garbage(agent: NodeAgent) -> None:
    """Enable the garbage collector, which rests during the start: in imports there is little to collect.

    A tenth of the start's processor time went to the collector. Modules and classes that are loaded now live
    as long as the process, so that later collections leave them out.
    """
    if gc.isenabled():
        return  # another caller than `xpu-agent run`, such as a test
    with anyio.move_on_after(CONNECT_AFTER):
        await agent.registered.until(True)
    await anyio.sleep(COLLECT_AFTER)
    gc.collect()
    gc.freeze()
    gc.enable()


async def _until_signalled(signals: AsyncIterator[signal.Signals], watch: ConfigWatch) -> None:
    async for number in signals:
        if number is signal.SIGHUP:
            log.info("reading the config again", source=watch.cell.value.source)
            watch.reload()
        else:
            log.info("ending", signal=number.name)
            return


async def _follow(watch: ConfigWatch) -> None:
    """Log each change of the config. Of the agent's own settings, only the log level changes at once."""
    at_start = last = watch.cell.value
    _warn(at_start.config)
    async for state in watch.cell.watch():
        if state.waiting:
            log.warning("no config is in force yet", error=state.error)
        elif state.error:
            log.error("config refused", error=state.error)
        elif state != last:
            log.info("config taken in", source=state.source)
            _warn(state.config)
        if _but_level(state.config) != _but_level(at_start.config):
            log.warning("the change of `agent` takes effect at the next start", source=state.source)
        logs.set_level(state.config.agent.log.level)
        last = state


def _warn(config: Config) -> None:
    for warning in config.warnings:
        log.warning("config warning", warning=warning)


def _but_level(config: Config) -> AgentSettings:
    return replace(config.agent, log=replace(config.agent.log, level="info"))


async def _views(agent: NodeAgent) -> None:
    """Serve the status once the first resource is registered, or soon: the status says why none is."""
    with anyio.move_on_after(VIEWS_AFTER):
        await agent.registered.until(True)
    async with anyio.create_task_group() as group:
        if agent.settings.http:
            group.start_soon(for_ever, _keep_serving, agent.settings.http, agent)
        # The admin socket belongs to the agent that serves the node, not to a standby agent.
        await agent.serving.until(True)
        while True:
            moves = agent.moves.value
            await first(
                lambda: _keep_serving(str(agent.settings.state_dir / "agent.sock"), agent),
                lambda: agent.moves.other_than(moves),  # noqa: B023 (awaited before the next one)
            )


async def _cluster(
    agent: NodeAgent,
    access: ApiAccess,
    node_name: str,
    labels: Cell[Labels | None],
    config: Cell[ConfigState],
) -> None:
    """Connect to the API server after the first registration.

    At once where the config waits for the Node's labels, or where schedulers choose cards.
    """
    await agent.serving.until(True)  # a standby agent writes nothing
    with anyio.move_on_after(0.0 if config.value.waiting else CONNECT_AFTER):
        await first(lambda: agent.registered.until(True), lambda: agent.pod_state.wanted.until(True))
    from agent.daemon.event_notice_source import follow

    module = await anyio.to_thread.run_sync(import_module, "agent.cluster.api_connection")
    parts = agent.parts
    publisher = parts.publisher
    agent.api_connection = connection = module.ApiConnection(
        access,
        node_name,
        labels,
        pods=module.FollowedPods(agent.pods, parts.vendors.reads) if agent.settings.watch_pods else None,
        pod_state=agent.pod_state,
        report=publisher.report_state,
        records=_object_records(parts.uninstall_record, publisher.report_state),
        options=module.ConnectionOptions(os.environ.get("POD_NAME") or socket.gethostname()),
    )

    def publish(notice: Notice) -> None:
        if config.value.config.report.events:
            connection.events.add(notice)

    async with anyio.create_task_group() as group:
        wanted = publisher.labels, publisher.annotations, publisher.receipts, publisher.extended
        group.start_soon(for_ever, connection.run, *wanted)
        group.start_soon(for_ever, follow, agent.serving_view, lambda: agent.pods.value, publish)


def _object_records(record: UninstallRecord, report: SchedulerReportState | None) -> ObjectRecords:
    """Where the API connection records the objects that it writes, so that `uninstall` removes them."""
    kind = "" if report is None else report.reporting.object.name
    return ObjectRecords(
        features=ObjectRecord(record.note_namespace, record.forget_namespace),
        reports=ObjectRecord(partial(record.note_object, kind), partial(record.forget_object, kind)),
    )


async def _keep_serving(address: str, agent: NodeAgent) -> None:
    """Serve the status at the address for ever.

    A port that is in use must not end the agent: the agent that served before frees the port when it ends.
    """
    await anyio.to_thread.run_sync(import_module, "agent.http")  # some 20 ms of work, in a thread
    from agent import http

    logged = ""
    pauses = Pauses(*RETRY_BIND)
    while True:
        try:
            await http.serve(agent.view, address, agent.apply, agent.with_use, agent.prepare_use)
        except http.CannotServe as exc:
            if str(exc) != logged:
                log.error("views not served, trying again", address=address, error=str(exc))
            logged = str(exc)
            with anyio.move_on_after(pauses.next()):
                await agent.serving.changed()
                pauses.reset()
