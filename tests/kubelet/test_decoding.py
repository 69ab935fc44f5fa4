"""What the kubelet sends is read as Google's protobuf reads it, and nothing is read from half a message."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet import pod_resources, requested_device_ids
from agent.kubelet.container_edit_messages import edits, response
from agent.kubelet.kubelet_errors import Undecodable
from agent.kubelet.pod_resources import MAX_NEEDLES, needles_in, pods_in_use
from agent.kubelet.protobuf import Malformed, decode, decoded, delimited, fields, read_field, varint
from agent.kubelet.requested_device_ids import allocate_request, pre_start_request, preferred_request
from agent.kubelet.rpc import MAX_ANSWER
from agent.vendor_api.agent import ContainerEdits, DeviceNode, Mount

from . import oracle

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=140)
IDS = st.lists(TEXT, max_size=5)
INT32 = st.integers(-(2**31), 2**31 - 1)
#: A field that no version of these messages has: skipped by every reader.
UNKNOWN = b"\xfa\x01\x03new" + b"\xf8\x01\x96\x01" + b"\xfd\x01abcd" + b"\xf9\x01abcdefgh"

EDITS = ContainerEdits(
    env={"A": "1", "EMPTY": ""},
    device_nodes=(DeviceNode("/dev/a", "/dev/host-a"), DeviceNode("/dev/b", "/dev/b", "r")),
    mounts=(Mount("/in", "/out"), Mount("/rw", "/rw", read_only=False)),
    annotations={"xpu-agent.io/allocation": "x"},
    cdi_devices=("example.com/gpu=0",),
)


def allocate_message(containers: list[list[str]]) -> bytes:
    pb = oracle.deviceplugin()
    requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    return bytes(pb.AllocateRequest(container_requests=requests).SerializeToString())


def preferred_message(requests: list[tuple[list[str], list[str], int]]) -> bytes:
    pb = oracle.deviceplugin()
    return bytes(
        pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=free, must_include_deviceIDs=must, allocation_size=size
                )
                for free, must, size in requests
            ]
        ).SerializeToString()
    )


def pods_message() -> bytes:
    pb = oracle.podresources()
    answer = pb.ListPodResourcesResponse()
    pod = answer.pod_resources.add(name="train", namespace="ml")
    main = pod.containers.add(name="main", cpu_ids=[1, 2, 300])
    # One entry per device and NUMA node: a device on two nodes comes twice.
    for numa in (0, 1):
        entry = main.devices.add(resource_name="example.com/gpu", device_ids=["a"])
        entry.topology.nodes.add(ID=numa)
    main.devices.add(resource_name="example.com/gpu", device_ids=["b"])
    main.devices.add(resource_name="other.com/nic", device_ids=["n"])
    main.memory.add(memory_type="memory", size=2**40).topology.nodes.add(ID=1)
    main.dynamic_resources.add(claim_name="c", claim_namespace="ml").claim_resources.add(driver_name="d")
    pod.containers.add(name="side")
    answer.pod_resources.add(name="idle", namespace="ml")
    return bytes(answer.SerializeToString())


MAPS = st.dictionaries(TEXT, TEXT, max_size=1)  # of several entries the order is free


@given(
    st.builds(
        ContainerEdits,
        env=MAPS,
        device_nodes=st.tuples(st.builds(DeviceNode, TEXT, TEXT, TEXT)),
        mounts=st.lists(st.builds(Mount, TEXT, TEXT, read_only=st.booleans()), max_size=3).map(tuple),
        annotations=MAPS,
        cdi_devices=st.lists(TEXT, max_size=3).map(tuple),
    )
)
def test_an_answer_is_written_as_protobuf_writes_it(edits_: ContainerEdits) -> None:
    pb = oracle.deviceplugin()
    judge = pb.ContainerAllocateResponse(
        envs=edits_.env,
        mounts=[
            pb.Mount(container_path=it.path, host_path=it.host_path, read_only=it.read_only)
            for it in edits_.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=it.path, host_path=it.host_path, permissions=it.permissions)
            for it in edits_.device_nodes
        ],
        annotations=edits_.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits_.cdi_devices],
    )

    assert response(edits_) == judge.SerializeToString()
    assert edits(response(edits_)) == edits_


@given(st.lists(IDS, max_size=4))
def test_allocate_requests_are_read_as_protobuf_reads_them(containers: list[list[str]]) -> None:
    assert allocate_request(allocate_message(containers)) == tuple(map(tuple, containers))


@given(IDS)
def test_pre_start_requests_are_read_as_protobuf_reads_them(ids: list[str]) -> None:
    pb = oracle.deviceplugin()

    assert pre_start_request(pb.PreStartContainerRequest(devices_ids=ids).SerializeToString()) == tuple(ids)


@given(st.lists(st.tuples(IDS, IDS, INT32), max_size=3))
def test_preferred_requests_are_read_as_protobuf_reads_them(
    requests: list[tuple[list[str], list[str], int]],
) -> None:
    found = preferred_request(preferred_message(requests))

    assert [(list(one.available), list(one.required), one.size) for one in found] == requests


#: IDs as they are, of which some have ten bytes, and others with what marks the beginning of an ID.
MANY_IDS = st.lists(
    st.one_of(
        st.sampled_from(
            [f"abcdef::{n}" for n in (0, 9, 10, 99, 100)] + [f"GPU-{n:037}::7" for n in range(3)]
        ),
        st.text(st.sampled_from("\n\x12\x18a\xaa\xd9"), max_size=20),
    ),
    min_size=30,
    max_size=60,
)


@given(MANY_IDS, st.lists(st.sampled_from(["GPU-0::1", "abcdef::10", "\n"]), max_size=2), INT32 | st.just(10))
def test_long_requests_are_read_as_protobuf_reads_them(
    ids: list[str], required: list[str], size: int
) -> None:
    [found] = preferred_request(preferred_message([(ids, required, size)]))

    assert (list(found.available), list(found.required), found.size) == (ids, required, size)


@given(MANY_IDS, st.sampled_from([b"\n", b"\xd9", b"\xaa", b"\xd9\x05", b"\n\n", b"\x18", b""]), st.data())
def test_long_requests_with_damage_are_read_as_protobuf_reads_them_or_refused(
    ids: list[str], damage: bytes, data: st.DataObject
) -> None:
    whole = oracle.deviceplugin().PreStartContainerRequest(devices_ids=ids).SerializeToString()
    at = data.draw(st.integers(0, len(whole)))
    left = data.draw(st.sampled_from([0, 1, len(damage)]))

    is_read_alike_or_refused(whole[:at] + damage + whole[at + left :])


def test_an_unknown_field_among_many_ids_is_no_id() -> None:
    """Its tag is the beginning of a string in MessagePack, and another ID has the byte that begins an ID."""
    unknown = b"\xa1\x01" + b"\x0a\x06abcdef"

    raw = "\n\x02\u0649".encode() + unknown + b"\x0a\x09abcdef::7" * 30

    assert pre_start_request(raw) == ("\u0649", *["abcdef::7"] * 30)
    is_read_alike_or_refused(raw)


@pytest.mark.parametrize("form", ["GPU-0123456789abcdef::{}", "abcdef::{}"])
@pytest.mark.parametrize(("required", "size"), [([], 1), ([], 10), (["GPU-0123456789abcdef::7"], 2)])
def test_many_available_ids_are_read_in_as_many_calls_as_some(
    form: str, required: list[str], size: int
) -> None:
    requests = ([form.format(n) for n in range(100, 100 + number)] for number in (50, 500))
    some, many = (calls(preferred_request, preferred_message([(ids, required, size)])) for ids in requests)

    assert some == many
    assert many > 0


def calls(read: Callable[[bytes], Any], raw: bytes) -> int:
    """How many functions are called, of Python and of C, while the message is read."""
    called = Counter[str]()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: called.update([event]))
    try:
        read(raw)
    finally:
        sys.setprofile(before)
    return called["call"] + called["c_call"]


@given(st.binary(max_size=60))
def test_garbage_is_read_as_protobuf_reads_it_or_refused(raw: bytes) -> None:
    is_read_alike_or_refused(raw)


def is_read_alike_or_refused(raw: bytes) -> None:
    """Never another meaning; groups, which proto3 does not have, are refused."""
    pb = oracle.deviceplugin()
    try:
        found = decode("PreStartContainerRequest", pre_start_request, raw)
    except Undecodable:
        return
    assert found == tuple(pb.PreStartContainerRequest.FromString(raw).devices_ids)


@given(st.binary(max_size=60))
def test_garbage_never_raises_anything_but_undecodable(raw: bytes) -> None:
    readers: tuple[Callable[[bytes], Any], ...] = (allocate_request, preferred_request, pods_in_use, edits)
    for reader in readers:
        with contextlib.suppress(Undecodable):
            decode("message", reader, raw)


def test_unknown_fields_are_skipped() -> None:
    assert allocate_request(UNKNOWN + allocate_message([["a"], ["b", "c"]]) + UNKNOWN) == (("a",), ("b", "c"))
    assert pods_in_use(UNKNOWN + pods_message()) == pods_in_use(pods_message())


def test_a_field_of_another_type_is_unknown() -> None:
    fixed = b"\x09abcdefgh" + b"\x0dabcd"

    assert pre_start_request(fixed + b"\x0a\x01a" + fixed) == ("a",)
    is_read_alike_or_refused(fixed)


def cut_points(raw: bytes) -> list[int]:
    """Every length at which the message does not end between two of its fields."""
    whole, at = {0}, 0
    while at < len(raw):
        at = next(end for end in range(at + 1, len(raw) + 1) if _reads(raw[at:end]))
        whole.add(at)
    return [cut for cut in range(len(raw)) if cut not in whole]


def _reads(raw: bytes) -> bool:
    try:
        list(fields(raw))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("reader", "raw"),
    [
        (allocate_request, lambda: allocate_message([["GPU-0", "x" * 200], ["b"]])),
        (pre_start_request, lambda: allocate_message([["GPU-0"]])),
        (preferred_request, lambda: preferred_message([(["a", "b"], ["a"], 300)])),
        (pods_in_use, pods_message),
        (edits, lambda: bytes(response(EDITS))),
    ],
    ids=["allocate", "pre-start", "preferred", "pods", "edits"],
)
def test_a_message_cut_at_any_byte_is_refused(
    reader: Callable[[bytes], Any], raw: Callable[[], bytes]
) -> None:
    whole = raw()
    cuts = cut_points(whole)
    assert cuts
    for cut in cuts:
        with pytest.raises(Undecodable):
            decode("message", reader, whole[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a\x02\xff\xfe",  # text that is no UTF-8
        b"\x0a\x03\xed\xa0\x80",  # a surrogate
        b"\x0b",  # a group
        b"\x0e",  # a wire type that does not exist
        b"\x00\x00",  # field 0
        b"\x08" + b"\xff" * 10 + b"\x01",  # a number without end
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length beyond everything
    ],
)
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(Undecodable, match="undecodable PreStartContainerRequest"):
        decode("PreStartContainerRequest", pre_start_request, raw)


def test_more_than_a_million_ids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested_device_ids, "MAX_IDS", 100)

    assert len(pre_start_request(b"\x0a\x01a" * 100)) == 100
    with pytest.raises(Undecodable, match="101 device IDs"):
        decode("AllocateRequest", allocate_request, allocate_message([["a"] * 60, ["a"] * 41]))
    with pytest.raises(Undecodable, match="101 device IDs"):
        decode("request", preferred_request, preferred_message([(["a"] * 100, ["a"], 1)]))


async def test_large_messages_are_decoded_alike() -> None:
    ids = [f"GPU-{n}" for n in range(20_000)]

    assert await decoded("AllocateRequest", allocate_request, allocate_message([ids])) == (tuple(ids),)
    with pytest.raises(Undecodable):
        await decoded("AllocateRequest", allocate_request, allocate_message([ids])[:-1])


def test_pods_are_listed_with_their_devices_once() -> None:
    # mistake 15
    assert pods_in_use(pods_message()) == {
        ("ml", "train"): {
            "main": {"example.com/gpu": frozenset({"a", "b"}), "other.com/nic": frozenset({"n"})},
            "side": {},
        },
        ("ml", "idle"): {},
    }


def test_a_pod_listed_twice_holds_what_both_say() -> None:
    """Up to 1.33 a pod that is over is listed beside the new one of the same name."""
    pb = oracle.podresources()
    answer = pb.ListPodResourcesResponse()
    for device_id in ("a", "b"):
        container = answer.pod_resources.add(name="p", namespace="n").containers.add(name="c")
        container.devices.add(resource_name="r", device_ids=[device_id])

    found = pods_in_use(answer.SerializeToString())

    assert found == {("n", "p"): {"c": {"r": frozenset({"a", "b"})}}}


def test_what_a_container_gets_is_read_back_as_it_was_written() -> None:
    raw = bytes(response(EDITS))

    assert edits(raw) == EDITS
    judge = oracle.deviceplugin().ContainerAllocateResponse.FromString(raw)
    assert dict(judge.envs) == EDITS.env
    assert [(one.container_path, one.host_path, one.read_only) for one in judge.mounts] == [
        ("/in", "/out", True),
        ("/rw", "/rw", False),
    ]
    assert [one.permissions for one in judge.devices] == ["rw", "r"]
    assert [one.name for one in judge.cdi_devices] == ["example.com/gpu=0"]


def test_another_plugins_answer_may_hold_texts_that_are_no_utf_8() -> None:
    assert edits(b"\x0a\x06\x0a\x01A\x12\x01\xff").env == {"A": "\ufffd"}


def one_by_one(data: bytes) -> list[tuple[int, int | bytes]] | str:
    """The fields as `read_field` reads each of them, or why it refuses one."""
    found, at = [], 0
    try:
        while at < len(data):
            number, value, at = read_field(data, at)
            found.append((number, value))
    except Malformed as exc:
        return str(exc)
    return found


def at_once(data: bytes) -> list[tuple[int, int | bytes]] | str:
    try:
        return list(fields(data))
    except Malformed as exc:
        return str(exc)


LENGTHS = st.sampled_from([0, 1, 2, 126, 127, 128, 129, 255, 256, 300, 16383, 16384])
FIELDS = st.one_of(
    st.builds(
        lambda field, size: delimited(field, bytes(size)), st.sampled_from([1, 2, 15, 16, 40]), LENGTHS
    ),
    st.sampled_from(
        [UNKNOWN, b"\x08\x01", b"\x00\x00", b"\x0a\x82\x00ab", b"\x0a\x80\x80\x00", b"\x0a", b"\x0b"]
    ),
    st.binary(max_size=4),
)


@given(st.lists(FIELDS, max_size=5).map(b"".join), st.integers(0, 4))
def test_short_fields_are_read_as_long_ones_are(data: bytes, cut: int) -> None:
    raw = data[: len(data) - cut]

    assert at_once(raw) == one_by_one(raw)


POD_IDS = st.sampled_from(["a", "b", "b::1", "b::10", "b::11", "c", "", "\u00fc", "\n\x01"])
PODS = st.lists(
    st.tuples(
        st.sampled_from(["train", "b", "web"]),
        st.lists(st.tuples(st.sampled_from(["r", "s"]), st.lists(POD_IDS, max_size=3)), max_size=3),
    ),
    max_size=5,
)


def with_ids(data: bytes, ids: list[str], needles: list[bytes] | None = None) -> set[tuple[Any, ...]]:
    """Pod, container, resource and ID of each of the IDs that a pod has."""
    found = pods_in_use(data) if needles is None else pods_in_use(data, needles)
    return {
        (pod, container, resource, device_id)
        for pod, containers in found.items()
        for container, resources in containers.items()
        for resource, all_ids in resources.items()
        for device_id in all_ids.intersection(ids)
    }


@given(PODS, st.lists(POD_IDS, max_size=3), st.lists(st.integers(100, 120).map("b::{}".format), max_size=20))
def test_the_pods_of_some_ids_are_found_as_in_the_whole_list(
    pods: list[tuple[str, list[tuple[str, list[str]]]]], ids: list[str], more: list[str]
) -> None:
    answer = oracle.podresources().ListPodResourcesResponse()
    for name, entries in pods:
        container = answer.pod_resources.add(name=name, namespace="n").containers.add(name="c")
        for resource, its in entries:
            container.devices.add(resource_name=resource, device_ids=its)
    data = bytes(answer.SerializeToString()) + UNKNOWN

    assert with_ids(data, ids + more, needles_in(data, ids + more)) == with_ids(data, ids + more)


@given(st.binary(max_size=4), st.integers(0, 200), st.integers(0, 3))
def test_a_damaged_list_that_is_read_whole_is_read_for_some_ids(damage: bytes, at: int, number: int) -> None:
    whole, ids = listed(pods=3, ids=2), [f"0123456789abcdef::{number}"]
    data = whole[:at] + damage + whole[at + len(damage) :]
    try:
        expected = with_ids(data, ids)
    except Malformed:
        return

    assert with_ids(data, ids, needles_in(data, ids)) == expected


def test_of_many_ids_of_one_card_only_pods_on_that_card_are_decoded() -> None:
    ids = [f"GPU-1::{number}" for number in range(MAX_NEEDLES + 1)]
    answer = oracle.podresources().ListPodResourcesResponse()
    for card in range(3):
        container = answer.pod_resources.add(name=f"on-{card}", namespace="n").containers.add(name="c")
        container.devices.add(resource_name="r", device_ids=[f"GPU-{card}::{card}"])
    data = bytes(answer.SerializeToString())

    assert list(pods_in_use(data, needles_in(data, ids))) == [("n", "on-1")]
    assert list(pods_in_use(data, needles_in(data, ["GPU-2::2"]))) == [("n", "on-2")]


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_written_as_protobuf_writes_them(number: int) -> None:
    raw = oracle.deviceplugin().NUMANode(ID=number).SerializeToString()

    assert raw == (b"\x08" + varint(number) if number else b"")


def listed(pods: int = 1, containers: int = 1, resources: int = 1, ids: int = 1) -> bytes:
    """A ListPodResourcesResponse of so many of each in each; as real ones, with one entry for an ID."""
    pb = oracle.podresources()
    answer = pb.ListPodResourcesResponse()
    for pod in range(pods):
        named = answer.pod_resources.add(name=f"pod-{pod}", namespace="default")
        for container in range(containers):
            its = named.containers.add(name=f"main-{container}")
            for resource in range(resources):
                for one in range(ids):
                    entry = its.devices.add(resource_name=f"example.com/memory-{resource}")
                    entry.device_ids.append(f"0123456789abcdef::{one}")
                    entry.topology.nodes.add(ID=1)
    return bytes(answer.SerializeToString())


@pytest.mark.parametrize(
    ("of", "bound", "said"),
    [
        *((of, "MAX_NAMES", "more than 500 pods") for of in ("pods", "containers", "resources")),
        *(
            (of, "MAX_FIELDS", "the kubelet's list has more than 500 fields, .* fewer IDs would help")
            for of in ("pods", "containers", "resources", "ids")
        ),
    ],
)
def test_an_answer_that_would_fill_memory_is_given_up(
    monkeypatch: pytest.MonkeyPatch, of: str, bound: str, said: str
) -> None:
    """Names of a few bytes take half a kilobyte each."""
    monkeypatch.setattr(pod_resources, bound, 500)

    assert pods_in_use(listed(**{of: 20}))
    with pytest.raises(Malformed, match=said):
        pods_in_use(listed(**{of: 600}))


def test_the_longest_list_of_all_is_read_where_pods_hold_all_of_it() -> None:
    data = listed(pods=128, ids=1000)

    assert len(data) < MAX_ANSWER
    assert sum(len(it["main-0"]["example.com/memory-0"]) for it in pods_in_use(data).values()) == 128_000
