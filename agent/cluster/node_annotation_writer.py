"""The annotations that vendors give the node, as its Node should have them. Pure.

Which of them are the agent's own stands in an annotation of the Node, in the same patch as they, as it does
of labels: so they go, too, when the vendor has left the config meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.cluster.api import Object
from agent.cluster.object_fields import texts
from agent.cluster.own_node import ANNOTATED, MAX_ANNOTATION, recorded
from agent.core.publishing.node_annotation_rules import Annotated
from agent.scheduler_api.document_parts import part_of


def all_of(node: Object) -> dict[str, str]:
    """All annotations of a Node as the API server gives it."""
    return dict(texts(part_of(node, "metadata"), "annotations", MAX_ANNOTATION))


def patch(there: Mapping[str, str], wanted: Annotated) -> dict[str, Any] | None:
    """The merge patch that makes our annotations those that are wanted; None where they are.

    `there`: of the Node, at least those that it records as ours. The patch has no resourceVersion: nobody
    else writes these keys.
    """
    before = recorded(there)
    after = {key: text for key, text in wanted.values.items() if text is not None}
    stay = {key for key in before & wanted.awaited if key in there}
    gone = (before | wanted.values.keys()) & there.keys() - after.keys() - stay
    changed: dict[str, str | None] = {key: text for key, text in after.items() if there.get(key) != text}
    changed |= dict.fromkeys(gone)
    names = ",".join(sorted({*after, *stay})) or None
    if not changed and names == there.get(ANNOTATED):
        return None
    return {"metadata": {"annotations": {**changed, ANNOTATED: names}}}
