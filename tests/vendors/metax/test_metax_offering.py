"""What the kubelet counts in each mode, and what a container gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.config import parse
from agent.core.errors import ConfigError
from agent.daemon.vendor_config import check_config, complete_config
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    DeviceNode,
    Fault,
    Placement,
    Request,
    ResourceRule,
    SettingsError,
    Sharing,
    State,
)
from agent.vendors.metax.agent.container_edits import container_edits
from agent.vendors.metax.agent.labels import labels
from agent.vendors.metax.agent.offering import check_rules, offering
from agent.vendors.metax.agent.options import MODES, Options
from agent.vendors.metax.plugin import register_backend
from agent.vendors.metax.shared import constants

GPU, SGPU = "metax-tech.com/gpu", "metax-tech.com/sgpu"
GIB = 1 << 30


def card(index: int, **attributes: str) -> Device:
    told = {"sgpu_capable": constants.YES, **attributes}
    said = {key.replace("_", "-"): it for key, it in told.items() if it}
    return Device(
        f"GPU-{index}",
        index,
        memory=64 * GIB,
        model="MXC500",
        paths=(f"/dev/dri/card{index}", f"/dev/dri/renderD{128 + index}"),
        attributes={constants.CONTROL_NODES: "/dev/mxcd", constants.DRIVER_VERSION: "3.6.11", **said},
    )


def virtual(index: int, parent: str | None = "GPU-0") -> Device:
    return Device(
        f"VF-{index}", index, parent=parent, slice=index, attributes={constants.VIRTUALISATION: constants.VF}
    )


CARDS = (card(0), card(1))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ResourceRule(GPU, ("GPU-0", "GPU-1"), Sharing(), "aligned", "local")),
        ({"mode": "native"}, ResourceRule(GPU, ("GPU-0", "GPU-1"), Sharing(), "aligned", "local")),
        ({"mode": "shared"}, ResourceRule(GPU, ("GPU-0", "GPU-1"), Sharing("replicas", 2), None, "local")),
        (
            {"mode": "shared", "shareNums": 4},
            ResourceRule(GPU, ("GPU-0", "GPU-1"), Sharing("replicas", 4), None, "local"),
        ),
        ({"mode": "sgpu"}, ResourceRule(SGPU, ("GPU-0", "GPU-1"), Sharing("replicas", 16), None, "auto")),
    ],
    ids=["default", "native", "shared", "shared by 4", "sgpu"],
)
def test_each_mode_has_its_resource(settings: Mapping[str, object], expected: ResourceRule) -> None:
    made = offering(Options.read(settings), (), CARDS)
    assert (made.rules, made.complaints) == ((expected,), ())


def test_cards_whose_library_is_missing_are_offered_with_a_complaint() -> None:
    blind = replace(card(0), fault=Fault(constants.NO_LIBRARY, state=State.UNKNOWN))
    made = offering(Options.read({}), [], [blind])

    assert [it.devices for it in made.rules] == [("GPU-0",)]
    assert made.complaints[0].startswith("libmxsml.so is not here: ")


def test_vgpu_gives_out_virtual_functions_and_no_card() -> None:
    made = offering(Options(mode="vgpu"), (), (card(0, virtual_functions="2"), virtual(0), virtual(1)))
    assert [it.devices for it in made.rules] == [("VF-0", "VF-1")]
    assert made.complaints == ()


def test_vgpu_without_virtual_functions_complains() -> None:
    made = offering(Options(mode="vgpu"), (), CARDS)
    assert made.rules[0].devices == ()
    assert "no card has virtual functions" in made.complaints[0]


def test_a_machine_that_has_a_virtual_function_alone_gives_it_out_as_its_card() -> None:
    made = offering(Options(), (), (virtual(0, parent=None),))
    assert (made.rules[0].devices, made.complaints) == (("VF-0",), ())


@pytest.mark.parametrize("mode", ["native", "shared", "sgpu"])
def test_a_card_that_is_split_is_given_out_by_vgpu_alone(mode: str) -> None:
    made = offering(Options.read({"mode": mode}), (), (card(0, virtual_functions="2"), virtual(0), card(1)))
    assert made.rules[0].devices == ("GPU-1",)
    assert "GPU-0 is split into 2 virtual functions" in made.complaints[0]


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"sysfs": "read-only"}, "sysfs is read-only: give the agent's container a writable /sys"),
        ({"sgpu_capable": "false"}, "GPU-0 cannot be sliced"),
        ({"sgpu_capable": ""}, "GPU-0 cannot be sliced"),
    ],
)
def test_sgpu_says_what_keeps_slices_from_being_made(attributes: Mapping[str, str], says: str) -> None:
    devices = (card(0, **attributes),)
    assert says in offering(Options(mode="sgpu"), (), devices).complaints[0]
    assert offering(Options(), (), devices).complaints == ()


def test_of_a_sick_card_nobody_says_whether_it_can_be_sliced() -> None:
    sick = replace(card(0, sgpu_capable=""), fault=Fault("sick"))
    assert offering(Options(mode="sgpu"), (), (sick,)).complaints == ()


@pytest.mark.parametrize(
    ("rules", "devices", "says"),
    [
        ([ResourceRule("a.com/x")], [("GPU-0", "GPU-1")], ""),
        ([ResourceRule("a.com/x", 1), ResourceRule("a.com/y")], [("GPU-0",), ("GPU-1",)], ""),
        ([ResourceRule("a.com/x", (1,)), ResourceRule("a.com/y")], [("GPU-1",), ("GPU-0",)], ""),
        ([ResourceRule("a.com/x", ("GPU-1",))], [("GPU-1",)], ""),
        ([ResourceRule("a.com/x", 3)], [("GPU-0", "GPU-1")], "asks for 3 devices, metax has 2"),
        ([ResourceRule("a.com/x", ("GPU-7",))], [()], "names GPU-7, which metax does not offer"),
        (
            [ResourceRule("a.com/x"), ResourceRule("a.com/y")],
            [("GPU-0", "GPU-1"), ()],
            "another resource has them",
        ),
    ],
)
def test_rules_of_the_user_rename_and_choose_cards(
    rules: list[ResourceRule], devices: list[tuple[str, ...]], says: str
) -> None:
    made = offering(Options(), rules, CARDS)
    assert [(it.name, it.devices) for it in made.rules] == [
        (rule.name, its) for rule, its in zip(rules, devices, strict=True)
    ]
    assert says in "; ".join(made.complaints)
    assert bool(says) == bool(made.complaints)


def test_a_rule_of_the_user_is_shared_as_the_mode_says_unless_it_says_so_itself() -> None:
    options = Options(mode="sgpu")
    plain, own = (
        offering(options, [rule], CARDS).rules[0]
        for rule in (
            ResourceRule("a.com/x"),
            ResourceRule("a.com/x", sharing=Sharing("replicas", 4), placement="claim"),
        )
    )
    assert (plain.sharing, plain.placement) == (Sharing("replicas", 16), "auto")
    assert (own.sharing, own.placement) == (Sharing("replicas", 4), "claim")


def shares(replicas: int, placement: Placement = "auto") -> ResourceRule:
    return ResourceRule("a.com/x", sharing=Sharing("replicas", replicas), placement=placement)


@pytest.mark.parametrize(
    ("mode", "rule", "path", "says"),
    [
        ("sgpu", shares(16, "local"), ("placement",), "must be auto or claim in mode sgpu, found 'local'"),
        ("sgpu", shares(17), ("sharing", "replicas"), "must be 16 or fewer in mode sgpu, found 17"),
        ("sgpu", ResourceRule("a.com/x"), ("sharing", "kind"), "must be replicas in mode sgpu, found"),
        ("shared", ResourceRule("a.com/x"), ("sharing", "kind"), "must be replicas in mode shared, found"),
        *(
            (
                mode,
                ResourceRule("a.com/x", sharing=Sharing("memory", unit="1")),
                ("sharing", "kind"),
                "MetaX's cards have no units of memory",
            )
            for mode in MODES
        ),
    ],
)
def test_a_rule_that_says_what_the_mode_can_not_be_is_refused(
    mode: str, rule: ResourceRule, path: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        check_rules(Options.read({"mode": mode}), [shares(16), rule])
    assert refused.value.path == (1, *path)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("sgpu", shares(2, "claim")),
        ("shared", shares(17, "local")),
        ("native", shares(17, "local")),
        ("native", ResourceRule("a.com/x")),
        ("vgpu", ResourceRule("a.com/x")),
    ],
)
def test_what_the_mode_can_be_may_be_said(mode: str, rule: ResourceRule) -> None:
    check_rules(Options.read({"mode": mode}), [rule])


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_that_says_no_more_than_its_name_is_good_in_every_mode_as_what_is_made_of_it(
    mode: str,
) -> None:
    config = parse(
        f"vendors: {{metax: {{settings: {{mode: {mode}}}, resources: [{{name: a.com/x}}]}}}}", "f", "n"
    )
    [told] = complete_config(check_config(config)).vendor("metax").resources
    [made] = offering(Options.read({"mode": mode}), [ResourceRule("a.com/x")], CARDS).rules
    assert (told.sharing, told.placement) == (made.sharing, made.placement)


@pytest.mark.parametrize(
    ("says", "place"), [("placement: local", "placement"), ("sharing: {kind: exclusive}", r"sharing\.kind")]
)
def test_config_check_refuses_such_a_rule_at_its_line(says: str, place: str) -> None:
    text = (
        f"vendors:\n  metax:\n    settings: {{mode: sgpu}}\n    resources:\n    - name: a.com/x\n      {says}"
    )
    with pytest.raises(ConfigError, match=rf"^f:6: vendors\.metax\.resources\[0\]\.{place}: must be"):
        check_config(parse(text, "f", "n"))


REQUEST = Request("0123456789abcdef", GPU, ("GPU-0", "GPU-1"))


@pytest.mark.parametrize("mode", ["native", "shared", "vgpu"])
def test_a_container_gets_the_drivers_node_once_and_those_of_its_cards(mode: str) -> None:
    paths = ("/dev/mxcd", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card1", "/dev/dri/renderD129")
    edits = container_edits(Options.read({"mode": mode}), CARDS, REQUEST)
    assert edits == ContainerEdits(device_nodes=tuple(DeviceNode(it, it) for it in paths))


def test_a_container_hears_its_cards_where_the_settings_name_a_variable() -> None:
    options = Options(visible_devices="MACA_VISIBLE_DEVICES")
    assert container_edits(options, CARDS, REQUEST).env == {"MACA_VISIBLE_DEVICES": "GPU-0,GPU-1"}


def test_a_slice_is_named_to_the_container_by_its_allocation_and_no_card_with_it() -> None:
    edits = container_edits(Options(mode="sgpu", visible_devices="X"), CARDS[:1], REQUEST)
    assert edits == ContainerEdits(
        device_nodes=(DeviceNode("/dev/mxcd", "/dev/mxcd"),),
        cdi_devices=("metax-tech.com/sgpu=0123456789abcdef",),
    )


@pytest.mark.parametrize(
    ("mode", "resource", "prepares", "dialects"),
    [
        ("native", GPU, False, []),
        ("shared", GPU, False, []),
        ("sgpu", SGPU, True, ["metax-sgpu"]),
        ("vgpu", GPU, False, []),
    ],
)
def test_slices_are_made_and_schedulers_heard_in_sgpu_alone(
    mode: str, resource: str, prepares: bool, dialects: list[str]
) -> None:
    vendor = register_backend({"mode": mode})
    assert (vendor.resource, vendor.prepares(resource), vendor.offers.cdi_only) == (
        resource,
        prepares,
        prepares,
    )
    assert [it.dialect for it in vendor.named_dialects if not it.of_limits] == dialects
    assert vendor.publishes.annotation_keys == ("metax-tech.com/node-gpu-devices",)
    assert (vendor.publishes.annotations is not None) is prepares


def test_the_labels_are_those_that_the_cards_tell() -> None:
    assert labels((), CARDS) == {
        "metax-tech.com/gpu.product": "MXC500",
        "metax-tech.com/gpu.family": "MXC",
        "metax-tech.com/gpu.memory": "64GB",
        "metax-tech.com/gpu.driver.major": "3",
        "metax-tech.com/gpu.driver.minor": "6",
        "metax-tech.com/gpu.driver.patch": "11",
    }


def test_what_cards_do_not_tell_or_tell_otherwise_is_no_label() -> None:
    strange = Device("GPU-2", 2, model="MXN100", attributes={constants.DRIVER_VERSION: "of today"})
    assert labels((), (strange,)) == {
        "metax-tech.com/gpu.product": "MXN100",
        "metax-tech.com/gpu.family": "MXN",
    }
    assert labels((), (card(0), strange)) == {"metax-tech.com/gpu.memory": "64GB"}
    assert labels((), ()) == {}
