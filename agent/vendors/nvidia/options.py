"""NVIDIA's settings as frozen values: the options of its device plugin v0.20, strictly read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from agent.core.vendor import MAX_REPLICAS, Doubt, SettingsError

from .names import DOMAIN as DOMAIN
from .names import GPU as GPU
from .names import full_name as full_name
from .refusals import refusal, unknown
from .strict import Strict, Text
from .timeslicing import Replicated as Replicated
from .timeslicing import TimeSlicing

_Count = Annotated[int, Meta(ge=0)]
_Path = Annotated[str, Meta(pattern=r"^(/[^\x00]*)?$", max_length=4096)]


class Pattern(Strict, frozen=True):
    """Names devices by product or MIG profile; `*` stands for any text, all else for itself."""

    pattern: Text
    name: Text

    def __post_init__(self) -> None:
        force_setattr(self, "name", full_name(self.name, "name"))


class Patterns(Strict, frozen=True):
    gpus: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()
    mig: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()


DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


class Options(Strict, frozen=True, kw_only=True):
    """Every setting with its default; `SETTINGS` says what each is."""

    library: Text = ""
    sysfs: _Path = ""
    procfs: _Path = ""
    ignore_xids: tuple[_Count, ...] | None = None
    disable_health_checks: Text = ""
    enable_health_checks: Text = ""
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
    cdi_annotation_prefix: Text = "cdi.k8s.io/"
    nvidia_cdi_hook_path: _Path = ""
    cdi_feature_flags: tuple[Text, ...] = ()
    cdi_disable_hooks: tuple[Text, ...] = ()
    imex_channel_ids: tuple[int, ...] = ()
    imex_required: bool = False
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"
    patterns: Patterns = Patterns()
    time_slicing: TimeSlicing = TimeSlicing(())

    def __post_init__(self) -> None:
        if self.imex_channel_ids not in ((), (0,)):
            ids = " ".join(map(str, self.imex_channel_ids))
            raise SettingsError(
                "unable to validate flags: invalid IMEX channel IDs: invalid IMEX config: "
                f"channelIDs must be [] or [0]; found [{ids}]",
                ("imexChannelIDs",),
            )

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Options:
        """Read the settings of the vendor, as plain JSON values.

        Raises:
            SettingsError: In NVIDIA's words where its plugin has some, else with what would fit; with the
                path to what is wrong.
        """
        given = dict(settings)
        for key in given:
            if key not in SETTINGS:
                raise unknown(key, SETTINGS)
        if isinstance(given.get("deviceListStrategy"), str):
            given["deviceListStrategy"] = [given["deviceListStrategy"]]
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise refusal(error, settings, SETTINGS | _INNER) from None

    def for_backend(self) -> dict[str, Any]:
        """What the vendor's process needs, as far as it is not the default: others cost it no restart."""
        mine, default = (msgspec.json.decode(msgspec.json.encode(it)) for it in (self, Options()))
        return {key: mine[key] for key in _BACKEND if mine[key] != default[key]}

    def doubts(self) -> tuple[Doubt, ...]:
        """What is good and yet hardly meant."""
        return tuple(self.time_slicing.doubts())

    @property
    def by_cdi(self) -> bool:
        """Whether containers get their devices by CDI names alone."""
        return not {"envvar", "volume-mounts"} & set(self.device_list_strategy)

    @property
    def host_dev_root(self) -> str:
        """Below which directory of the host the device nodes lie: the driver's root unless said."""
        return self.dev_root or self.driver_root


#: What may be set, and what would fit.
SETTINGS: dict[str, str] = {
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
    "timeSlicing": "{failRequestsGreaterThanOne, renameByDefault, resources: "
    "[{name, replicas, rename, devices}]}",
}

#: The same of the keys below.
_INNER = {
    "gpus": "a list of {pattern, name}",
    "mig": "a list of {pattern, name}",
    "pattern": "text such as *A100*",
    "name": "text such as nvidia.com/gpu",
    "rename": "text such as nvidia.com/gpu.shared",
    "replicas": f"a whole number from 2 to {MAX_REPLICAS}",
    "devices": "all, a count, or a list of indices and uuids",
    "resources": "a list of {name, replicas, rename, devices}",
    "failRequestsGreaterThanOne": "true or false",
    "renameByDefault": "true or false",
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
    "migStrategy",
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
