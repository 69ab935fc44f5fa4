"""The measurements that there are, and which subjects each is made of."""

from __future__ import annotations

from pathlib import Path

from bench import measures
from bench.pace import Pace
from bench.rows import Figure, Row
from bench.subjects import Contest, Launch, Setup, Subject


class Named:
    """A subject that is never started."""

    def __init__(self, role: str) -> None:
        self.name = self.role = role

    def prepare(self, directory: Path) -> None:
        raise AssertionError

    def tidy(self) -> None:
        raise AssertionError

    def launch(self, directory: Path, stub: object, setup: Setup) -> Launch:
        raise AssertionError


ALL_THREE = Contest(Named("ours"), Named("spike"), Named("rival"))


async def single(subject: Subject, pace: Pace) -> list[Row]:
    """A measurement of one subject.

    What else there is to say of it.
    """
    return [Figure("a", "ms").row([{"ours": 1.0, "rival": 2.0}[subject.role]])]


def test_subjects_have_their_turns_ours_first_and_the_rival_where_there_is_one() -> None:
    assert [subject.role for subject in ALL_THREE] == ["ours", "spike", "rival"]
    assert [subject.role for subject in Contest()] == ["ours", "spike"]


async def test_any_plugin_is_measured_after_ours() -> None:
    made = measures.any_plugin("a", single)

    [row] = await made.measure(ALL_THREE, Pace())
    assert (row.ours, row.rival) == (1.0, 2.0)

    [row] = await made.measure(Contest(Named("ours")), Pace())
    assert (row.ours, row.rival) == (1.0, None)


async def test_what_is_measured_of_ours_alone_starts_no_other() -> None:
    [row] = await measures.ours_alone("a", single).measure(ALL_THREE, Pace())

    assert (row.ours, row.rival) == (1.0, None)


def test_the_title_of_a_measurement_is_the_first_line_of_its_documentation() -> None:
    assert measures.ours_alone("a", single).title == "A measurement of one subject."
    assert all(it.title for it in measures.ALL)


def test_each_measurement_has_a_name_of_its_own() -> None:
    names = [it.name for it in measures.ALL]

    assert sorted(set(names)) == sorted(names)
