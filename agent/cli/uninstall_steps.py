"""`xpu-agent uninstall`: removes from the node what survives the agent's end, but for checkpoint and logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agent.cluster.api import Api
from agent.cluster.api_errors import ApiError, NotFound
from agent.cluster.credentials import ApiAccess
from agent.core.errors import AgentError
from agent.kubelet.directory_lock import NodeLock
from agent.kubelet.plugin_sockets import sweep
from agent.scheduler_api.node_report import ReportObject
from agent.state import state_directory
from agent.state.agent_lock import AgentLock
from agent.state.uninstall_record import NAME, UninstallRecord, is_out_of_sight

if TYPE_CHECKING:  # it is loaded where there is an API server
    from agent.cluster.vendor_key_writer import OwnedWriter


class StillServing(AgentError):
    """Raised when an agent holds the node's lock: it would write again what is removed."""

    def __init__(self, state_dir: Path, holder: str) -> None:
        super().__init__(f"{state_dir}: an agent serves this node ({holder}); end it first, or give --force")


class NotRemoved(AgentError):
    """Raised when something stays on the node, or of what the API server was told of it."""


@dataclass(frozen=True, slots=True)
class ServerObjects:
    """Which objects beside the Node the API server may have: NodeFeatures by namespace, Devices by name."""

    namespaces: Sequence[str] = ()
    devices: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.devices)


#: Takes back what the API server was told, these objects among it. Returns whether it could ask one.
TakeBack = Callable[[ServerObjects], bool]


def uninstall(
    state_dir: Path,
    kubelet_dir: Path,
    more: Sequence[Path] = (),
    *,
    take_back: TakeBack = lambda _: False,
    force: bool = False,
) -> int:
    """Remove CDI specs, files for others, sockets and the lock, and what `take_back` does; print each.

    Running pods keep their devices, and vendors what they keep of slices. `more`: files that count as the
    agent's beside those that it has written down. `take_back` removes labels, annotations, extended resources
    and our cards in the Device, and raises AgentError where something stays at the API server. `force` goes
    on while an agent serves; that one writes it all again within a minute.
    The list of what is the agent's goes last, and only when all on it is gone.

    Raises:
        StillServing: An agent serves the node, and nothing is removed.
        NotRemoved: Some could not be; the others are.
    """
    state = AgentLock(state_dir / "agent.lock") if state_dir.is_dir() else None
    with NodeLock(kubelet_dir, state) as lock:
        holder = lock.take()
        if holder and not force:
            raise StillServing(state_dir, holder)
        if state is None:
            _say(f"{state_dir}: not there, so that no agent of this node used it")
        _remove_all(state_dir, kubelet_dir, more, take_back, serving=bool(holder))
    return 0


def _remove_all(
    state_dir: Path, kubelet_dir: Path, more: Sequence[Path], take_back: TakeBack, *, serving: bool
) -> None:
    kept: list[str] = []
    try:
        remains = UninstallRecord(state_dir / NAME)
        written, told = remains.all(), ServerObjects(remains.namespaces(), remains.devices())
        anothers = {it for it in written if remains.is_anothers(it)}.difference(more)
    except OSError as exc:
        raise NotRemoved(f"{state_dir / NAME}: cannot be read: {exc.strerror}; nothing is removed") from exc
    for path in dict.fromkeys((*written, *more)):
        if path in anothers:
            _say(f"{path}: stays: another program has written it since")
        else:
            kept += [_unseen(path)] if is_out_of_sight(path, os.environ) else _remove(path)
    for path in sweep(kubelet_dir):
        _say(f"{path}: removed")
    refused = _refusal(take_back, told)
    # Not before all on the list is gone: the next try needs it. A lock in use stays.
    for path in () if serving or kept or (refused and told) else _own(state_dir):
        kept += _remove(path)
    if not serving:
        _remove_empty(state_dir / state_directory.VENDORS)
    if kept or refused:
        raise NotRemoved("; ".join([*kept, *refused]))


def _remove_empty(directory: Path) -> None:
    """Remove the vendors' directories that hold nothing; what is kept there the next agent needs."""
    with suppress(OSError):
        for it in (*directory.iterdir(), directory):
            with suppress(OSError):
                it.rmdir()


def _own(state_dir: Path) -> list[Path]:
    """The agent's in its state directory beside checkpoint and logs, written whole or not; the list last."""
    try:
        there = [
            it for it in state_dir.iterdir() if it.name.startswith(state_directory.AGENTS) and not it.is_dir()
        ]
    except FileNotFoundError:
        return []
    return sorted(there, key=lambda it: (it.name == NAME, it.name))


def _refusal(take_back: TakeBack, told: ServerObjects) -> list[str]:
    """Why something stays at the API server, or may; empty where nothing does."""
    try:
        asked = take_back(told)
    except AgentError as exc:
        return [str(exc)]
    return [] if asked else [*_not_looked_for(told)]


def _not_looked_for(told: ServerObjects) -> Iterator[str]:
    unknown = "not looked for, as no API server is known; give --kubeconfig"
    strike = f"where it is gone, strike it out of {NAME}"
    if told.namespaces:
        by_hand = f"kubectl -n NAMESPACE get nodefeatures shows it; {strike}"
        yield f"NodeFeature in {', '.join(told.namespaces)}: {unknown}, or {by_hand}"
    if told.devices:
        by_hand = f"kubectl get devices.scheduling.koordinator.sh shows it; {strike}"
        yield f"Device {', '.join(told.devices)}: {unknown}, or {by_hand}"


def _unseen(path: Path) -> str:
    where = f"{path.parent} of the node is not mounted here"
    return f"{path}: not removed: {where}; on the node: rm -f {path}, then strike it out of {NAME}"


def _remove(path: Path) -> Iterator[str]:
    """Remove a file and what a killed agent left unfinished of it; yields why it is still there."""
    for unfinished in _unfinished(path):
        with suppress(OSError):
            unfinished.unlink()
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        yield f"{path}: not removed: {exc.strerror}"
        return
    _say(f"{path}: removed")


def take_back(access: ApiAccess, node_name: str, told: ServerObjects) -> None:
    """Take back what agents told the API server of the node: labels, annotations, extended resources, and its
    cards in the Device.

    Raises:
        NotRemoved: It refuses, or does not answer.
    """
    try:
        stays = anyio.run(_taken_back, access, node_name, told)
    except ApiError as exc:
        what = f"labels, annotations, extended resources and Device of {node_name}"
        raise NotRemoved(f"{what} are not removed: {exc}") from exc
    if stays:
        raise NotRemoved("; ".join(stays))


async def _taken_back(access: ApiAccess, node_name: str, told: ServerObjects) -> list[str]:
    """All of it is tried; returns why something stays."""
    # The client is heavy, and only a node with an API server needs it.
    from agent.cluster.client import open_api
    from agent.daemon.scheduler_plugins import registered

    api = await open_api(access)
    try:
        labels = await _labels_gone(api, node_name, access.namespace, told.namespaces)
        annotations = await _annotations_gone(api, node_name)
        extended = await _extended_gone(api, node_name)
        names = dict.fromkeys((node_name, *told.devices))
        kinds = [it.report.object for it in registered() if it.report is not None]
        cards = [await _cards_gone(api, it, kind, made=it in told.devices) for kind in kinds for it in names]
    finally:
        await api.close()
    return [it for it in (labels, annotations, extended, *cards) if it]


async def _labels_gone(api: Api, node_name: str, namespace: str, made: Sequence[str]) -> str:
    from agent.cluster.label_writer import remove

    try:
        await remove(api, node_name, namespace, made)
    except ApiError as exc:
        remedy = "kubectl label node NODE KEY- removes them by hand"
        return f"labels of {node_name} are not removed: {exc}; {remedy}"
    _say(f"labels of {node_name}: removed")
    return ""


async def _annotations_gone(api: Api, node_name: str) -> str:
    from agent.cluster.node_annotation_writer import AnnotationWriter

    by_hand = "kubectl annotate node NODE KEY-"
    return await _owned_gone(AnnotationWriter, api, f"annotations of {node_name}", node_name, by_hand)


async def _extended_gone(api: Api, node_name: str) -> str:
    from agent.cluster.extended_resource_writer import EXTENDED, ExtendedWriter

    by_hand = (
        "kubectl patch node NODE --subresource=status --type=merge -p "
        f"""'{{"metadata":{{"annotations":{{"{EXTENDED}":null}}}},"""
        """"status":{"capacity":{"NAME":null},"allocatable":{"NAME":null}}}'"""
    )
    what = f"extended resources of {node_name}"
    return await _owned_gone(ExtendedWriter, api, what, node_name, by_hand)


async def _owned_gone(kind: type[OwnedWriter[Any]], api: Api, what: str, node_name: str, by_hand: str) -> str:
    try:
        if await kind.remove(api, node_name):
            _say(f"{what}: removed")
    except NotFound:
        return ""  # there is no such Node, as is said of its labels
    except ApiError as exc:
        return f"{what} are not removed: {exc}; {by_hand} removes them by hand"
    return ""


async def _cards_gone(api: Api, name: str, kind: ReportObject, *, made: bool) -> str:
    from agent.cluster.report_object_withdrawal import needed_right, withdraw

    try:
        if await withdraw(api, name, kind, made=made):
            _say(f"cards in the {kind.kind} {name}: removed")
    except ApiError as exc:
        return f"cards in the {kind.kind} {name} are not removed: {exc}; {needed_right(kind)}"
    return ""


def await_nodes(access: ApiAccess, daemonsets: Sequence[str], within: float) -> None:
    """Wait until the pods of these DaemonSets, which uninstall the agent, are done on each node.

    Raises:
        NotRemoved: Some are not after so many seconds.
        ApiError: The way to the API server cannot be used.
    """
    missing = anyio.run(_undone, access, daemonsets, within)
    if missing:
        where = f"kubectl -n {access.namespace} get pods -o wide -l xpu-agent.io/uninstall"
        raise NotRemoved(f"after {within:g} s not every node is clean: {missing}; which: {where}")
    _say(f"{', '.join(daemonsets)}: every node is clean")


async def _undone(access: ApiAccess, daemonsets: Sequence[str], within: float) -> str:
    from agent.cluster.client import open_api
    from agent.cluster.daemonset_pods import unready

    api = await open_api(access)
    try:
        return await unready(api, access.namespace, daemonsets, within)
    finally:
        await api.close()


def _unfinished(path: Path) -> list[Path]:
    prefix = f".{path.name}."
    try:
        beside = list(path.parent.iterdir())
    except OSError:
        return []
    return [it for it in beside if it.name.startswith(prefix) and it.name.removeprefix(prefix).isdecimal()]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
