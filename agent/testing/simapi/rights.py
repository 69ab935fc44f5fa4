"""The rights of the client: everything is allowed except what a test refuses."""

from __future__ import annotations

from typing import Any

from .api_resources import Catalog, Json, Place

Rule = tuple[str, Place]


class Rights:
    def __init__(self) -> None:
        self._refused: list[Rule] = []

    def forbid(self, verb: str, place: Place) -> None:
        self._refused.append((verb, place))

    def permit(self, verb: str, place: Place) -> None:
        """Remove a refusal; verb and place must be equal to those of `refuse`."""
        self._refused.remove((verb, place))

    def refuses(self, verb: str, place: Place) -> bool:
        return any(rule_verb in (verb, "*") and _covers(rule, place) for rule_verb, rule in self._refused)

    def reviewed(self, review: Json, catalog: Catalog) -> Json:
        """A SelfSubjectAccessReview with its answer. RBAC answers "allowed" or has no opinion."""
        asked: dict[str, Any] = (review.get("spec") or {}).get("resourceAttributes") or {}
        resource = catalog.named(asked.get("group", ""), asked.get("resource", ""))
        words = (asked.get(key, "") for key in ("namespace", "name", "subresource"))
        refused = resource is not None and self.refuses(asked.get("verb", ""), Place(resource, *words))
        return {**review, "status": {"allowed": not refused}}


def _covers(rule: Place, place: Place) -> bool:
    """Whether the rule covers the place. As in RBAC, a rule on a collection covers its objects, but a
    subresource needs a rule of its own."""
    same = rule.resource == place.resource and rule.subresource == place.subresource
    return same and rule.namespace in ("", place.namespace) and rule.name in ("", place.name)
