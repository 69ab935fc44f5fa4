"""Every flag, alias and variable of NVIDIA's programs: taken, typed, in NVIDIA's precedence, beside ours."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from support.vendor_inputs import NVIDIA_FLAGS, configured, parse

from agent.cli import command_line
from agent.cli.common_arguments import given_by
from agent.config import FLAGS, Config, effective
from agent.config.given_flags import variable
from agent.core.errors import ConfigError
from agent.daemon.vendor_config import check_config
from agent.vendor_api.config_flags import Flag, FlagKind

#: Names and variables of cmd/nvidia-device-plugin/main.go, cmd/gpu-feature-discovery/main.go, internal/flags
#: and internal/rm/health.go of NVIDIA/k8s-device-plugin v0.20.0, without `config-file` and `node-name`.
THEIRS = """
mig-strategy: MIG_STRATEGY GFD_MIG_STRATEGY
fail-on-init-error: FAIL_ON_INIT_ERROR GFD_FAIL_ON_INIT_ERROR
driver-root nvidia-driver-root: NVIDIA_DRIVER_ROOT
dev-root nvidia-dev-root: NVIDIA_DEV_ROOT
pass-device-specs: PASS_DEVICE_SPECS
device-list-strategy: DEVICE_LIST_STRATEGY
device-id-strategy: DEVICE_ID_STRATEGY
gdrcopy-enabled: GDRCOPY_ENABLED
gds-enabled: GDS_ENABLED
mofed-enabled: MOFED_ENABLED
cdi-annotation-prefix: CDI_ANNOTATION_PREFIX
nvidia-cdi-hook-path nvidia-ctk-path: NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH
driver-root-ctr-path container-driver-root: DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT
mps-root: MPS_ROOT
shared-devices-allocation-policy: SHARED_DEVICES_ALLOCATION_POLICY
device-discovery-strategy: DEVICE_DISCOVERY_STRATEGY
imex-channel-ids: IMEX_CHANNEL_IDS
imex-required: IMEX_REQUIRED
kubelet-socket: KUBELET_SOCKET
cdi-feature-flags: CDI_FEATURE_FLAGS
cdi-disable-hooks: CDI_DISABLE_HOOKS
: DP_DISABLE_HEALTHCHECKS
: DP_ENABLE_HEALTHCHECKS
oneshot: GFD_ONESHOT
no-timestamp: GFD_NO_TIMESTAMP
sleep-interval: GFD_SLEEP_INTERVAL
output-file output o: GFD_OUTPUT_FILE
machine-type-file: GFD_MACHINE_TYPE_FILE
use-node-feature-api: GFD_USE_NODE_FEATURE_API USE_NODE_FEATURE_API
kubeconfig: KUBECONFIG
kube-api-qps: KUBE_API_QPS
kube-api-burst: KUBE_API_BURST
namespace: NAMESPACE
pod-name: POD_NAME
"""

#: Of each flag a text and, where one depends on it, the key of ours that shows it. Paths end what they name.
EXAMPLES: dict[str, tuple[str, str, Any]] = {
    "mig-strategy": ("single", "vendors.nvidia.settings.migStrategy", "single"),
    "fail-on-init-error": ("true", "vendors.nvidia.enabled", True),
    "driver-root": ("/d", "vendors.nvidia.settings.driverRoot", "/d"),
    "dev-root": ("/e", "vendors.nvidia.settings.devRoot", "/e"),
    "pass-device-specs": ("true", "vendors.nvidia.settings.passDeviceSpecs", True),
    "device-list-strategy": (
        "envvar, cdi-cri",
        "vendors.nvidia.settings.deviceListStrategy",
        ["envvar", "cdi-cri"],
    ),
    "device-id-strategy": ("index", "vendors.nvidia.settings.deviceIDStrategy", "index"),
    "gdrcopy-enabled": ("1", "vendors.nvidia.settings.gdrcopyEnabled", True),
    "gds-enabled": ("T", "vendors.nvidia.settings.gdsEnabled", True),
    "mofed-enabled": ("True", "vendors.nvidia.settings.mofedEnabled", True),
    "cdi-annotation-prefix": ("x/", "vendors.nvidia.settings.cdiAnnotationPrefix", "x/"),
    "nvidia-cdi-hook-path": ("/h", "vendors.nvidia.settings.nvidiaCDIHookPath", "/h"),
    "driver-root-ctr-path": ("/c", "vendors.nvidia.settings.containerDriverRoot", "/c"),
    "mps-root": ("/m", "", None),
    "shared-devices-allocation-policy": (
        "packed",
        "vendors.nvidia.settings.sharedDevicesAllocationPolicy",
        "packed",
    ),
    "device-discovery-strategy": ("nvml", "", None),
    "imex-channel-ids": ("0, 0x1", "vendors.nvidia.settings.imexChannelIDs", [0, 1]),
    "imex-required": ("t", "vendors.nvidia.settings.imexRequired", True),
    "kubelet-socket": ("/k/kubelet.sock", "agent.kubeletDir", "/k"),
    "cdi-feature-flags": ("a,b", "vendors.nvidia.settings.cdiFeatureFlags", ["a", "b"]),
    "cdi-disable-hooks": ("all", "vendors.nvidia.settings.cdiDisableHooks", ["all"]),
    "DP_DISABLE_HEALTHCHECKS": ("all", "vendors.nvidia.settings.disableHealthChecks", "all"),
    "DP_ENABLE_HEALTHCHECKS": ("79", "vendors.nvidia.settings.enableHealthChecks", "79"),
    "oneshot": ("true", "", None),
    "no-timestamp": ("true", "report.timestamp", False),
    "sleep-interval": ("infinite", "", None),
    "output-file": ("/o", "report.featuresFile", "/o"),
    "machine-type-file": ("/t", "report.machineFile", "/t"),
    "use-node-feature-api": ("true", "report.labelsAs", "nodeFeature"),
    "kubeconfig": ("/x", "", None),
    "kube-api-qps": ("5", "", None),
    "kube-api-burst": ("10", "", None),
    "namespace": ("gpu", "report.namespace", "gpu"),
    "pod-name": ("agent-x", "", None),
}


def test_the_table_is_nvidia_s() -> None:
    rows = (line.split(":") for line in THEIRS.strip().splitlines())

    assert [(flag.names, flag.variables) for flag in NVIDIA_FLAGS] == [
        (tuple(names.split()), tuple(variables.split())) for names, variables in rows
    ]
    assert [flag.name for flag in NVIDIA_FLAGS] == [*EXAMPLES]


def arguments(*argv: str) -> dict[str, object]:
    return given_by(command_line().parse_args(["run", *argv]))


def spelled() -> list[Any]:
    """Each flag in each way of giving it on a command line, with one dash or two as Go has it."""
    found = []
    for flag in NVIDIA_FLAGS:
        text = EXAMPLES[flag.name][0]
        for name in flag.names:
            for dashes in ("-", "--") if len(name) > 1 else ("-",):
                found.append(pytest.param(flag, (f"{dashes}{name}", text), id=f"{dashes}{name} {text}"))
                if len(name) > 1:
                    found.append(pytest.param(flag, (f"{dashes}{name}={text}",), id=f"{dashes}{name}={text}"))
        if flag.kind is FlagKind.BOOL and text != "false":
            found.append(pytest.param(flag, (f"--{flag.name}",), id=f"--{flag.name}"))
    return found


def arrives(flag: Flag, config: Config, before: Config) -> bool:
    """Whether the example is what the key shows; without a key nothing may change."""
    _, key, value = EXAMPLES[flag.name]
    found: Any = effective(config)
    if not key:
        return config == before
    for step in key.split("."):
        found = found[step]
    return bool(found == value)


@pytest.mark.parametrize(("flag", "argv"), spelled())
def test_each_flag_and_alias_arrives_from_the_command_line(flag: Flag, argv: tuple[str, ...]) -> None:
    assert arrives(flag, configured(arguments(*argv), {}, "n"), Config())


@pytest.mark.parametrize(
    ("flag", "name"), [(flag, name) for flag in NVIDIA_FLAGS for name in flag.variables], ids=str
)
def test_each_variable_arrives_from_the_environment(flag: Flag, name: str) -> None:
    assert arrives(flag, configured({}, {name: EXAMPLES[flag.name][0]}, "n"), Config())


@pytest.mark.parametrize("flag", [flag for flag in NVIDIA_FLAGS if flag.tree], ids=lambda flag: flag.tree)
def test_each_key_arrives_from_the_file(flag: Flag) -> None:
    text = EXAMPLES[flag.name][0]
    written: dict[FlagKind, Any] = {
        FlagKind.BOOL: text != "false",
        FlagKind.TEXTS: [it.strip() for it in text.split(",")],
        FlagKind.NUMBERS: [int(it, 0) for it in text.split(",")] if flag.kind is FlagKind.NUMBERS else [],
    }
    tree = written.get(flag.kind, text)
    for step in reversed(flag.tree.split(".")):
        tree = {step: tree}

    assert arrives(flag, parse(json.dumps(tree), "f", "n"), parse("flags: {}", "f", "n"))


@pytest.mark.parametrize("spelling", ["--config", "--config-file", "-config-file"])
def test_the_file_is_given_by_our_name_or_theirs(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("flags: {migStrategy: single}")

    config = configured(arguments(spelling, str(tmp_path / "f")), {}, "n")

    assert config.vendors["nvidia"].settings == {"migStrategy": "single"}


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(
        "flags: {migStrategy: none, plugin: {deviceIDStrategy: uuid, passDeviceSpecs: true}}"
    )
    environ = {"MIG_STRATEGY": "single", "DEVICE_ID_STRATEGY": "index", "CONFIG_FILE": str(tmp_path / "f")}

    config = configured(arguments("--mig-strategy=mixed"), environ, "n")

    assert config.vendors["nvidia"].settings == {
        "migStrategy": "mixed",
        "deviceIDStrategy": "index",
        "passDeviceSpecs": True,
    }


def test_a_value_of_the_file_that_a_flag_replaces_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("flags: {deviceDiscoveryStrategy: tegra}")

    configured({"config": tmp_path / "f"}, {"DEVICE_DISCOVERY_STRATEGY": "nvml"}, "n")


def test_the_first_variable_that_is_set_counts() -> None:
    config = configured({}, {"GFD_MIG_STRATEGY": "mixed", "MIG_STRATEGY": "single"}, "n")

    assert config.vendors["nvidia"].settings == {"migStrategy": "single"}


def test_flags_lie_over_the_settings_of_our_own_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(
        "vendors: {nvidia: {library: /l, settings: {migStrategy: none, deviceIDStrategy: index}}, metax: {}}"
    )

    config = configured({"config": tmp_path / "f"}, {"MIG_STRATEGY": "single"}, "n")

    assert config.vendors["nvidia"].settings == {"migStrategy": "single", "deviceIDStrategy": "index"}
    assert (config.vendors["nvidia"].library, config.vendors["nvidia"].enabled) == ("/l", "auto")
    assert "metax" in config.vendors


@pytest.mark.parametrize(
    ("file", "environ", "enabled"),
    [
        ("", {"MIG_STRATEGY": "single"}, "auto"),
        ("", {"FAIL_ON_INIT_ERROR": "true"}, True),
        ("flags: {}", {}, True),
        ("flags: {}", {"FAIL_ON_INIT_ERROR": "false"}, "auto"),
        ("vendors: {nvidia: {enabled: true}}", {"FAIL_ON_INIT_ERROR": "false"}, "auto"),
        ("vendors: {nvidia: {enabled: false}}", {"FAIL_ON_INIT_ERROR": "true"}, False),
    ],
)
def test_only_a_vendor_that_is_asked_for_keeps_the_agent_from_being_ready(
    file: str, environ: dict[str, str], enabled: object, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text(file)

    config = configured({"config": tmp_path / "f"}, environ, "n")

    assert config.vendor("nvidia").enabled == enabled


def test_a_repeated_list_grows_and_replaces_the_environment_s() -> None:
    argv = ("--device-list-strategy", "envvar", "--device-list-strategy=cdi-cri,cdi-annotations")

    config = configured(arguments(*argv), {"DEVICE_LIST_STRATEGY": "volume-mounts"}, "n")

    assert config.vendors["nvidia"].settings["deviceListStrategy"] == ["envvar", "cdi-cri", "cdi-annotations"]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("PASS_DEVICE_SPECS", "passDeviceSpecs", False), ("MIG_STRATEGY", "migStrategy", "")],
)
def test_an_empty_variable_is_an_empty_text_or_false_as_in_nvidia_s_programs(
    name: str, key: str, value: object
) -> None:
    assert configured({}, {name: ""}, "n").vendors["nvidia"].settings == {key: value}


@pytest.mark.parametrize("name", ["IMEX_CHANNEL_IDS", "CDI_FEATURE_FLAGS", "GFD_SLEEP_INTERVAL"])
def test_an_empty_variable_of_a_list_or_a_duration_is_not_set(name: str) -> None:
    assert configured({}, {name: ""}, "n") == Config()


@pytest.mark.parametrize(
    "spelling", ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"]
)
def test_switches_are_spelled_as_in_go(spelling: str) -> None:
    meant = spelling.lower() in ("1", "t", "true")

    for config in (
        configured(arguments(f"--gds-enabled={spelling}"), {}, "n"),
        configured({}, {"GDS_ENABLED": spelling}, "n"),
    ):
        assert config.vendors["nvidia"].settings == {"gdsEnabled": meant}


@pytest.mark.parametrize(
    ("flag", "name", "text", "error"),
    [
        ("pass-device-specs", "PASS_DEVICE_SPECS", "yes", "expected true or false, found 'yes'"),
        (
            "imex-channel-ids",
            "IMEX_CHANNEL_IDS",
            "0,x",
            "expected a list of whole numbers with commas, found '0,x'",
        ),
        ("imex-channel-ids", "IMEX_CHANNEL_IDS", "9" * 30, "expected a list of whole numbers"),
        (
            "sleep-interval",
            "GFD_SLEEP_INTERVAL",
            "1d",
            "expected a duration such as 60s, or infinite, found '1d'",
        ),
        (
            "kubelet-socket",
            "KUBELET_SOCKET",
            "",
            "must name the kubelet's socket: an agent without a kubelet is not",
        ),
        ("kubelet-socket", "KUBELET_SOCKET", "k.sock", "must be an absolute path, found 'k.sock'"),
        ("output-file", "GFD_OUTPUT_FILE", "here", "must be an absolute path, found 'here'"),
        (
            "device-discovery-strategy",
            "DEVICE_DISCOVERY_STRATEGY",
            "tegra",
            "'tegra' is not served by this release",
        ),
        (
            "device-discovery-strategy",
            "DEVICE_DISCOVERY_STRATEGY",
            "vfio",
            "'vfio' is not served by this release",
        ),
        (
            "device-discovery-strategy",
            "DEVICE_DISCOVERY_STRATEGY",
            "foo",
            "unable to validate flags: invalid --device-discovery-strategy option foo",
        ),
        ("mig-strategy", "MIG_STRATEGY", "\udcff", "is not UTF-8 text"),
    ],
)
def test_an_error_names_the_flag_or_the_variable(flag: str, name: str, text: str, error: str) -> None:
    for given, environ, place in (({flag: text}, {}, f"--{flag}"), ({}, {name: text}, name)):
        with pytest.raises(ConfigError) as caught:
            configured(given, environ, "n")

        assert str(caught.value).startswith(f"{place}: {error}")


@pytest.mark.parametrize(
    ("flag", "name", "text", "error"),
    [
        (
            "device-list-strategy",
            "DEVICE_LIST_STRATEGY",
            "envvar,foo",
            "invalid --device-list-strategy option: invalid strategy: foo",
        ),
        ("device-id-strategy", "DEVICE_ID_STRATEGY", "foo", "invalid --device-id-strategy option: foo"),
        (
            "shared-devices-allocation-policy",
            "SHARED_DEVICES_ALLOCATION_POLICY",
            "foo",
            "invalid --shared-devices-allocation-policy option: foo",
        ),
        ("mig-strategy", "MIG_STRATEGY", "foo", "unknown MIG strategy: foo"),
        (
            "imex-channel-ids",
            "IMEX_CHANNEL_IDS",
            "1",
            "invalid IMEX channel IDs: invalid IMEX config: channelIDs must be [] or [0]; found [1]",
        ),
    ],
)
@pytest.mark.parametrize(
    "file",
    ["", "flags: {}", "flags: {migStrategy: none}", "vendors: {nvidia: {settings: {migStrategy: none}}}"],
)
def test_what_the_vendor_refuses_names_the_flag_or_the_variable(
    file: str, flag: str, name: str, text: str, error: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text(file)
    for given, environ, place in (({flag: text}, {}, f"--{flag}"), ({}, {name: text}, name)):
        with pytest.raises(ConfigError) as caught:
            check_config(configured({"config": tmp_path / "f", **given}, environ, "n"))

        assert str(caught.value) == f"{place}: unable to validate flags: {error}"


@pytest.mark.parametrize(
    ("argv", "environ", "kubelet_dir"),
    [
        ((), {"KUBELET_SOCKET": "/theirs/s", "XPU_AGENT_KUBELET_DIR": "/ours"}, "/ours"),
        (("--kubelet-socket=/theirs/s",), {"XPU_AGENT_KUBELET_DIR": "/ours"}, "/theirs"),
        (
            ("--kubelet-socket=/theirs/s",),
            {"KUBELET_SOCKET": "/x/s", "XPU_AGENT_KUBELET_DIR": "/ours"},
            "/theirs",
        ),
        (("--kubelet-socket=/theirs/s", "--kubelet-dir=/ours"), {}, "/ours"),
        (("--kubelet-dir=/ours",), {"KUBELET_SOCKET": "/theirs/s"}, "/ours"),
    ],
)
def test_our_kubelet_dir_goes_before_their_socket_and_a_flag_before_a_variable(
    argv: tuple[str, ...], environ: dict[str, str], kubelet_dir: str
) -> None:
    assert str(configured(arguments(*argv), environ, "n").agent.kubelet_dir) == kubelet_dir


def test_none_of_theirs_is_one_of_ours() -> None:
    ours = {action.dest.replace("_", "-") for action in run_actions() if not action.dest.startswith("help")}
    theirs = {name for flag in NVIDIA_FLAGS for name in flag.names}
    mine = ours - {flag.name for flag in NVIDIA_FLAGS}

    assert mine >= {*FLAGS, "config", "node-name", "node-config"}
    assert not mine & theirs
    variables = [name for flag in NVIDIA_FLAGS for name in flag.variables]
    assert len({*variables, *map(variable, mine), "NODE_NAME"}) == len(variables) + len(mine) + 1


def test_no_spelling_stands_for_two_flags() -> None:
    spellings = [text for action in run_actions() for text in action.option_strings]

    assert len(spellings) == len(set(spellings))


def run_actions() -> list[argparse.Action]:
    verbs = next(action.choices for action in command_line()._actions if isinstance(action.choices, dict))
    actions: list[argparse.Action] = verbs["run"]._actions
    return actions


def test_the_environment_of_the_agent_alone_changes_nothing() -> None:
    assert (
        configured({}, {"NODE_NAME": "n", "PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "all"}, "n") == Config()
    )
