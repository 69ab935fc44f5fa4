"""Every flag of NVIDIA's device plugin and gpu-feature-discovery (v0.20), and what each sets here.

Source: cmd/nvidia-device-plugin/main.go, cmd/gpu-feature-discovery/main.go, internal/flags and
api/config/v1/flags.go of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from agent.config.given_values import Value

#: Whose settings they are.
VENDOR = "nvidia"


class FlagKind(StrEnum):
    """How a value is written."""

    TEXT = "a text"
    BOOL = "true or false"
    TEXTS = "a list with commas"
    NUMBERS = "a list of whole numbers with commas"
    DURATION = "a duration such as 60s, or infinite"


@dataclass(frozen=True, slots=True)
class Flag:
    """One of theirs. Some are a variable without a flag, some have no key in the v1 file."""

    kind: FlagKind
    #: The flag and its aliases, without dashes.
    names: tuple[str, ...]
    #: The environment variables; the first that is set counts.
    variables: tuple[str, ...]
    #: The key in the v1 file, with dots.
    tree: str
    #: Our key; empty where nothing here depends on it.
    sets: str

    @property
    def name(self) -> str:
        return self.names[0] if self.names else self.variables[0]


def _flag(kind: FlagKind, names: str, variables: str, tree: str = "", sets: str = "") -> Flag:
    return Flag(kind, tuple(names.split()), tuple(variables.split()), tree, sets)


_text = partial(_flag, FlagKind.TEXT)
_bool = partial(_flag, FlagKind.BOOL)
_texts = partial(_flag, FlagKind.TEXTS)
_numbers = partial(_flag, FlagKind.NUMBERS)
_duration = partial(_flag, FlagKind.DURATION)

#: Where both programs have a flag, the plugin's variable goes before that of gpu-feature-discovery.
NVIDIA_FLAGS = (
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
    _text("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "flags.deviceDiscoveryStrategy"),
    _numbers(
        "imex-channel-ids", "IMEX_CHANNEL_IDS", "imex.channelIDs", "vendors.nvidia.settings.imexChannelIDs"
    ),
    _bool("imex-required", "IMEX_REQUIRED", "imex.required", "vendors.nvidia.settings.imexRequired"),
    _text("kubelet-socket", "KUBELET_SOCKET", "", "agent.kubeletDir"),
    _texts("cdi-feature-flags", "CDI_FEATURE_FLAGS", "", "vendors.nvidia.settings.cdiFeatureFlags"),
    _texts("cdi-disable-hooks", "CDI_DISABLE_HOOKS", "", "vendors.nvidia.settings.cdiDisableHooks"),
    _text("", "DP_DISABLE_HEALTHCHECKS", "", "vendors.nvidia.settings.disableHealthChecks"),
    _text("", "DP_ENABLE_HEALTHCHECKS", "", "vendors.nvidia.settings.enableHealthChecks"),
    # Of gpu-feature-discovery alone.
    _bool("oneshot", "GFD_ONESHOT", "flags.gfd.oneshot"),
    _bool("no-timestamp", "GFD_NO_TIMESTAMP", "flags.gfd.noTimestamp", "report.timestamp"),
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
    ),
    _text("kubeconfig", "KUBECONFIG"),
    _text("kube-api-qps", "KUBE_API_QPS"),
    _text("kube-api-burst", "KUBE_API_BURST"),
    _text("namespace", "NAMESPACE", "", "report.namespace"),
    _text("pod-name", "POD_NAME"),
)

BY_NAME = {flag.name: flag for flag in NVIDIA_FLAGS}

_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False", "")
# A number in Go is bounded to 64 bits, and so is one in a file of ours.
_NUMBER = re.compile(r" *[-+]?(?:0[xX][0-9a-fA-F]{1,15}|0|[1-9][0-9]{0,17}) *")
_DURATION = re.compile(r"infinite|[-+]?(?:0|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)")


def read(kind: FlagKind, text: str) -> Value | None:
    """The value that a command line or a variable holds; None where it says nothing.

    An empty text counts as text and as false, as in NVIDIA's programs.

    Raises:
        ValueError: It is no such value; the text says what was expected.
    """
    match kind:
        case FlagKind.TEXT:
            return text
        case FlagKind.BOOL if text in _TRUE or text in _FALSE:
            return text in _TRUE
        case _ if not text:
            return None
        case FlagKind.TEXTS:
            return tuple(item.strip() for item in text.split(","))
        case FlagKind.NUMBERS if all(map(_NUMBER.fullmatch, text.split(","))):
            return tuple(int(item, 0) for item in text.split(","))
        case FlagKind.DURATION if is_duration(text):
            return text
    raise ValueError(f"expected {kind}")


def is_duration(text: str) -> bool:
    """Whether Go's time.ParseDuration takes it, or it is `infinite`."""
    return bool(_DURATION.fullmatch(text))
