"""When a registration is made anew: after another plugin that came and went, and for nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.core.registration.renewal_rules import (
    FIRST_PAUSE,
    KubeletObservation,
    Registration,
    RegistrationStanding,
    RenewalReason,
    on_list,
    on_observation,
    standing_of,
)

NOBODY: frozenset[object] = frozenset()
BOB = frozenset({"bob.sock"})
EVE = frozenset({"eve.sock"})
#: A registration after three lists, and one list more of it.
IT = Registration(1, 3)
MORE = replace(IT, lists=4)
WELL, AWAY = KubeletObservation(True), KubeletObservation(None)
#: Seconds until what was missed is believed, and between two looks that are farther apart.
SURE, APART = 5.0, 10.0


def looked(
    known: RegistrationStanding, *looks: tuple[Registration, KubeletObservation], now: float = 0.0
) -> list[RenewalReason | None]:
    """What followed from each look, the last one being now."""
    found = []
    for before, (it, look) in zip(range(len(looks) - 1, -1, -1), looks, strict=True):
        at = now - before * APART
        known, why = on_observation(standing_of(known, it, look.others), it, look, at, SURE)
        found.append(why)
    return found


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([(IT, WELL), (IT, WELL)], None),
        ([(IT, WELL), (MORE, WELL)], None),
        ([(IT, KubeletObservation(False))], None),
        ([(IT, KubeletObservation(False)), (IT, WELL)], None),
        ([(IT, KubeletObservation(False)), (IT, AWAY)], None),
        ([(IT, AWAY), (IT, AWAY)], None),
        ([(IT, KubeletObservation(False)), (IT, KubeletObservation(False))], RenewalReason.LAPSED),
        ([(IT, KubeletObservation(False)), (Registration(2, 4), KubeletObservation(False))], None),
        ([(IT, KubeletObservation(True, BOB)), (IT, WELL)], None),
        ([(IT, KubeletObservation(True, BOB)), (MORE, KubeletObservation(True, BOB))], None),
        ([(IT, WELL), (MORE, KubeletObservation(True, BOB))], None),
        ([(IT, KubeletObservation(True, BOB)), (MORE, WELL)], None),
        ([(IT, KubeletObservation(True, BOB)), (MORE, WELL), (MORE, KubeletObservation(True, BOB))], None),
        ([(IT, KubeletObservation(True, BOB)), (MORE, WELL), (MORE, WELL)], RenewalReason.HIDDEN),
        (
            [
                (IT, KubeletObservation(True, BOB)),
                (MORE, KubeletObservation(True, EVE)),
                (MORE, KubeletObservation(True, EVE)),
            ],
            RenewalReason.HIDDEN,
        ),
        ([(IT, KubeletObservation(True, BOB)), (IT, WELL), (MORE, WELL)], RenewalReason.HIDDEN),
        ([(IT, KubeletObservation(True, BOB)), (IT, WELL), (IT, WELL), (MORE, WELL)], None),
        (
            [(IT, KubeletObservation(True, BOB)), (IT, KubeletObservation(False)), (MORE, WELL)],
            RenewalReason.HIDDEN,
        ),
        ([(IT, KubeletObservation(None, BOB)), (IT, AWAY), (MORE, AWAY)], RenewalReason.HIDDEN),
        ([(IT, KubeletObservation(True, BOB)), (Registration(2, 4), WELL)], None),
    ],
    ids=[
        "well",
        "a-list-of-ours",
        "missed-once",
        "missed-and-listed-a-moment-later",
        "missed-and-not-asked-a-moment-later",
        "never-asked",
        "missed-twice",
        "missed-by-two-registrations",
        "another-has-gone",
        "another-stays-over-a-list",
        "another-comes-with-a-list",
        "another-is-missed-once-and-a-list-followed",
        "another-is-missed-once-and-there-again",
        "another-has-gone-and-a-list-followed",
        "another-gave-way-to-a-third-and-a-list-followed",
        "another-took-away-its-socket-and-then-its-stream-and-a-list-followed",
        "another-went-before-all-was-well-and-a-list-followed",
        "a-list-hid-what-was-missed",
        "another-has-gone-and-a-list-followed-where-nobody-can-be-asked",
        "another-went-before-the-registration",
    ],
)
def test_what_looks_show_makes_a_registration_anew(
    looks: list[tuple[Registration, KubeletObservation]], why: RenewalReason | None
) -> None:
    assert looked(RegistrationStanding(IT), *looks) == [*[None] * (len(looks) - 1), why]


@pytest.mark.parametrize("pause", [10.0, 40.0, 300.0])
def test_what_is_not_listed_after_that_either_is_left_alone_for_a_while(pause: float) -> None:
    known, missed = RegistrationStanding(IT, renewed=0.0, pause=pause), [(IT, KubeletObservation(False))] * 2
    assert looked(known, *missed, now=pause - 1) == [None, None]
    assert looked(known, *missed, now=pause + APART) == [None, RenewalReason.LAPSED]


def test_what_is_never_listed_is_made_anew_ever_less_often() -> None:
    known, made = RegistrationStanding(IT), list[float]()
    for now in range(0, 1500, int(SURE)):
        known, why = on_observation(known, IT, KubeletObservation(False), now, SURE)
        if why is not None:
            made.append(now)
            known = standing_of(known, replace(IT, number=IT.number + len(made)))

    # Two looks say that it is missed, so each pause is one look longer.
    assert [later - it for it, later in pairwise(made)] == [15, 25, 45, 85, 165, 305, 305, 305]


def test_what_was_listed_is_made_anew_as_often_as_at_first() -> None:
    known, _ = on_observation(RegistrationStanding(IT, renewed=0.0, pause=300.0), IT, WELL, 1.0, SURE)

    assert (known.renewed, known.pause) == (-math.inf, FIRST_PAUSE)


def test_it_is_not_in_vain_where_another_has_gone_since() -> None:
    known = RegistrationStanding(IT, BOB, renewed=0.0)

    assert looked(known, (IT, KubeletObservation(False)), (IT, KubeletObservation(False)), now=1.0) == [
        None,
        RenewalReason.LAPSED,
    ]


def test_what_was_listed_since_may_lapse_again_at_once() -> None:
    looks = [(IT, WELL), (IT, KubeletObservation(False)), (IT, KubeletObservation(False))]

    assert looked(RegistrationStanding(IT, renewed=0.0), *looks, now=1.0) == [
        None,
        None,
        RenewalReason.LAPSED,
    ]


def test_a_new_registration_remembers_that_the_last_one_was_made_in_vain() -> None:
    missed = [(Registration(2), KubeletObservation(False))] * 2

    assert looked(RegistrationStanding(IT, renewed=0.0), *missed, now=1.0) == [None, None]


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ([True, True], [None, None]),
        ([False, False], [None, None]),
        ([False, True, True], [None, RenewalReason.OVERTAKEN, None]),
        ([False, True, False, True], [None, RenewalReason.OVERTAKEN, None, RenewalReason.OVERTAKEN]),
    ],
    ids=["ours", "another's", "ours-after-another's", "each-time"],
)
def test_our_list_after_another_s_makes_a_registration_anew(
    lists: list[bool], why: list[RenewalReason | None]
) -> None:
    known, found = RegistrationStanding(IT), []
    for ours in lists:
        known, one = on_list(known, own=ours)
        found.append(one)

    assert found == why


def test_another_s_list_counts_for_the_registration_that_it_came_upon_alone() -> None:
    known, _ = on_list(RegistrationStanding(IT), own=False)

    assert on_list(standing_of(known, Registration(2)), own=True)[1] is None


@pytest.mark.parametrize(("later", "is_open"), [(SURE - 1, True), (SURE, False)])
def test_who_was_just_missed_is_looked_for_again(later: float, is_open: bool) -> None:
    known, _ = on_observation(RegistrationStanding(IT, BOB), IT, WELL, 0.0, SURE)

    assert known.is_open(later, SURE) is is_open


def test_of_two_that_were_missed_one_after_the_other_each_is_let_go_in_its_time() -> None:
    known = RegistrationStanding(IT, BOB | EVE)
    known, _ = on_observation(known, IT, KubeletObservation(True, EVE), 0.0, SURE)
    known, _ = on_observation(known, IT, WELL, SURE - 1, SURE)
    known, none = on_observation(known, IT, WELL, SURE, SURE)  # bob may have been another resource's

    assert none is None
    assert on_observation(known, MORE, WELL, 2 * SURE, SURE)[1] is RenewalReason.HIDDEN


@dataclass
class Kubelet:
    """A kubelet up to 1.36 with us, a plugin that lists our very IDs, and one of another resource."""

    asks: str = "us"
    healthy: bool = True
    lives: dict[str, int] = field(default_factory=dict)
    begun: int = 0
    it: Registration = IT
    renewed: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.known = RegistrationStanding(self.it)

    def do(self, step: str) -> None:
        match step:
            case "rival comes":
                self.asks, self.healthy = "rival", True
                self.comes("rival")
            case "rival goes":
                self.do("rival's socket goes")
                self.do("rival's stream ends")
            case "rival's socket goes":
                self.lives.pop("rival", None)
            case "rival's stream ends":
                self.do("rival's socket goes")
                if self.asks == "rival":
                    self.asks, self.healthy = "nobody", False
            case "neighbour comes":
                self.comes("neighbour")
            case "neighbour goes":
                self.lives.pop("neighbour", None)
            case "list":
                self.it, self.healthy = replace(self.it, lists=self.it.lists + 1), True
            case "look":
                self.look()

    @property
    def others(self) -> frozenset[object]:
        return frozenset(self.lives.items())

    def comes(self, name: str) -> None:
        """Each life of a plugin is told from the one before, and seen at once."""
        self.begun += 1
        self.lives.setdefault(name, self.begun)
        self.known = self.known.with_others(self.others)

    def look(self) -> None:
        self.now += 10.0
        self.known, why = on_observation(
            self.known, self.it, KubeletObservation(self.healthy, self.others), self.now, SURE
        )
        if why is not None:
            self.renewed += 1
            self.asks, self.healthy = "us", True
            self.it = Registration(self.it.number + 1, self.it.lists + 1)
            self.known = standing_of(self.known, self.it, self.others)


MISHAPS = ["rival comes", "rival goes", "neighbour comes", "neighbour goes", "list", "look"]


@given(st.lists(st.sampled_from(MISHAPS), max_size=12))
def test_once_the_other_one_has_gone_we_are_asked_again_after_two_looks(steps: list[str]) -> None:
    kubelet = Kubelet()
    for step in [*steps, "rival goes", "look", "look"]:
        kubelet.do(step)

    assert kubelet.asks == "us"


@given(*[st.lists(st.sampled_from(["list", "neighbour comes", "neighbour goes"]), max_size=4)] * 3)
def test_so_we_are_where_it_took_away_its_socket_first_and_we_looked_before_its_stream_ended(
    before: list[str], between: list[str], after: list[str]
) -> None:
    kubelet = Kubelet()
    gone = ["rival's socket goes", *between, "look", "rival's stream ends"]
    for step in ["rival comes", *before, "look", *gone, *after, "look", "look"]:
        kubelet.do(step)

    assert kubelet.asks == "us"


@given(st.lists(st.sampled_from(["neighbour comes", "list", "look", "rival comes"]), max_size=12))
def test_while_nobody_goes_nobody_is_fought(steps: list[str]) -> None:
    kubelet = Kubelet()
    for step in steps:
        kubelet.do(step)

    assert kubelet.renewed == 0


@given(st.lists(st.sampled_from(["neighbour comes", "neighbour goes", "look"]), max_size=12))
def test_a_plugin_of_another_resource_comes_and_goes_unheeded_while_we_have_nothing_to_tell(
    steps: list[str],
) -> None:
    kubelet = Kubelet()
    for step in steps:
        kubelet.do(step)

    assert kubelet.renewed == 0
