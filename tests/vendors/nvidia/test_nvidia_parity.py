"""Config in, resources and device IDs out: a row for each thing that NVIDIA's plugin v0.20 can be told.

The rows follow its internal/rm/device_map.go. Where its program parses an option and drops it, the row says
what the option means; where it ends, what is left without the part that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nvidia_node import A100, CARD, LOST, SLICE, gpu, listed, lost, mig, offered, split
from nvml_stub import DOUBLE_BIT_ECC, XID, NvmlStub

from agent.vendor_api.agent import Device
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.plugin import register_backend

pytest_plugins = ["nvml_fixtures"]

INVALID = "invalid MIG configuration: "
EMPTY = "at least one device with migEnabled=true was not configured correctly: device 1 has no MIG devices"
REPLICATING = "unable to get IDs of devices to replicate for 'nvidia.com/gpu' resource: "


class Row(NamedTuple):
    name: str
    settings: Mapping[str, Any]
    devices: Sequence[Device]
    resources: Mapping[str, Sequence[str]]
    complaints: Sequence[str] = ()


def shared(*resources: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"timeSlicing": {"resources": list(resources)} | more}


def entry(replicas: int = 2, name: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas} | more


def named(**patterns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "patterns": {
            kind: [{"pattern": pattern, "name": name} for pattern, name in pairs]
            for kind, pairs in patterns.items()
        }
    }


SINGLE, MIXED = {"migStrategy": "single"}, {"migStrategy": "mixed"}
THREE = [gpu(0), gpu(1), gpu(2)]
TWO_KINDS = [gpu(0), gpu(1, A100), gpu(2)]
#: Two cards in MIG mode, two MIG devices each.
SPLIT = [split(0), mig(0, 0), mig(0, 1), split(1), mig(1, 0), mig(1, 1)]
ONES = ["MIG-0-0", "MIG-0-1", "MIG-1-0", "MIG-1-1"]
#: One card whole, one in MIG mode.
HALF = [gpu(0), split(1), mig(1, 0), mig(1, 1)]

NAMES = [
    Row("nothing said", {}, THREE, {"nvidia.com/gpu": ["GPU-0", "GPU-1", "GPU-2"]}),
    Row(
        "a pattern names a product, the others keep the default",
        named(gpus=[("*A100*", "a100")]),
        TWO_KINDS,
        {"nvidia.com/a100": ["GPU-1"], "nvidia.com/gpu": ["GPU-0", "GPU-2"]},
    ),
    Row(
        "the first pattern wins",
        named(gpus=[("NVIDIA *", "nvidia.com/first"), ("*H100*", "second")]),
        TWO_KINDS,
        {"nvidia.com/first": ["GPU-0", "GPU-1", "GPU-2"]},
    ),
    Row(
        "two products under one name",
        named(gpus=[("*A100*", "big"), ("*H100*", "big")]),
        TWO_KINDS,
        {"nvidia.com/big": ["GPU-0", "GPU-1", "GPU-2"]},
    ),
    Row(
        "a card that never told its product has the default name",
        named(gpus=[("*H100*", "h100")]),
        [gpu(0), lost(1)],
        {"nvidia.com/h100": ["GPU-0"], "nvidia.com/gpu": ["GPU-1"]},
    ),
]

STRATEGIES = [
    Row("none: a card in MIG mode is whole", {}, HALF, {"nvidia.com/gpu": ["GPU-0", "GPU-1"]}),
    Row(
        "none: MIG patterns name nothing",
        named(mig=[("*", "slice")]),
        SPLIT,
        {"nvidia.com/gpu": ["GPU-0", "GPU-1"]},
    ),
    Row("single: MIG devices are nvidia.com/gpu", SINGLE, SPLIT, {"nvidia.com/gpu": ONES}),
    Row("single: without MIG mode cards are whole", SINGLE, [gpu(0)], {"nvidia.com/gpu": ["GPU-0"]}),
    Row(
        "single: a pattern names MIG devices",
        SINGLE | named(mig=[("1g.*", "small")]),
        SPLIT,
        {"nvidia.com/small": ONES},
    ),
    Row(
        "single: whole cards beside MIG devices",
        SINGLE,
        HALF,
        {},
        ["all devices on the node must be configured with the same migEnabled value"],
    ),
    Row(
        "single: a card in MIG mode without MIG devices",
        SINGLE,
        [split(0), mig(0, 0), split(1)],
        {},
        [f"{INVALID}{EMPTY} configured"],
    ),
    Row(
        "single: two types",
        SINGLE,
        [split(0), mig(0, 0), mig(0, 1, "2g.20gb")],
        {},
        [f"{INVALID}more than one MIG device type present on node"],
    ),
    Row(
        "single: a lost card of unknown mode breaks nothing",
        SINGLE,
        [*SPLIT, lost(2)],
        {"nvidia.com/gpu": ONES},
    ),
    Row(
        "single: a card that says nothing of MIG is whole",
        SINGLE,
        [*SPLIT, Device("GPU-2", 2)],
        {},
        ["all devices on the node must be configured with the same migEnabled value"],
    ),
    Row(
        "single: a lost card that cannot be split is whole",
        SINGLE,
        [*SPLIT, gpu(2, fault=LOST)],
        {},
        ["all devices on the node must be configured with the same migEnabled value"],
    ),
    Row(
        "single: one profile with other engines",
        SINGLE,
        [split(0), mig(0, 0), mig(0, 1, engines_ofa="1")],
        {},
        [f"{INVALID}more than one MIG device type present on node"],
    ),
    Row(
        "single: a lost card that was whole is whole",
        SINGLE,
        [gpu(0), lost(1)],
        {"nvidia.com/gpu": ["GPU-0", "GPU-1"]},
    ),
    Row(
        "single: a lost card in MIG mode takes no other with it",
        SINGLE,
        [*SPLIT, split(2, fault=LOST)],
        {"nvidia.com/gpu": ONES},
    ),
    Row(
        "single: a MIG device that cannot be read is of no other type",
        SINGLE,
        [split(0), mig(0, 0), mig(0, 1, "", fault=LOST)],
        {"nvidia.com/gpu": ["MIG-0-0", "MIG-0-1"]},
    ),
    Row(
        "mixed: each under its own name",
        MIXED,
        [gpu(0), split(1), mig(1, 0), mig(1, 1, "2g.20gb"), mig(1, 2)],
        {
            "nvidia.com/gpu": ["GPU-0"],
            "nvidia.com/mig-1g.10gb": ["MIG-1-0", "MIG-1-2"],
            "nvidia.com/mig-2g.20gb": ["MIG-1-1"],
        },
    ),
    Row(
        "mixed: attributes of a profile",
        MIXED,
        [split(0), mig(0, 0, "1g.10gb+me"), mig(0, 1, "1g.24gb-me"), mig(0, 2, "1g.24gb+me.all")],
        {
            "nvidia.com/mig-1g.10gb.me": ["MIG-0-0"],
            "nvidia.com/mig-1g.24gb-me": ["MIG-0-1"],
            "nvidia.com/mig-1g.24gb.me.all": ["MIG-0-2"],
        },
    ),
    Row(
        "mixed: a card in MIG mode without MIG devices is nothing",
        MIXED,
        [gpu(0), split(1)],
        {"nvidia.com/gpu": ["GPU-0"]},
    ),
    Row(
        "mixed: a part of an instance has no name",
        MIXED,
        [split(0), mig(0, 0, "1c.2g.20gb"), mig(0, 1)],
        {"nvidia.com/mig-1g.10gb": ["MIG-0-1"]},
        ["MIG profile '1c.2g.20gb' does not match any resource patterns"],
    ),
    Row(
        "mixed: a pattern names a part of an instance",
        MIXED | named(mig=[("1c.*", "mig-part")]),
        [split(0), mig(0, 0, "1c.2g.20gb"), mig(0, 1)],
        {"nvidia.com/mig-part": ["MIG-0-0"], "nvidia.com/mig-1g.10gb": ["MIG-0-1"]},
    ),
    Row(
        "mixed: a MIG device without a profile hides no other",
        MIXED,
        [split(0), mig(0, 0, ""), mig(0, 1)],
        {"nvidia.com/mig-1g.10gb": ["MIG-0-1"]},
        ["error getting MIG profile for MIG device at index '(0, 0)'"],
    ),
    Row(
        "mixed: a lost card keeps its MIG devices",
        MIXED,
        [gpu(0), split(1, fault=LOST), mig(1, 0, fault=LOST)],
        {"nvidia.com/gpu": ["GPU-0"], "nvidia.com/mig-1g.10gb": ["MIG-1-0"]},
    ),
    Row(
        "mixed: a card whose mode cannot be read is told by its MIG devices",
        MIXED,
        [lost(0), mig(0, 0)],
        {"nvidia.com/mig-1g.10gb": ["MIG-0-0"]},
    ),
]

SHARING = [
    Row(
        "replicas of all",
        shared(entry(2)),
        THREE[:2],
        {"nvidia.com/gpu": ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]},
    ),
    Row(
        "rename",
        shared(entry(2, rename="gpu.cheap")),
        THREE[:1],
        {"nvidia.com/gpu.cheap": ["GPU-0::0", "GPU-0::1"]},
    ),
    Row(
        "a name that no device has is ignored",
        shared(entry(2, name="nvidia.com/nothere")),
        THREE[:1],
        {"nvidia.com/gpu": ["GPU-0"]},
    ),
    Row(
        "a count, the rest under the same name",
        shared(entry(2, devices=1)),
        THREE,
        {"nvidia.com/gpu": ["GPU-0::0", "GPU-0::1", "GPU-1", "GPU-2"]},
    ),
    Row(
        "a count takes the lowest indices",
        shared(entry(2, devices=1)),
        [gpu(10), gpu(9)],
        {"nvidia.com/gpu": ["GPU-10", "GPU-9::0", "GPU-9::1"]},
    ),
    Row(
        "a count, renamed",
        shared(entry(2, devices=2, rename="gpu.shared")),
        THREE,
        {
            "nvidia.com/gpu.shared": ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"],
            "nvidia.com/gpu": ["GPU-2"],
        },
    ),
    Row(
        "by index and uuid",
        shared(entry(2, devices=[2, "0", CARD], rename="gpu.shared")),
        [*THREE[:2], replace(gpu(2), uuid=CARD)],
        {
            "nvidia.com/gpu.shared": ["GPU-0::0", "GPU-0::1", f"{CARD}::0", f"{CARD}::1"],
            "nvidia.com/gpu": ["GPU-1"],
        },
    ),
    Row(
        "MIG devices by index and uuid",
        MIXED | shared(entry(2, "nvidia.com/mig-1g.10gb", devices=["0:1", SLICE])),
        [*SPLIT[:4], replace(mig(1, 0), uuid=SLICE), mig(1, 1)],
        {
            "nvidia.com/mig-1g.10gb": [
                "MIG-0-0",
                "MIG-0-1::0",
                "MIG-0-1::1",
                f"{SLICE}::0",
                f"{SLICE}::1",
                "MIG-1-1",
            ]
        },
    ),
    Row(
        "replicas of MIG devices, single",
        SINGLE | shared(entry(2)),
        SPLIT[:2],
        {"nvidia.com/gpu": ["MIG-0-0::0", "MIG-0-0::1"]},
    ),
    Row(
        "replicas of MIG devices, mixed and renamed",
        MIXED | shared(entry(2, "nvidia.com/mig-1g.10gb", rename="mig-1g.10gb.shared")),
        HALF,
        {
            "nvidia.com/gpu": ["GPU-0"],
            "nvidia.com/mig-1g.10gb.shared": ["MIG-1-0::0", "MIG-1-0::1", "MIG-1-1::0", "MIG-1-1::1"],
        },
    ),
    Row(
        "replicas of what a pattern names",
        named(gpus=[("*A100*", "a100")]) | shared(entry(2, "a100")),
        TWO_KINDS,
        {"nvidia.com/a100": ["GPU-1::0", "GPU-1::1"], "nvidia.com/gpu": ["GPU-0", "GPU-2"]},
    ),
    Row(
        "two names renamed into one",
        named(gpus=[("*A100*", "a100")]) | shared(entry(2, "a100", rename="any"), entry(3, rename="any")),
        TWO_KINDS[:2],
        {"nvidia.com/any": ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::0", "GPU-1::1"]},
    ),
    Row(
        "renamed into a name that others have",
        MIXED | shared(entry(2, rename="mig-1g.10gb")),
        HALF[:3],
        {"nvidia.com/mig-1g.10gb": ["GPU-0::0", "GPU-0::1", "MIG-1-0"]},
    ),
    Row(
        "one name shared in two ways",
        shared(entry(2, devices=[0]), entry(3, devices=[1], rename="gpu.more")),
        THREE,
        {
            "nvidia.com/gpu": ["GPU-0::0", "GPU-0::1", "GPU-2"],
            "nvidia.com/gpu.more": ["GPU-1::0", "GPU-1::1", "GPU-1::2"],
        },
    ),
    Row(
        "more than there are",
        shared(entry(2, devices=5)),
        THREE[:1],
        {"nvidia.com/gpu": ["GPU-0::0", "GPU-0::1"]},
        [f"{REPLICATING}requested 5 devices to be replicated, but only 1 devices available"],
    ),
    Row(
        "an index and uuids that are not there",
        shared(entry(2, devices=[0, 7, "0:1", CARD])),
        THREE[:2],
        {"nvidia.com/gpu": ["GPU-0::0", "GPU-0::1", "GPU-1"]},
        [
            f"{REPLICATING}no matching device at index: 7",
            f"{REPLICATING}no matching device at index: 0:1",
            f"{REPLICATING}no matching device with UUID: {CARD}",
        ],
    ),
]

CHANNEL = {"imexChannelIDs": [0], "imexRequired": True}

FABRIC = [
    Row(
        "a required IMEX channel that exists",
        CHANNEL,
        [gpu(0, imex_channels="0,1")],
        {"nvidia.com/gpu": ["GPU-0"]},
    ),
    Row(
        "a required IMEX channel that does not exist",
        CHANNEL,
        [gpu(0, imex_channels="1")],
        {},
        ["error querying IMEX channels: requested IMEX channel channel0 does not exist"],
    ),
    Row(
        "an IMEX channel that is only wanted",
        CHANNEL | {"imexRequired": False},
        [gpu(0)],
        {"nvidia.com/gpu": ["GPU-0"]},
    ),
    Row(
        "a lost card says nothing of channels",
        CHANNEL,
        [lost(0), gpu(1, imex_channels="0")],
        {"nvidia.com/gpu": ["GPU-0", "GPU-1"]},
    ),
]


@pytest.mark.parametrize("row", [*NAMES, *STRATEGIES, *SHARING, *FABRIC], ids=lambda row: row.name)
def test_the_resources_are_those_of_nvidias_plugin(row: Row) -> None:
    offering = offered(row.settings, row.devices)

    assert listed(offering, row.devices) == row.resources
    assert list(offering.complaints) == list(row.complaints)


POLICIES = [
    ("whole cards", {}, THREE, {"nvidia.com/gpu": "aligned"}),
    (
        "whole cards, packed",
        {"sharedDevicesAllocationPolicy": "packed"},
        THREE,
        {"nvidia.com/gpu": "aligned"},
    ),
    ("replicas", shared(entry(2)), THREE, {"nvidia.com/gpu": "distributed"}),
    (
        "replicas, packed",
        {"sharedDevicesAllocationPolicy": "packed"} | shared(entry(2)),
        THREE,
        {"nvidia.com/gpu": "packed"},
    ),
    ("MIG devices", MIXED, HALF, {"nvidia.com/gpu": "aligned", "nvidia.com/mig-1g.10gb": "distributed"}),
    (
        "a replicated subset, packed",
        {"sharedDevicesAllocationPolicy": "packed"} | shared(entry(2, devices=1)),
        THREE,
        {"nvidia.com/gpu": "packed"},
    ),
]


@pytest.mark.parametrize(
    ("settings", "devices", "policies"), [row[1:] for row in POLICIES], ids=[row[0] for row in POLICIES]
)
def test_a_resource_has_the_policy_that_nvidias_plugin_would_use(
    settings: Mapping[str, Any], devices: Sequence[Device], policies: Mapping[str, str]
) -> None:
    rules = offered(settings, devices).rules

    assert {(rule.name, rule.policy) for rule in rules} == set(policies.items())


@pytest.mark.parametrize("strict", [True, False])
def test_requests_for_more_than_one_replica_fail_where_the_file_says_so(strict: bool) -> None:
    settings = shared(entry(2, devices=1), failRequestsGreaterThanOne=strict)

    replicas, whole = offered(settings, THREE).rules

    assert replicas.sharing.fail_requests_greater_than_one is strict
    assert whole.sharing.fail_requests_greater_than_one is False


#: Seen with NVIDIA's plugin on its own double of two cards with three MIG devices each.
@pytest.mark.parametrize(
    ("said", "resources"),
    [
        ({}, {"nvidia.com/gpu": 2}),
        (SINGLE, {"nvidia.com/gpu": 6}),
        (MIXED, {"nvidia.com/mig-1g.10gb": 6}),
        (MIXED | shared(entry(2, "nvidia.com/mig-1g.10gb")), {"nvidia.com/mig-1g.10gb": 12}),
    ],
    ids=["none", "single", "mixed", "mixed, replicas"],
)
@pytest.mark.parametrize("sick", [False, True], ids=["well", "a card is lost later"])
def test_what_the_process_reads_is_what_the_rules_name(
    stub: NvmlStub,
    backend: NvmlBackend,
    tmp_path: Path,
    said: Mapping[str, Any],
    resources: Mapping[str, int],
    sick: bool,
) -> None:
    stub.cards(2)
    for index in range(2):
        stub.mig(index)
    stub.write_minors(tmp_path / "proc")
    devices = backend.discover()
    if sick:
        stub.lose(1)
        devices = backend.discover()

    offering = offered(said, devices)

    assert {name: len(ids) for name, ids in listed(offering, devices).items()} == resources
    assert offering.complaints == ()


#: GPU instance 8 of the second of two cards with three MIG devices each fails (v0.20, internal/rm/health.go).
@pytest.mark.parametrize(
    ("said", "sick"),
    [({}, "card"), ({"migStrategy": "none"}, "card"), (SINGLE, "MIG device"), (MIXED, "MIG device")],
    ids=["nothing said", "none", "single", "mixed"],
)
@pytest.mark.parametrize("kind", [XID, DOUBLE_BIT_ECC], ids=["XID", "ECC"])
def test_an_error_of_an_instance_marks_what_the_kubelet_counts(
    stub: NvmlStub, settings: Mapping[str, Any], said: Mapping[str, Any], sick: str, kind: int
) -> None:
    stub.cards(2)
    for index in range(2):
        stub.mig(index)
    stub.write_minors(Path(settings["procfs"]))
    backend = NvmlBackend(register_backend({**settings, **said}).settings.for_backend)
    backend.open()
    offering = offered(said, backend.discover())
    assert backend.health_events(0) == []
    stub.event(1, kind, 79, 8, 0)

    [event] = backend.health_events(20)

    assert event.fault is not None
    assert event.uuid == {"card": stub.uuid(1), "MIG device": stub.mig_uuid(1, 1)}[sick]
    assert event.uuid in {uuid for rule in offering.rules for uuid in rule.devices}  # type: ignore[union-attr]
    backend.close()
