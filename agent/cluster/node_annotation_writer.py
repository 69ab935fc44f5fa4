"""Writes the annotations that vendors want on the Node, and removes them.

An annotation of the Node, written in the same patch, names the annotations that the agent wrote, as for
labels. So they are removed too after their vendor has left the config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.cluster.api_protocol import Object
from agent.cluster.object_fields import texts
from agent.cluster.own_node import ANNOTATED, MAX_ANNOTATION, OwnNode, recorded
from agent.cluster.repeated_writes import RepeatedWriteTexts
from agent.cluster.vendor_key_writer import OwnedWriter
from agent.core.publishing.node_annotation_rules import Annotated
from agent.scheduler_api.document_parts import part_of


def all_of(node: Object) -> dict[str, str]:
    """All annotations of a Node object."""
    return dict(texts(part_of(node, "metadata"), "annotations", MAX_ANNOTATION))


def patch(current: Mapping[str, str], wanted: Annotated) -> dict[str, Any] | None:
    """The merge patch that brings the agent's annotations to what is wanted; None if nothing differs.

    `current` has at least those of the Node's annotations that are recorded as the agent's. The patch has no
    resourceVersion, because only the agent writes these keys.
    """
    before = recorded(current)
    after = {key: text for key, text in wanted.values.items() if text is not None}
    stay = {key for key in before & wanted.awaited if key in current}
    removed = (before | wanted.values.keys()) & current.keys() - after.keys() - stay
    changed: dict[str, str | None] = {key: text for key, text in after.items() if current.get(key) != text}
    changed |= dict.fromkeys(removed)
    names = ",".join(sorted({*after, *stay})) or None
    if not changed and names == current.get(ANNOTATED):
        return None
    return {"metadata": {"annotations": {**changed, ANNOTATED: names}}}


class AnnotationWriter(OwnedWriter[str]):
    """Writes annotations to the Node's metadata."""

    words = RepeatedWriteTexts(
        "annotations refused",
        "annotations wait for the API server",
        "annotations are as they should be again",
        "another client changes annotations of vendors on this node as often as they are written",
    )
    record = ANNOTATED

    @classmethod
    def _differs(cls, node: OwnNode, wanted: Annotated) -> bool:
        return patch(node.annotations, wanted) is not None

    @classmethod
    def _changes(cls, node: Object, wanted: Annotated) -> Sequence[dict[str, Any]]:
        changes = patch(all_of(node), wanted)
        return () if changes is None else (changes,)

    @classmethod
    def _written(cls, changes: Mapping[str, Any]) -> Mapping[str, object]:
        texts: Mapping[str, object] = changes["metadata"]["annotations"]
        return texts
