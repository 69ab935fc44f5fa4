"""What people are told between two looks at the agent, and what is no news."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.core.devices.health_rules import LOST_CONTACT
from agent.core.devices.unit_changes import KeptUnit
from agent.core.event_notices import ACTIONS, ClaimSwap, Notice, PodRef, Refusal, StartRefusal
from agent.core.model import (
    AllocationSource,
    AllocationState,
    Cordon,
    DeviceStatus,
    Health,
    NodeSnapshot,
    Owner,
    VendorState,
    VendorStatus,
)
from agent.core.publishing.agent_status import UNKNOWN, AgentStatus, SchedulerReport
from agent.core.publishing.event_texts import notices
from agent.scheduler_api import Candidate, Claim
from agent.vendor_api.agent import State
from core.values import GPU, allocation, node, status

WELL = structs.replace(UNKNOWN, snapshot=node(*(status(f"GPU-{n}", n) for n in range(4))))


def sick(count: int = 1, of: int = 4, **fields: Any) -> AgentStatus:
    """The first `count` of the cards are unhealthy."""
    cards = (status(f"GPU-{n}", n, healthy=n >= count, **fields) for n in range(of))
    return structs.replace(WELL, snapshot=node(*cards))


def only(before: AgentStatus, after: AgentStatus, *pods: Candidate) -> Notice:
    (notice,) = notices(before, after, pods)
    return notice


def with_card(**fields: Any) -> AgentStatus:
    return structs.replace(WELL, snapshot=node(replace(status("GPU-0"), **fields)))


def health(state: State, reason: str = "", message: str = "") -> Health:
    return Health(state, reason, message)


# Config


def test_a_refused_config_is_told_with_its_error_and_what_is_in_force() -> None:
    refused = structs.replace(WELL, config_error="config.yaml:3: no such key")

    told = only(WELL, refused)

    assert told == Notice(
        "ConfigRefused",
        "the config is refused, the last good one stays in force: config.yaml:3: no such key",
    )
    assert notices(refused, refused) == ()


def test_a_config_that_was_never_good_is_said_to_leave_nothing_in_force() -> None:
    refused = structs.replace(WELL, config_error="no such file", config_awaited=True)

    assert "none is in force yet" in only(UNKNOWN, refused).message


def test_another_error_of_the_config_is_told_and_so_is_its_end() -> None:
    one, other = structs.replace(WELL, config_error="one"), structs.replace(WELL, config_error="other")

    assert only(one, other).message.endswith("other")
    assert only(other, structs.replace(WELL, config_source="/etc/config.yaml")) == Notice(
        "ConfigTaken", "the config is accepted again: /etc/config.yaml", "Normal"
    )


# Checkpoint


def test_a_checkpoint_that_is_set_aside_is_told_at_the_first_look_and_what_was_read_back_once_it_is() -> None:
    aside = structs.replace(WELL, set_aside="checkpoint.json: torn; set aside as checkpoint.json.corrupt-1")

    assert only(UNKNOWN, aside) == Notice("CheckpointSetAside", aside.set_aside)
    assert only(aside, structs.replace(aside, rebuilt=True, read_back=3)) == Notice(
        "CheckpointRebuilt", "the allocations are known again: 3 were read back from the kubelet", "Normal"
    )


def test_of_a_checkpoint_that_was_good_nothing_is_told() -> None:
    assert notices(UNKNOWN, structs.replace(WELL, rebuilt=True)) == ()


# Vendors


def vendors(*its: VendorStatus, required: bool = False) -> AgentStatus:
    names = frozenset(it.name for it in its) if required else frozenset[str]()
    return structs.replace(WELL, snapshot=NodeSnapshot(vendors=its), required_vendors=names)


@pytest.mark.parametrize(
    ("state", "required", "told"),
    [
        (VendorState.FAILED, False, True),
        (VendorState.LEFT_OUT, False, True),
        (VendorState.UNAVAILABLE, False, False),
        (VendorState.UNAVAILABLE, True, True),
        (VendorState.STARTING, True, False),
    ],
)
def test_a_vendor_has_failed_where_it_is_broken_or_wanted_and_not_there(
    state: VendorState, required: bool, told: bool
) -> None:
    opened = vendors(VendorStatus("acme", VendorState.OPEN), required=required)
    failed = vendors(VendorStatus("acme", state, "killed by SIGSEGV"), required=required)

    expected = (Notice("VendorFailed", f"vendor acme is {state}: killed by SIGSEGV"),) if told else ()
    assert notices(opened, failed) == notices(UNKNOWN, failed) == expected


def test_a_vendor_is_told_to_be_open_only_after_it_had_failed() -> None:
    opened, failed = (vendors(VendorStatus("acme", it)) for it in (VendorState.OPEN, VendorState.FAILED))

    assert only(failed, opened) == Notice("VendorOpened", "vendor acme is open again", "Normal")
    assert notices(UNKNOWN, opened) == ()


# Devices


def test_a_card_s_fault_and_its_end_are_told_with_the_reason() -> None:
    broken = sick(reason="xid-79", message="fallen off the bus")

    assert only(WELL, broken) == Notice(
        "DeviceUnhealthy", "acme card GPU-0 is unhealthy: xid-79: fallen off the bus"
    )
    assert only(broken, WELL) == Notice("DeviceHealthy", "acme card GPU-0 is healthy again", "Normal")


def test_a_fault_that_was_there_at_the_start_is_told_and_a_healthy_card_is_not() -> None:
    assert only(UNKNOWN, sick()).reason == "DeviceUnhealthy"
    assert notices(UNKNOWN, WELL) == ()


def test_another_fault_of_a_sick_card_is_told_and_another_message_alone_is_not() -> None:
    assert only(sick(reason="hot"), sick(reason="xid-79")).message.endswith("xid-79")
    assert notices(sick(message="90 C"), sick(message="91 C")) == ()


def test_cards_that_change_at_once_are_one_notice() -> None:
    assert only(WELL, sick(4, reason=LOST_CONTACT, message="killed by SIGSEGV")).message == (
        "all 4 acme cards (GPU-0, GPU-1, GPU-2 and 1 more) are unhealthy: lost-contact: killed by SIGSEGV"
    )
    assert only(WELL, sick(2)).message == "2 of 4 acme cards (GPU-0, GPU-1) are unhealthy: hot"


def test_two_vendors_or_two_reasons_are_two_notices() -> None:
    snapshot = node(
        status("A-0", healthy=False),
        status("A-1", 1, healthy=False, reason="cold"),
        status("B-0", vendor="bolt", healthy=False),
    )

    told = notices(WELL, structs.replace(WELL, snapshot=snapshot))

    assert [it.message for it in told] == [
        "acme card A-1 is unhealthy: cold",
        "acme card A-0 is unhealthy: hot",
        "bolt card B-0 is unhealthy: hot",
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"health": health(State.UNKNOWN, LOST_CONTACT), "told_healthy": True}, None),
        ({"health": health(State.UNKNOWN, LOST_CONTACT), "told_healthy": False}, "DeviceUnhealthy"),
        ({"health": health(State.UNKNOWN, "unmonitored"), "told_healthy": True}, "DeviceUnwatched"),
        ({"health": health(State.UNHEALTHY, "in-other-mode"), "told_healthy": False}, None),
        ({"health": health(State.UNKNOWN, LOST_CONTACT), "told_healthy": False, "gone": True}, None),
    ],
)
def test_what_the_kubelet_is_told_decides_and_another_mode_is_no_fault(
    fields: dict[str, Any], told: str | None
) -> None:
    before, after = with_card(), with_card(**fields)

    assert [it.reason for it in notices(before, after)] == ([told] if told else [])
    back = ["DeviceHealthy"] if told else []
    assert [it.reason for it in notices(after, before)] == back


def test_a_cordon_is_no_fault_and_names_who_said_it() -> None:
    cordoned = with_card(cordon=Cordon("root (alice)", "fan, ticket 4711"))

    assert only(with_card(), cordoned) == Notice(
        "DeviceCordoned",
        "acme card GPU-0 is kept from new pods, cordoned by root (alice): fan, ticket 4711",
        "Normal",
    )
    assert only(cordoned, with_card()) == Notice(
        "DeviceUncordoned", "acme card GPU-0 is given out again", "Normal"
    )


def test_a_cordon_that_was_there_at_the_start_is_no_news() -> None:
    assert notices(UNKNOWN, with_card(cordon=Cordon("alice"))) == ()


def sliced(*, card: bool, slices: bool) -> AgentStatus:
    its = (status(f"MIG-{n}", parent="GPU-0", slice=n, healthy=slices) for n in range(2))
    return structs.replace(WELL, snapshot=node(status("GPU-0", healthy=card), *its))


def test_a_card_speaks_for_its_slices_and_a_slice_for_itself() -> None:
    well, card, own = (
        sliced(card=True, slices=True),
        sliced(card=False, slices=False),
        sliced(card=True, slices=False),
    )

    assert only(well, card).message == "acme card GPU-0 is unhealthy: hot"
    assert only(card, well).message == "acme card GPU-0 is healthy again"
    assert only(well, own).message == "2 of 3 acme devices (MIG-0, MIG-1) are unhealthy: hot"
    assert only(own, well).message == "2 of 3 acme devices (MIG-0, MIG-1) are healthy again"


def test_a_slice_that_is_made_on_a_sick_card_is_no_news() -> None:
    assert notices(sick(1, of=1), sliced(card=False, slices=False)) == ()


# Other plugins, refusals, claims


def test_a_resource_that_waits_is_told_as_it_begins_and_not_with_each_pod_that_ends() -> None:
    waits = structs.replace(WELL, resource_waits={GPU: ("it waits for 2 cards",)})

    assert only(WELL, waits) == Notice("ResourceWaits", "it waits for 2 cards", "Normal")
    assert notices(waits, structs.replace(WELL, resource_waits={GPU: ("it waits for 1 card",)})) == ()
    assert notices(waits, WELL) == ()


@pytest.mark.parametrize(("why", "kind"), [("", "Normal"), ("the list is too long", "Warning")])
def test_a_unit_that_is_kept_is_told_as_it_begins_and_as_it_ends(
    why: str, kind: Literal["Normal", "Warning"]
) -> None:
    it = KeptUnit(GPU, "1", "0.1", why)
    kept = structs.replace(WELL, kept_units={GPU: (it, "until these pods have ended: a/b, a/c")})

    assert only(WELL, kept) == Notice("UnitKept", "until these pods have ended: a/b, a/c", kind)
    assert (
        notices(kept, structs.replace(WELL, kept_units={GPU: (it, "until these pods have ended: a/c")})) == ()
    )
    over = f"{GPU} no longer counts memory in the former units of 1 GiB"
    assert only(kept, WELL) == Notice("UnitChanged", over, "Normal")


def test_a_stranger_on_a_resource_is_told_once() -> None:
    strange = structs.replace(WELL, other_plugins={GPU: "another plugin answered"})

    assert only(WELL, strange) == Notice("ForeignPlugin", f"{GPU}: another plugin answered")
    assert notices(strange, structs.replace(WELL, other_plugins={GPU: "another plugin lists"})) == ()


WEB, DB = PodRef("default", "web", "uid-web"), PodRef("default", "db", "uid-db")
TEXT = f'invalid allocation request for "{GPU}": device GPU-0 is unhealthy: hot'


def refused(*waiting: PodRef, number: int = 1) -> AgentStatus:
    return structs.replace(WELL, refusals=(Refusal(number, GPU, ("GPU-0",), TEXT, waiting),))


def candidate(ref: PodRef, message: str = "", created: float = 0.0) -> Candidate:
    return Candidate(ref.uid, ref.namespace, ref.name, created=created, over=True, message=message)


def test_a_refused_allocate_is_told_on_the_only_pod_that_waited() -> None:
    assert only(WELL, refused(WEB)) == Notice("AllocateRefused", TEXT, pod=WEB)


def test_a_refused_allocate_is_told_on_the_newest_pod_whose_status_has_our_words() -> None:
    words = f"Allocate failed due to rpc error: code = FailedPrecondition desc = {TEXT}, which is unexpected"
    older, newer = candidate(WEB, words, created=1), candidate(DB, words, created=2)

    assert only(WELL, refused(WEB), newer, older).pod == DB


@pytest.mark.parametrize(
    ("waiting", "maybe"), [((), ""), ((WEB, DB), "; the pod may be default/web or default/db")]
)
def test_a_refused_allocate_of_nobody_known_is_told_on_the_node_with_resource_and_ids(
    waiting: tuple[PodRef, ...], maybe: str
) -> None:
    assert only(WELL, refused(*waiting)) == Notice(
        "AllocateRefused", f"a pod that asked for {GPU} was refused (GPU-0){maybe}: {TEXT}"
    )


def test_each_refusal_is_told_once_though_the_oldest_are_forgotten() -> None:
    many = tuple(Refusal(n, GPU, ("GPU-0",), TEXT) for n in (3, 4, 5))

    assert len(notices(refused(number=2), structs.replace(WELL, refusals=many))) == 3
    assert len(notices(refused(number=4), structs.replace(WELL, refusals=many))) == 1


def test_refusals_that_were_too_many_to_keep_are_counted_before_the_others_are_told() -> None:
    kept = tuple(Refusal(n, GPU, ("GPU-0",), f"{TEXT} {n}") for n in (3, 4, 90))

    first, *others = notices(refused(number=2), structs.replace(WELL, refusals=kept))

    assert first == Notice(
        "AllocateRefused",
        "85 more requests for devices were refused, too many at once for an Event each; "
        f"the last refusal: {TEXT} 90",
    )
    assert len(others) == 3


def test_a_container_that_can_not_start_is_told_once_on_its_pod() -> None:
    first = structs.replace(WELL, starts_refused=(StartRefusal(1, WEB, "no room; delete the pod"),))
    second = structs.replace(
        WELL, starts_refused=(*first.starts_refused, StartRefusal(2, DB, "no room for it"))
    )

    assert only(WELL, first) == Notice("StartRefused", "no room; delete the pod", "Warning", WEB)
    assert notices(first, first) == ()
    assert only(first, second).pod == DB


def claim(ref: PodRef) -> Claim:
    return Claim(ref.uid, ref.namespace, ref.name, "main")


def swapped(after: Claim | None, owner: Owner | None = None, number: int = 1) -> AgentStatus:
    held = allocation("a1", ["GPU-0"], claim=after, owner=owner)
    return structs.replace(
        WELL, swaps=(ClaimSwap(number, "a1", GPU, claim(WEB), after),), allocations=(held,)
    )


TEXT_OF_SWAP = (
    f"allocation a1 of {GPU} follows what the kubelet did: "
    "it was answered for default/web, as the scheduler had promised, and is for default/db"
)


@pytest.mark.parametrize(
    "owner", [None, Owner(DB.uid, "main"), Owner(DB.uid, "main", "default", "db")], ids=["", "uid", "name"]
)
def test_a_claim_that_changed_hands_is_told_on_the_pod_that_has_it(owner: Owner | None) -> None:
    assert only(WELL, swapped(claim(DB), owner)) == Notice("SwapRepaired", TEXT_OF_SWAP, "Normal", DB)


@pytest.mark.parametrize(
    "after", [swapped(None, Owner("uid-x", "main")), swapped(claim(DB), Owner("uid-x", "main"))]
)
def test_a_claim_that_was_lost_to_a_pod_of_no_name_is_told_on_the_node(after: AgentStatus) -> None:
    assert only(WELL, after).pod is None


def test_a_swap_is_told_once_though_its_allocation_is_gone() -> None:
    first = swapped(claim(DB))

    assert notices(first, first) == ()
    assert only(first, structs.replace(swapped(claim(DB), number=2), allocations=())).pod == DB


def test_who_has_what_was_anothers_and_no_claim_is_named_too() -> None:
    told = only(WELL, swapped(None, Owner(DB.uid, "main", "default", "db")))

    assert told.pod == DB
    assert told.message.endswith("and is for default/db, for which no promise is left")


def limited(handed: dict[str, str] | None, **more: Any) -> AgentStatus:
    its = replace(claim(WEB), parameters={"core": "50", "memory": "1024"})
    held = replace(allocation("a1", ["GPU-0"], claim=its), handed=handed, **more)
    return structs.replace(WELL, allocations=(held,))


def test_limits_that_were_anothers_are_told_on_the_pod_that_has_them() -> None:
    assert only(limited(None), limited({"core": "30"})) == Notice(
        "LimitsDiffer",
        f"allocation a1 of {GPU}: container main got core=30, the scheduler promised core=50, "
        "memory=1024; the share of a running container cannot be changed: create the pod again",
        "Warning",
        WEB,
    )
    assert "main got no limits, the scheduler" in only(WELL, limited({})).message


def test_limits_of_a_claim_that_went_to_another_are_told_on_the_pod_that_has_them() -> None:
    owner = Owner(WEB.uid, "main", "default", "web")
    told = only(WELL, limited({"core": "30"}, claim=None, owner=owner))

    assert (told.reason, told.pod) == ("LimitsDiffer", WEB)
    assert "main got core=30, the scheduler promised nothing that is left; the share" in told.message
    unnamed = limited({"core": "30"}, claim=None, owner=replace(owner, namespace="", pod=""))
    assert notices(WELL, unnamed) == ()
    assert only(unnamed, limited({"core": "30"}, claim=None, owner=owner)).pod == WEB


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (limited({"core": "30"}), limited({"core": "30"})),
        (limited({"core": "30"}), limited(None)),
        (WELL, limited({"core": "30"}, source=AllocationSource.CHECKPOINT)),
        (limited(None), limited({"core": "30"}, state=AllocationState.RELEASED)),
        (limited(None), limited({"core": "30"}, claim=None)),
    ],
    ids=["told", "mended", "told before a restart", "over", "nothing was promised"],
)
def test_limits_are_told_once_and_only_where_they_matter(before: AgentStatus, after: AgentStatus) -> None:
    assert notices(before, after) == ()


# Cards that a scheduler gave twice


def twice(why: str, **more: Any) -> AgentStatus:
    held = allocation("a1", (), owner=Owner(WEB.uid, "", "default", "web"), reason=why)
    return structs.replace(
        WELL, allocations=(replace(held, **{"source": AllocationSource.ANNOTATION, **more}),)
    )


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (WELL, twice("delete b"), "delete b"),
        (UNKNOWN, twice("delete b"), "delete b"),
        (twice(""), twice("delete b"), "delete b"),
        (twice("delete b"), twice("delete b"), None),
        (twice("delete b"), twice("delete c"), "delete c"),
        (twice("delete b"), twice(""), None),
        (WELL, twice("delete b", state=AllocationState.RELEASED), None),
        (WELL, twice("its slice is gone", source=AllocationSource.ALLOCATE), None),
        (WELL, twice("delete b", owner=None), None),
    ],
    ids=["new", "at the start", "begins", "told", "other words", "ends", "over", "asked for", "nobody's"],
)
def test_a_card_that_was_given_twice_is_told_once_in_the_same_words(
    before: AgentStatus, after: AgentStatus, told: str | None
) -> None:
    said = f"another pod uses a card of this pod, too: {told}"

    found = [it for it in notices(before, after) if it.reason == "CardGivenTwice"]

    assert found == [Notice("CardGivenTwice", said, "Warning", WEB)] * (told is not None)


# All of them

CARDS = st.lists(
    st.builds(
        DeviceStatus,
        vendor=st.sampled_from(["acme", "bolt"]),
        device=st.sampled_from([status(f"GPU-{n}", n).device for n in range(3)]),
        health=st.builds(
            Health, st.sampled_from(State), st.sampled_from(["", "hot", LOST_CONTACT, "in-other-mode"])
        ),
        told_healthy=st.booleans(),
        gone=st.booleans(),
        cordon=st.none() | st.just(Cordon("alice")),
    ),
    unique_by=lambda it: it.uuid,
)


@given(CARDS, CARDS)
def test_every_notice_is_one_of_the_documented_and_no_change_is_no_news(
    before: list[DeviceStatus], after: list[DeviceStatus]
) -> None:
    first, second = (structs.replace(WELL, snapshot=node(*its)) for its in (before, after))

    told = notices(first, second)

    assert {it.reason for it in told} <= ACTIONS.keys()
    assert len(told) <= len(before) + 2 * len(after)
    assert notices(second, structs.replace(second, snapshot=node(*after))) == ()


# What Koordinator is told


def reporting(**its: Any) -> AgentStatus:
    reported = SchedulerReport(scheduler="Koordinator", node_program="koordlet", kind="Device", **its)
    return structs.replace(UNKNOWN, reported=reported)


def test_a_koordlet_that_overwrites_is_told_once_with_what_follows() -> None:
    fed = reporting(mode="feed", why="a koordlet overwrote this node's Device", overwritten=True)
    notice = only(reporting(mode="device"), fed)

    assert (notice.reason, notice.kind) == ("ReportOverwritten", "Warning")
    assert "the agent writes its file from now on" in notice.message
    assert notice.message.startswith("koordlet overwrote this node's Device, ")
    stopped = only(UNKNOWN, reporting(mode="none", overwritten=True))
    assert "the agent has stopped" in stopped.message
    assert notices(fed, reporting(mode="feed", overwritten=True)) == ()


def test_a_report_that_fails_is_told_once_and_so_is_its_end() -> None:
    failed = reporting(error="403 Forbidden")

    assert only(UNKNOWN, failed).reason == "ReportFailed"
    assert "403 Forbidden" in only(UNKNOWN, failed).message
    assert notices(failed, reporting(error="503 in other words")) == ()
    assert (only(failed, UNKNOWN).reason, only(failed, UNKNOWN).kind) == ("ReportRestored", "Normal")


def test_each_thing_that_is_not_reported_is_told_once() -> None:
    before = reporting(left_out=("2 cards of acme are not reported",))
    after = reporting(
        left_out=("2 cards of acme are not reported", "GPU-1 is not written: another file lists it")
    )

    assert only(before, after).message == "GPU-1 is not written: another file lists it"
    assert only(UNKNOWN, before).reason == "CardsNotReported"
    assert notices(after, before) == ()
