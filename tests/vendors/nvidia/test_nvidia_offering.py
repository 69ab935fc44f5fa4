"""The user's own resources on NVIDIA's devices, and what holds for every offering."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia_node import CARD, LOST, SLICE, gpu, listed, lost, mig, offered, split

from agent.vendor_api.agent import Device, Offering, ResourceRule, Sharing
from agent.vendors.nvidia.agent.device_map import device_map
from agent.vendors.nvidia.agent.offering import offering
from agent.vendors.nvidia.agent.options import Options

FOUR = [gpu(index) for index in range(4)]
HALF = [gpu(0), split(1), mig(1, 0), mig(1, 1)]
TWICE = Sharing("replicas", 2)
MIXED = {"migStrategy": "mixed"}
ONES = "nvidia.com/mig-1g.10gb"


@pytest.mark.parametrize(
    ("settings", "devices", "rules", "resources"),
    [
        ({}, FOUR[:2], [ResourceRule("nvidia.com/gpu")], {"nvidia.com/gpu": ["GPU-0", "GPU-1"]}),
        ({}, FOUR[:1], [ResourceRule("acme.com/mine")], {"acme.com/mine": ["GPU-0"]}),
        ({}, FOUR, [ResourceRule("acme.com/mine", 2)], {"acme.com/mine": ["GPU-0", "GPU-1"]}),
        (
            {},
            FOUR,
            [ResourceRule("a.com/one", (3, "GPU-1")), ResourceRule("a.com/rest", sharing=TWICE)],
            {"a.com/one": ["GPU-1", "GPU-3"], "a.com/rest": ["GPU-0::0", "GPU-0::1", "GPU-2::0", "GPU-2::1"]},
        ),
        (
            MIXED,
            HALF,
            [ResourceRule("nvidia.com/gpu"), ResourceRule(ONES, sharing=TWICE)],
            {"nvidia.com/gpu": ["GPU-0"], ONES: ["MIG-1-0::0", "MIG-1-0::1", "MIG-1-1::0", "MIG-1-1::1"]},
        ),
        (
            MIXED,
            HALF,
            [ResourceRule("a.com/small", ("1:1",)), ResourceRule(ONES)],
            {"a.com/small": ["MIG-1-1"], ONES: ["MIG-1-0"]},
        ),
        # No whole card is ever taken for a MIG device.
        (MIXED, FOUR[:1], [ResourceRule(ONES), ResourceRule("a.com/any")], {"a.com/any": ["GPU-0"]}),
        (
            {"patterns": {"gpus": [{"pattern": "*", "name": "h100"}]}},
            FOUR[:1],
            [ResourceRule("nvidia.com/h100", sharing=TWICE)],
            {"nvidia.com/h100": ["GPU-0::0", "GPU-0::1"]},
        ),
    ],
)
def test_the_users_own_rules_mean_devices_of_the_node(
    settings: dict[str, Any],
    devices: list[Device],
    rules: list[ResourceRule],
    resources: dict[str, list[str]],
) -> None:
    made = offered(settings, devices, *rules)

    assert listed(made, devices) == resources
    assert made.complaints == ()


@pytest.mark.parametrize(
    ("settings", "rules", "complaint"),
    [
        ({}, [ResourceRule("a.com/x", (0, 9))], "a.com/x names 9, which nvidia does not offer"),
        ({}, [ResourceRule("a.com/x", ("MIG-1-0", 0))], "a.com/x names MIG-1-0, which nvidia does not offer"),
        (MIXED, [ResourceRule("a.com/x", (0, 1))], "a.com/x names 1, which nvidia does not offer"),
        ({}, [ResourceRule("a.com/x", 3)], "a.com/x asks for 3 devices, nvidia has 2 for it"),
        (
            {},
            [ResourceRule("a.com/x", (0,)), ResourceRule("a.com/y", ("GPU-0", 1))],
            "a.com/y names GPU-0, which a.com/x has already",
        ),
        (
            {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}},
            [ResourceRule("a.com/x")],
            "timeSlicing is not applied if resources are configured; remove one of the two",
        ),
    ],
)
def test_what_a_rule_names_in_vain_is_said_and_the_rest_served(
    settings: dict[str, Any], rules: list[ResourceRule], complaint: str
) -> None:
    made = offered(settings, HALF, *rules)

    assert made.complaints == (complaint,)
    assert all(rule.devices for rule in made.rules)
    assert set(uuids_of(made).values()) == {1}


@pytest.mark.parametrize(
    ("rules", "owners"),
    [
        ([ResourceRule("a.com/x"), ResourceRule("nvidia.com/gpu")], "a.com/x"),
        (
            [ResourceRule("a.com/x", (0,)), ResourceRule("a.com/y", (1,)), ResourceRule("nvidia.com/gpu")],
            "a.com/x, a.com/y",
        ),
    ],
)
def test_all_devices_after_others_took_them_is_said_and_offers_none(
    rules: list[ResourceRule], owners: str
) -> None:
    made = offered({}, FOUR[:2], *rules)

    why = f"nvidia.com/gpu asks for all devices, {owners} has them already; set 'devices'"
    assert made.complaints == (why,)
    assert made.rules[-1].devices == ()


def test_all_devices_of_a_name_that_the_node_has_none_of_is_no_complaint() -> None:
    made = offered(MIXED, FOUR[:1], ResourceRule("nvidia.com/gpu"), ResourceRule(ONES))

    assert made.complaints == ()


def test_all_else_of_a_rule_stays_as_the_user_wrote_it() -> None:
    rule = ResourceRule("a.com/x", "all", TWICE, "aligned", "auto", "minor")

    [made] = offered({}, FOUR[:1], rule).rules

    assert made == ResourceRule("a.com/x", ("GPU-0",), TWICE, "aligned", "auto", "minor")


def test_the_shared_policy_holds_for_rules_that_say_none() -> None:
    rules = [ResourceRule("a.com/x", (0,), TWICE), ResourceRule("a.com/y", (1,))]

    made = offered({"sharedDevicesAllocationPolicy": "packed"}, FOUR, *rules)

    assert [rule.policy for rule in made.rules] == ["packed", "aligned"]


def test_a_layout_that_is_refused_is_the_only_complaint() -> None:
    made = offered({"migStrategy": "single"}, HALF, ResourceRule("a.com/x", (0,)))

    assert made.complaints == ("all devices on the node must be configured with the same migEnabled value",)
    assert [rule.devices for rule in made.rules] == [()]


def test_rules_of_one_name_and_sharing_are_one() -> None:
    settings = {
        "patterns": {"gpus": [{"pattern": "*A100*", "name": "a100"}]},
        "timeSlicing": {
            "resources": [
                {"name": "a100", "replicas": 2, "rename": "any"},
                {"name": "gpu", "replicas": 2, "rename": "any"},
            ]
        },
    }

    [rule] = offered(settings, [gpu(0), gpu(1, "NVIDIA A100")]).rules

    assert rule == ResourceRule("nvidia.com/any", ("GPU-1", "GPU-0"), TWICE, "distributed")


def test_a_device_that_is_named_twice_is_replicated_once() -> None:
    settings = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": [1, CARD]}]}}

    replicas, whole = offered(settings, [gpu(0), replace(gpu(1), uuid=CARD)]).rules

    assert (replicas.devices, whole.devices) == ((CARD,), ("GPU-0",))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["nvidia.com/gpu"]),
        ({"patterns": {"mig": [{"pattern": "*", "name": "small"}]}}, ["nvidia.com/gpu", "nvidia.com/small"]),
        (
            {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "rename": "gpu.shared"}]}},
            ["nvidia.com/gpu.shared"],
        ),
        (
            {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "rename": "any", "devices": 1}]}},
            ["nvidia.com/any", "nvidia.com/gpu"],
        ),
    ],
)
def test_a_configured_resource_is_known_without_devices_so_that_the_kubelet_sees_it_empty(
    settings: dict[str, Any], names: list[str]
) -> None:
    refused = {"migStrategy": "single"} | settings

    made = offered(refused, HALF)

    assert [(rule.name, rule.devices) for rule in made.rules] == [(name, ()) for name in names]


#: Of NVIDIA's api/config/v1/resources_test.go.
@pytest.mark.parametrize(
    ("pattern", "profile", "matches"),
    [
        ("1g.24gb", "1g.24gb", True),
        ("1g.24gb", "2g.48gb", False),
        ("1g.24gb", "1g.24gb-me", False),
        ("1g.24gb", "1g.24gb+me.all", False),
        ("1g.24gb", "x1g.24gb", False),
        ("1g.24gb-me", "1g.24gb-me", True),
        ("1g.24gb+me.all", "1g.24gb+me.all", True),
        ("*", "1g.24gb-me", True),
        ("1g.*", "1g.24gb", True),
        ("1g.*", "2g.48gb", False),
        ("1g.24gb", "1g.24gb+gfx", False),
        ("1g.24gb+gfx", "1g.24gb", False),
        ("1g.24gb+gfx", "1g.24gb-me", False),
        ("2g.48gb+gfx", "2g.48gb+gfx", True),
        ("*gb", "1g.24gb", True),
        ("*gb", "1g.24gb-me", False),
        ("1g?24gb", "1g.24gb", False),
        ("[12]g.24gb", "1g.24gb", False),
    ],
)
def test_a_pattern_matches_the_whole_profile(pattern: str, profile: str, matches: bool) -> None:
    settings = MIXED | {"patterns": {"mig": [{"pattern": pattern, "name": "matched"}]}}

    made = offered(settings, [split(0), mig(0, 0, profile)])

    assert ("nvidia.com/matched" in [rule.name for rule in made.rules if rule.devices]) is matches


awkward = st.text("a*?[]!-^$.\\+{|}(", max_size=8)


@given(awkward, awkward)
def test_only_the_star_of_a_pattern_is_special(pattern: str, model: str) -> None:
    settings = {"patterns": {"gpus": [{"pattern": pattern, "name": "matched"}]}}
    regex = ".*".join(map(re.escape, pattern.split("*")))

    [named, _] = device_map(Options.read(settings), [gpu(0, model)]).resources.values()

    assert bool(named) is bool(re.fullmatch(regex, model))


profiles = st.sampled_from(["", "1g.10gb", "2g.20gb", "1c.2g.20gb", "1g.10gb+me", "a/b", "x" * 70]) | st.text(
    max_size=6
)
modes = st.fixed_dictionaries(
    {},
    optional={
        "mig-mode": st.sampled_from(["enabled", "disabled", "?"]),
        "mig-capable": st.sampled_from(["true", "false", ""]),
        "mig-profile": profiles,
        "slices-gi": st.sampled_from(["1", "2"]),
        "imex-channels": st.sampled_from(["", "0", "0,1", "x"]),
    },
)
uuids = st.sampled_from([f"{it[:-1]}{n}" for it in (CARD, SLICE) for n in range(4)])
devices = st.lists(
    st.builds(
        Device,
        uuid=uuids,
        index=st.integers(-1, 4),
        model=st.sampled_from(["", "NVIDIA H100", "NVIDIA A100"]),
        attributes=modes,
        fault=st.sampled_from([None, LOST]),
        parent=st.none() | uuids,
        slice=st.none() | st.integers(0, 3),
    ),
    max_size=10,
    unique_by=lambda device: device.uuid,
)
names = st.sampled_from(["gpu", "a100", "any", "mig-1g.10gb", "nothere"])
references = st.lists(st.integers(0, 3) | uuids | st.sampled_from(["0", "0:1"]), min_size=1, max_size=4)
chosen = st.just("all") | st.integers(1, 4) | references
patterns = st.lists(
    st.fixed_dictionaries({"pattern": st.sampled_from(["*", "*A100", "1g.*", "1c*"]), "name": names}),
    max_size=2,
)
entries = st.fixed_dictionaries(
    {"name": names, "replicas": st.integers(2, 4)}, optional={"rename": names, "devices": chosen}
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "migStrategy": st.sampled_from(["none", "single", "mixed"]),
        "imexChannelIDs": st.just([0]),
        "imexRequired": st.booleans(),
        "patterns": st.fixed_dictionaries({"gpus": patterns, "mig": patterns}),
        "timeSlicing": st.fixed_dictionaries({"resources": st.lists(entries, min_size=1, max_size=3)}),
    },
)
wishes = st.lists(
    st.builds(
        ResourceRule,
        name=st.sampled_from(["nvidia.com/gpu", ONES, "a.com/x", "a.com/y"]),
        devices=st.just("all") | st.integers(1, 4) | references.map(tuple),
        sharing=st.sampled_from([Sharing(), TWICE]),
    ),
    max_size=3,
    unique_by=lambda rule: rule.name,
)


def uuids_of(made: Offering) -> Counter[str]:
    return Counter(
        str(uuid) for rule in made.rules if isinstance(rule.devices, tuple) for uuid in rule.devices
    )


@given(settings, wishes, devices)
def test_no_device_is_in_two_rules_whatever_devices_and_settings_are(
    settings: dict[str, Any], rules: list[ResourceRule], devices: list[Device]
) -> None:
    options = Options.read(settings)

    made = offering(options, rules, devices)

    counted = uuids_of(made)
    assert set(counted.values()) <= {1}
    assert counted.keys() <= {it.uuid for it in devices}
    assert offering(options, rules, devices) == made


@given(settings, devices)
def test_without_rules_every_named_device_is_offered_once(
    settings: dict[str, Any], devices: list[Device]
) -> None:
    options = Options.read(settings | {"imexRequired": False})

    made = offering(options, (), devices)

    base = device_map(options, devices)
    assert uuids_of(made) == Counter(it.uuid for its in base.resources.values() for it in its)


@given(devices)
def test_without_settings_every_card_is_offered_whatever_it_is(devices: list[Device]) -> None:
    made = offering(Options(), (), devices)

    assert uuids_of(made) == Counter(it.uuid for it in devices if it.parent is None)
    assert made.complaints == ()


@given(settings, devices)
def test_a_mig_device_and_its_whole_card_are_never_both_offered(
    settings: dict[str, Any], devices: list[Device]
) -> None:
    cards = {it.uuid for it in devices if it.parent is None}
    made = uuids_of(offering(Options.read(settings), (), devices))

    parents = {it.parent for it in devices if it.uuid in made and it.parent is not None}

    assert not parents & cards & made.keys()


def test_a_device_that_is_listed_twice_is_offered_once() -> None:
    assert uuids_of(offered({}, [gpu(0), gpu(0)])) == {"GPU-0": 1}


def test_a_lost_card_is_offered_where_no_strategy_asks_more() -> None:
    assert uuids_of(offered({}, [lost(0)])) == {"GPU-0": 1}


def test_a_shared_name_that_no_device_has_is_noted_with_the_names_that_there_are() -> None:
    entries = [{"name": "gpus", "replicas": 4}, {"name": "gpu", "replicas": 2}]
    options = Options.read({"timeSlicing": {"resources": entries}})

    made = offering(options, (), FOUR)

    assert made.notes == (
        "timeSlicing names nvidia.com/gpus, which no device here is; there are nvidia.com/gpu",
    )
    assert made.complaints == ()
