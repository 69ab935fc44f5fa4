"""What GCUShare's schedulers and HAMi promise of Enflame's cards, as the real ones write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.scheduler_api import Candidate, Claim, PodContainer
from agent.schedulers.gcushare.dialect_hami import hami
from agent.schedulers.gcushare.dialect_v1 import v1
from agent.schedulers.gcushare.dialect_v4 import v4
from agent.schedulers.gcushare.names import ResourceNames
from agent.schedulers.gcushare.plugin import DIALECTS
from agent.schedulers.gcushare.pod_records import RECORDS, PodRecord, read, write
from agent.vendors.enflame.agent.names import ENFLAME, Brand
from agent.vendors.enflame.child.efsmi import profiles
from agent.vendors.enflame.shared.constants import PROFILE, PROFILE_ID, slices

RECORDED = Path(__file__).with_name("recorded_gcushare.json")
SCENES: list[dict[str, Any]] = json.loads(RECORDED.read_text())["scenes"]
#: Minors that are not the cards' places, as after a card was taken out.
CARDS: Mapping[str, int | None] = {f"GCU-{minor}": minor for minor in range(1, 9)}
MEMORY, SHARED, DRS = ENFLAME.memory, ENFLAME.shared, ENFLAME.drs
NAMES = ResourceNames.of(ENFLAME.terms)
#: Document 002's third pod, word for word.
V1 = {
    "enflame.com/gcu-device-assign-time": "1662453232515055293",
    "enflame.com/gcu-device-assigned": "false",
    "enflame.com/gcu-device-id": "1",
    "enflame.com/gcu-device-memory": "16",
    "enflame.com/gcu-device-memory-request": "12",
}
V4 = {
    "enflame.com/gcu-assigned": "false",
    "enflame.com/gcu-assigned-minor": "3",
    "enflame.com/gcu-assigned-time": "1795210908257059937",
    "enflame.com/gcu-request-size": "5",
}
#: A pod with its slice, as it was seen on a node with S60 cards.
ALLOCATED = (
    '{"pod-gcu-example1":{"allocated":true,"request":3,"profileID":"1","profileName":"3g.20gb",'
    '"instanceID":"2","instanceUUID":"7325501d-02bd-4da2-9289-24d8521736b9"}}'
)


def pod(
    resource: str, counts: Mapping[str, int], annotations: Mapping[str, str], scheduler: str = "s"
) -> Candidate:
    its = tuple(PodContainer(name, {resource: count} if count else {}) for name, count in counts.items())
    return Candidate("u", "default", "p", its, annotations, scheduler=scheduler)


def given(claims: Sequence[Claim]) -> dict[str, str]:
    """Container to the minor of its card."""
    return {it.container: f"{CARDS[it.devices[0]]}" for it in claims}


@pytest.mark.parametrize(
    ("scene", "shown"),
    [(scene, it) for scene in SCENES for it in scene["pods"]],
    ids=[f"{scene['scene']}, {it['pod']}" for scene in SCENES for it in scene["pods"]],
)
def test_what_gcushares_scheduler_wrote_becomes_claims_on_its_card_for_each_container_that_asks(
    scene: dict[str, Any], shown: dict[str, Any]
) -> None:
    its = tuple(
        PodContainer(it["name"], {name: int(count) for name, count in it["limits"].items() if "/" in name})
        for it in shown["containers"]
    )
    asks = Candidate("u", "default", shown["pod"], its, shown["annotations"], scheduler="gcushare-scheduler")
    minor = shown["annotations"].get("enflame.com/gcu-assigned-minor")
    cards = {f"GCU-{minor}": minor for minor in range(8)}
    for resource in (SHARED, DRS):
        found = {it.container: it.devices for it in v4(NAMES).claims(asks, resource, cards)}
        asking = [it.name for it in its if resource in it.limits] if shown["scheduled"] else []
        assert found == dict.fromkeys(asking, (f"GCU-{minor}",))


def test_the_four_scenes_hold_pods_that_were_scheduled_and_pods_that_were_refused() -> None:
    scheduled = [it["scheduled"] for scene in SCENES for it in scene["pods"]]
    assert (len(SCENES), scheduled.count(True) > 8, scheduled.count(False) > 2) == (4, True, True)


def test_a_slice_of_the_hardware_is_claimed_with_its_profile() -> None:
    drs = next(it for it in SCENES[3]["pods"] if it["pod"] == "drs3")
    (claim,) = v4(NAMES).claims(pod(DRS, {"a": 3}, drs["annotations"]), DRS, {"GCU-0": 0})
    assert dict(claim.parameters) == {PROFILE: "3g.20gb", PROFILE_ID: "1"}


def test_document_002s_pod_is_claimed_on_the_card_of_its_device_file() -> None:
    asks = pod(MEMORY, {"pod-gcu-example": 12}, V1, scheduler="default-scheduler")
    (claim,) = v1(NAMES).claims(asks, MEMORY, CARDS)
    assert (given([claim]), dict(claim.parameters)) == ({"pod-gcu-example": "1"}, {})


def test_all_containers_of_a_pod_are_claimed_on_one_card() -> None:
    annotations = V1 | {"enflame.com/gcu-device-memory-request": "5"}
    found = v1(NAMES).claims(pod(MEMORY, {"a": 2, "b": 0, "c": 3}, annotations), MEMORY, CARDS)
    assert given(found) == {"a": "1", "c": "1"}


def test_an_init_container_is_claimed_on_the_card_of_its_pod_and_counts_for_nothing() -> None:
    asks = pod(MEMORY, {"init": 9, "a": 12}, V1)
    init, main = asks.containers
    asks = replace(asks, containers=(replace(init, init=True), main))
    assert given(v1(NAMES).claims(asks, MEMORY, CARDS)) == {"init": "1", "a": "1"}


@pytest.mark.parametrize(("dialect", "resource"), [(v1, MEMORY), (v4, SHARED), (v4, DRS), (hami, SHARED)])
def test_a_pod_that_bypassed_the_scheduler_claims_nothing(dialect: Any, resource: str) -> None:
    assert dialect(NAMES).claims(pod(resource, {"a": 1}, {}), resource, CARDS) == ()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"enflame.com/gcu-device-id": "9"}, "names card 9, which is not here; the cards here: 1, 2, 3"),
        ({"enflame.com/gcu-device-id": "0"}, "names card 0, which is not here"),
        ({"enflame.com/gcu-device-id": "1; reboot"}, "'1; reboot', awaited is a number"),
        ({"enflame.com/gcu-device-id": "-1"}, "'-1', awaited is a number"),
        ({"enflame.com/gcu-device-id": "01"}, "'01', awaited is a number"),
        ({"enflame.com/gcu-device-id": "1" * 60}, "awaited is a number"),
        ({"enflame.com/gcu-device-id": "\u0661"}, "awaited is a number"),
        ({"enflame.com/gcu-device-memory-request": "13"}, "promises 13 of enflame.com/gcu-memory"),
        ({"enflame.com/gcu-device-memory-request": "12288"}, "MiB are counted in the dialect hami"),
        ({"enflame.com/gcu-device-assigned": "yes"}, "'yes', awaited is 'false' or 'true'"),
        ({"enflame.com/gcu-device-assign-time": "soon"}, "'soon', awaited is the time in nanoseconds"),
    ],
)
def test_annotations_of_the_first_generation_that_make_no_sense_are_refused_saying_why(
    changed: Mapping[str, str], says: str
) -> None:
    with pytest.raises(ValueError, match="gcu-device") as refused:
        v1(NAMES).claims(pod(MEMORY, {"a": 12}, {**V1, **changed}), MEMORY, CARDS)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "missing", ["enflame.com/gcu-device-memory-request", "enflame.com/gcu-device-assign-time"]
)
def test_half_of_what_the_scheduler_writes_is_no_claim(missing: str) -> None:
    said = {key: value for key, value in V1.items() if key != missing}
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        v1(NAMES).claims(pod(MEMORY, {"a": 12}, said), MEMORY, CARDS)


def test_a_request_in_mib_on_a_node_that_counts_units_is_refused_naming_both() -> None:
    with pytest.raises(ValueError, match="this node speaks gcushare-v1, which counts units"):
        v1(NAMES).claims(pod(MEMORY, {"a": 12 * 1024}, V1), MEMORY, CARDS)


def test_gcushares_choice_is_not_believed_of_a_pod_of_kubernetes_own_scheduler() -> None:
    with pytest.raises(ValueError, match="not believed of a pod of default-scheduler"):
        v4(NAMES).claims(pod(SHARED, {"a": 5}, V4, scheduler="default-scheduler"), SHARED, CARDS)


def drs(record: object, count: int = 3) -> Candidate:
    annotations = V4 | {"enflame.com/gcu-request-size": str(count), RECORDS: json.dumps({"a": record})}
    return pod(DRS, {"a": count}, annotations)


GOOD = {"allocated": False, "request": 3, "profileID": "1", "profileName": "3g.20gb"}


def test_a_good_record_is_believed() -> None:
    (claim,) = v4(NAMES).claims(drs(GOOD), DRS, CARDS)
    assert dict(claim.parameters) == {PROFILE: "3g.20gb", PROFILE_ID: "1"}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (GOOD | {"profileID": "1; rm -rf /"}, "profileID is '1; rm -rf /', awaited is a number"),
        (GOOD | {"profileID": 1}, "profileID is 1, awaited is a number"),
        (GOOD | {"profileID": "--drs"}, "awaited is a number"),
        (GOOD | {"profileName": "3g.20gb$(id)"}, "awaited is a profile"),
        (GOOD | {"profileName": "1g.6gb"}, "names 1g.6gb for container a, which asks for 3 slices"),
        (GOOD | {"request": 2}, "promises container a 2 of enflame.com/drs-gcu, it asks for 3"),
        (GOOD | {"request": True}, "request is True"),
        (GOOD | {"allocated": "no"}, "allocated is 'no'"),
        (GOOD | {"instanceUUID": "x;y"}, "instanceUUID is 'x;y'"),
        ({"request": 3}, "names no profile of container a"),
        ([], "container a: no JSON object"),
    ],
)
def test_records_that_make_no_sense_are_refused_saying_why(record: object, says: str) -> None:
    with pytest.raises(ValueError, match=RECORDS) as refused:
        v4(NAMES).claims(drs(record), DRS, CARDS)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a":{},"a":{}}', "[" * 100_000, '{"a":1}', "null", '{"a":' + "1" * 5_000 + "}"],
)
def test_a_hostile_text_is_no_record(text: str) -> None:
    with pytest.raises(ValueError, match=RECORDS):
        read(text)


def test_a_record_as_it_was_seen_on_a_real_node_is_read_and_written_word_for_word() -> None:
    assert write(read(ALLOCATED)) == ALLOCATED


@pytest.mark.parametrize("name", ["1g.6gb", "12g.100gb", "100g.9999gb"])
def test_a_record_may_name_every_profile_that_efsmi_can_list(name: str) -> None:
    (listed,) = profiles(f"| 0 | {name} | 1 | 2 | 6GB | 1 |").rows

    assert read(json.dumps({"a": {"profileName": name}})) == {"a": PodRecord(profile_name=listed.name)}
    assert slices(name) == listed.slices > 0


def test_a_shared_container_is_recorded_as_gcushares_plugin_does() -> None:
    assert (
        write({"b": PodRecord(allocated=True), "a": PodRecord()})
        == '{"a":{"allocated":false},"b":{"allocated":true}}'
    )


def test_a_shared_pod_whose_other_container_has_its_slices_already_is_still_claimed() -> None:
    said = V4 | {RECORDS: '{"a":{"allocated":true}}'}
    assert given(v4(NAMES).claims(pod(SHARED, {"a": 2, "b": 3}, said), SHARED, CARDS)) == {
        "a": "3",
        "b": "3",
    }


def test_hami_up_to_2_8_names_the_place_of_a_card_and_no_size() -> None:
    said = {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": "1795210908257059937",
        "enflame.com/gcu-assigned-id": "0",
    }
    assert given(hami(NAMES).claims(pod(SHARED, {"a": 2}, said), SHARED, CARDS)) == {"a": "1"}
    beyond = said | {"enflame.com/gcu-assigned-id": "8"}
    with pytest.raises(ValueError, match="names card 8 from 0 on, there are 8"):
        hami(NAMES).claims(pod(SHARED, {"a": 2}, beyond), SHARED, CARDS)


def test_hamis_place_counts_cards_and_neither_their_slices_nor_what_has_no_number() -> None:
    cards = {"a": 0, "slice-of-a": None, "b": 1, "unnumbered": None}
    said = {"enflame.com/gcu-assigned-id": "1", "enflame.com/gcu-assigned-time": "1795210908257059937"}

    (claim,) = hami(NAMES).claims(pod(SHARED, {"a": 2}, said), SHARED, cards)
    assert claim.devices == ("b",)
    beyond = said | {"enflame.com/gcu-assigned-id": "2"}
    with pytest.raises(ValueError, match="names card 2 from 0 on, there are 2"):
        hami(NAMES).claims(pod(SHARED, {"a": 2}, beyond), SHARED, cards)


@pytest.mark.parametrize(("size", "fits"), [("2", True), ("5", True), ("3", False), ("6", False)])
def test_of_several_containers_hami_may_write_the_first_ones_slices_alone(size: str, *, fits: bool) -> None:
    asks = pod(SHARED, {"a": 2, "b": 3}, V4 | {"enflame.com/gcu-request-size": size})
    if fits:
        assert given(hami(NAMES).claims(asks, SHARED, CARDS)) == {"a": "3", "b": "3"}
    else:
        with pytest.raises(
            ValueError, match=f"promises {size} of enflame.com/shared-gcu, the pod asks for 2 or 5"
        ):
            hami(NAMES).claims(asks, SHARED, CARDS)


@pytest.mark.parametrize("dialect", [v4, hami])
def test_units_of_memory_are_nothing_that_the_later_generations_speak_of(dialect: Any) -> None:
    assert dialect(NAMES).claims(pod(MEMORY, {"a": 5}, V4), MEMORY, CARDS) == ()


def test_slices_are_nothing_that_the_first_generation_speaks_of() -> None:
    assert v1(NAMES).claims(pod(SHARED, {"a": 12}, V1), SHARED, CARDS) == ()


def test_who_sells_the_cards_under_another_name_has_the_names_in_its_own_words() -> None:
    brand = Brand("tencent.com", "zixiao")
    tencent = ResourceNames.of(brand.terms)
    assert (brand.whole, tencent.shared) == ("tencent.com/zixiao", "tencent.com/shared-zixiao")
    said = {tencent.key(key): value for key, value in V4.items()}
    found = v4(tencent).claims(pod(tencent.shared, {"a": 5}, said), tencent.shared, CARDS)
    assert (said["tencent.com/zixiao-assigned-minor"], given(found)) == ("3", {"a": "3"})


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_bears_the_name_of_its_configuration_and_reads_its_own_annotations(name: str) -> None:
    dialect = DIALECTS[name](ResourceNames.of(Brand("acme.com", "npu").terms))
    assert (dialect.name, dialect.reads[0]) == (name, "acme.com/")
