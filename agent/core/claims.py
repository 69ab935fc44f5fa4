"""Who asks, as schedulers say it: the pods of this node, and what of its devices each was promised.

Standard library only: a vendor's dialects are written in these words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: How the keys begin of the annotations in which schedulers promise devices. No others of a pod are kept.
PROMISES = (
    "xpu-agent.io/",
    "koordinator.sh/",
    "scheduling.koordinator.sh/",
    "enflame.com/",
    "tencent.com/",
    "metax-tech.com/",
    "hami.io/",
)


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container and its limits: resource name to count. `restartable` init containers are sidecars."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    init: bool = False
    restartable: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod bound to this node, as the API server shows it. Everything in it is a stranger's word."""

    uid: str
    namespace: str
    name: str
    containers: tuple[PodContainer, ...] = ()
    #: Those in which a scheduler may promise something.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Unix time, seconds
    created: float = 0.0
    #: Whether it is being deleted, has failed or has succeeded: it gets nothing any more.
    over: bool = False
    #: What the kubelet says of it in its status: why it was refused, say.
    message: str = ""
    #: Whether the uid is that of a static pod, which the pod says of itself; else the server gave it.
    static: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a scheduler promised one container: these cards, and what the vendor must make of them."""

    uid: str
    namespace: str
    pod: str
    container: str
    #: uuids of cards; empty where the scheduler chose none
    devices: tuple[str, ...] = ()
    #: What the hardware is made with, in the vendor's own words.
    parameters: Mapping[str, str] = field(default_factory=dict)


Claims = Callable[[Candidate, str, Sequence[str]], Sequence[Claim]]
"""The claims of a pod on a resource, given the uuids of the cards in the order of their minor numbers.

Pure. Raises ValueError where the annotations make no sense; the pod then has no claim, and the text is told.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one scheduler hands over its choice."""

    name: str
    claims: Claims
    #: How the keys of the annotations begin that it reads beside `PROMISES`, such as `acme.com/`.
    reads: tuple[str, ...] = ()
