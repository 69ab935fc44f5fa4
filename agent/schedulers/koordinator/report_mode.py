"""Chooses the report mode for Koordinator, from the config and what the API server shows."""

from __future__ import annotations

from agent.scheduler_api.node_report import ModeChoice, ModeQuestion

NOT_ASKED = ModeChoice("none", "report.mode is 'none'")
AS_SAID = "report.mode says so"
NO_SERVER = "no API server is known here"
NO_KIND = "the API server has no Device objects: Koordinator is not installed"
#: Reasons for mode `none` with which nothing is wrong.
UNCONCERNED = (NOT_ASKED.why, NO_SERVER, NO_KIND)
GIVE_DIRECTORY = "mount koordlet's directory (koordinator.enabled of the chart), or set report.deviceInfosDir"
GIVE_RIGHT = "allow get, list, watch, create and update on devices.scheduling.koordinator.sh"


def choice(question: ModeQuestion) -> ModeChoice | None:
    """The report mode; None while it is not known, and the last mode stays.

    A resource of replicas that the scheduler would take for whole cards excludes both ways. The config
    refuses such a resource together with a named mode.
    """
    wanted, shown = question.wanted, question.shown
    if wanted == "none":
        return NOT_ASKED
    named = wanted != "auto"
    shared = _shared(question.shares, named=named) if question.shares else None
    if wanted == "feed":
        return shared or ModeChoice("feed", AS_SAID)
    if not question.api:
        return ModeChoice("none", NO_SERVER, trouble=named)
    if shown is None:
        return shared
    if not shown.has_kind:
        return ModeChoice("none", NO_KIND, trouble=named)
    if shared is not None:
        return shared
    if shown.program:
        return _with_koordlet(shown.program, question.missing, named=named)
    if shown.refused:
        return ModeChoice("none", f"{shown.refused}; {GIVE_RIGHT}", trouble=named)
    silent = f"{shown.silent}, and has not updated the Device for a minute" if shown.silent else ""
    return ModeChoice("device", AS_SAID if named else silent or "no koordlet here reports accelerators")


def _shared(resource: str, *, named: bool) -> ModeChoice:
    why = "counts replicas, which koord-scheduler takes for whole cards; rename it"
    return ModeChoice("none", f"{resource} {why}", trouble=named)


def _with_koordlet(koordlet: str, missing: str, *, named: bool) -> ModeChoice:
    """The choice beside a koordlet that reports: two writers of one list undo each other in seconds."""
    if not named:
        return _fed(koordlet, missing)
    remedy = "set report.mode to auto or feed, or switch koordlet's feature gate Accelerators off"
    return ModeChoice("none", f"{koordlet}, which would overwrite the agent's Device; {remedy}", trouble=True)


def _fed(why: str, missing: str) -> ModeChoice:
    if missing:
        lacking = (
            f"koordlet's directory {missing} does not exist, so the agent cannot give koordlet the cards"
        )
        return ModeChoice("none", f"{why}, and {lacking}; {GIVE_DIRECTORY}")
    return ModeChoice("feed", why)
