"""What people are told of with the cluster's own means: a notice becomes an Event on its object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PodRef:
    """The pod that a notice is about; `uid` empty where it is not known."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """`reason` is one CamelCase word, `message` a sentence. `pod` None: it is about this node."""

    reason: str
    message: str
    kind: Literal["Normal", "Warning"] = "Warning"
    pod: PodRef | None = None
