"""The device-infos file from which koordlet makes the Device.

The file is an array of objects. Their scalars are strings or booleans: with one number in a file koordlet
takes no file of the directory. Source: koordinator pkg/koordlet/util/device.go (XPUDeviceInfo),
collector_xpu.go; states_device_linux.go for what koordlet makes of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.scheduler_api.node_report import LinkedCards, Report, ReportedCard
from agent.scheduler_api.quantities import whole
from agent.schedulers.common.resource_names import WHOLE, quantity
from agent.schedulers.koordinator.reported_cards import MAX_MINOR, reason
from agent.vendor_api.text import shorten

#: The directory of the files, unless koordlet has the flag -xpu-device-infos-dir.
DIRECTORY = "/var/run/koordlet/xpu-device-infos"

#: koordlet adds its domain to these names, and adds the ratio.
_CORE, _MEMORY = "gpu-core", "gpu-memory"
_OWN = frozenset({_CORE, _MEMORY})

#: The keys that koordlet decodes into strings, of an entry and of its parts.
_SCALARS = ("vendor", "model", "uuid", "minor")
_OF_TOPOLOGY = ("socketID", "nodeID", "pcieID", "busID")
_OF_STATUS = ("errCode", "errMessage")
_OF_LINK = ("peerMinor", "type")

_Entry = Mapping[str, Any]


def device_infos(report: Report) -> str:
    """The whole text of the file, one card a line.

    Raises:
        ValueError: The report has no cards. koordlet would remove all cards because of an empty list.
    """
    if not report.cards:
        raise ValueError("a file without cards takes all of them from the node")
    entries = (json.dumps(_entry(report, it), ensure_ascii=False) for it in report.cards)
    return "[\n" + ",\n".join(entries) + "\n]\n"


def unlisted(report: Report, files: Mapping[str, Mapping[str, int]]) -> Report:
    """The report without the cards that other files of the directory list. It may have no card left.

    `files`: name to the cards of the file (`cards`). koordlet counts a card twice that two files list, also
    two cards of one minor. Each card that is left out gets a sentence in `left_out`.
    """
    lists = {uuid: name for name, listed in files.items() for uuid in listed}
    other = {minor: (uuid, name) for name, listed in files.items() for uuid, minor in listed.items()}
    left = {it.uuid: it.minor for it in report.cards if it.uuid in lists or it.minor in other}
    cards = tuple(it for it in report.cards if it.uuid not in left)
    links = tuple(it for it in report.links if {card.minor for card in cards}.issuperset(it.minors))
    why = (
        f"{uuid} is not written: another file "
        + (
            f"lists it: '{lists[uuid]}'"
            if uuid in lists
            else "has its minor {} for {}: '{}'".format(minor, *other[minor])
        )
        for uuid, minor in left.items()
    )
    return replace(report, cards=cards, links=links, left_out=(*report.left_out, *why))


def cards(text: str) -> Mapping[str, int]:
    """The cards that a file lists, uuid to minor.

    Raises:
        ValueError: koordlet cannot decode the file, and so takes no file of the directory.
    """
    # A minor that is no number is 0 to koordlet.
    return {_text(it, "uuid"): _number(_text(it, "minor")) or 0 for it in _entries(text)}


def report_in(text: str) -> Report | None:
    """The report in a file that the agent wrote, as far as the file holds it; None where it lists no card."""
    try:
        entries = _entries(text)
    except ValueError:
        return None
    found: dict[int, ReportedCard] = {}
    for entry in entries:
        minor = _number(_text(entry, "minor"))
        if minor is not None and 0 <= minor <= MAX_MINOR and _text(entry, "uuid"):
            found.setdefault(minor, _card(entry, minor))
    if not found:
        return None
    links = {link for it in entries for link in _links(it)}
    models = {it.model for it in found.values()} - {""}
    return Report(
        vendor=_text(entries[0], "vendor"),
        cards=tuple(found[minor] for minor in sorted(found)),
        model=models.pop() if len(models) == 1 else "",
        links=tuple(sorted(links, key=lambda it: (len(it.minors), it.minors))),
    )


def _entry(report: Report, card: ReportedCard) -> dict[str, Any]:
    links = [
        {"peerMinor": ",".join(str(it) for it in link.minors if it != card.minor), "type": link.type}
        for link in report.links
        if card.minor in link.minors
    ]
    fault = {} if card.healthy else {"errCode": card.reason, "errMessage": card.message}
    return {
        "vendor": report.vendor,
        "model": card.model,
        "uuid": card.uuid,
        "minor": str(card.minor),
        "resources": {
            _CORE: WHOLE,
            **({_MEMORY: quantity(card.memory)} if card.memory else {}),
            **card.resources,
        },
        "topology": {
            **({"p2pLinks": links, "mustHonorPartition": False} if links else {}),
            "socketID": "-1",
            "nodeID": str(card.numa),
            "pcieID": card.pcie,
            "busID": card.pci,
        },
        "status": {"healthy": card.healthy, **fault},
    }


def _entries(text: str) -> Sequence[_Entry]:
    """The objects of a file.

    Raises:
        ValueError: koordlet cannot decode the file.
    """
    try:
        found = json.JSONDecoder().raw_decode(text.lstrip())[0]
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as exc:
        raise ValueError(f"is no JSON: {exc}") from exc
    found = [] if found is None else found  # to Go null is an empty list
    if not isinstance(found, list):
        raise ValueError("is no list of cards")
    for number, entry in enumerate(found, 1):
        for wrong in _wrong(entry):
            raise ValueError(f"entry {number}{wrong}")
    return [_object(it) for it in found]


def _wrong(entry: Any) -> Iterator[str]:
    """The values of an entry that koordlet cannot decode. Keys unknown to koordlet may have any value."""
    if not _is_object(entry):
        yield " is no object"
        return
    parts = {name: _object(entry).get(name) for name in ("resources", "topology", "status")}
    yield from (f": {name} is no object" for name, it in parts.items() if not _is_object(it))
    resources, topology, status = map(_object, parts.values())
    links = topology.get("p2pLinks")
    yield from _no_texts(entry, _SCALARS)
    yield from _no_texts(resources, resources, "resources.")
    yield from _no_texts(topology, _OF_TOPOLOGY, "topology.")
    yield from _no_texts(status, _OF_STATUS, "status.")
    if not isinstance(status.get("healthy"), bool | None):
        yield ": status.healthy is neither true nor false"
    if not isinstance(links, list | None):
        yield ": topology.p2pLinks is no list"
        return
    for link in links or ():
        if not _is_object(link):
            yield ": a link of topology.p2pLinks is no object"
        yield from _no_texts(link, _OF_LINK, "topology.p2pLinks.")


def _is_object(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _object(value: Any) -> _Entry:
    return value if isinstance(value, dict) else {}


def _no_texts(entry: Any, names: Iterable[str], place: str = "") -> Iterator[str]:
    wrong = (it for it in names if not isinstance(_object(entry).get(it), str | None))
    yield from (f": {place}{shorten(it)} is no text" for it in wrong)


def _text(entry: _Entry, name: str) -> str:
    return entry.get(name) or ""


def _card(entry: _Entry, minor: int) -> ReportedCard:
    resources, topology = _object(entry.get("resources")), _object(entry.get("topology"))
    status = _object(entry.get("status"))
    healthy = not status or bool(status.get("healthy"))
    numa = _number(_text(topology, "nodeID"))
    return ReportedCard(
        uuid=_text(entry, "uuid"),
        minor=minor,
        healthy=healthy,
        status="True" if healthy else "False",
        reason="" if healthy else reason(_text(status, "errCode")),
        message="" if healthy else _text(status, "errMessage"),
        memory=whole(_text(resources, _MEMORY)) or 0,
        model=_text(entry, "model"),
        numa=-1 if numa is None else numa,
        pcie=_text(topology, "pcieID"),
        pci=_text(topology, "busID"),
        resources={name: _text(resources, name) for name in resources if name not in _OWN},
    )


def _links(entry: _Entry) -> Iterator[LinkedCards]:
    own = _number(_text(entry, "minor"))
    for link in _object(entry.get("topology")).get("p2pLinks") or ():
        minors = {own, *map(_number, _text(link, "peerMinor").split(","))}
        if None not in minors:
            yield LinkedCards(tuple(sorted(it for it in minors if it is not None)), _text(link, "type"))


def _number(text: str) -> int | None:
    """The number in a text, as koordlet reads it; None where koordlet reads none."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if len(digits) <= 9 and digits.isascii() and digits.isdigit() else None
