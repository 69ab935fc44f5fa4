"""MetaX's settings, strictly read."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from agent.config import metax_modes
from agent.core.vendor import SettingsError
from agent.vendors.metax import facts
from agent.vendors.metax.options import MODES, SETTINGS, Options


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
        ({"sliceNodes": []}, ("sliceNodes",), "a list of one or more paths below /dev, with {minor}"),
        ({"sliceNodes": [], "visibleDevices": "V"}, ("sliceNodes",), "found []"),
        ({"sliceNodes": ["/etc/passwd"]}, ("sliceNodes", 0), "paths below /dev"),
        ({"controlNodes": "/dev/mxcd"}, ("controlNodes",), "a list of paths below /dev"),
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
    its = (facts.NATIVE, facts.SHARED, facts.SGPU, facts.VGPU)
    assert its == MODES == metax_modes.MODES


def test_how_often_a_card_is_shared_costs_the_process_no_restart() -> None:
    assert Options(share_nums=2).for_backend() == Options(share_nums=8).for_backend()
