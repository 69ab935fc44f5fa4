"""Which way Koordinator hears of the cards: never by two who undo each other, never by a guess."""

from __future__ import annotations

from typing import Any

import pytest

from agent.scheduler_api.node_report import ModeChoice, ModeQuestion, ShownReport
from agent.schedulers.koordinator.report_mode import NO_KIND, NO_SERVER, choice

BESIDE = ShownReport(has_kind=True, program="koordlet x runs here with Accelerators=true")
ALONE = ShownReport(has_kind=True)
BARE = ShownReport(has_kind=False)
SILENT = ShownReport(has_kind=True, silent="koordlet x runs here with Accelerators=true")
REFUSED = ShownReport(has_kind=True, refused="403 Forbidden")


@pytest.mark.parametrize(
    ("wanted", "shown", "mode", "trouble"),
    [
        ("none", ALONE, "none", False),
        ("none", None, "none", False),
        # Who names it has it, with or without an API server.
        ("feed", None, "feed", False),
        ("feed", ALONE, "feed", False),
        ("auto", None, None, None),
        ("auto", BARE, "none", False),
        ("auto", ALONE, "device", False),
        ("auto", BESIDE, "feed", False),
        ("auto", REFUSED, "none", False),
        ("auto", SILENT, "device", False),
        ("device", None, None, None),
        ("device", BARE, "none", True),
        ("device", ALONE, "device", False),
        ("device", BESIDE, "none", True),
        ("device", SILENT, "device", False),
        ("device", REFUSED, "none", True),
    ],
)
def test_the_way_follows_from_the_config_and_what_is_shown(
    wanted: Any, shown: ShownReport | None, mode: str | None, trouble: bool | None
) -> None:
    chosen = choice(ModeQuestion(wanted, shown, api=True))

    assert (chosen and chosen.mode, chosen and chosen.trouble) == (mode, trouble)
    assert chosen is None or chosen.why


def test_a_koordlet_that_is_here_and_silent_is_named_where_the_agent_writes_in_its_place() -> None:
    chosen = choice(ModeQuestion("auto", SILENT, api=True))

    assert chosen is not None
    assert chosen.why == f"{SILENT.silent}, and has not updated the Device for a minute"


def test_a_koordlet_is_not_fed_where_its_directory_is_not_here_but_by_who_names_it() -> None:
    by_itself = choice(ModeQuestion("auto", BESIDE, api=True, missing="/infos"))
    named = choice(ModeQuestion("feed", BESIDE, api=True, missing="/infos"))

    assert by_itself is not None
    assert named is not None
    assert (by_itself.mode, by_itself.trouble, named.mode) == ("none", False, "feed")
    assert "koordlet's directory /infos does not exist" in by_itself.why
    assert (choice(ModeQuestion("auto", ALONE, api=True, missing="/infos")) or by_itself).mode == "device"


@pytest.mark.parametrize(("wanted", "trouble"), [("auto", False), ("device", True)])
def test_without_an_api_server_nothing_is_told_and_who_named_it_hears_so(wanted: Any, trouble: bool) -> None:
    chosen = choice(ModeQuestion(wanted, None, api=False))

    assert chosen is not None
    assert (chosen.mode, chosen.trouble, chosen.why) == ("none", trouble, "no API server is known here")


@pytest.mark.parametrize("shown", [None, ALONE, BESIDE])
@pytest.mark.parametrize(("wanted", "trouble"), [("auto", False), ("device", True), ("feed", True)])
def test_shares_that_a_scheduler_would_take_for_cards_are_told_in_no_way(
    wanted: Any, trouble: bool, shown: ShownReport | None
) -> None:
    chosen = choice(ModeQuestion(wanted, shown, api=True, shares="nvidia.com/gpu"))

    assert chosen is not None
    assert (chosen.mode, chosen.trouble) == ("none", trouble)
    assert "nvidia.com/gpu counts replicas" in chosen.why


@pytest.mark.parametrize(("wanted", "trouble"), [("auto", False), ("device", True)])
@pytest.mark.parametrize(
    ("shown", "api", "why"), [(BARE, True, NO_KIND), (BARE, False, NO_SERVER), (None, False, NO_SERVER)]
)
def test_where_koordinator_is_not_nobody_is_told_to_rename_shares_for_its_sake(
    wanted: Any, trouble: bool, shown: ShownReport | None, api: bool, why: str
) -> None:
    chosen = choice(ModeQuestion(wanted, shown, api=api, shares="nvidia.com/gpu"))

    assert chosen == ModeChoice("none", why, trouble=trouble)
