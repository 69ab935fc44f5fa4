"""What the kubelet counts in each dialect, what is refused, and what the Node is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.config import parse
from agent.core.errors import ConfigError
from agent.daemon.vendor_config import check_config, complete_config
from agent.vendor_api.agent import Device, Fault, Offering, ResourceRule, Sharing, State
from agent.vendors.enflame.agent.offering import offering
from agent.vendors.enflame.agent.options import Options
from agent.vendors.enflame.plugin import register_backend
from agent.vendors.enflame.shared import constants

GIB = 1 << 30
GCU, MEMORY, SHARED, DRS = (f"enflame.com/{it}" for it in ("gcu", "gcu-memory", "shared-gcu", "drs-gcu"))


def card(index: int, memory: int = 16 * GIB, virtual: str = constants.DISABLED) -> Device:
    said = {
        constants.ARCH: "scorpio",
        constants.DRIVER_VERSION: "1.7.2.14",
        constants.VIRTUAL: virtual,
    }
    return Device(f"GCU-{index}", index, minor=index + 1, memory=memory, model="S60", attributes=said)


CARDS = (card(0), card(1))


def made(*rules: ResourceRule, cards: tuple[Device, ...] = CARDS, **settings: Any) -> Offering:
    return offering(Options.read(settings), rules, cards)


@pytest.mark.parametrize(
    ("dialect", "resources"),
    [
        ("none", [GCU]),
        ("gcushare-v1", [GCU, MEMORY]),
        ("gcushare-v4", [GCU, SHARED, DRS]),
        ("hami", [GCU, SHARED, DRS]),
    ],
)
def test_the_dialect_says_which_resources_there_are_each_of_all_cards(
    dialect: str, resources: list[str]
) -> None:
    it = made(dialect=dialect)

    assert [rule.name for rule in it.rules] == resources
    assert {rule.devices for rule in it.rules} == {("GCU-0", "GCU-1")}
    assert it.complaints == ()
    auto = {rule.name for rule in it.rules if rule.placement == "auto"}
    assert auto == set(resources) - {GCU}


def test_each_resource_is_counted_as_its_name_says() -> None:
    rules = [ResourceRule(it, devices=(1,)) for it in (GCU, MEMORY, SHARED, DRS)]

    its = [made(it, dialect="gcushare-v4", memoryUnit="0.1", sliceCount=4).rules[0] for it in rules]

    assert [(it.sharing.kind, it.sharing.replicas, it.sharing.unit, it.sharing.span_cards) for it in its] == [
        ("exclusive", 1, None, True),
        ("memory", 1, "0.1", True),
        ("replicas", 4, None, False),
        ("replicas", 6, None, False),
    ]
    assert [it.form for it in its] == ["minor", "short", "minor", "uuid"]
    assert [it.policy for it in its] == ["aligned", "packed", "packed", "packed"]
    assert {it.devices for it in its} == {("GCU-1",)}


def test_a_resource_of_the_users_own_name_is_as_the_user_says() -> None:
    rule = ResourceRule("example.com/third", sharing=Sharing("replicas", 3), ids="short")

    [it] = made(rule, dialect="gcushare-v4").rules

    assert (it.sharing, it.ids, it.placement, it.policy) == (rule.sharing, "short", "local", None)


def test_slices_of_the_hardware_are_offered_of_cards_that_efsmi_lets_be_sliced() -> None:
    cards = (card(0, virtual=constants.SRIOV), card(1), card(2, virtual=constants.DRS))

    assert made(dialect="gcushare-v4", cards=cards).rules[-1].devices == ("GCU-1", "GCU-2")
    none = made(dialect="gcushare-v4", cards=cards[:1])
    assert [it.name for it in none.rules] == [GCU, SHARED]
    assert none.complaints == ()
    asked = made(ResourceRule(DRS), dialect="gcushare-v4", cards=cards[:1])
    assert [it.partition(":")[0] for it in asked.complaints] == [f"{DRS} has no card"]


def test_cards_of_which_no_profile_of_slices_is_known_are_told_with_what_has_them_learned() -> None:
    known, unseen = card(0), card(1)
    known = replace(known, attributes={**known.attributes, constants.PROFILES: "1g.6gb:0"})
    unseen = replace(unseen, attributes={**unseen.attributes, constants.PRODUCT: "S90"})

    its = made(dialect="gcushare-v4", cards=(known, card(2), unseen))

    nameless, named = its.doubts
    assert nameless.startswith(
        "GCU-2: no profile of its slices is known: the card reports no SKU. Schedulers read"
    )
    assert named.startswith("GCU-1: no profile of its slices is known: no card has shown those of S90. Sched")
    assert f"place no pod that asks for {DRS}" in named
    assert "efsmi -i CARD --drs on" in named
    assert its.complaints == ()
    assert made(dialect="gcushare-v1", cards=(card(2),)).doubts == ()
    assert made(dialect="gcushare-v4", cards=(card(2, virtual=constants.SRIOV),)).doubts == ()


def test_cards_on_which_others_made_slices_are_told_with_what_removes_them() -> None:
    sliced = replace(card(0), attributes={constants.FOREIGN_SLICES: "2"})

    [told] = made(dialect="gcushare-v1", cards=(sliced, card(1))).doubts

    assert told.startswith(
        "GCU-0 has slices that this agent did not make (2): until these slices are gone no new pod"
    )
    assert "efsmi -i CARD --drs --destroy-instance ID" in told


def test_that_the_library_is_not_here_is_complained_of() -> None:
    blind = Device("GCU-0", 0, minor=0, fault=Fault(constants.NO_LIBRARY, state=State.UNKNOWN))

    assert "libefml.so is not here" in made(cards=(blind,)).complaints[0]


def test_others_who_sell_the_cards_have_names_of_their_own() -> None:
    it = made(dialect="gcushare-v4", registerResource="tencent.com/zixiao")

    assert [rule.name for rule in it.rules] == [
        "tencent.com/zixiao",
        "tencent.com/shared-zixiao",
        "tencent.com/drs-zixiao",
    ]


@pytest.mark.parametrize(
    ("dialect", "rule", "why"),
    [
        ("none", f"{{name: {DRS}}}", "needs the dialect gcushare-v4 or hami, found 'none'"),
        ("hami", f"{{name: {MEMORY}}}", "is not served in the dialect hami: HAMi counts MiB"),
        ("none", f"{{name: {GCU}, sharing: {{kind: replicas, replicas: 2}}}}", "must be exclusive for"),
        ("none", f"{{name: {SHARED}, sharing: {{kind: exclusive}}}}", "must be replicas for"),
        ("hami", f"{{name: {DRS}, sharing: {{kind: replicas, replicas: 4}}}}", "must be 6 for"),
        (
            "hami",
            f"{{name: {SHARED}, placement: local}}",
            "must be auto or claim in dialect hami, found 'local'",
        ),
        ("gcushare-v1", "{name: enflame.com/gcu-memroy}", "found 'enflame.com/gcu-memroy'"),
        (
            "gcushare-v4",
            "{name: enflame.com/share-gcu}",
            "would be a resource of whole cards, found",
        ),
        ("gcushare-v1", "{name: enflame.com/gcu-count}", "is the name under which the Node counts cards"),
    ],
)
def test_what_a_resource_can_not_be_is_refused_at_its_place(dialect: str, rule: str, why: str) -> None:
    text = f"vendors: {{enflame: {{settings: {{dialect: {dialect}}}, resources: [{rule}]}}}}"

    with pytest.raises(ConfigError) as refused:
        check_config(parse(text, "my.yaml", "node"))

    assert "vendors.enflame.resources[0]." in str(refused.value)
    assert why in str(refused.value)


def test_a_name_of_enflames_where_cards_are_called_otherwise_is_no_whole_card() -> None:
    text = (
        "vendors: {enflame: {settings: {dialect: gcushare-v1, registerResource: tencent.com/zixiao}, "
        "resources: [{name: enflame.com/gcu-memory}]}}"
    )

    with pytest.raises(ConfigError, match=r"write one of tencent\.com/zixiao-memory, "):
        check_config(parse(text, "my.yaml", "node"))


def test_a_name_of_the_users_own_that_is_like_a_whole_cards_is_one() -> None:
    check_config(parse("vendors: {enflame: {resources: [{name: enflame.com/gcu-s60}]}}", "my.yaml", "node"))


def test_the_configuration_shows_what_the_names_mean() -> None:
    text = f"vendors: {{enflame: {{settings: {{dialect: gcushare-v1}}, resources: [{{name: {MEMORY}}}]}}}}"

    [rule] = complete_config(check_config(parse(text, "my.yaml", "node"))).vendor("enflame").resources

    assert (rule.sharing, rule.placement) == (Sharing("memory", unit="1"), "auto")


@pytest.mark.parametrize(
    ("dialect", "sliced"), [("none", False), ("gcushare-v1", False), ("gcushare-v4", True), ("hami", True)]
)
def test_hardware_is_made_for_its_own_resource_and_where_the_dialect_has_it(
    dialect: str, sliced: bool
) -> None:
    vendor = register_backend({"dialect": dialect})

    assert vendor.makes is not None
    wanted = vendor.settings.for_backend[constants.DRS_WANTED]
    assert (not vendor.makes.release_only, vendor.offers.cdi_only, wanted) == (sliced,) * 3
    assert [it for it in (GCU, MEMORY, SHARED, DRS) if vendor.prepares(it)] == ([DRS] if sliced else [])
    assert [it.dialect for it in vendor.named_dialects] == ([] if dialect == "none" else [dialect])


def test_no_slice_is_named_to_cdi_where_the_answer_tells_of_it() -> None:
    vendor = register_backend({"dialect": "gcushare-v4", "drsVariable": "env"})

    assert (vendor.prepares(DRS), vendor.offers.cdi_only) == (True, False)


OF_THE_HARDWARE = (
    "a slice that the hardware makes has 2 sixths of the card, and the pod is refused if the card cannot "
    "make such a slice"
)


@pytest.mark.parametrize(
    ("dialect", "gets"),
    [
        ("gcushare-v1", "gets 2 units of the card that they fill best"),
        ("gcushare-v4", f"gets 2 slices of the card that they fill best; {OF_THE_HARDWARE}"),
    ],
)
def test_what_a_container_gets_of_which_no_scheduler_speaks_is_said(dialect: str, gets: str) -> None:
    vendor = register_backend({"dialect": dialect})

    assert vendor.offers.without_choice is not None
    assert vendor.offers.without_choice(2) == gets


def test_both_makers_of_cards_are_signs_of_them() -> None:
    signs = register_backend({}).host.signs

    assert signs is not None
    assert signs.pci == ("0x1e36", "0x1ea0")


def test_the_node_is_labelled_as_gcu_feature_discovery_does() -> None:
    vendor = register_backend({})
    assert vendor.publishes.labels is not None

    assert vendor.publishes.labels((), CARDS) == {
        f"{GCU}.present": "true",
        f"{GCU}.count": "2",
        f"{GCU}.memory": "16384",
        f"{GCU}.model": "S60",
        f"{GCU}.family": "SCORPIO",
        f"{GCU}.product": "scorpio",
        f"{GCU}.driverVer": "1.7.2.14",
    }
    assert f"{GCU}.memory" not in vendor.publishes.labels((), (card(0), card(1, 48 * GIB)))
    assert vendor.publishes.labels((), ()) == {}
    assert (vendor.publishes.machine_label, vendor.publishes.time_label) == (
        f"{GCU}.machine",
        "enflame.com/gfd.timestamp",
    )
