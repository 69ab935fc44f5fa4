"""The report of a node's cards to a scheduler, and what a scheduler's plugin says of the report mode.

A report is published in one of two modes. `device`: an API object of the node's name has the cards. `feed`: a
file on the node has them, and a program of the scheduler on the node makes the API object from the file.
The agent reads and writes object and file for any plugin; the plugin's functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.scheduler_api.node_cards import NodeCards

#: Status of a condition. Unknown: the state of the card cannot be told.
Status = Literal["True", "False", "Unknown"]
Mode = Literal["feed", "device", "none"]
#: The setting `report.mode`.
WantedMode = Literal["auto", "feed", "device", "none"]
#: An object as the API server has it, decoded from JSON.
ApiDocument = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LinkedCards:
    """A group of cards, each linked directly with each other: their minors in order, and the link's type."""

    minors: tuple[int, ...]
    type: str


@dataclass(frozen=True, slots=True)
class ReportedCard:
    """One physical card of a report."""

    uuid: str
    #: No other card of the report has this number.
    minor: int
    #: The health that the kubelet is told, so that kubelet and scheduler agree.
    healthy: bool = True
    status: Status = "True"
    #: In the form of a condition's reason; empty for a healthy card.
    reason: str = ""
    message: str = ""
    #: Bytes; 0 where unknown.
    memory: int = 0
    #: In the form of a label's value.
    model: str = ""
    #: NUMA node; -1 where the platform does not say.
    numa: int = -1
    #: PCIe root of the card: pci0000:3a
    pcie: str = ""
    #: 0000:3b:00.0
    pci: str = ""
    #: Labels of this card alone, by which pods may choose cards.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Resources beside the ones that the scheduler counts on every card: name to Quantity.
    resources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The cards of the one vendor that a node reports, in the order of their minors."""

    #: As the scheduler names the vendor.
    vendor: str
    cards: tuple[ReportedCard, ...]
    #: Of all cards; empty where the cards differ.
    model: str = ""
    driver: str = ""
    links: tuple[LinkedCards, ...] = ()
    #: A sentence for each card or vendor that is not reported.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownReport:
    """What the API server shows of the scheduler on this node."""

    #: Whether the API server has objects of the kind that a `ReportObject` names.
    has_kind: bool = False
    #: Why the API server refuses to show the node's object; empty where it shows the object.
    refused: str = ""
    #: How a program of the scheduler on the node shows that it writes the object itself; empty without one.
    program: str = ""
    #: Whether that program undid what the agent had written.
    overwritten: bool = False
    #: The pod of such a program that runs here and does not write the object; empty without one.
    silent: str = ""
    #: What the node's object says of cards.
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """The report mode, and why. `trouble`: the config names another mode."""

    mode: Mode
    why: str
    trouble: bool = False


@dataclass(frozen=True, slots=True)
class ModeQuestion:
    """All that decides on the report mode."""

    #: The setting `report.mode`.
    wanted: WantedMode
    #: None while the API server has not been asked.
    shown: ShownReport | None
    #: Whether the agent has an API server.
    api: bool
    #: A resource of shares that is named as one of `whole_cards`; empty without one.
    shares: str = ""
    #: The directory for the file, where the node lacks it and `wanted` is auto; empty where it exists.
    missing: str = ""


@dataclass(frozen=True, slots=True)
class PublishedReport:
    """The report that is published now, and its mode.

    `withdraw_file`, `withdraw_object`: the config excludes this mode. A file, or the cards in an object, that
    the agent wrote are removed. With `report.mode: auto` both stay, because the mode may change again soon.
    """

    mode: Mode
    report: Report | None = None
    #: The setting `report.deviceInfosDir`.
    directory: str = ""
    withdraw_file: bool = False
    withdraw_object: bool = False


@dataclass(frozen=True, slots=True)
class ReportFile:
    """The format of a file with a node's cards, in a directory with files of other programs."""

    #: The whole text of the file. Raises ValueError for a report without cards.
    text: Callable[[Report], str]
    #: The cards in a file that any program wrote, uuid to minor. Raises ValueError where the text has another
    #: format.
    cards: Callable[[str], Mapping[str, int]]
    #: The report in a file that the agent wrote, as far as the file holds it; None where it has no card.
    report: Callable[[str], Report | None]
    #: The report without the cards that other files list (file name to its cards, uuid to minor). `left_out`
    #: gains one sentence for each removed card, in the order of the cards.
    without: Callable[[Report, Mapping[str, Mapping[str, int]]], Report]


@dataclass(frozen=True, slots=True)
class ObjectOwner:
    """The Node that owns the object, by name and uid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ObjectLook:
    """One look at the node's object and at the pods of the scheduler's program on the node."""

    #: None where the node has no object, or the agent may not read it.
    document: ApiDocument | None
    #: Whether the last list of objects failed.
    failed: bool
    #: What `ReportObject.shows_program` says of each pod, in alphabetical order, without empty texts.
    programs: tuple[str, ...]
    #: Whether the program undid what the agent had written, since the last `ObjectVerdict.forgives`.
    overwritten: bool
    published: PublishedReport | None
    #: Uuids of the cards that other files of the directory list.
    elsewhere: frozenset[str]
    #: Seconds of a clock that never goes back.
    now: float


@dataclass(frozen=True, slots=True)
class ObjectVerdict:
    """What the plugin concludes from a look. The agent adds `has_kind`, `refused` and `overwritten`."""

    #: `ShownReport.program`, `.silent`.
    program: str = ""
    silent: str = ""
    #: Handed to the next look, whatever it is.
    memory: Any = None
    #: Time of the look's clock at which the verdict changes without any change at the API server.
    until: float = math.inf
    #: Whether the agent may write the object again, although the program undid an earlier write.
    forgives: bool = False


@dataclass(frozen=True, slots=True)
class ReportObject:
    """The kind of a cluster-scoped API object that has the cards of the node of the same name.

    Group, version, kind and plural name of the kind: `scheduling.koordinator.sh`, `v1alpha1`, `Device`,
    `devices`. The functions take objects as the API server has them; any author may have written them.
    """

    group: str
    version: str
    kind: str
    plural: str
    #: Label selector of the pods of the scheduler's program on the node.
    programs: str
    #: How a pod shows that the program writes the object itself; empty where the program does not write the
    #: object, None for a pod of another program.
    shows_program: Callable[[ApiDocument], str | None]
    #: What follows from a look, given the memory of the last verdict; None for the first look.
    judge: Callable[[ObjectLook, Any], ObjectVerdict]
    #: The object to create (no object given) or to replace the given one; None where it is right already.
    #: The last argument is the time, Unix seconds.
    wanted: Callable[[ObjectOwner, Report, ApiDocument | None, float], ApiDocument | None]
    #: The object without the report's cards; None where nothing of others is left in the object.
    withdrawn: Callable[[ApiDocument], ApiDocument | None]
    #: What an object says of cards; None where it names none.
    report: Callable[[ApiDocument | None], Report | None]
    #: The part of an object that has the cards; the agent compares it and nothing else.
    listed: Callable[[ApiDocument | None], Any]
    #: Uuids of all devices in an object, also of devices that `report` leaves out.
    uuids: Callable[[ApiDocument], frozenset[str]]
    #: Whether the cards in the object are from an agent.
    is_of_agent: Callable[[ApiDocument], bool]
    #: Whether the cards in the object are from the scheduler's program on the node.
    is_of_program: Callable[[ApiDocument | None], bool]

    @property
    def name(self) -> str:
        """The kind's full name, as kubectl takes it: devices.scheduling.koordinator.sh."""
        return f"{self.plural}.{self.group}"

    @property
    def api_path(self) -> str:
        """Path of the API version, where the API server lists its kinds."""
        return f"/apis/{self.group}/{self.version}"

    @property
    def path(self) -> str:
        """Path of all objects of the kind."""
        return f"{self.api_path}/{self.plural}"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """How a scheduler gets the report of a node's cards. Of all registered schedulers one may have it."""

    #: Names of the scheduler and of its program on the node, for people: Koordinator, koordlet.
    scheduler: str
    program: str
    #: The report. Arguments: the cards of the node, the vendor that the config names or an empty text, the
    #: last report or None, and the cards that no pod gets (uuid to a sentence with the reason). None: nothing
    #: can be said, and the last report stays.
    report: Callable[[NodeCards, str, Report | None, Mapping[str, str]], Report | None]
    #: Whether a vendor in service brings the cards of the report, or that is not known yet. The text is the
    #: vendor that the config names.
    is_served: Callable[[NodeCards, str, Report], bool]
    #: A sentence for each vendor that is left out because the config names another vendor.
    passed_over: Callable[[NodeCards, str], Sequence[str]]
    #: The report mode; None while it is not known, and the last mode stays.
    choose: Callable[[ModeQuestion], ModeChoice | None]
    object: ReportObject
    file: ReportFile
    #: Reasons for mode `none` that are no fault. `inspect` shows no line for these.
    unconcerned: tuple[str, ...] = ()
    #: Resource names for which the scheduler takes one device as one whole card.
    whole_cards: tuple[str, ...] = ()
    #: What gives the agent the rights on the object, for people: "koordinator.enabled of the chart".
    granted_by: str = ""
