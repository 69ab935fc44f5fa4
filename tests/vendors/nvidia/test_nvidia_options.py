"""The settings are those of NVIDIA's plugin, strictly read and refused in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.vendor_api.agent import SettingsError
from agent.vendor_api.kubernetes_names import wrong_name
from agent.vendors.nvidia.agent.options import DEFAULTS, SETTINGS, Options
from agent.vendors.nvidia.plugin import register_backend

FLAGS = "unable to validate flags: "
IMEX = f"{FLAGS}invalid IMEX channel IDs: invalid IMEX config: channelIDs must be [] or [0]; found "
FIRST = ("timeSlicing", "resources", 0)
UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"
RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def shared(**changes: Any) -> dict[str, Any]:
    return {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2} | changes]}}


def test_every_setting_has_words_for_what_fits() -> None:
    assert all(SETTINGS.values())


def test_the_defaults_that_are_told_are_those_that_hold() -> None:
    assert Options.read(DEFAULTS) == Options()
    assert SETTINGS.keys() - DEFAULTS.keys() == {"timeSlicing"}


#: Texts of k8s-device-plugin v0.20, cmd/nvidia-device-plugin/main.go and api/config/v1.
@pytest.mark.parametrize(
    ("settings", "text", "path"),
    [
        (
            {"deviceListStrategy": "foo"},
            f"{FLAGS}invalid --device-list-strategy option: invalid strategy: foo",
            ("deviceListStrategy",),
        ),
        (
            {"deviceListStrategy": ["envvar", "foo"]},
            f"{FLAGS}invalid --device-list-strategy option: invalid strategy: foo",
            ("deviceListStrategy", 1),
        ),
        (
            {"deviceIDStrategy": "foo"},
            f"{FLAGS}invalid --device-id-strategy option: foo",
            ("deviceIDStrategy",),
        ),
        (
            {"sharedDevicesAllocationPolicy": "foo"},
            f"{FLAGS}invalid --shared-devices-allocation-policy option: foo",
            ("sharedDevicesAllocationPolicy",),
        ),
        ({"migStrategy": "foo"}, f"{FLAGS}unknown MIG strategy: foo", ("migStrategy",)),
        ({"imexChannelIDs": [1]}, f"{IMEX}[1]", ("imexChannelIDs",)),
        ({"imexChannelIDs": [0, 7]}, f"{IMEX}[0 7]", ("imexChannelIDs",)),
        (shared(replicas=1), "number of replicas must be >= 2", (*FIRST, "replicas")),
        (shared(replicas=-4), "number of replicas must be >= 2", (*FIRST, "replicas")),
        ({"timeSlicing": {"resources": [{"name": "gpu"}]}}, "no replicas specified", FIRST),
        ({"timeSlicing": {"resources": [{"replicas": 2}]}}, "no resource name specified", FIRST),
        ({"timeSlicing": {}}, "no resources specified", ("timeSlicing",)),
        ({"timeSlicing": {"resources": []}}, "no resources specified", ("timeSlicing", "resources")),
        (
            shared(devices="some"),
            "devices set as 'some' but the only valid string input is 'all'",
            (*FIRST, "devices"),
        ),
        (
            shared(devices=0),
            "devices set as '0' but a count of devices must be > 0",
            (*FIRST, "devices"),
        ),
        (
            shared(devices={"b": 1, "a": [2]}),
            'unrecognized type for devices spec: {"a":[2],"b":1}',
            (*FIRST, "devices"),
        ),
        (shared(devices=1.5), "unrecognized type for devices spec: 1.5", (*FIRST, "devices")),
        (shared(devices=True), "unrecognized type for devices spec: true", (*FIRST, "devices")),
        *(
            (
                shared(devices=[0, item]),
                f"unsupported type for device in devices list: {told}",
                (*FIRST, "devices", 1),
            )
            for item, told in (
                ("x", "x, string"),
                ("GPU-x", "GPU-x, string"),
                (f"MIG-GPU-{UUID}/3", f"MIG-GPU-{UUID}/3, string"),
                ("0:1:2", "0:1:2, string"),
                (-1, "-1, int"),
                (True, "true, bool"),
                (1.5, "1.5, float64"),
                (None, "null, nil"),
                ([0], "[0], list"),
                ({}, "{}, map"),
            )
        ),
        (
            shared(name="$bad"),
            f"incorrect format for resource name 'nvidia.com/$bad': [{RULE}]",
            (*FIRST, "name"),
        ),
        (
            shared(name="example.com/gpu"),
            f"incorrect format for resource name 'nvidia.com/example.com/gpu': [{RULE}]",
            (*FIRST, "name"),
        ),
        (
            shared(rename="Big"),
            f"incorrect format for resource name 'nvidia.com/Big': [{RULE}]",
            (*FIRST, "rename"),
        ),
        (
            shared(rename="x" * 53),
            f"fully-qualified resource name must be 63 characters or less: nvidia.com/{'x' * 53}",
            (*FIRST, "rename"),
        ),
        (
            {"patterns": {"gpus": [{"pattern": "*", "name": "gpu"}, {"pattern": "x", "name": "$"}]}},
            f"incorrect format for resource name 'nvidia.com/$': [{RULE}]",
            ("patterns", "gpus", 1, "name"),
        ),
        (
            {"patterns": {"gpus": [{"name": "gpu"}]}},
            "resources must have a 'pattern' field set",
            ("patterns", "gpus", 0),
        ),
        (
            {"patterns": {"mig": [{"pattern": "*"}]}},
            "resources must have a 'name' field set",
            ("patterns", "mig", 0),
        ),
    ],
)
def test_what_nvidias_plugin_refuses_is_refused_in_its_words(
    settings: Mapping[str, Any], text: str, path: tuple[str | int, ...]
) -> None:
    with pytest.raises(SettingsError) as refused:
        register_backend(settings)

    assert (str(refused.value), refused.value.path) == (text, path)


@pytest.mark.parametrize(
    ("settings", "says", "path"),
    [
        ({"libary": "/x"}, "unknown key; did you mean 'library'?", ("libary",)),
        ({7: 1}, "unknown key; known here: cdiAnnotationPrefix, cdiDisableHooks", ("7",)),
        ({"library": 7}, "expected the path of", ("library",)),
        ({"ignoreXids": [13, "31"]}, 'expected a list of XID numbers, found "31"', ("ignoreXids", 1)),
        ({"ignoreXids": [True]}, "expected a list of XID numbers, found true", ("ignoreXids", 0)),
        ({"ignoreXids": [-1]}, "expected a list of XID numbers, found -1", ("ignoreXids", 0)),
        ({"gdsEnabled": "true"}, 'expected true or false, found "true"', ("gdsEnabled",)),
        ({"migStrategy": None}, "expected none, single or mixed, found null", ("migStrategy",)),
        ({"deviceListStrategy": []}, "expected one or more of envvar", ("deviceListStrategy",)),
        ({"driverRoot": "run/nvidia"}, "expected the absolute path", ("driverRoot",)),
        ({"devRoot": "/run\0"}, "expected the absolute path", ("devRoot",)),
        (shared(devices=[]), "names none; write all, a count, or indices and uuids", (*FIRST, "devices")),
        (shared(devices=[0] * 1025), "names too many; write all, a count", (*FIRST, "devices")),
        (shared(replcas=2), "unknown key; did you mean 'replicas'?", (*FIRST, "replcas")),
        (shared(name=5), "expected text such as nvidia.com/gpu, found 5", (*FIRST, "name")),
        *(
            (
                shared(replicas=wrong),
                f"expected a whole number from 2 to 131072, found {told}",
                (*FIRST, "replicas"),
            )
            for wrong, told in ((131_073, "131073"), ("2", '"2"'), (2.5, "2.5"), (True, "true"))
        ),
        (
            {"timeSlicing": {"resources": [7]}},
            "expected a list of {name, replicas, rename, devices}, found 7",
            FIRST,
        ),
        ({"timeSlicing": [1]}, "expected {failRequestsGreaterThanOne, ", ("timeSlicing",)),
        (
            {"patterns": {"gpus": [{"pattern": 5, "name": "x"}]}},
            "expected text such as *A100*, found 5",
            ("patterns", "gpus", 0, "pattern"),
        ),
        ({"patterns": {"gpu": []}}, "unknown key; did you mean 'gpus'?", ("patterns", "gpu")),
        ({"patterns": []}, "expected {gpus:", ("patterns",)),
    ],
)
def test_other_wrong_settings_are_refused_with_what_would_work(
    settings: Mapping[str, Any], says: str, path: tuple[str | int, ...]
) -> None:
    with pytest.raises(SettingsError) as refused:
        register_backend(settings)

    assert str(refused.value).startswith(says)
    assert refused.value.path == path


@pytest.mark.parametrize(
    "devices", ["all", 3, [0, 2], ["0", "0:1"], [f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/3/0"]]
)
def test_devices_are_all_a_count_or_indices_and_uuids(devices: Any) -> None:
    [entry] = Options.read(shared(devices=devices)).time_slicing.resources

    assert entry.wanted == (tuple(devices) if isinstance(devices, list) else devices)


def test_rename_by_default_renames_what_is_not_renamed() -> None:
    entries = [{"name": "gpu", "replicas": 2}, {"name": "mig-1g.10gb", "replicas": 2, "rename": "slice"}]

    read = Options.read({"timeSlicing": {"renameByDefault": True, "resources": entries}})

    assert [it.advertised for it in read.time_slicing.entries] == [
        "nvidia.com/gpu.shared",
        "nvidia.com/slice",
    ]


@pytest.mark.parametrize(
    ("devices", "doubted"), [(("all", "all", 1, [0]), (1, 2, 3)), ((1, "all", "all"), (2,)), ((1, 2), ())]
)
def test_an_entry_for_which_nothing_is_left_is_doubted(
    devices: tuple[Any, ...], doubted: tuple[int, ...]
) -> None:
    """The first that takes all devices of a name leaves none to those after it."""
    entries = [{"name": "gpu", "replicas": 2, "devices": it} for it in devices]
    other = {"name": "mig-1g.10gb", "replicas": 2}

    told = register_backend({"timeSlicing": {"resources": [*entries, other]}}).settings.warnings

    assert [it.path for it in told] == [("timeSlicing", "resources", index) for index in doubted]
    why = "an earlier entry takes all devices of 'nvidia.com/gpu'; none is left for this one"
    assert {it.message for it in told} <= {why}


@pytest.mark.parametrize("name", ["gpu", "nvidia.com/gpu"])
def test_a_resource_name_may_leave_out_the_domain(name: str) -> None:
    options = Options.read(shared(name=name, rename="big"))

    [entry] = options.time_slicing.resources
    assert (entry.resource, entry.advertised) == ("nvidia.com/gpu", "nvidia.com/big")


def test_what_was_read_stays_as_it_was_written() -> None:
    given = {
        "patterns": {"gpus": [{"pattern": "*", "name": "big"}], "mig": []},
        "timeSlicing": {
            "resources": [{"name": "gpu", "replicas": 2, "rename": "", "devices": ["0", 1]}],
            "failRequestsGreaterThanOne": False,
            "renameByDefault": True,
        },
    }

    read = msgspec.json.decode(msgspec.json.encode(Options.read(given)))

    assert {key: read[key] for key in given} == given


@pytest.mark.parametrize("how", ["rename", "renameByDefault"])
def test_the_longest_name_can_be_shared_under_its_default(how: str) -> None:
    name = f"nvidia.com/{'x' * 52}"
    settings = shared(name=name, rename=f"{name}.shared") if how == "rename" else shared(name=name)
    settings["timeSlicing"] |= {"renameByDefault": how != "rename"}

    [entry] = Options.read(settings).time_slicing.entries

    assert entry.advertised == f"{name}.shared"
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
    "hamiCoreDirectory": "/usr/local/vgpu",
    "passDeviceSpecs": True,
    "cdiAnnotationPrefix": "example.com/",
    "imexRequired": True,
    "sharedDevicesAllocationPolicy": "packed",
    "patterns": {"gpus": [{"pattern": "*", "name": "gpu"}]},
    **shared(),
}


def test_what_only_the_agent_needs_never_reaches_the_process() -> None:
    assert (
        register_backend(AGENTS_OWN).settings.for_backend == register_backend({}).settings.for_backend == {}
    )


@pytest.mark.parametrize("key", ["disableHealthChecks", "enableHealthChecks"])
def test_one_xid_is_the_same_in_quotes_and_without(key: str) -> None:
    assert Options.read({key: 79}) == Options.read({key: "79"})
    with pytest.raises(SettingsError, match="expected"):
        Options.read({key: 10**400})


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
        "migStrategy": "mixed",
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

    assert register_backend(given | AGENTS_OWN).settings.for_backend == given
    assert given.keys() | AGENTS_OWN.keys() == SETTINGS.keys()


def test_a_default_that_is_written_out_restarts_no_process() -> None:
    written = {"deviceListStrategy": "envvar", "driverRoot": "/", "ignoreXids": None}

    assert register_backend(written).settings.for_backend == {}


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
    read: dict[str, Any] = {}
    path: tuple[str | int, ...] = tuple(settings)[:1]
    try:
        read = Options.read(settings).for_backend()
    except SettingsError as refused:
        path = refused.path

    assert msgspec.json.decode(msgspec.json.encode(read)) == read
    assert not settings or reached(settings, path)


def reached(given: Any, path: tuple[str | int, ...]) -> bool:
    """Whether the path leads through what was given to a value."""
    for step in path:
        given = given[step]
    return bool(path)
