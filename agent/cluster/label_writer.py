"""Writes the labels of the devices to the Node or to a NodeFeature object, and removes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import anyio.to_thread
from msgspec import Struct

from agent.cluster.api_errors import ApiError, ApiRefused, Forbidden, NotFound
from agent.cluster.api_protocol import Api, Object
from agent.cluster.label_patches import OWNED, feature, feature_name, feature_path, features_path, node_patch
from agent.cluster.object_record import ObjectRecord
from agent.cluster.own_node import OwnNode, own_node, path
from agent.cluster.repeated_writes import RepeatedWrites, RepeatedWriteTexts, RepeatingWriter, twice
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.label_rules import WantedFeatures

MAY_PATCH = "allow patch on nodes, or remove them by hand: kubectl label node NODE KEY-"
MAY_DELETE = "allow delete on nodefeatures, or remove it by hand: kubectl delete nodefeature"


WORDS = RepeatedWriteTexts(
    "labels refused",
    "labels wait for the API server",
    "labels are as they should be again",
    "another client changes labels of this node as often as they are written",
)


class LabelTiming(Struct, frozen=True):
    """Seconds between writes, and between looks."""

    #: Between two writes, so that another writer of the same labels causes no storm.
    between: float = 5.0
    #: Between two looks at a NodeFeature object, which is not watched.
    every: float = 300.0


class LabelWriter(RepeatingWriter):
    """Keeps the labels at the API server as they are wanted, and leaves them there when the agent ends.

    Only differences are written. While the server is away, the writer tries again with pauses.
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        namespace: str,
        wanted: Cell[WantedFeatures | None],
        node: Cell[OwnNode | None],
        *,
        record: ObjectRecord | None = None,
        pauses: Pauses | None = None,
        timing: LabelTiming | None = None,
    ) -> None:
        """`namespace`: of the NodeFeature object where the config names none. `record` holds the namespaces
        that may have such an object of this agent; its functions are called in a thread. `pauses`: before
        writes that the API server did not take.
        """
        self._api = api
        self._node_name = node_name
        self._namespace = namespace
        self._wanted = wanted
        self._node = node
        self._record = record or ObjectRecord()
        pauses = pauses or Pauses(1.0, 60.0)
        timing = timing or LabelTiming()
        self._writes = RepeatedWrites(
            self._write,
            WORDS,
            node_name,
            pauses=pauses,
            refused=pauses,
            between=timing.between,
            every=timing.every,
        )
        #: Namespaces that may have a NodeFeature object of the agent that is not wanted there.
        self._features = {namespace}
        #: The wanted labels for which the API server refused to show the Node.
        self._unseen: WantedFeatures | None = None

    async def run(self, returns: Cell[int]) -> None:
        """Follow the wanted labels and the Node, for ever. The labels stay after the agent: pods need them.

        `returns` counts how often the server was away and came back.
        """
        await self._writes.run((self._wanted, self._node), returns)

    async def _write(self, live: bool) -> str:
        """Write what differs; returns why labels stay where they are not wanted, empty if none do."""
        wanted = self._wanted.value
        if wanted is None:
            return ""  # the wanted labels are not known yet
        stays: list[str] = []
        kept_in: set[str] = set()
        if wanted.published_as == "node":
            await self._write_node(await self._node_patch(wanted))
        else:
            if wanted.published_as == "nodeFeature":
                namespace = wanted.namespace or self._namespace
                await self._write_feature(namespace, wanted)
                kept_in = {namespace}
                self._features |= kept_in
            stays += await self._leave_node(wanted)
        return "; ".join([*stays, *await self._leave_features(kept_in)])

    async def _node_patch(self, wanted: WantedFeatures) -> dict[str, Any] | None:
        """The patch for the Node as it is now; None if nothing differs."""
        node = self._node.value
        if node is None or node_patch(node, wanted) is None:
            return None  # a change of the Node starts the next write
        # The watch may be late; a patch with an older resourceVersion would be refused.
        node = own_node(await self._api.get(path(self._node_name)))
        return node_patch(node, wanted) if node is not None else None

    async def _write_node(self, patch: dict[str, Any] | None) -> None:
        if patch is not None:
            await self._api.patch(path(self._node_name), patch)
            self._writes.wrote(_values(patch["metadata"]))

    async def _write_feature(self, namespace: str, wanted: WantedFeatures) -> None:
        at = feature_path(namespace, self._node_name)
        try:
            found = await self._api.get(at)
        except NotFound:
            fresh = feature(None, self._node_name, wanted)
            if fresh is not None:
                await anyio.to_thread.run_sync(self._record.note, namespace)
                await self._create(features_path(namespace), fresh)
            return
        await anyio.to_thread.run_sync(self._record.note, namespace)  # an earlier agent may not have noted it
        changed = feature(found, self._node_name, wanted)
        if changed is not None:
            await self._api.put(at, changed)
            self._writes.wrote({})

    async def _create(self, at: str, fresh: Object) -> None:
        try:
            await self._api.post(at, fresh)
        except NotFound as exc:
            why = "install node-feature-discovery there, or set report.labelsAs to node"
            raise ApiError(f"{exc}: the API server has no NodeFeature objects; {why}") from exc
        self._writes.wrote({})

    async def _leave_node(self, wanted: WantedFeatures) -> list[str]:
        """Hand over to the NodeFeature object, or remove, what an agent wrote to the Node.

        Returns why labels stay: our annotation is there, but may not be changed.
        """
        if wanted == self._unseen:
            return []
        try:
            patch = await self._node_patch(wanted)
        except Forbidden:  # without the right to read, do not try again
            self._unseen = wanted
            return []
        try:
            await self._write_node(patch)
        except Forbidden as exc:
            return [f"labels that an agent wrote to the Node stay: {exc}; {MAY_PATCH}"]
        return []

    async def _leave_features(self, wanted: set[str]) -> list[str]:
        """Remove our NodeFeature object outside of the wanted namespaces; returns why one stays."""
        stays = []
        for namespace in sorted(self._features - wanted):
            try:
                if await _removed(self._api, namespace, self._node_name):
                    await anyio.to_thread.run_sync(self._record.forget, namespace)
            except Forbidden as exc:
                stays.append(_stays(namespace, self._node_name, exc))
            else:
                self._features.discard(namespace)
        return stays


def _values(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """What a patch changes by key; our annotation counts only if nothing else changes."""
    labels = {key: value for key, value in metadata["labels"].items() if value is not None}
    return labels or {OWNED: metadata["annotations"][OWNED] or ""}


async def remove(api: Api, node_name: str, namespace: str, made: Collection[str] = ()) -> None:
    """Remove the labels of any agent from this node, for uninstalling; a failure does not end the rest.

    `namespace` may have a NodeFeature object; `made` are the namespaces in which one was made.

    Raises:
        ApiError: Some labels stay because the API server refuses, or the server is away.
    """
    stays: list[str] = []
    try:
        await twice(lambda _: _unlabel(api, node_name))
    except ApiRefused as exc:
        stays.append(str(exc))
    for name in dict.fromkeys((namespace, *made)):
        try:
            await _removed(api, name, node_name, made=name in made)
        except Forbidden as exc:
            stays.append(_stays(name, node_name, exc))
        except ApiRefused as exc:
            stays.append(str(exc))
    if stays:
        raise ApiError("; ".join(stays))


async def _unlabel(api: Api, node_name: str) -> None:
    node = own_node(await api.get(path(node_name)))
    patch = node_patch(node, WantedFeatures()) if node is not None else None
    if patch is not None:
        await api.patch(path(node_name), patch)


async def _removed(api: Api, namespace: str, node_name: str, *, made: bool = False) -> bool:
    """Remove our NodeFeature object, if it exists. `made` says that one was made, also if it cannot be read.

    Returns whether the object is known to be gone.

    Raises:
        Forbidden: The object exists, and may not be removed.
    """
    at = feature_path(namespace, node_name)
    try:
        await api.delete(at)
    except NotFound:
        pass
    except Forbidden:
        found = await _is_there(api, at)
        if found or (found is None and made):
            raise
        return found is False
    return True


async def _is_there(api: Api, at: str) -> bool | None:
    """Whether the object exists; None where reading it is forbidden."""
    try:
        await api.get(at)
    except NotFound:
        return False
    except Forbidden:
        return None
    return True


def _stays(namespace: str, node_name: str, why: Forbidden) -> str:
    return f"NodeFeature {feature_name(node_name)} stays in {namespace}: {why}; {MAY_DELETE}"
