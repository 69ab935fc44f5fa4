"""Which way Koordinator hears of the cards: by what the config says and the API server shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent.schedulers.koordinator.report import Report

Mode = Literal["feed", "device", "none"]
#: What the config says.
Wanted = Literal["auto", "feed", "device", "none"]


@dataclass(frozen=True, slots=True)
class Shown:
    """What the API server shows of Koordinator on this node."""

    #: Whether it has Device objects at all, and why it does not let us see ours.
    kind: bool = False
    refused: str = ""
    #: How it shows that a koordlet here reports accelerators by itself; empty where none does.
    koordlet: str = ""
    #: Whether that koordlet undid what we had written.
    overwritten: bool = False
    #: The pod of a koordlet that is here and does not count, as it does not write the Device; or empty.
    silent: str = ""
    #: What the node's Device says of cards.
    told: Report | None = None


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """The way that is gone, and why. `trouble`: it is not the one that the config names."""

    mode: Mode
    why: str
    trouble: bool = False


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told now, and how.

    `no_file`, `no_device`: nobody wants a file, or a Device, of ours, so that one that is there goes. Where
    the agent itself finds the way both stay, as it may be another one soon.
    """

    mode: Mode
    report: Report | None = None
    #: Where koordlet looks for files of cards.
    directory: str = ""
    no_file: bool = False
    no_device: bool = False


NOT_ASKED = ModeChoice("none", "report.mode is 'none'")
AS_SAID = "report.mode says so"
NO_SERVER = "no API server is known here"
NO_KIND = "the API server has no Device objects: Koordinator is not installed"
GIVE_DIRECTORY = "mount koordlet's (koordinator.enabled of the chart), or say report.deviceInfosDir"
GIVE_RIGHT = "allow get, list, watch, create and update on devices.scheduling.koordinator.sh"


def choice(
    wanted: Wanted, shown: Shown | None, *, api: bool, shares: str = "", missing: str = ""
) -> ModeChoice | None:
    """How to tell; None while that is not known, so that it stays as it is.

    `api`: whether there is an API server. `shares`: the resource whose shares koord-scheduler would take for
    whole cards; where our file has them the config refuses that together with a way that it names.
    `missing`: koordlet's directory where it is not here, as by default: who names no way does not need it.
    """
    if wanted == "none":
        return NOT_ASKED
    named = wanted != "auto"
    shared = _shared(shares, named=named) if shares else None
    if wanted == "feed":
        return shared or ModeChoice("feed", AS_SAID)
    if not api:
        return ModeChoice("none", NO_SERVER, trouble=named)
    if shown is None:
        return shared
    if not shown.kind:
        return ModeChoice("none", NO_KIND, trouble=named)
    if shared is not None:
        return shared
    if shown.koordlet:
        return _beside(shown, missing, named=named)
    if shown.refused:
        return ModeChoice("none", f"{shown.refused}; {GIVE_RIGHT}", trouble=named)
    silent = f"{shown.silent}, and has not told for a minute what it should" if shown.silent else ""
    return ModeChoice("device", AS_SAID if named else silent or "no koordlet here reports accelerators")


def _shared(resource: str, *, named: bool) -> ModeChoice:
    why = "counts replicas, which koord-scheduler takes for whole cards; rename it"
    return ModeChoice("none", f"{resource} {why}", trouble=named)


def _beside(shown: Shown, missing: str, *, named: bool) -> ModeChoice:
    """Two who write one list would undo each other every few seconds."""
    if not named:
        return _fed(shown.koordlet, missing)
    remedy = "set report.mode to auto or feed, or switch koordlet's feature gate Accelerators off"
    return ModeChoice("none", f"{shown.koordlet}, which would overwrite ours; {remedy}", trouble=True)


def _fed(why: str, missing: str) -> ModeChoice:
    if missing:
        return ModeChoice(
            "none", f"{why}, and there is no directory {missing} to tell it by; {GIVE_DIRECTORY}"
        )
    return ModeChoice("feed", why)
