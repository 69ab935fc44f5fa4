"""How other tools show a vendor's cards and the pods that have them: the values that such a format gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.vendor_api.backend import Device


@dataclass(frozen=True, slots=True)
class CardCount:
    """A card within one resource: how many IDs the card has there.

    `mode` is the other resource that has the card for now; empty where no other resource has the card.
    """

    resource: str
    uuid: str
    count: int
    mode: str = ""


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod that has devices, or is promised them. `created`: Unix time, seconds; None where unknown."""

    namespace: str
    name: str
    uid: str = ""
    created: float | None = None
    #: Whether no container of the pod has started yet.
    pending: bool = True


@dataclass(frozen=True, slots=True)
class ContainerShare:
    """How many of a resource's IDs one container has of a card. `pod` None: the pod is not known.

    An ID that several containers of a pod have one after another is counted once.
    """

    resource: str
    uuid: str
    count: int
    pod: ListedPod | None = None
    container: str = ""
    #: Whether the container has the IDs; else a scheduler has promised them, and no Allocate has come yet.
    allocated: bool = True
    #: What the claim says of the hardware to make, and the slices that were made, by the vendor's ids.
    parameters: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeListing:
    """A vendor's devices, and which pods have them. Shares are in the order of their pods, oldest first."""

    node: str
    devices: tuple[Device, ...] = ()
    counts: tuple[CardCount, ...] = ()
    shares: tuple[ContainerShare, ...] = ()


class NotShown(LookupError):
    """Raised by a format that has no such node or query; `document` is the answer that says so."""

    def __init__(self, document: Any) -> None:
        super().__init__(str(document))
        self.document = document


@dataclass(frozen=True, slots=True)
class Format:
    """How another tool shows the allocated devices, for readers of that tool.

    `document` is pure: a listing of the node, the name of the wanted node (empty: none is named) and the
    query in, plain JSON values out. It raises NotShown where there is nothing to show, such as for another
    node.
    """

    #: For `xpu-agent inspect --format NAME`.
    name: str
    document: Callable[[NodeListing, str, Mapping[str, str]], Any]
    #: The path of that tool, such as `/acme/inspect`; each node has a path of its name below. Empty: none.
    path: str = ""


@dataclass(frozen=True, slots=True)
class FormatOf:
    """A format that a vendor names; the scheduler's plugin makes it from the vendor's terms."""

    scheduler: str
    format: str
    #: What the format needs to know of the vendor, such as the names of resources. The scheduler's plugin
    #: chooses the keys.
    terms: Mapping[str, str] = field(default_factory=dict)
