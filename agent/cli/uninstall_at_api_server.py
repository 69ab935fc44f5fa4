"""`uninstall` at the API server: removes what agents wrote about a node, or waits for other nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from agent.cluster.api_errors import ApiError, NotFound
from agent.cluster.api_protocol import Api
from agent.cluster.credentials import ApiAccess
from agent.core.errors import AgentError, SchedulerError
from agent.scheduler_api.node_report import ReportObject
from agent.state.uninstall_record import NAME, RecordedObject

if TYPE_CHECKING:  # loaded only where there is an API server
    from agent.cluster.vendor_key_writer import OwnedWriter


class NotRemoved(AgentError):
    """Raised when something of the agent stays on the node or at the API server."""


@dataclass(frozen=True, slots=True)
class ServerObjects:
    """The objects beside the Node that agents of the node have written.

    `namespaces` have a NodeFeature of the node; `reports` list cards of the node.
    """

    namespaces: Sequence[str] = ()
    reports: Sequence[RecordedObject] = ()

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.reports)

    def names(self, kind: ReportObject) -> tuple[str, ...]:
        """Names of reports that are of this kind, or that were recorded without a kind."""
        return tuple(dict.fromkeys(it.name for it in self.reports if it.kind in ("", kind.name)))

    def of_unknown_kinds(self, kinds: Sequence[ReportObject]) -> Iterator[str]:
        """A sentence for each report that stays because no registered scheduler has its kind."""
        known = {it.name for it in kinds}
        for report in self.reports:
            if report.kind not in known and (report.kind or not known):
                yield _of_unknown_kind(report)


def _of_unknown_kind(report: RecordedObject) -> str:
    what = f"{report.kind} {report.name}" if report.kind else f"object {report.name} with cards of the node"
    kind = report.kind or "KIND"
    remedy = (
        "install the plugin of the scheduler and run uninstall again, or remove the cards by hand "
        f"(kubectl edit {kind} {report.name}) and delete the line of the object from {NAME}"
    )
    return f"{what}: not removed: no installed scheduler plugin has objects of this kind; {remedy}"


def remove_server_objects(access: ApiAccess, node_name: str, written: ServerObjects) -> None:
    """Remove labels, annotations and extended resources from the Node, and the reported cards.

    Raises:
        NotRemoved: The API server refuses, or does not answer.
    """
    try:
        stays = anyio.run(_remove_all, access, node_name, written)
    except ApiError as exc:
        what = f"labels, annotations, extended resources and reported cards of {node_name}"
        raise NotRemoved(f"{what} are not removed: {exc}") from exc
    if stays:
        raise NotRemoved("; ".join(stays))


async def _remove_all(access: ApiAccess, node_name: str, written: ServerObjects) -> list[str]:
    """Try to remove each object; returns a sentence for each that stays."""
    # Imported here: the client is large, and a node without an API server does not need it.
    from agent.cluster.api_client import open_api

    api = await open_api(access)
    try:
        labels = await _remove_labels(api, node_name, access.namespace, written.namespaces)
        annotations = await _remove_annotations(api, node_name)
        extended = await _remove_extended_resources(api, node_name)
        kinds = reported_kinds()
        cards = [
            await _remove_cards(api, name, kind, made=name in written.names(kind))
            for kind in kinds
            for name in dict.fromkeys((node_name, *written.names(kind)))
        ]
    finally:
        await api.close()
    return [it for it in (labels, annotations, extended, *cards, *written.of_unknown_kinds(kinds)) if it]


def reported_kinds() -> list[ReportObject]:
    """The kinds of API objects to which agents report the cards of nodes, from the registered schedulers."""
    # Imported here: the plugins of schedulers are not needed before something is removed.
    from agent.daemon.scheduler_plugins import registered

    return [it.report.object for it in registered() if it.report is not None]


async def _remove_labels(api: Api, node_name: str, namespace: str, made: Sequence[str]) -> str:
    from agent.cluster.label_writer import remove

    try:
        await remove(api, node_name, namespace, made)
    except ApiError as exc:
        remedy = "kubectl label node NODE KEY- removes them by hand"
        return f"labels of {node_name} are not removed: {exc}; {remedy}"
    say(f"labels of {node_name}: removed")
    return ""


async def _remove_annotations(api: Api, node_name: str) -> str:
    from agent.cluster.node_annotation_writer import AnnotationWriter

    by_hand = "kubectl annotate node NODE KEY-"
    return await _remove_keys(AnnotationWriter, api, f"annotations of {node_name}", node_name, by_hand)


async def _remove_extended_resources(api: Api, node_name: str) -> str:
    from agent.cluster.extended_resource_writer import EXTENDED, ExtendedWriter

    by_hand = (
        "kubectl patch node NODE --subresource=status --type=merge -p "
        f"""'{{"metadata":{{"annotations":{{"{EXTENDED}":null}}}},"""
        """"status":{"capacity":{"NAME":null},"allocatable":{"NAME":null}}}'"""
    )
    what = f"extended resources of {node_name}"
    return await _remove_keys(ExtendedWriter, api, what, node_name, by_hand)


async def _remove_keys(
    writer: type[OwnedWriter[Any]], api: Api, what: str, node_name: str, by_hand: str
) -> str:
    try:
        if await writer.remove(api, node_name):
            say(f"{what}: removed")
    except NotFound:
        return ""  # there is no such Node, and the step for labels reports that
    except ApiError as exc:
        return f"{what} are not removed: {exc}; {by_hand} removes them by hand"
    return ""


async def _remove_cards(api: Api, name: str, kind: ReportObject, *, made: bool) -> str:
    from agent.cluster.scheduler_report_withdrawal import needed_right, withdraw

    try:
        if await withdraw(api, name, kind, made=made):
            say(f"cards in the {kind.kind} {name}: removed")
    except ApiError as exc:
        return f"cards in the {kind.kind} {name} are not removed: {exc}; {needed_right(kind)}"
    except SchedulerError as exc:
        by_hand = f"kubectl edit {kind.name} {name} removes them by hand"
        return f"cards in the {kind.kind} {name} are not removed: {exc}; {by_hand}"
    return ""


def await_nodes(access: ApiAccess, daemonsets: Sequence[str], within: float) -> None:
    """Wait until the pods of these DaemonSets, which run `uninstall`, are done on each node.

    Raises:
        NotRemoved: Some pods are not done after `within` seconds.
        ApiError: The API server cannot be used.
    """
    missing = anyio.run(_wait_for_nodes, access, daemonsets, within)
    if missing:
        where = f"kubectl -n {access.namespace} get pods -o wide -l xpu-agent.io/uninstall"
        raise NotRemoved(f"after {within:g} s not every node is clean: {missing}; which: {where}")
    say(f"{', '.join(daemonsets)}: every node is clean")


async def _wait_for_nodes(access: ApiAccess, daemonsets: Sequence[str], within: float) -> str:
    from agent.cluster.api_client import open_api
    from agent.cluster.daemonset_pods import unready

    api = await open_api(access)
    try:
        return await unready(api, access.namespace, daemonsets, within)
    finally:
        await api.close()


def say(line: str) -> None:
    """Print a line about one thing that `uninstall` did or left."""
    sys.stdout.write(f"{line}\n")
