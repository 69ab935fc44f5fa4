"""On which of MetaX's cards a slice fits that names none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.vendor_api.agent import Device, Grant, NoRoom, Request, RequestRefused
from agent.vendors.metax.agent.options import Options
from agent.vendors.metax.agent.slice_room import cards_with_room
from agent.vendors.metax.shared import constants
from agent.vendors.metax.shared.slice_request import ANY_QOS, Unclaimed

SGPU = "metax-tech.com/sgpu"
GIB = 1 << 30
FOREIGN = (constants.FOREIGN_COMPUTE, constants.FOREIGN_MEMORY)
#: Allocations as the agent calls them.
OURS, OTHER = "0123456789abcdef", "fedcba9876543210"


def card(index: int, **attributes: str) -> Device:
    said = {key.replace("_", "-"): it for key, it in attributes.items()}
    assert said.keys() <= {constants.QOS, constants.FOREIGN_SLICES, *FOREIGN, *constants.OWN_SLICES}
    return Device(f"GPU-{index}", index, index, memory=64 * GIB, attributes=said)


def grant(index: int, core: int, memory: int, qos: str = "best-effort", of: str = OURS) -> Grant:
    """So many percent and GiB of a card."""
    parameters = {"core": str(core), "memory": str(memory * GIB), "qos": qos}
    return Grant(Request(of, SGPU, (f"{index}",), parameters), (f"GPU-{index}",))


def found(
    devices: Sequence[Device],
    *grants: Grant,
    count: int = 1,
    unclaimed: Unclaimed = "share",
    any_policy: bool = False,
    **parameters: str,
) -> Sequence[str]:
    options = Options(mode="sgpu", unclaimed=unclaimed)
    ids = tuple(f"{n}" for n in range(count))
    said = {**parameters, ANY_QOS: "true"} if any_policy else parameters
    return cards_with_room(options, Request("", SGPU, ids, said), devices, grants)


TWO = [card(0), card(1)]


def test_the_card_with_most_left_comes_first_by_what_is_scarcest_there() -> None:
    three = [*TWO, card(2)]

    assert found(three, grant(0, 10, 60), grant(1, 40, 1), core="5", memory=str(GIB)) == [
        "GPU-2",
        "GPU-1",
        "GPU-0",
    ]


def test_of_cards_with_as_much_left_the_first_that_is_listed_comes_first() -> None:
    assert found(TWO[::-1], core="5") == ["GPU-1", "GPU-0"]


@pytest.mark.parametrize(
    "there",
    [
        pytest.param([grant(0, 95, 1)], id="compute"),
        pytest.param([grant(0, 1, 60)], id="memory"),
        pytest.param([grant(0, 1, 1, of=f"{n:016x}") for n in range(16)], id="slices"),
        pytest.param([grant(0, 1, 1, "fixed-share")], id="policy"),
        pytest.param([Grant(Request(OURS, "metax-tech.com/gpu", ("0",)), ("GPU-0",))], id="another resource"),
    ],
)
def test_a_card_that_has_too_little_is_none(there: Sequence[Grant]) -> None:
    assert found(TWO, *there, core="10", memory=str(8 * GIB)) == ["GPU-1"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"foreign_slices": "1", "foreign_compute": "95", "foreign_memory": "1"},
        {"foreign_slices": "1", "foreign_compute": "1", "foreign_memory": "65000"},
        {"foreign_slices": "16", "foreign_compute": "1", "foreign_memory": "1"},
        {"foreign_slices": "1", "foreign_compute": "1", "foreign_memory": "1", "qos": "fixed-share"},
    ],
)
def test_what_others_made_there_is_not_left(attributes: dict[str, str]) -> None:
    assert found([card(0, **attributes), card(1)], core="10", memory=str(8 * GIB)) == ["GPU-1"]


def test_a_slice_that_is_claimed_larger_by_now_than_it_lies_there_counts_as_it_is_claimed() -> None:
    """It is taken away, and made so when its container starts."""
    lies = card(0, own_slice_0=f"{OURS}:10:1024")

    assert found([lies, card(1)], grant(0, 60, 1), core="50") == ["GPU-1"]


def test_a_slice_of_ours_that_lies_there_counts_as_it_lies_and_one_without_owner_not_at_all() -> None:
    """What was released is told late as gone; its card is idle, and takes any policy."""
    lies = card(0, own_slice_0=f"{OURS}:95:1024", own_slice_1=f"{OTHER}:3:1024", qos="fixed-share")

    assert found([lies, card(1)], grant(0, 1, 1, "fixed-share"), core="10", qos="fixed-share") == ["GPU-1"]
    assert found([lies, card(1)], core="100") == ["GPU-0", "GPU-1"]
    assert found([lies], core="10", qos="burst-share") == ["GPU-0"]


def test_an_online_pod_fits_beside_any_policy_and_others_beside_the_one_it_took() -> None:
    online = Grant(Request(OURS, SGPU, ("0",), {"core": "10", "any-qos": "true"}), ("GPU-0",))

    assert found([card(0)], grant(0, 10, 1, "fixed-share"), core="10", any_policy=True) == ["GPU-0"]
    with pytest.raises(NoRoom, match="with slices of burst-share"):
        found([card(0, qos="burst-share")], online, core="10", qos="fixed-share")


def test_a_card_that_is_smaller_than_what_is_asked_for_is_none() -> None:
    small = Device("GPU-9", 9, 9, memory=16 * GIB)

    assert found([small, card(0)], core="10", memory=str(32 * GIB)) == ["GPU-0"]
    with pytest.raises(RequestRefused, match="32768 MiB are promised of GPU-9, which has 16384"):
        found([small], core="10", memory=str(32 * GIB))


def test_where_none_has_as_much_it_says_what_each_has() -> None:
    five = [card(n) for n in range(5)]
    there = [grant(n, 50 + n, 8, "fixed-share") for n in range(5)]

    with pytest.raises(NoRoom) as refused:
        found(five, *there, core="60", memory=str(GIB), qos="fixed-share")

    assert str(refused.value) == (
        "1024 MiB and 60 percent as fixed-share are asked for, and no card has as much left: "
        "GPU-0 has 57344 MiB and 50 percent left, with slices of fixed-share; "
        "GPU-1 has 57344 MiB and 49 percent left, with slices of fixed-share; "
        "GPU-2 has 57344 MiB and 48 percent left, with slices of fixed-share; and 2 more"
    )


def test_several_whole_cards_are_those_that_are_idle() -> None:
    three = [*TWO, card(2)]

    assert found(three, grant(1, 1, 1), count=2, core="100") == ["GPU-0", "GPU-2"]
    with pytest.raises(NoRoom, match="no 3 cards have as much left each"):
        found(three, grant(1, 1, 1), count=3, core="100")
    with pytest.raises(NoRoom, match="2 cards are well and have an ID left, 3 are asked for"):
        found(TWO, count=3, core="100")
    with pytest.raises(RequestRefused, match="the limit is one partial sGPU per container"):
        found(TWO, count=2, core="10")


@pytest.mark.parametrize(("unclaimed", "cards"), [("share", ["GPU-1", "GPU-0"]), ("whole", ["GPU-1"])])
def test_who_names_no_amount_needs_what_is_set(unclaimed: Unclaimed, cards: list[str]) -> None:
    assert found(TWO, grant(0, 10, 1), unclaimed=unclaimed) == cards


def test_where_who_names_no_amount_is_refused_no_card_is_looked_for() -> None:
    with pytest.raises(RequestRefused, match="no scheduler says how much of a card"):
        found(TWO, unclaimed="refuse")
