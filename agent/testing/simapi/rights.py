"""What the client may not do; everything else it may."""

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
        """Take a refusal back; it must have been said in the same words."""
        self._refused.remove((verb, place))

    def refuses(self, verb: str, place: Place) -> bool:
        return any(said in (verb, "*") and _covers(rule, place) for said, rule in self._refused)

    def reviewed(self, review: Json, catalog: Catalog) -> Json:
        """A SelfSubjectAccessReview with its answer, as RBAC gives it: may, or no opinion."""
        asked: dict[str, Any] = (review.get("spec") or {}).get("resourceAttributes") or {}
        resource = catalog.named(asked.get("group", ""), asked.get("resource", ""))
        words = (asked.get(key, "") for key in ("namespace", "name", "subresource"))
        refused = resource is not None and self.refuses(asked.get("verb", ""), Place(resource, *words))
        return {**review, "status": {"allowed": not refused}}


def _covers(rule: Place, place: Place) -> bool:
    """A rule on a collection is on its objects too; subresources have rules of their own, as in RBAC."""
    same = rule.resource == place.resource and rule.subresource == place.subresource
    return same and rule.namespace in ("", place.namespace) and rule.name in ("", place.name)
