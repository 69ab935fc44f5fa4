"""NVIDIA's v1 file, as its users have it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.vendor_inputs import parse

from agent.config import Config, ReportSettings, VendorSettings, to_yaml
from agent.core.errors import ConfigError
from agent.daemon.vendor_config import check_config

UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"


def read(text: str) -> Config:
    """The file as the agent takes it: read, and judged by the vendor."""
    return check_config(parse(text, "nvidia.yaml", "node-1"))


def settings(text: str) -> Any:
    config = read(text)
    assert config.warnings == ()
    assert parse(to_yaml(config), "again", "") == config
    return config.vendors["nvidia"].settings


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def slicing(resource: str, more: str = "", kind: str = "timeSlicing") -> str:
    return f"version: v1\nsharing:\n  {kind}:\n    resources:\n    - {{{resource}}}\n{more}"


# Sharing


def test_time_slicing_becomes_a_setting_of_the_vendor_as_it_is_written() -> None:
    entries = """
sharing:
  timeSlicing:
    renameByDefault: on
    failRequestsGreaterThanOne: no
    resources:
    - {name: gpu, replicas: 10}
    - {name: nvidia.com/mig-1g.10gb, replicas: 2, rename: slice, devices: ["0:1", 3], strategy:}
"""

    assert read(entries) == Config(
        vendors={
            "nvidia": VendorSettings(
                enabled=True,
                settings={
                    "timeSlicing": {
                        "renameByDefault": True,
                        "failRequestsGreaterThanOne": False,
                        "resources": [
                            {"name": "gpu", "replicas": 10},
                            {
                                "name": "nvidia.com/mig-1g.10gb",
                                "replicas": 2,
                                "rename": "slice",
                                "devices": ["0:1", 3],
                            },
                        ],
                    }
                },
            )
        },
        warnings=(
            (
                "nvidia.yaml:8: sharing.timeSlicing.resources[1].strategy: unknown key, ignored as NVIDIA's "
                "programs do; known here: devices, name, rename, replicas"
            ),
        ),
    )


def test_resources_name_devices_by_pattern() -> None:
    text = """
resources:
  gpus:
  - {pattern: "*", name: gpu}
  - {pattern: "A100*", name: nvidia.com/a100}
  mig: [{pattern: "1g.*", name: small}]
"""
    assert settings(text) == {
        "patterns": {
            "gpus": [{"pattern": "*", "name": "gpu"}, {"pattern": "A100*", "name": "nvidia.com/a100"}],
            "mig": [{"pattern": "1g.*", "name": "small"}],
        }
    }


# Flags


WHOLE = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /run/nvidia/dev
  gdrcopyEnabled: true
  gdsEnabled: yes
  mofedEnabled: off
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.example.com/
    nvidiaCTKPath: /usr/bin/nvidia-cdi-hook
    containerDriverRoot: /host
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: false
    noTimestamp: true
    sleepInterval: infinite
    outputFile: /features/gfd
    machineTypeFile: /machine
imex: {channelIDs: [0], required: true}
"""


def test_every_flag_of_the_file_arrives() -> None:
    config = read(WHOLE)

    assert config.vendors["nvidia"] == VendorSettings(
        enabled="auto",
        settings={
            "migStrategy": "mixed",
            "driverRoot": "/run/nvidia/driver",
            "devRoot": "/run/nvidia/dev",
            "gdrcopyEnabled": True,
            "gdsEnabled": True,
            "mofedEnabled": False,
            "passDeviceSpecs": True,
            "deviceListStrategy": ["envvar", "cdi-cri"],
            "deviceIDStrategy": "index",
            "cdiAnnotationPrefix": "cdi.example.com/",
            "nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
            "containerDriverRoot": "/host",
            "sharedDevicesAllocationPolicy": "packed",
            "imexChannelIDs": [0],
            "imexRequired": True,
        },
    )
    assert config.report == ReportSettings(
        features_file="/features/gfd", timestamp=False, machine_file="/machine"
    )
    assert config.warnings == ()


def test_json_is_read_the_same() -> None:
    document = {
        "flags": {"migStrategy": "single"},
        "sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}},
    }

    assert read(json.dumps(document)) == read(
        slicing("name: gpu, replicas: 2", "flags: {migStrategy: single}")
    )


def test_a_single_device_list_strategy_may_stand_without_a_list() -> None:
    assert settings("flags: {plugin: {deviceListStrategy: envvar}}") == {"deviceListStrategy": "envvar"}


@pytest.mark.parametrize(
    ("written", "enabled"), [("", True), ("failOnInitError: true", True), ("failOnInitError: false", "auto")]
)
def test_fail_on_init_error_makes_the_agent_unready_without_the_vendor(written: str, enabled: object) -> None:
    assert read(f"flags: {{{written}}}").vendors["nvidia"].enabled == enabled


@pytest.mark.parametrize("duration", ["60s", "1h15m30.918s", "-1.5h", ".5s", "0", "infinite", "5", "1.5e9"])
def test_a_duration_is_one_of_go_or_counts_nanoseconds(duration: str) -> None:
    assert settings(f"flags: {{gfd: {{sleepInterval: {duration}}}}}") == {}


@pytest.mark.parametrize("strategy", ["auto", "nvml"])
def test_devices_are_discovered_through_nvml(strategy: str) -> None:
    assert settings(f"flags: {{deviceDiscoveryStrategy: {strategy}}}") == {}


@pytest.mark.parametrize(
    "text",
    [
        "sharing: {}",
        "sharing: {timeSlicing: null, mps: null}",
        "flags: {}",
        "flags: {plugin: {}, gfd:}",
        "imex:",
        "resources: {gpus: []}",
    ],
)
def test_a_file_that_asks_for_nothing_means_the_defaults(text: str) -> None:
    assert read(f"version: v1\n{text}") == Config(vendors={"nvidia": VendorSettings(enabled=True)})


# What is refused


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("version: v2\nsharing: {}", "nvidia.yaml:1: version: unknown version: v2"),
        (
            slicing("name: gpu, replicas: 1"),
            "nvidia.yaml:5: sharing.timeSlicing.resources[0].replicas: number of replicas must be >= 2",
        ),
        (slicing("name: gpu, replicas: -4"), "number of replicas must be >= 2"),
        (slicing("name: gpu"), "nvidia.yaml:5: sharing.timeSlicing.resources[0]: no replicas specified"),
        (slicing("replicas: 2"), "sharing.timeSlicing.resources[0]: no resource name specified"),
        ("sharing: {timeSlicing: {}}", "nvidia.yaml:1: sharing.timeSlicing: no resources specified"),
        (
            "sharing:\n  timeSlicing:\n    resources: []",
            "nvidia.yaml:3: sharing.timeSlicing.resources: no resources specified",
        ),
        (
            "sharing:\n  timeSlicing:\n    renameByDefault: true",
            "nvidia.yaml:2: sharing.timeSlicing: no resources specified",
        ),
        (slicing("name: $bad, replicas: 2"), "incorrect format for resource name 'nvidia.com/$bad': ["),
        (
            slicing("name: example.com/gpu, replicas: 2"),
            "incorrect format for resource name 'nvidia.com/example.com/gpu': [",
        ),
        (
            slicing("name: gpu, replicas: 2, rename: Big"),
            "resources[0].rename: incorrect format for resource name 'nvidia.com/Big': [",
        ),
        (
            slicing(f"name: {'a' * 60}, replicas: 2"),
            f"fully-qualified resource name must be 63 characters or less: nvidia.com/{'a' * 60}",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: some"),
            "devices set as 'some' but the only valid string input is 'all'",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: 0"),
            "devices set as '0' but a count of devices must be > 0",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: [0, x]"),
            "resources[0].devices[1]: unsupported type for device in devices list: x, string",
        ),
        (
            slicing(f"name: gpu, replicas: 2, devices: [MIG-GPU-{UUID}/3]"),
            f"unsupported type for device in devices list: MIG-GPU-{UUID}/3, string",
        ),
        (slicing("name: gpu, replicas: 2, devices: [-1]"), "unsupported type for device in devices list: -1"),
        (slicing("name: gpu, replicas: 2, devices: [true]"), "unsupported type for device in devices list: "),
        (
            slicing("name: gpu, replicas: 2", "    - name: gpu\n      replicas: 2\n      devices: []"),
            "nvidia.yaml:8: sharing.timeSlicing.resources[1].devices: names none; write all, a count",
        ),
        (
            slicing(
                "name: gpu, replicas: 2",
                "    - name: gpu\n      devices: [0,\n        -1]\n      replicas: 2",
            ),
            "nvidia.yaml:8: sharing.timeSlicing.resources[1].devices[1]: unsupported type for device",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: {b: 1, a: [2]}"),
            'unrecognized type for devices spec: {"a":[2],"b":1}',
        ),
        (slicing("name: gpu, replicas: 2, devices: 1.5"), "unrecognized type for devices spec: 1.5"),
        (
            "resources: {gpus: [{name: gpu}]}",
            "nvidia.yaml:1: resources.gpus[0]: resources must have a 'pattern' field set",
        ),
        ("resources: {mig: [{pattern: x}]}", "resources.mig[0]: resources must have a 'name' field set"),
        (
            "Resources:\n  GPUs:\n  - {pattern: x,\n     name: $bad}",
            "nvidia.yaml:4: resources.gpus[0].name: incorrect format for resource name 'nvidia.com/$bad': [",
        ),
        (
            "resources: {gpus: [{pattern: x, name: $bad}]}",
            "resources.gpus[0].name: incorrect format for resource name 'nvidia.com/$bad': [",
        ),
        (
            "flags:\n  plugin:\n    deviceListStrategy: {a: 1}",
            'nvidia.yaml:3: flags.plugin.deviceListStrategy: invalid deviceListStrategy: {"a":1}',
        ),
        ("flags: {plugin: {deviceListStrategy: [1, a]}}", 'invalid deviceListStrategy: [1,"a"]'),
        (
            "flags:\n  plugin:\n    deviceListStrategy:\n    - envvar\n    - foo",
            (
                "nvidia.yaml:5: flags.plugin.deviceListStrategy[1]: unable to validate flags: "
                "invalid --device-list-strategy option: invalid strategy: foo"
            ),
        ),
        (
            "flags:\n  plugin:\n    deviceListStrategy: foo",
            (
                "nvidia.yaml:3: flags.plugin.deviceListStrategy: unable to validate flags: "
                "invalid --device-list-strategy option: invalid strategy: foo"
            ),
        ),
        (
            "flags:\n  plugin:\n    deviceIDStrategy: foo",
            (
                "nvidia.yaml:3: flags.plugin.deviceIDStrategy: unable to validate flags: "
                "invalid --device-id-strategy option: foo"
            ),
        ),
        (
            "flags:\n  plugin:\n    sharedDevicesAllocationPolicy: foo",
            (
                "nvidia.yaml:3: flags.plugin.sharedDevicesAllocationPolicy: unable to validate flags: "
                "invalid --shared-devices-allocation-policy option: foo"
            ),
        ),
        (
            "flags:\n  migStrategy: foo",
            "nvidia.yaml:2: flags.migStrategy: unable to validate flags: unknown MIG strategy: foo",
        ),
        (
            "imex:\n  channelIDs: [1]",
            (
                "nvidia.yaml:2: imex.channelIDs: unable to validate flags: invalid IMEX channel IDs: "
                "invalid IMEX config: channelIDs must be [] or [0]; found [1]"
            ),
        ),
        ("flags: {gfd: {sleepInterval: true}}", "flags.gfd.sleepInterval: invalid duration"),
        ("flags: {gfd: {sleepInterval: 1 day}}", "flags.gfd.sleepInterval: invalid duration"),
        (
            "flags: {deviceDiscoveryStrategy: foo}",
            "unable to validate flags: invalid --device-discovery-strategy option foo",
        ),
        (
            slicing("name: gpu, replicas: 2", kind="mps"),
            "unable to validate flags: using MPS requires --mps-root to be specified",
        ),
        (
            slicing("name: gpu, replicas: 2", "flags: {migStrategy: mixed, mpsRoot: /mps}", kind="mps"),
            "unable to validate flags: using --mig-strategy=mixed is not supported with MPS",
        ),
    ],
)
def test_what_nvidia_refuses_is_refused_in_its_words_with_the_place(text: str, error: str) -> None:
    assert error in refusal(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (slicing("name: gpu, replicas: 2", kind="mps"), "nvidia.yaml:3: sharing.mps: is not"),
        ("sharing: {mps: {}}", "nvidia.yaml:1: sharing.mps: is not"),
        (
            slicing("name: gpu, replicas: 2", "  mps: {resources: [{name: gpu, replicas: 2}]}"),
            "nvidia.yaml:6: sharing.mps: is not",
        ),
        ("flags: {deviceDiscoveryStrategy: tegra}", "flags.deviceDiscoveryStrategy: 'tegra' is not"),
        ("flags: {deviceDiscoveryStrategy: vfio}", "flags.deviceDiscoveryStrategy: 'vfio' is not"),
    ],
)
def test_what_is_not_served_is_refused_by_name_and_never_ignored(text: str, named: str) -> None:
    error = refusal(text)

    assert named in error
    assert "not served by this release" in error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("flags: {migStrategy: 5}", "flags.migStrategy: expected a text, found the number 5"),
        ("flags: {gdsEnabled: 1}", "flags.gdsEnabled: expected true or false, found the number 1"),
        ("flags: []", "flags: expected a mapping of keys, found a list"),
        ("imex: {channelIDs: ['0']}", "imex.channelIDs[0]: expected a whole number, found the text '0'"),
        ("imex: {channelIDs: 0}", "imex.channelIDs: expected a list, found the number 0"),
        ("resources: {gpus: {pattern: x}}", "resources.gpus: expected a list, found a mapping"),
        (
            slicing("name: gpu, replicas: '2'"),
            'resources[0].replicas: expected a whole number from 2 to 131072, found "2"',
        ),
        (slicing("name: 5, replicas: 2"), "resources[0].name: expected text such as"),
        (slicing("name: gpu, replicas: 200000"), "replicas: expected a whole number from 2 to 131072"),
        (
            slicing("name: gpu, replicas: 2, devices: [GPU-x]"),
            "unsupported type for device in devices list: GPU",
        ),
        (
            "flags: {nvidiaDriverRoot: run}",
            "flags.nvidiaDriverRoot: expected the absolute path of the driver",
        ),
        ("sharing: []", "sharing: expected a mapping of keys, found a list"),
        ("flags: {gfd: {outputFile: here}}", "flags.gfd.outputFile: must be an absolute path, found 'here'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_place(text: str, error: str) -> None:
    assert re.match(rf"nvidia\.yaml:\d: .*{re.escape(error)}", refusal(text))


# What NVIDIA passes over in silence


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "flags:\n  migStrateg: single",
            "nvidia.yaml:2: flags.migStrateg: unknown key, ignored as NVIDIA's programs do; did you mean",
        ),
        (
            "sharing: {timeSlicin: {}}",
            "sharing.timeSlicin: unknown key, ignored as NVIDIA's programs do; did you",
        ),
        (
            "sharing: {}\nflag: {}",
            "nvidia.yaml:2: flag: unknown key, ignored as NVIDIA's programs do; did you mean",
        ),
        (slicing("name: gpu, replicas: 2, replica: 4"), "resources[0].replica: unknown key, ignored"),
        ("imex: {channels: [0]}", "did you mean 'channelIDs'?"),
        ("resources: {migs: []}", "did you mean 'mig'?"),
        (slicing("name: gpu, replicas: 2", "    RenameByDefault: true"), "did you mean 'renameByDefault'?"),
    ],
)
def test_an_unknown_key_is_a_warning_that_names_its_place_and_the_nearest(text: str, warning: str) -> None:
    config = read(text)

    assert len(config.warnings) == 1
    assert warning in config.warnings[0]


def test_where_nvidia_reads_keys_without_case_so_do_we() -> None:
    config = read("Flags: {MIGStrategy: single, plugin: {deviceidstrategy: index}}")

    assert config.vendors["nvidia"].settings == {"migStrategy": "single", "deviceIDStrategy": "index"}
    assert config.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "flags: {" + ", ".join(f"k{n}: 1" for n in range(5000)) + "}",
        slicing("name: gpu, replicas: 2", "    - {name: gpu, replicas: 2}\n" * 255),
    ],
    ids=["unknown keys", "entries without devices"],
)
def test_thousands_of_doubts_make_few_warnings(text: str) -> None:
    assert len(read(text).warnings) == 20


def test_a_warning_shows_a_hostile_key_harmlessly_and_bounded() -> None:
    (warning,) = read('flags: {"\\e[31m' + "x" * 900 + '": 1}').warnings

    assert warning.isprintable()
    assert len(warning) < 500


def test_an_entry_for_which_nothing_is_left_is_a_warning() -> None:
    more = "    - {name: gpu, devices: [1], replicas: 4}\n    - {name: mig-1g.10gb, replicas: 2}"

    (warning,) = read(slicing("name: nvidia.com/gpu, replicas: 2", more)).warnings

    assert warning.startswith("nvidia.yaml:6: sharing.timeSlicing.resources[1]: an earlier entry takes all")


def test_of_our_own_file_it_is_the_same_warning() -> None:
    entries = "[{name: gpu, replicas: 2},\n {name: nvidia.com/gpu, replicas: 4}]"
    text = f"vendors: {{nvidia: {{settings: {{timeSlicing: {{resources: {entries}}}}}}}}}"

    (warning,) = read(text).warnings

    assert warning == (
        "nvidia.yaml:2: vendors.nvidia.settings.timeSlicing.resources[1]: "
        "an earlier entry takes all devices of 'nvidia.com/gpu'; none is left for this one"
    )


@pytest.mark.parametrize(
    ("resource", "below", "why"),
    [
        ("name: gpu, replicas: 1", ".replicas", "number of replicas must be >= 2"),
        ("name: gpu", "", "no replicas specified"),
        (
            "name: gpu, replicas: 2, devices: [-1]",
            ".devices[0]",
            "unsupported type for device in devices list: ",
        ),
        (
            "name: gpu, replicas: 2, devices: ['GPU-x']",
            ".devices[0]",
            "unsupported type for device in devices",
        ),
        ("name: gpu, replicas: 2, devices: []", ".devices", "names none"),
        ("name: gpu, replicas: 131073", ".replicas", "expected a whole number from 2 to 131072"),
        ("name: Big, replicas: 2", ".name", "incorrect format for resource name 'nvidia.com/Big'"),
    ],
)
def test_both_files_are_refused_in_the_same_words_each_with_its_own_key(
    resource: str, below: str, why: str
) -> None:
    ours = f"vendors:\n nvidia:\n  settings: {{timeSlicing: {{resources: [\n  {{{resource}}}]}}}}"

    theirs = refusal(slicing(resource))
    mine = refusal(ours)

    assert theirs.startswith(f"nvidia.yaml:5: sharing.timeSlicing.resources[0]{below}: {why}")
    assert mine.startswith(f"nvidia.yaml:4: vendors.nvidia.settings.timeSlicing.resources[0]{below}: {why}")
    assert mine.partition(f"[0]{below}: ")[2] == theirs.partition(f"[0]{below}: ")[2]


def test_an_unknown_setting_of_ours_is_refused_where_it_stands() -> None:
    text = "vendors:\n  nvidia:\n    settings:\n      migStrateg: mixed"

    assert refusal(text) == (
        "nvidia.yaml:4: vendors.nvidia.settings.migStrateg: unknown key; did you mean 'migStrategy'?"
    )


def test_the_library_has_a_key_of_its_own() -> None:
    long = "x" * 5000

    assert refusal(f"vendors:\n  nvidia:\n    library: {long}").startswith(
        "nvidia.yaml:3: vendors.nvidia.library: expected the path of libnvidia-ml.so.1"
    )
    assert refusal("vendors: {nvidia: {settings: {library: 7}}}").startswith(
        "nvidia.yaml:1: vendors.nvidia.settings.library: expected the path of libnvidia-ml.so.1"
    )


def test_both_styles_in_one_file_are_refused() -> None:
    error = refusal("agent: {}\nsharing: {}")

    assert (
        error == "nvidia.yaml:2: 'sharing' is a key of NVIDIA's file, "
        "'agent' is a key of the agent's; use one of both"
    )
