"""NVIDIA's settings as frozen values: the options of its device plugin v0.20, strictly read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from agent.core.names import wrong_name
from agent.core.text import shorten
from agent.core.vendor import SettingsError

from .refusals import nearest, worded

#: Every name that NVIDIA's plugin advertises begins so.
DOMAIN = "nvidia.com/"
#: What a whole GPU is called unless a pattern says otherwise.
GPU = f"{DOMAIN}gpu"
#: Of a resource's full name, in NVIDIA's plugin (api/config/v1/consts.go).
MAX_NAME = 63

_SPELLED = {"id": "ID", "ids": "IDs", "cdi": "CDI"}
#: The kubelet takes a list of 4 MiB: more replicas of one card never fit.
_Replicas = Annotated[int, Meta(le=131_072)]
_Count = Annotated[int, Meta(ge=0)]
_Text = Annotated[str, Meta(max_length=4096)]
_Path = Annotated[str, Meta(pattern=r"^(/[^\x00]*)?$", max_length=4096)]


def _key(name: str) -> str:
    """`device_id_strategy` as NVIDIA writes it: deviceIDStrategy."""
    first, *rest = name.split("_")
    return first + "".join(_SPELLED.get(part, part.capitalize()) for part in rest)


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=_key):
    """A mapping of which every key is known."""


class Pattern(_Strict, frozen=True):
    """Names devices by product or MIG profile; `*` stands for any text, all else for itself."""

    pattern: _Text
    name: _Text

    def __post_init__(self) -> None:
        force_setattr(self, "name", full_name(self.name))


class Patterns(_Strict, frozen=True):
    gpus: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()
    mig: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()


class Replicated(_Strict, frozen=True):
    """Devices of one resource, each advertised several times.

    `devices`: all, the first so many, or indices (0, "0", "0:1" of a MIG device) and uuids.
    """

    name: _Text
    replicas: _Replicas
    rename: _Text = ""
    devices: Literal["all"] | int | Annotated[tuple[int | _Text, ...], Meta(max_length=1024)] = "all"

    def __post_init__(self) -> None:
        force_setattr(self, "name", full_name(self.name))
        # NVIDIA's plugin takes its own default for a rename unseen; the kubelet takes it too.
        if self.rename not in ("", f"{self.name}.shared"):
            force_setattr(self, "rename", full_name(self.rename))
        if self.replicas < 2:
            raise ValueError("number of replicas must be >= 2")
        if isinstance(self.devices, int) and self.devices <= 0:
            raise ValueError(f"devices set as '{self.devices}' but a count of devices must be > 0")
        if self.devices == ():
            raise ValueError("devices names none; write all, a count, or indices and uuids")

    @property
    def advertised(self) -> str:
        """What the replicas are called."""
        return self.rename or self.name


class TimeSlicing(_Strict, frozen=True):
    fail_requests_greater_than_one: bool = False
    resources: Annotated[tuple[Replicated, ...], Meta(max_length=256)] = ()


DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


class Options(_Strict, frozen=True, kw_only=True):
    """Every setting with its default; `SETTINGS` says what each is."""

    library: _Text = ""
    sysfs: _Path = ""
    procfs: _Path = ""
    ignore_xids: tuple[_Count, ...] | None = None
    disable_health_checks: _Text = ""
    enable_health_checks: _Text = ""
    driver_root: _Path = "/"
    dev_root: _Path = ""
    container_driver_root: _Path = "/driver-root"
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    device_list_strategy: Annotated[tuple[DeviceListStrategy, ...], Meta(min_length=1)] = ("envvar",)
    device_id_strategy: Literal["uuid", "index"] = "uuid"
    pass_device_specs: bool = False
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    cdi_annotation_prefix: _Text = "cdi.k8s.io/"
    nvidia_cdi_hook_path: _Path = ""
    cdi_feature_flags: tuple[_Text, ...] = ()
    cdi_disable_hooks: tuple[_Text, ...] = ()
    imex_channel_ids: tuple[int, ...] = ()
    imex_required: bool = False
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"
    patterns: Patterns = Patterns()
    time_slicing: TimeSlicing = TimeSlicing()

    def __post_init__(self) -> None:
        if self.imex_channel_ids not in ((), (0,)):
            ids = " ".join(map(str, self.imex_channel_ids))
            raise ValueError(
                "unable to validate flags: invalid IMEX channel IDs: invalid IMEX config: "
                f"channelIDs must be [] or [0]; found [{ids}]"
            )

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Options:
        """Read the settings of the vendor, as plain JSON values.

        Raises:
            SettingsError: In NVIDIA's words where its plugin has some, else with what would fit.
        """
        given = dict(settings)
        for key in given:
            if key not in SETTINGS:
                raise SettingsError(f"nvidia has no setting {key!r}; {nearest(key, SETTINGS)}")
        if isinstance(given.get("deviceListStrategy"), str):
            given["deviceListStrategy"] = [given["deviceListStrategy"]]
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise SettingsError(worded(str(error), given, SETTINGS)) from None

    def for_backend(self) -> dict[str, Any]:
        """What the vendor's process needs, as far as it is not the default: others cost it no restart."""
        mine, default = (msgspec.json.decode(msgspec.json.encode(it)) for it in (self, Options()))
        return {key: mine[key] for key in _BACKEND if mine[key] != default[key]}

    @property
    def host_dev_root(self) -> str:
        """Below which directory of the host the device nodes lie: the driver's root unless said."""
        return self.dev_root or self.driver_root


#: What may be set, and what would fit.
SETTINGS: Mapping[str, str] = {
    "library": "the path of libnvidia-ml.so.1 or of the driver's root directory",
    "sysfs": "the path where sysfs is mounted",
    "procfs": "the path where procfs is mounted",
    "ignoreXids": "a list of XID numbers",
    "disableHealthChecks": "text as of DP_DISABLE_HEALTHCHECKS: all, or XID numbers with commas",
    "enableHealthChecks": "text as of DP_ENABLE_HEALTHCHECKS: all, or XID numbers with commas",
    "driverRoot": "the absolute path of the driver's root on the host",
    "devRoot": "the absolute path on the host below which /dev lies",
    "containerDriverRoot": "the absolute path where the agent sees the driver's root",
    "migStrategy": "none, single or mixed",
    "deviceListStrategy": "one or more of envvar, volume-mounts, cdi-annotations, cdi-cri",
    "deviceIDStrategy": "uuid or index",
    "passDeviceSpecs": "true or false",
    "gdrcopyEnabled": "true or false",
    "gdsEnabled": "true or false",
    "mofedEnabled": "true or false",
    "cdiAnnotationPrefix": "text such as cdi.k8s.io/",
    "nvidiaCDIHookPath": "the absolute path of nvidia-cdi-hook or nvidia-ctk on the host",
    "cdiFeatureFlags": "a list of text",
    "cdiDisableHooks": "a list of text",
    "imexChannelIDs": "[] or [0]",
    "imexRequired": "true or false",
    "sharedDevicesAllocationPolicy": "distributed or packed",
    "patterns": "{gpus: [{pattern, name}], mig: [{pattern, name}]}",
    "timeSlicing": "{failRequestsGreaterThanOne, resources: [{name, replicas, rename, devices}]}",
}

#: What the vendor's process needs; the rest is decided in the agent.
_BACKEND = (
    "library",
    "sysfs",
    "procfs",
    "ignoreXids",
    "disableHealthChecks",
    "enableHealthChecks",
    "driverRoot",
    "devRoot",
    "containerDriverRoot",
    "deviceListStrategy",
    "deviceIDStrategy",
    "gdrcopyEnabled",
    "gdsEnabled",
    "mofedEnabled",
    "nvidiaCDIHookPath",
    "cdiFeatureFlags",
    "cdiDisableHooks",
    "imexChannelIDs",
)


def full_name(name: str) -> str:
    """The resource's name with its domain, as NVIDIA's plugin completes it.

    Raises:
        ValueError: The kubelet or NVIDIA's plugin would not take it.
    """
    full = name if name.startswith(DOMAIN) else f"{DOMAIN}{name}"
    if len(full) > MAX_NAME:
        raise ValueError(
            f"fully-qualified resource name must be {MAX_NAME} characters or less: {shorten(full)}"
        )
    wrong = wrong_name(full)
    if wrong:
        raise ValueError(f"incorrect format for resource name '{shorten(full)}': {wrong}")
    return full
