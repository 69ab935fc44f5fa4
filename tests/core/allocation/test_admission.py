"""Which requests can be answered at all, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.core.allocation.admission import admit, refuse_outdated, refuse_retired, serving_vendor
from agent.core.allocation.scene import Scene
from agent.core.devices.resource_waits import ResourceWait
from agent.core.errors import (
    AllocationError,
    ClosedDevice,
    CordonedDevice,
    InOtherMode,
    InvalidRequest,
    OutdatedDevice,
    RetiredResource,
    StillHeld,
    UnhealthyDevice,
    UnknownDevice,
    UnknownResource,
)
from agent.core.model import Allocation, ClosedBecause, Cordon, IdRange, Owner
from agent.vendor_api.agent import FOREIGN_SLICES, Placement, Sharing
from core.scenes import ONE, SHARE, SLICE, UNCUT, WHOLE, held, scene
from core.values import allocation

INVALID = "invalid allocation request for"


def listed(uuid: str, resource: str = WHOLE, **fields: Any) -> Scene:
    """The node where a card of the resource is listed otherwise."""
    known = scene()
    planned = known.plan[resource]
    cards = tuple(replace(card, **fields) if card.uuid == uuid else card for card in planned.cards)
    return replace(known, plan={resource: replace(planned, cards=cards)})


def cordoned(author: str, reason: str, *, healthy: bool = True) -> Scene:
    """The node with the card c0 cordoned, and its ID in use."""
    known = listed("c0", healthy=False, held=("c0",))
    devices = tuple(
        replace(it, cordon=Cordon(author, reason), told_healthy=healthy) if it.uuid == "c0" else it
        for it in known.snapshot.devices
    )
    return replace(known, snapshot=replace(known.snapshot, devices=devices))


def forgotten(allocation: Allocation) -> Scene:
    """The node where the kubelet has forgotten this allocation of c0."""
    known = listed("c0", healthy=False)
    return replace(known, forgotten={WHOLE: {"c0": allocation}})


def sliced_by_others(**fields: Any) -> Scene:
    """The node where others made two slices on c0."""
    known = listed("c0", healthy=False, closed=ClosedBecause.FOREIGN_SLICES, **fields)
    devices = tuple(
        replace(it, device=replace(it.device, attributes={FOREIGN_SLICES: "2"})) if it.uuid == "c0" else it
        for it in known.snapshot.devices
    )
    return replace(known, snapshot=replace(known.snapshot, devices=devices))


@pytest.mark.parametrize(
    ("resource", "ids", "cards"),
    [
        pytest.param(WHOLE, ["c1", "c0"], ["c1", "c0"], id="in the order of the request"),
        pytest.param(SLICE, ["c2::3", "c2::0"], ["c2", "c2"], id="a card for each ID"),
        pytest.param(SLICE, ["c2::3", "c2::3"], ["c2"], id="an ID twice"),
        pytest.param(ONE, ["c3::2"], ["c3"], id="one replica where no more are given"),
        pytest.param(ONE, ["c3::2", "c3::2"], ["c3"], id="one replica twice"),
    ],
)
def test_a_request_is_admitted_with_the_card_of_each_id(
    resource: str, ids: list[str], cards: list[str]
) -> None:
    assert [it.uuid for it in admit(scene(), resource, ids).devices] == cards


@pytest.mark.parametrize(
    ("resource", "ids", "error", "text"),
    [
        pytest.param(
            "acme.com/none", ["c0"], UnknownResource, "the resource is not served here", id="unknown resource"
        ),
        pytest.param(
            WHOLE, ["c7"], UnknownDevice, "invalid request: unknown device: c7", id="unknown device"
        ),
        pytest.param(
            WHOLE,
            ["c2"],
            UnknownDevice,
            "invalid request: unknown device: c2",
            id="device of another resource",
        ),
        pytest.param(
            WHOLE,
            ["c0", "sick"],
            UnhealthyDevice,
            "device sick is unhealthy: xid-79 lost",
            id="unhealthy device",
        ),
        pytest.param(WHOLE, [], InvalidRequest, "invalid request: it names no device", id="no device"),
        pytest.param(
            ONE,
            ["c3::0", "c3::1"],
            InvalidRequest,
            "invalid request: maximum request size for shared resources is 1; found 2",
            id="two replicas where one is given",
        ),
    ],
)
def test_a_refusal_says_what_was_asked(
    resource: str, ids: list[str], error: type[AllocationError], text: str
) -> None:
    with pytest.raises(error) as refused:
        admit(scene(), resource, ids)

    assert str(refused.value) == f'{INVALID} "{resource}": {text}'


@pytest.mark.parametrize(
    ("known", "error", "text"),
    [
        pytest.param(
            forgotten(held("gone", "c0")),
            StillHeld,
            "device c0 is held by default/gone, and the kubelet has lost its record of that; "
            "delete that pod to free it",
            id="forgotten by the kubelet",
        ),
        pytest.param(
            forgotten(held("gone", "c0", owner=Owner("uid-gone", "main"))),
            StillHeld,
            "device c0 is held by pod/uid-gone, and the kubelet has lost its record of that; "
            "delete that pod to free it",
            id="forgotten by the kubelet, of a pod whose name is not known",
        ),
        pytest.param(
            forgotten(held("gone", "c0", owner=None)),
            StillHeld,
            "device c0 is held by allocation gone, and the kubelet has lost its record of that; "
            "delete that pod to free it",
            id="forgotten by the kubelet, of a pod that is not known",
        ),
        pytest.param(
            listed("c0", healthy=False),
            ClosedDevice,
            "device c0 is closed to new pods: no pod could have it until a moment ago; create the pod again",
            id="free again, and not listed yet",
        ),
        pytest.param(
            sliced_by_others(),
            ClosedDevice,
            "device c0 is closed to new pods: slices that this agent did not make lie on its card (2): "
            "it is free when they are gone",
            id="sliced by others",
        ),
        pytest.param(
            listed("c0", healthy=False, mode=SLICE),
            InOtherMode,
            f"card c0 is in-other-mode: it is given out as {SLICE} until that use ends; "
            "create the pod again to get another card",
            id="in another mode",
        ),
        pytest.param(
            replace(listed("c0", healthy=False), withheld={"acme": "its config is refused"}),
            ClosedDevice,
            "device c0 is closed to new pods: its config is refused",
            id="vendor withheld",
        ),
        pytest.param(
            replace(listed("c0", healthy=False, held=("c0",)), withheld={WHOLE: "another plugin serves it"}),
            ClosedDevice,
            "device c0 is closed to new pods: another plugin serves it",
            id="resource withheld, also from who has the device",
        ),
        pytest.param(
            sliced_by_others(held=("c0",)),
            ClosedDevice,
            "device c0 is closed to new pods: slices that this agent did not make lie on its card (2): "
            "it is free when they are gone",
            id="foreign slices, also by the ID of a pod that may have ended",
        ),
    ],
)
def test_a_card_that_is_well_and_listed_for_nobody_is_refused_with_the_reason(
    known: Scene, error: type[AllocationError], text: str
) -> None:
    with pytest.raises(error) as refused:
        admit(known, WHOLE, ["c0"])

    assert str(refused.value) == f'{INVALID} "{WHOLE}": {text}'


def test_the_fault_of_a_card_is_told_before_why_its_vendor_is_withheld() -> None:
    with pytest.raises(UnhealthyDevice, match=r"device sick is unhealthy: xid-79 lost$"):
        admit(replace(scene(), withheld={"acme": "its config is refused"}), WHOLE, ["sick"])


@pytest.mark.parametrize(
    ("placement", "resource", "refused"), [("auto", SHARE, False), ("local", SHARE, True)]
)
def test_a_share_by_an_id_of_a_card_in_another_mode_may_lie_where_its_scheduler_chose(
    placement: Placement, resource: str, refused: bool
) -> None:
    """The kubelet hears of a mode later, and takes whichever ID it knows."""
    known = scene(placement=placement, dynamic=True)
    planned = known.plan[resource]
    moded = (
        replace(it, healthy=False, held=(), mode=UNCUT) if it.uuid == "c4" else it for it in planned.cards
    )
    known = replace(known, plan={**known.plan, resource: replace(planned, cards=tuple(moded))})

    if refused:
        with pytest.raises(InOtherMode):
            admit(known, resource, ["c4::0"])
    else:
        assert [it.uuid for it in admit(known, resource, ["c4::0"]).devices] == ["c4"]


@pytest.mark.parametrize("mode", ["", SLICE])
def test_an_id_in_use_is_admitted_on_a_card_that_no_new_pod_gets(mode: str) -> None:
    """The kubelet gives it out again before its end is seen here."""
    known = listed("c0", healthy=False, held=("c0",), mode=mode)

    assert [it.uuid for it in admit(known, WHOLE, ["c0"]).devices] == ["c0"]


def test_an_id_in_use_lets_no_other_id_of_its_card_in() -> None:
    known = scene()
    planned = known.plan[SLICE]
    cards = tuple(replace(card, healthy=False, held=("c2::0",)) for card in planned.cards)

    with pytest.raises(ClosedDevice, match="device c2::1 is closed to new pods"):
        admit(replace(known, plan={SLICE: replace(planned, cards=cards)}), SLICE, ["c2::0", "c2::1"])


def test_whole_cards_are_given_by_several_where_of_shares_one_is_given() -> None:
    known = scene()
    planned = known.plan[WHOLE]
    rule = replace(planned.rule, sharing=Sharing(fail_requests_greater_than_one=True))

    admitted = admit(replace(known, plan={WHOLE: replace(planned, rule=rule)}), WHOLE, ["c0", "c1"])

    assert [it.uuid for it in admitted.devices] == ["c0", "c1"]


def test_a_card_that_a_scheduler_gave_to_another_pod_is_refused_by_that_pods_name() -> None:
    job = allocation("annotation-1", [], devices=("c1",), owner=Owner("uid-job", "", "default", "job"))

    with pytest.raises(ClosedDevice) as refused:
        admit(scene(placement="auto", external={"c1": job}), WHOLE, ["c1"])

    assert str(refused.value).endswith(
        "device c1 is closed to new pods: a scheduler gave it to default/job, which asks no device plugin: "
        "it is free when that pod is gone"
    )


@pytest.mark.parametrize("closed", ClosedBecause)
def test_no_pod_is_to_be_deleted_for_a_card_that_is_closed_for_another_reason(closed: ClosedBecause) -> None:
    """Although the scene no longer says what the plan was made of."""
    with pytest.raises(ClosedDevice) as refused:
        admit(listed("c0", healthy=False, closed=closed), WHOLE, ["c0"])

    assert "delete" not in str(refused.value)


@pytest.mark.parametrize(
    ("reason", "told"),
    [("maintenance", "device c0 is cordoned by alice: maintenance$"), ("", "is cordoned by alice$")],
)
def test_a_cordoned_card_is_refused_with_author_and_reason_also_where_it_is_in_use(
    reason: str, told: str
) -> None:
    with pytest.raises(CordonedDevice, match=told):
        admit(cordoned("alice", reason), WHOLE, ["c0"])


def test_the_fault_of_a_cordoned_card_is_told_before_the_cordon() -> None:
    with pytest.raises(UnhealthyDevice):
        admit(cordoned("alice", "", healthy=False), WHOLE, ["c0"])


@given(
    strategies.hostile_texts
    | st.sampled_from(["c" * 1_000_000, "c2::" + "9" * 5000, "\x00\x1b[31m", "\ud800"])
)
def test_a_hostile_id_gives_a_bounded_printable_message(device_id: str) -> None:
    with pytest.raises(UnknownDevice) as refused:
        admit(scene(), SLICE, [f"c2::0{device_id}x"])

    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 250
    text.encode()


@given(st.lists(st.sampled_from(["c2::0", "c2::1", "c2::2", "c2::9", "c2", "", "c2-1"]), min_size=1))
def test_admitted_devices_stand_in_the_order_of_their_ids(ids: list[str]) -> None:
    known = {"c2::0", "c2::1", "c2::2", "c2-1"}

    if set(ids) <= known:
        assert [it.uuid for it in admit(scene(), SLICE, ids).devices] == ["c2"] * len(set(ids))
    else:
        with pytest.raises(UnknownDevice):
            admit(scene(), SLICE, ids)


@given(st.lists(st.sampled_from(["c0", "c1", "sick", "c7"]), min_size=1))
def test_the_first_id_that_cannot_be_had_refuses_the_whole_request(ids: list[str]) -> None:
    wrong = next((it for it in ids if it in ("sick", "c7")), None)

    if wrong is None:
        assert [it.uuid for it in admit(scene(), WHOLE, ids).devices] == list(dict.fromkeys(ids))
    else:
        with pytest.raises((UnknownDevice, UnhealthyDevice, ClosedDevice), match=wrong):
            admit(scene(), WHOLE, ids)


# Who serves a resource


@pytest.mark.parametrize(
    ("known", "resource"),
    [
        pytest.param(scene(), "acme.com/none", id="not planned"),
        pytest.param(scene(left_out=True), WHOLE, id="its vendor is left out"),
    ],
)
def test_a_resource_without_vendor_is_served_by_nobody(known: Scene, resource: str) -> None:
    with pytest.raises(UnknownResource):
        serving_vendor(known, resource)


def test_a_resource_is_served_by_its_vendor() -> None:
    assert serving_vendor(scene(), WHOLE).name == "acme"


# Resources that the config no longer has


@pytest.mark.parametrize(
    ("waits", "remedy"),
    [
        pytest.param((), "", id="no resource waits"),
        pytest.param(
            (ResourceWait("acme.com/new", SLICE, ("c0",), frozenset({"c0"})),),
            "",
            id="one waits for another's card",
        ),
        pytest.param(
            (
                ResourceWait("acme.com/new", WHOLE, ("c0",), frozenset({"c0"})),
                ResourceWait("acme.com/far", WHOLE, ("c1",), frozenset({"c1"})),
            ),
            "; ask for acme.com/new, which gets its cards as they become free",
            id="one waits for this card",
        ),
    ],
)
def test_a_resource_that_the_config_no_longer_has_is_given_to_no_new_pod(
    waits: tuple[ResourceWait, ...], remedy: str
) -> None:
    known = scene(retired={WHOLE}, waits=waits)

    with pytest.raises(RetiredResource) as refused:
        refuse_retired(known, WHOLE, {"c0"})

    only = "the config no longer has this resource, which is listed only for the pods that hold it"
    assert str(refused.value) == f'{INVALID} "{WHOLE}": {only}{remedy}'
    refuse_retired(known, SLICE, {"c2"})


@pytest.mark.parametrize(
    ("resource", "uuid", "fields"),
    [
        pytest.param(WHOLE, "c0", {"ids": None, "kept": ("c0::1",)}, id="a share of what is whole now"),
        pytest.param(SLICE, "c2", {"ids": None, "kept": ("c2",)}, id="the whole of what is shared now"),
        pytest.param(WHOLE, "c0", {"ids": None, "kept": ("zero",)}, id="a whole card in another writing"),
        pytest.param(WHOLE, "c0", {"ids": None, "kept": ("c0",)}, id="a card that is another resource's now"),
        pytest.param(SLICE, "c2", {"kept": ("c2::4",)}, id="a share of another number of shares"),
        pytest.param(SLICE, "c2", {"ids": None, "kept": ("c2-1",)}, id="a share of another size"),
    ],
)
def test_an_id_that_is_listed_for_who_holds_it_is_given_to_no_new_pod(
    resource: str, uuid: str, fields: dict[str, Any]
) -> None:
    known, [former] = listed(uuid, resource, **fields), fields["kept"]

    with pytest.raises(OutdatedDevice) as refused:
        refuse_outdated(known, resource, [former])

    assert f"{former} is listed only for the pod that held it" in str(refused.value)


@pytest.mark.parametrize(
    ("resource", "uuid", "device_id", "fields"),
    [
        pytest.param(WHOLE, "c1", "c1", {}, id="none is kept"),
        pytest.param(
            SLICE, "c2", "c2::3", {"kept": ("c2::3",), "displaced": 1}, id="a share beyond those left"
        ),
        pytest.param(
            SLICE, "c2", "c2-1", {"kept": ("c2-1",), "names": ("c2",), "displaced": 1}, id="a share"
        ),
        pytest.param(SLICE, "c2", "no-card", {}, id="of no card"),
    ],
)
def test_an_id_in_another_plugins_writing_is_given_out_like_that_of_which_it_stands_in_the_place(
    resource: str, uuid: str, device_id: str, fields: dict[str, Any]
) -> None:
    shorter = {"ids": IdRange("c2", 3)} if "displaced" in fields else {}

    refuse_outdated(listed(uuid, resource, **fields, **shorter), resource, [device_id])
