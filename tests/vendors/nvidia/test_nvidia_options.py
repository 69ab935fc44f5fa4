"""The settings are those of NVIDIA's plugin, strictly read and refused in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.names import wrong_name
from agent.core.vendor import SettingsError
from agent.vendors.nvidia.options import SETTINGS, Options
from agent.vendors.nvidia.plugin import register_backend

FLAGS = "unable to validate flags: "
IMEX = f"{FLAGS}invalid IMEX channel IDs: invalid IMEX config: channelIDs must be [] or [0]; found "
FIRST = "nvidia.timeSlicing.resources[0]"


def shared(**changes: Any) -> dict[str, Any]:
    return {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2} | changes]}}


def test_every_option_is_a_setting_with_words_for_what_fits() -> None:
    named = msgspec.to_builtins(Options())

    assert set(named) == set(SETTINGS)


#: Texts of k8s-device-plugin v0.20, cmd/nvidia-device-plugin/main.go and api/config/v1.
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"deviceListStrategy": "foo"},
            f"{FLAGS}invalid --device-list-strategy option: invalid strategy: foo",
        ),
        (
            {"deviceListStrategy": ["envvar", "foo"]},
            f"{FLAGS}invalid --device-list-strategy option: invalid strategy: foo",
        ),
        ({"deviceIDStrategy": "foo"}, f"{FLAGS}invalid --device-id-strategy option: foo"),
        (
            {"sharedDevicesAllocationPolicy": "foo"},
            f"{FLAGS}invalid --shared-devices-allocation-policy option: foo",
        ),
        ({"migStrategy": "foo"}, f"{FLAGS}unknown MIG strategy: foo"),
        (
            {"imexChannelIDs": [1]},
            f"{IMEX}[1]",
        ),
        (
            {"imexChannelIDs": [0, 7]},
            f"{IMEX}[0 7]",
        ),
        (shared(replicas=1), f"{FIRST}: number of replicas must be >= 2"),
        (
            {"timeSlicing": {"resources": [{"name": "gpu"}]}},
            f"{FIRST}: no replicas specified",
        ),
        (
            {"timeSlicing": {"resources": [{"replicas": 2}]}},
            f"{FIRST}: no resource name specified",
        ),
        (
            shared(devices="some"),
            f"{FIRST}.devices: devices set as 'some' but the only valid string input is 'all'",
        ),
        (
            shared(devices=0),
            f"{FIRST}: devices set as '0' but a count of devices must be > 0",
        ),
        (
            {"patterns": {"gpus": [{"name": "gpu"}]}},
            "nvidia.patterns.gpus[0]: resources must have a 'pattern' field set",
        ),
        (
            {"patterns": {"mig": [{"pattern": "*"}]}},
            "nvidia.patterns.mig[0]: resources must have a 'name' field set",
        ),
    ],
)
def test_what_nvidias_plugin_refuses_is_refused_in_its_words(settings: Mapping[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        register_backend(settings)

    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"libary": "/x"}, "nvidia has no setting 'libary'; did you mean 'library'?"),
        ({7: 1}, "nvidia has no setting 7; there are"),
        ({"colour": 1}, "there are cdiAnnotationPrefix, cdiDisableHooks"),
        ({"library": 7}, "nvidia.library is 7; use the path of"),
        ({"ignoreXids": [13, "31"]}, r"nvidia.ignoreXids\[1\] is '31'; use a list of XID numbers"),
        ({"ignoreXids": [True]}, "a list of XID numbers"),
        ({"ignoreXids": [-1]}, "a list of XID numbers"),
        ({"gdsEnabled": "true"}, "nvidia.gdsEnabled is 'true'; use true or false"),
        ({"migStrategy": None}, "nvidia.migStrategy is None; use none, single or mixed"),
        ({"deviceListStrategy": []}, r"is \[\]; use one or more of envvar"),
        ({"driverRoot": "run/nvidia"}, "is 'run/nvidia'; use the absolute path"),
        ({"devRoot": "/run\0"}, "use the absolute path"),
        (shared(devices=[]), "devices names none; write all, a count, or indices and uuids"),
        (shared(devices=[1.5]), r"devices\[0\] is 1.5; expected `int"),
        (shared(replcas=2), "has no key 'replcas'; did you mean 'replicas'?"),
        (shared(replicas=131_073), "is 131073; expected `int` <= 131072"),
        (shared(name="example.com/gpu"), "incorrect format for resource name 'nvidia.com/example.com/gpu'"),
        (shared(rename="x" * 53), "fully-qualified resource name must be 63 characters or less"),
        ({"patterns": {"gpu": []}}, "nvidia.patterns has no key 'gpu'; did you mean 'gpus'?"),
        ({"patterns": []}, r"nvidia.patterns is \[\]; use {gpus:"),
    ],
)
def test_other_wrong_settings_are_refused_with_what_would_work(
    settings: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        register_backend(settings)


@pytest.mark.parametrize("name", ["gpu", "nvidia.com/gpu"])
def test_a_resource_name_may_leave_out_the_domain(name: str) -> None:
    options = Options.read(shared(name=name, rename="big"))

    [entry] = options.time_slicing.resources
    assert (entry.name, entry.advertised) == ("nvidia.com/gpu", "nvidia.com/big")


def test_the_longest_name_can_be_shared_under_its_default() -> None:
    name = f"nvidia.com/{'x' * 52}"

    [entry] = Options.read(shared(name=name, rename=f"{name}.shared")).time_slicing.resources

    assert wrong_name(entry.advertised) is None


def test_one_list_strategy_may_stand_without_a_list() -> None:
    assert Options.read({"deviceListStrategy": "cdi-cri"}).device_list_strategy == ("cdi-cri",)


@pytest.mark.parametrize(
    ("settings", "root"),
    [
        ({}, "/"),
        ({"driverRoot": "/run/nvidia/driver"}, "/run/nvidia/driver"),
        ({"driverRoot": "/run/nvidia/driver", "devRoot": "/"}, "/"),
    ],
)
def test_device_nodes_lie_below_the_drivers_root_unless_said(settings: Mapping[str, Any], root: str) -> None:
    assert Options.read(settings).host_dev_root == root


AGENTS_OWN = {
    "migStrategy": "mixed",
    "passDeviceSpecs": True,
    "cdiAnnotationPrefix": "example.com/",
    "imexRequired": True,
    "sharedDevicesAllocationPolicy": "packed",
    "patterns": {"gpus": [{"pattern": "*", "name": "gpu"}]},
    **shared(),
}


def test_what_only_the_agent_needs_never_reaches_the_process() -> None:
    assert register_backend(AGENTS_OWN).settings == register_backend({}).settings == {}


def test_what_the_process_needs_reaches_it_as_it_was_given() -> None:
    given = {
        "library": "/opt/driver",
        "sysfs": "/s",
        "procfs": "/p",
        "ignoreXids": [],
        "disableHealthChecks": "79",
        "enableHealthChecks": "all",
        "driverRoot": "/d",
        "devRoot": "/v",
        "containerDriverRoot": "/c",
        "deviceListStrategy": ["cdi-cri"],
        "deviceIDStrategy": "index",
        "gdrcopyEnabled": True,
        "gdsEnabled": True,
        "mofedEnabled": True,
        "nvidiaCDIHookPath": "/usr/bin/nvidia-ctk",
        "cdiFeatureFlags": ["a"],
        "cdiDisableHooks": ["b"],
        "imexChannelIDs": [0],
    }

    assert register_backend(given | AGENTS_OWN).settings == given
    assert given.keys() | AGENTS_OWN.keys() == SETTINGS.keys()


def test_a_default_that_is_written_out_restarts_no_process() -> None:
    written = {"deviceListStrategy": "envvar", "driverRoot": "/", "ignoreXids": None}

    assert register_backend(written).settings == {}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("gpu"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["resources", "name", "replicas", "devices", "gpus", "mig", "pattern", "rename"])
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(SETTINGS)) | st.text(max_size=5), anything, max_size=4))
def test_settings_are_read_or_refused_and_nothing_else(settings: dict[str, Any]) -> None:
    try:
        read = Options.read(settings).for_backend()
    except SettingsError as refused:
        read, text = {}, str(refused)
    else:
        text = "nvidia"

    assert text.startswith(("nvidia", FLAGS))
    assert msgspec.json.decode(msgspec.json.encode(read)) == read
