"""Writes the annotations that vendors want on the Node, and removes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.cluster.api import Object
from agent.cluster.node_annotation_writer import all_of, patch
from agent.cluster.own_node import ANNOTATED, OwnNode
from agent.cluster.upkeep import UpkeepTexts
from agent.cluster.vendor_key_writer import OwnedWriter
from agent.core.publishing.node_annotation_rules import Annotated


class AnnotationWriter(OwnedWriter[str]):
    """Writes annotations to the Node's metadata."""

    words = UpkeepTexts(
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
