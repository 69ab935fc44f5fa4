"""MetaX's settings, strictly read."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from agent.vendor_api.agent import SettingsError
from agent.vendors.metax.agent.options import DEFAULTS, MODES, SETTINGS, Options
from agent.vendors.metax.plugin import register_backend
from agent.vendors.metax.shared import constants


@pytest.mark.parametrize(
    ("settings", "path", "says"),
    [
        ({"mode": "sgpus"}, ("mode",), 'expected native, shared, sgpu or vgpu, found "sgpus"'),
        ({"mode": None}, ("mode",), "expected native, shared, sgpu or vgpu, found null"),
        ({"mod": "sgpu"}, ("mod",), "did you mean 'mode'?"),
        ({"x": 1}, ("x",), "known here: "),
        ({"shareNums": 1}, ("shareNums",), "expected a whole number from 2 to 131072, found 1"),
        ({"unclaimed": "half"}, ("unclaimed",), "expected share, whole or refuse"),
        ({"sliceNodes": ["/dev/dri/{bdf}"]}, ("sliceNodes", 0), "{minor}, {sgpu}, {card} or {render}"),
        ({"sliceNodes": []}, ("sliceNodes",), "a list of one or more absolute paths below /dev without '..'"),
        ({"sliceNodes": [], "visibleDevices": "V"}, ("sliceNodes",), "found []"),
        ({"sliceNodes": ["/etc/passwd"]}, ("sliceNodes", 0), "paths below /dev"),
        ({"sliceNodes": ["/dev/{minor}/../../etc/x"]}, ("sliceNodes", 0), "below /dev without '..'"),
        ({"sliceNodes": ["/dev/../etc/x{minor}"]}, ("sliceNodes", 0), "below /dev without '..'"),
        ({"sliceNodes": ["/dev/a\n/../../x{minor}"]}, ("sliceNodes", 0), "below /dev without '..'"),
        (
            {"sliceNodes": ["/dev/x{minor}", "/dev/mxsgpu"]},
            ("sliceNodes", 1),
            "'/dev/mxsgpu' is one node for all",
        ),
        ({"sliceNodes": ["/dev/mxsgpu"]}, ("sliceNodes", 0), "every container needs in controlNodes"),
        ({"controlNodes": "/dev/mxcd"}, ("controlNodes",), "a list of absolute paths below /dev"),
        ({"controlNodes": ["/dev/.."]}, ("controlNodes", 0), "below /dev without '..'"),
        ({"controlNodes": ["/dev/a", "/dev/../x"]}, ("controlNodes", 1), "below /dev without '..'"),
        ({"visibleDevices": "A B"}, ("visibleDevices",), "the name of an environment variable"),
        ({"library": "libmxsml.so"}, ("library",), "the absolute path of libmxsml.so"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place_and_what_fits(
    settings: Mapping[str, object], path: tuple[str | int, ...], says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        Options.read(settings)
    assert refused.value.path == path
    assert says in str(refused.value)


def test_the_process_hears_every_setting_of_its_own_and_no_other() -> None:
    told = Options.read({"mode": "sgpu", "shareNums": 3}).for_backend()
    assert told == {
        "mode": "sgpu",
        "unclaimed": "share",
        "sliceNodes": ["/dev/dri/renderD{minor}"],
        "controlNodes": ["/dev/mxcd"],
        "visibleDevices": "",
        "library": "",
        "sysfs": "/sys",
        "containerDriverRoot": "/driver-root",
    }
    assert json.loads(json.dumps(told)) == told
    assert set(SETTINGS) - set(told) == {"shareNums"}


def test_the_modes_are_the_same_wherever_they_are_named() -> None:
    its = (constants.NATIVE, constants.SHARED, constants.SGPU, constants.VGPU)
    assert its == MODES


def test_how_often_a_card_is_shared_costs_the_process_no_restart() -> None:
    assert Options(share_nums=2).for_backend() == Options(share_nums=8).for_backend()


@pytest.mark.parametrize("path", ["/dev/..a{minor}", "/dev/a../{minor}", "/dev/dri/renderD{minor}..x"])
def test_two_dots_within_a_name_lead_nowhere_else(path: str) -> None:
    assert Options.read({"sliceNodes": [path]}).slice_nodes == (path,)


@pytest.mark.parametrize(
    ("patterns", "doubted"),
    [
        (["/dev/dri/renderD{minor}"], False),
        (["/dev/mxsgpu{card}-{sgpu}"], False),
        (["/dev/dri/card{card}", "/dev/dri/renderD{minor}"], False),
        (["/dev/dri/card{card}"], True),
        (["/dev/mxsgpu{sgpu}", "/dev/dri/renderD{render}"], True),
    ],
)
def test_nodes_that_slices_share_are_doubted(patterns: list[str], doubted: bool) -> None:
    its = register_backend({"mode": "sgpu", "sliceNodes": patterns}).settings.warnings
    assert [it.path for it in its] == [("sliceNodes",)] * doubted


def test_the_defaults_that_are_told_are_those_that_hold() -> None:
    assert Options.read(DEFAULTS) == Options()
    assert DEFAULTS.keys() == SETTINGS.keys()
