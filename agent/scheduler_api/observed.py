"""A value that the doctor looked for, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A value; or None, and the reason why it could not be read.

    `is_absent`: the source answered that the object does not exist.
    """

    value: T | None = None
    why: str = ""
    is_absent: bool = False


#: Of values that nothing was read for.
UNREAD: Observed[Any] = Observed()
