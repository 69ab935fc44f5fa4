"""Where the agent writes down its objects at the API server, so that `uninstall` removes them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field


def _ignore(name: str) -> None: ...


class ObjectRecord(Struct, frozen=True):
    """The record of one kind of objects: of the namespaces of NodeFeature objects, or of reports."""

    #: Called with a name before the object is made.
    note: Callable[[str], object] = _ignore
    #: Called with a name once the API server has no such object of this agent any more.
    forget: Callable[[str], object] = _ignore


class ObjectRecords(Struct, frozen=True):
    """The records of all kinds of objects that the agent makes."""

    #: Namespaces in which NodeFeature objects may be.
    features: ObjectRecord = field(default_factory=ObjectRecord)
    #: Names of objects that may list cards of this node for a scheduler.
    reports: ObjectRecord = field(default_factory=ObjectRecord)
