"""What pods tell GCUShare's schedulers and HAMi once they have their devices, in its plugins' words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from support.read_annotations import READS

from agent.cluster.pods import candidate
from agent.core.model import Allocation, AllocationState, Owner
from agent.core.publishing.receipt_rules import OwedReceipts, owed_receipts, wrong_key
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer, ServedClaim
from agent.schedulers.gcushare.dialect_hami import hami
from agent.schedulers.gcushare.dialect_v1 import v1
from agent.schedulers.gcushare.dialect_v4 import v4
from agent.schedulers.gcushare.names import ResourceNames
from agent.schedulers.gcushare.plugin import DIALECTS
from agent.schedulers.gcushare.pod_records import RECORDS, PodRecord, read, read_old, write
from agent.vendors.enflame.agent.names import ENFLAME, Brand

CARDS: Cards = {f"GCU-{minor}": minor for minor in range(8)}
MEMORY, SHARED, DRS = ENFLAME.memory, ENFLAME.shared, ENFLAME.drs
NAMES = ResourceNames.of(ENFLAME.terms)
SLICE = "2:7325501d-02bd-4da2-9289-24d8521736b9"
TIME = "1795210908257059937"
#: As each scheduler binds a pod, less its size.
V1 = {
    "enflame.com/gcu-device-assign-time": TIME,
    "enflame.com/gcu-device-assigned": "false",
    "enflame.com/gcu-device-id": "3",
}
V4 = {
    "enflame.com/gcu-assigned": "false",
    "enflame.com/gcu-assigned-minor": "3",
    "enflame.com/gcu-assigned-time": TIME,
}
HEAD = {**V4, "enflame.com/gcu-assigned-id": "3", "enflame.com/gcu-assigned-index": "3"}
OLD = {"enflame.com/gcu-assigned": "false", "enflame.com/gcu-assigned-time": TIME} | {
    "enflame.com/gcu-assigned-id": "3"
}
DRS_RECORDS = (
    '{"a":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"},'
    '"b":{"allocated":false,"request":1,"profileID":"0","profileName":"1g.6gb"}}'
)


def pod(
    resource: str, counts: Mapping[str, int], said: Mapping[str, str], scheduler: str = "gcushare-scheduler"
) -> Candidate:
    its = tuple(PodContainer(name, {resource: count} if count else {}) for name, count in counts.items())
    return Candidate("u", "default", "p", its, said, scheduler=scheduler)


def has(resource: str, container: str, count: int = 1, *slices: str) -> ServedClaim:
    return ServedClaim(container, resource, count, ("GCU-3",), slices)


def told(dialect: Dialect, of: Candidate, *given: ServedClaim) -> Mapping[str, str]:
    assert dialect.receipt is not None
    return dialect.receipt(of, given)


# Of the first generation

SIZE = "enflame.com/gcu-device-memory-request"


def test_of_the_first_generation_a_pod_says_in_one_word_that_it_has_its_units() -> None:
    asks = pod(MEMORY, {"a": 12}, V1 | {SIZE: "12"})
    assert told(v1(NAMES), asks, has(MEMORY, "a", 12)) == {"enflame.com/gcu-device-assigned": "true"}


def test_of_the_first_generation_a_pod_whose_other_container_has_no_units_yet_says_nothing() -> None:
    asks = pod(MEMORY, {"a": 2, "side": 0, "b": 3}, V1 | {SIZE: "5"})
    assert told(v1(NAMES), asks, has(MEMORY, "b", 3)) == {}
    assert told(v1(NAMES), asks, has(MEMORY, "a", 2), has(MEMORY, "b", 3)) != {}


# Of the fourth


def shared_pair(**said: str) -> Candidate:
    return pod(SHARED, {"a": 2, "side": 0, "b": 3}, V4 | {"enflame.com/gcu-request-size": "5"} | said)


@pytest.mark.parametrize("dialect", [v4, hami])
def test_each_container_with_its_slices_is_recorded_and_the_last_one_says_it_for_all(dialect: Any) -> None:
    asks = shared_pair()
    a, b = has(SHARED, "a", 2), has(SHARED, "b", 3)
    assert told(dialect(NAMES), asks, a) == {RECORDS: '{"a":{"allocated":true}}'}
    assert told(dialect(NAMES), asks, a, b) == {
        RECORDS: '{"a":{"allocated":true},"b":{"allocated":true}}',
        "enflame.com/gcu-assigned": "true",
    }


def test_what_is_recorded_on_the_pod_already_stays() -> None:
    asks = shared_pair(**{RECORDS: '{"a":{"allocated":true},"gone":{"request":1}}'})
    text = told(v4(NAMES), asks, has(SHARED, "b", 3))[RECORDS]
    assert read(text) == {"a": PodRecord(True), "b": PodRecord(True), "gone": PodRecord(False, 1)}


def test_what_the_pod_says_of_itself_falsely_makes_it_no_pod_with_all_its_devices() -> None:
    asks = shared_pair(**{RECORDS: '{"a":{"allocated":true}}'})
    assert told(v4(NAMES), asks, has(SHARED, "b", 3)).keys() == {RECORDS}


@pytest.mark.parametrize(
    ("dialect", "said"), [(v4, V4 | {"enflame.com/gcu-request-size": "4"}), (hami, HEAD)]
)
def test_a_slice_of_the_hardware_is_recorded_with_its_number_and_uuid(
    dialect: Any, said: dict[str, str]
) -> None:
    asks = pod(DRS, {"a": 3, "b": 1}, said | {RECORDS: DRS_RECORDS})
    first = told(dialect(NAMES), asks, has(DRS, "a", 3, SLICE))
    assert first == {
        RECORDS: '{"a":{"allocated":true,"request":3,"profileID":"1","profileName":"3g.20gb",'
        '"instanceID":"2","instanceUUID":"7325501d-02bd-4da2-9289-24d8521736b9"},'
        '"b":{"allocated":false,"request":1,"profileID":"0","profileName":"1g.6gb"}}'
    }
    both = told(dialect(NAMES), asks, has(DRS, "a", 3, SLICE), has(DRS, "b", 1, "0:b-uuid"))
    assert both["enflame.com/gcu-assigned"] == "true"
    assert read(both[RECORDS])["b"] == PodRecord(True, 1, "0", "1g.6gb", "0", "b-uuid")


def test_a_container_whose_slice_is_not_made_yet_is_not_recorded() -> None:
    asks = pod(DRS, {"a": 3}, V4 | {RECORDS: DRS_RECORDS})
    assert told(v4(NAMES), asks, has(DRS, "a", 3)) == {}


def test_the_record_of_a_real_node_is_made_word_for_word() -> None:
    record = {"allocated": False, "request": 3, "profileID": "1", "profileName": "3g.20gb"}
    asks = pod(DRS, {"pod-gcu-example1": 3}, V4 | {RECORDS: json.dumps({"pod-gcu-example1": record})})
    assert told(v4(NAMES), asks, has(DRS, "pod-gcu-example1", 3, SLICE)) == {
        RECORDS: '{"pod-gcu-example1":{"allocated":true,"request":3,"profileID":"1",'
        '"profileName":"3g.20gb","instanceID":"2","instanceUUID":"7325501d-02bd-4da2-9289-24d8521736b9"}}',
        "enflame.com/gcu-assigned": "true",
    }


# Of HAMi up to 2.8


def test_a_pod_of_hami_up_to_2_8_is_told_in_the_words_of_the_second_generation() -> None:
    asks = pod(SHARED, {"a": 2, "b": 3}, OLD, scheduler="hami-scheduler")
    a, b = has(SHARED, "a", 2), has(SHARED, "b", 3)
    assert told(hami(NAMES), asks, a) == {RECORDS: '{"a":"true"}'}
    assert told(hami(NAMES), asks, a, b) == {
        RECORDS: '{"a":"true","b":"true"}',
        "enflame.com/gcu-assigned": "true",
    }


@pytest.mark.parametrize(
    "text", ['{"a":"true"}', '{"a":{"allocated":true}}', '{"a":"true","b":"false"}'], ids=str
)
def test_a_pod_of_hami_up_to_2_8_goes_on_from_what_any_plugin_of_its_time_wrote(text: str) -> None:
    asks = pod(SHARED, {"a": 2, "b": 3}, OLD | {RECORDS: text}, scheduler="hami-scheduler")
    assert [it.container for it in hami(NAMES).claims(asks, SHARED, CARDS)] == ["a", "b"]
    assert told(hami(NAMES), asks, has(SHARED, "b", 3))[RECORDS] == '{"a":"true","b":"true"}'


@pytest.mark.parametrize("text", ["", "[]", '{"a":"yes"}', '{"a":1}', '{"a":"true","a":"true"}', "[" * 9999])
def test_old_records_that_make_no_sense_are_refused_saying_why(text: str) -> None:
    with pytest.raises(ValueError, match=RECORDS):
        read_old(text)


# Of all


@pytest.mark.parametrize("dialect", [v4, hami])
def test_where_hostile_words_stand_nothing_is_written_over_them(dialect: Any) -> None:
    asks = shared_pair(**{RECORDS: '{"a":{"profileID":"1; reboot"}}'})
    with pytest.raises(ValueError, match="profileID is '1; reboot'"):
        told(dialect(NAMES), asks, has(SHARED, "b", 3))


def test_a_receipt_bears_the_names_of_who_sells_the_cards() -> None:
    tencent = ResourceNames.of(Brand("tencent.com", "zixiao").terms)
    said = {tencent.key(key): text for key, text in V4.items()}
    asks = pod(tencent.shared, {"a": 1}, said)
    assert told(v4(tencent), asks, has(tencent.shared, "a")) == {
        RECORDS: '{"a":{"allocated":true}}',
        "tencent.com/zixiao-assigned": "true",
    }
    first = pod(tencent.memory, {"a": 1}, {})
    assert told(v1(tencent), first, has(tencent.memory, "a")).keys() == {"tencent.com/zixiao-device-assigned"}


@pytest.mark.parametrize("name", DIALECTS)
def test_the_keys_of_a_receipt_are_such_as_the_chart_can_allow(name: str) -> None:
    dialect = DIALECTS[name](NAMES)
    assert dialect.receipt_keys
    assert [wrong_key(it) for it in dialect.receipt_keys] == [""] * len(dialect.receipt_keys)


def test_a_dialect_that_came_late_finds_the_records_on_the_pods_that_were_read_before_it() -> None:
    found = candidate(
        {"metadata": {"uid": "u", "namespace": "d", "name": "p", "annotations": V4 | {RECORDS: "{}"}}},
        READS,
    )
    assert found is not None
    assert found.annotations == V4 | {RECORDS: "{}"}


# Whatever order, and however often

CONTAINERS = ("a", "b", "c", "d")
asked = st.dictionaries(st.sampled_from(CONTAINERS), st.integers(1, 4), min_size=1)


@st.composite
def scenes(draw: Any) -> tuple[Dialect, Candidate, tuple[ServedClaim, ...]]:
    """A dialect, a pod as its scheduler wrote it, and what all of its containers get, in any order."""
    counts: Mapping[str, int] = draw(asked)
    total = str(sum(counts.values()))
    kind = draw(st.sampled_from(["v1", "shared", "drs", "head", "old"]))
    size = {"enflame.com/gcu-request-size": total}
    if kind == "v1":
        made = v1(NAMES), pod(MEMORY, counts, V1 | {SIZE: total})
    elif kind == "drs":
        counts = dict.fromkeys(counts, 1)
        record = {"allocated": False, "request": 1, "profileID": "0", "profileName": "1g.6gb"}
        said = V4 | {"enflame.com/gcu-request-size": str(len(counts))}
        made = v4(NAMES), pod(DRS, counts, said | {RECORDS: json.dumps(dict.fromkeys(counts, record))})
    else:
        dialect, said = {"shared": (v4, V4 | size), "head": (hami, HEAD | size), "old": (hami, OLD)}[kind]
        made = dialect(NAMES), pod(SHARED, counts, said)
    (resource,) = made[1].containers[0].limits
    gets = [has(resource, name, n, *([SLICE] if resource == DRS else [])) for name, n in counts.items()]
    return (*made, tuple(draw(st.permutations(gets))))


@for_all(scenes())
def test_a_receipt_grows_to_the_same_text_in_any_order_asks_nothing_twice_and_changes_no_claim(
    scene: tuple[Dialect, Candidate, tuple[ServedClaim, ...]],
) -> None:
    dialect, asks, gets = scene
    at_once = {**asks.annotations, **told(dialect, asks, *gets)}
    (resource,) = {it.resource for it in gets}
    claims = dialect.claims(asks, resource, CARDS)
    assert len(claims) == len(gets)

    bearing = asks
    for n in range(1, len(gets) + 1):
        texts = told(dialect, bearing, *gets[:n])
        assert texts.keys() <= {*dialect.receipt_keys}
        bearing = replace(bearing, annotations={**bearing.annotations, **texts})
        assert told(dialect, bearing, *gets[:n]) == texts
        assert dialect.claims(bearing, resource, CARDS) == claims
        done = [bearing.annotations[it] == "true" for it in dialect.receipt_keys if it != RECORDS]
        assert done == [n == len(gets)]
    assert bearing.annotations == at_once


names = st.sampled_from([*CONTAINERS, "a\x00", "é", ""])
texts = st.sampled_from(["1", "1g.6gb", "x;y", "", "true"]) | st.text(max_size=5)
junk = st.none() | st.booleans() | st.integers() | texts
records = st.dictionaries(
    names, junk | st.dictionaries(st.sampled_from([*"abc", "allocated", "profileID", "instanceUUID"]), junk)
)


@for_all(
    st.one_of(st.text(max_size=40), records.map(json.dumps)),
    st.sampled_from([(v4, HEAD | {"enflame.com/gcu-request-size": "1"}), (hami, HEAD), (hami, OLD)]),
)
def test_whatever_stands_on_a_pod_its_receipt_is_made_and_stands_or_is_refused_in_words(
    text: str, as_bound: tuple[Any, dict[str, str]]
) -> None:
    made, said = as_bound[0], {**as_bound[1], RECORDS: text}
    asks = pod(SHARED, {"a": 1}, said, scheduler="hami-scheduler")
    found = owed(made(NAMES), asks, has(SHARED, "a"))
    assert (len(found.owed), len(found.wrong)) in {(1, 0), (0, 1)}
    if found.owed:
        bearing = replace(asks, annotations={**said, **found.owed[0].texts})
        assert owed(made(NAMES), bearing, has(SHARED, "a")) == OwedReceipts()


def owed(dialect: Dialect, of: Candidate, *gets: ServedClaim) -> OwedReceipts:
    """As the core asks for it: of a pod whose containers have this, as the kubelet confirms."""
    claims = {it.container: replace(it, dialect=dialect.name) for it in claimed(dialect, of)}
    its = [
        Allocation(
            id=it.container,
            vendor="enflame",
            resource=it.resource,
            ids=tuple(f"{it.devices[0]}::{n}" for n in range(it.count)),
            devices=it.devices,
            state=AllocationState.DONE,
            since=0.0,
            owner=Owner(of.uid, it.container),
            claim=claims[it.container],
            partitions=it.partitions,
        )
        for it in gets
    ]
    return owed_receipts((of,), its, lambda *name: {("enflame", dialect.name): dialect}.get(name))


def claimed(dialect: Dialect, of: Candidate) -> Sequence[Claim]:
    """As the pod was claimed before anybody wrote on it."""
    said = {key: text for key, text in of.annotations.items() if key != RECORDS}
    return dialect.claims(replace(of, annotations=said), SHARED, CARDS)


def test_an_init_container_gets_its_slice_by_size_and_its_record_spoils_nothing() -> None:
    asks = pod(DRS, {"init": 1, "a": 3}, V4 | {"enflame.com/gcu-request-size": "3"})
    init, main = asks.containers
    record = json.loads(DRS_RECORDS)["a"]
    asks = replace(
        asks,
        containers=(replace(init, init=True), main),
        annotations={**asks.annotations, RECORDS: json.dumps({"a": record})},
    )
    claims = v4(NAMES).claims(asks, DRS, CARDS)
    assert [dict(it.parameters) != {} for it in claims] == [False, True]
    made = told(v4(NAMES), asks, has(DRS, "init", 1, "0:i"), has(DRS, "a", 3, SLICE))
    bearing = replace(asks, annotations={**asks.annotations, **made})
    assert v4(NAMES).claims(bearing, DRS, CARDS) == claims
    assert read(write(read(made[RECORDS])))["init"] == PodRecord(True, instance_id="0", instance_uuid="i")
