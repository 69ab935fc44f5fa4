"""Every flag of NVIDIA's device plugin and gpu-feature-discovery (v0.20), and what each sets here.

Source: cmd/nvidia-device-plugin/main.go, cmd/gpu-feature-discovery/main.go, internal/flags and
api/config/v1/flags.go of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from agent.vendor_api.config_flags import ConfigFlag, Flag, FlagGroup, FlagKind, FlagValue
from agent.vendor_api.text import shorten

_DISCOVERY = ("auto", "nvml")
_DISCOVERY_ELSEWHERE = ("tegra", "vfio")


def _flag(
    kind: FlagKind,
    names: str,
    variables: str,
    tree: str = "",
    sets: str = "",
    value: Callable[[FlagValue], Any] | None = None,
) -> Flag:
    return Flag(kind, tuple(names.split()), tuple(variables.split()), tree, sets, value)


def _enabled(value: FlagValue) -> bool | str:
    """failOnInitError: the agent stays, and is not ready without the vendor."""
    return True if value else "auto"


def _directory_of_socket(value: FlagValue) -> str:
    path = str(value)
    if not path:
        raise ValueError(
            "must name the kubelet's socket: an agent without a kubelet is not served; try `xpu-agent demo`"
        )
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"must be an absolute path, found '{shorten(path, 60)}'")
    return str(PurePosixPath(path).parent)


def _checked_discovery(value: FlagValue) -> None:
    strategy = str(value)
    if strategy in _DISCOVERY_ELSEWHERE:
        raise ValueError(f"'{strategy}' is not served by this release; it serves 'auto' or 'nvml'")
    if strategy not in _DISCOVERY:
        shown = shorten(strategy, 60)
        raise ValueError(f"unable to validate flags: invalid --device-discovery-strategy option {shown}")


def _labelled(no_timestamp: FlagValue) -> bool:
    return not no_timestamp


def _labels_as(use_node_feature_api: FlagValue) -> str | None:
    return "nodeFeature" if use_node_feature_api else None


_text = partial(_flag, FlagKind.TEXT)
_bool = partial(_flag, FlagKind.BOOL)
_texts = partial(_flag, FlagKind.TEXTS)
_numbers = partial(_flag, FlagKind.NUMBERS)
_duration = partial(_flag, FlagKind.DURATION)

#: Where both programs have a flag, the plugin's variable goes before that of gpu-feature-discovery.
FLAGS = (
    _text(
        "mig-strategy",
        "MIG_STRATEGY GFD_MIG_STRATEGY",
        "flags.migStrategy",
        "vendors.nvidia.settings.migStrategy",
    ),
    _bool(
        "fail-on-init-error",
        "FAIL_ON_INIT_ERROR GFD_FAIL_ON_INIT_ERROR",
        "flags.failOnInitError",
        "vendors.nvidia.enabled",
        _enabled,
    ),
    _text(
        "driver-root nvidia-driver-root",
        "NVIDIA_DRIVER_ROOT",
        "flags.nvidiaDriverRoot",
        "vendors.nvidia.settings.driverRoot",
    ),
    _text(
        "dev-root nvidia-dev-root",
        "NVIDIA_DEV_ROOT",
        "flags.nvidiaDevRoot",
        "vendors.nvidia.settings.devRoot",
    ),
    _bool(
        "pass-device-specs",
        "PASS_DEVICE_SPECS",
        "flags.plugin.passDeviceSpecs",
        "vendors.nvidia.settings.passDeviceSpecs",
    ),
    _texts(
        "device-list-strategy",
        "DEVICE_LIST_STRATEGY",
        "flags.plugin.deviceListStrategy",
        "vendors.nvidia.settings.deviceListStrategy",
    ),
    _text(
        "device-id-strategy",
        "DEVICE_ID_STRATEGY",
        "flags.plugin.deviceIDStrategy",
        "vendors.nvidia.settings.deviceIDStrategy",
    ),
    _bool(
        "gdrcopy-enabled", "GDRCOPY_ENABLED", "flags.gdrcopyEnabled", "vendors.nvidia.settings.gdrcopyEnabled"
    ),
    _bool("gds-enabled", "GDS_ENABLED", "flags.gdsEnabled", "vendors.nvidia.settings.gdsEnabled"),
    _bool("mofed-enabled", "MOFED_ENABLED", "flags.mofedEnabled", "vendors.nvidia.settings.mofedEnabled"),
    _text(
        "cdi-annotation-prefix",
        "CDI_ANNOTATION_PREFIX",
        "flags.plugin.cdiAnnotationPrefix",
        "vendors.nvidia.settings.cdiAnnotationPrefix",
    ),
    _text(
        "nvidia-cdi-hook-path nvidia-ctk-path",
        "NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
        "flags.plugin.nvidiaCTKPath",
        "vendors.nvidia.settings.nvidiaCDIHookPath",
    ),
    _text(
        "driver-root-ctr-path container-driver-root",
        "DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
        "flags.plugin.containerDriverRoot",
        "vendors.nvidia.settings.containerDriverRoot",
    ),
    _text("mps-root", "MPS_ROOT", "flags.mpsRoot"),
    _text(
        "shared-devices-allocation-policy",
        "SHARED_DEVICES_ALLOCATION_POLICY",
        "flags.plugin.sharedDevicesAllocationPolicy",
        "vendors.nvidia.settings.sharedDevicesAllocationPolicy",
    ),
    _text(
        "device-discovery-strategy",
        "DEVICE_DISCOVERY_STRATEGY",
        "flags.deviceDiscoveryStrategy",
        value=_checked_discovery,
    ),
    _numbers(
        "imex-channel-ids", "IMEX_CHANNEL_IDS", "imex.channelIDs", "vendors.nvidia.settings.imexChannelIDs"
    ),
    _bool("imex-required", "IMEX_REQUIRED", "imex.required", "vendors.nvidia.settings.imexRequired"),
    _text("kubelet-socket", "KUBELET_SOCKET", "", "agent.kubeletDir", _directory_of_socket),
    _texts("cdi-feature-flags", "CDI_FEATURE_FLAGS", "", "vendors.nvidia.settings.cdiFeatureFlags"),
    _texts("cdi-disable-hooks", "CDI_DISABLE_HOOKS", "", "vendors.nvidia.settings.cdiDisableHooks"),
    _text("", "DP_DISABLE_HEALTHCHECKS", "", "vendors.nvidia.settings.disableHealthChecks"),
    _text("", "DP_ENABLE_HEALTHCHECKS", "", "vendors.nvidia.settings.enableHealthChecks"),
    # Of gpu-feature-discovery alone.
    _bool("oneshot", "GFD_ONESHOT", "flags.gfd.oneshot"),
    _bool("no-timestamp", "GFD_NO_TIMESTAMP", "flags.gfd.noTimestamp", "report.timestamp", _labelled),
    _duration("sleep-interval", "GFD_SLEEP_INTERVAL", "flags.gfd.sleepInterval"),
    _text("output-file output o", "GFD_OUTPUT_FILE", "flags.gfd.outputFile", "report.featuresFile"),
    _text(
        "machine-type-file",
        "GFD_MACHINE_TYPE_FILE",
        "flags.gfd.machineTypeFile",
        "report.machineFile",
    ),
    _bool(
        "use-node-feature-api",
        "GFD_USE_NODE_FEATURE_API USE_NODE_FEATURE_API",
        "flags.useNodeFeatureAPI",
        "report.labelsAs",
        _labels_as,
    ),
    _text("kubeconfig", "KUBECONFIG"),
    _text("kube-api-qps", "KUBE_API_QPS"),
    _text("kube-api-burst", "KUBE_API_BURST"),
    _text("namespace", "NAMESPACE", "", "report.namespace"),
    _text("pod-name", "POD_NAME"),
)

#: config-manager makes CONFIG_FILE of its directory, CONFIG_FILE_SRCDIR, so that the directory goes first. An
#: empty variable counts as not set, as NVIDIA's chart writes it.
CONFIG_FLAGS = (
    ConfigFlag("config", ("config-file",), ("CONFIG_FILE_SRCDIR", "CONFIG_FILE", "GFD_CONFIG_FILE")),
    ConfigFlag("default-config", variables=("DEFAULT_CONFIG",)),
    ConfigFlag("fallback-strategies", variables=("FALLBACK_STRATEGIES",)),
)

FLAG_GROUP = FlagGroup(
    "NVIDIA's flags",
    "Flags of nvidia-device-plugin and gpu-feature-discovery v0.20, with their variables and the keys "
    "of NVIDIA's file. DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS are variables without a flag.",
    FLAGS,
    CONFIG_FLAGS,
)
