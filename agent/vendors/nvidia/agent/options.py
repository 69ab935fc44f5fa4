"""NVIDIA's settings as frozen values: the options of its device plugin v0.20, strictly checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agent.vendor_api.agent import MAX_REPLICAS, SettingsError, SettingsWarning
from agent.vendor_api.text import shorten
from agent.vendors.common import setting_values
from agent.vendors.common.setting_values import of_agent, of_backend
from agent.vendors.nvidia.shared import constants
from agent.vendors.nvidia.shared.error_checks import malformed

from .names import full_name
from .refusals import refusal
from .strict_mappings import Strict, Text
from .time_slicing import TimeSlicing

_Count = Annotated[int, Meta(ge=0)]
_Path = Annotated[str, Meta(pattern=r"^(/[^\x00]*)?$", max_length=4096)]


class Pattern(Strict, frozen=True):
    """Names devices by product or MIG profile; in the pattern `*` is any text."""

    pattern: Text
    name: Text

    def __post_init__(self) -> None:
        full_name(self.name, "name")

    @property
    def resource(self) -> str:
        return full_name(self.name)


class Patterns(Strict, frozen=True):
    """NVIDIA's section `resources`: names of resources by a pattern of the product or of the MIG profile."""

    gpus: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()
    mig: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()


DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
_YES_OR_NO = "true or false"


class Options(Strict, frozen=True, kw_only=True):
    """Every setting: the type, the half that reads it, a description of what fits, the default."""

    library: Annotated[
        Text, of_backend("the path of libnvidia-ml.so.1 or of the driver's root directory")
    ] = ""
    sysfs: Annotated[_Path, of_backend("the path where sysfs is mounted")] = ""
    procfs: Annotated[_Path, of_backend("the path where procfs is mounted")] = ""
    ignore_xids: Annotated[tuple[_Count, ...] | None, of_backend("a list of XID numbers")] = None
    disable_health_checks: Annotated[
        Text, of_backend("text as of DP_DISABLE_HEALTHCHECKS: all, or XID numbers with commas")
    ] = ""
    enable_health_checks: Annotated[
        Text, of_backend("text as of DP_ENABLE_HEALTHCHECKS: all, or XID numbers with commas")
    ] = ""
    driver_root: Annotated[_Path, of_backend("the absolute path of the driver's root on the host")] = "/"
    dev_root: Annotated[_Path, of_backend("the absolute path on the host below which /dev lies")] = ""
    container_driver_root: Annotated[
        _Path, of_backend("the absolute path where the agent sees the driver's root")
    ] = constants.DRIVER_ROOT
    mig_strategy: Annotated[Literal["none", "single", "mixed"], of_backend("none, single or mixed")] = "none"
    device_list_strategy: Annotated[
        tuple[DeviceListStrategy, ...],
        Meta(min_length=1),
        of_backend("one or more of envvar, volume-mounts, cdi-annotations, cdi-cri"),
    ] = ("envvar",)
    device_id_strategy: Annotated[Literal["uuid", "index"], of_backend("uuid or index")] = "uuid"
    pass_device_specs: Annotated[bool, of_agent(_YES_OR_NO)] = False
    gdrcopy_enabled: Annotated[bool, of_backend(_YES_OR_NO)] = False
    gds_enabled: Annotated[bool, of_backend(_YES_OR_NO)] = False
    mofed_enabled: Annotated[bool, of_backend(_YES_OR_NO)] = False
    cdi_annotation_prefix: Annotated[Text, of_agent("text such as cdi.k8s.io/")] = "cdi.k8s.io/"
    nvidia_cdi_hook_path: Annotated[
        _Path, of_backend("the absolute path of nvidia-cdi-hook or nvidia-ctk on the host")
    ] = ""
    cdi_feature_flags: Annotated[tuple[Text, ...], of_backend("a list of text")] = ()
    cdi_disable_hooks: Annotated[tuple[Text, ...], of_backend("a list of text")] = ()
    imex_channel_ids: Annotated[tuple[int, ...], of_backend("[] or [0]")] = ()
    hami_core_directory: Annotated[
        _Path, of_agent("the absolute path of the directory of HAMi-core's libvgpu.so on the host")
    ] = ""
    imex_required: Annotated[bool, of_agent(_YES_OR_NO)] = False
    shared_devices_allocation_policy: Annotated[
        Literal["distributed", "packed"], of_agent("distributed or packed")
    ] = "distributed"
    patterns: Annotated[Patterns, of_agent("{gpus: [{pattern, name}], mig: [{pattern, name}]}")] = Patterns()
    time_slicing: Annotated[
        TimeSlicing,
        of_agent(
            "{failRequestsGreaterThanOne, renameByDefault, resources: [{name, replicas, rename, devices}]}"
        ),
    ] = TimeSlicing(())

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
        given = setting_values.as_text(settings, "disableHealthChecks", "enableHealthChecks")
        for key in given:
            if key not in SETTINGS:
                raise setting_values.unknown(key, SETTINGS)
        if isinstance(given.get("deviceListStrategy"), str):
            given["deviceListStrategy"] = [given["deviceListStrategy"]]
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise refusal(error, settings, SETTINGS | _INNER) from None

    def for_backend(self) -> dict[str, Any]:
        """The settings of the vendor's process that differ from their defaults.

        A change of other settings starts no new process.
        """
        settings, default = (msgspec.json.decode(msgspec.json.encode(it)) for it in (self, Options()))
        return {key: settings[key] for key in _BACKEND if settings[key] != default[key]}

    def warnings(self) -> tuple[SettingsWarning, ...]:
        """Warnings about settings that are valid and hardly intended."""
        lists = {
            "disableHealthChecks": self.disable_health_checks,
            "enableHealthChecks": self.enable_health_checks,
        }
        ignored = (
            SettingsWarning(f"{shorten(word, 40)} is no XID, and is ignored as NVIDIA's plugin does", (key,))
            for key, text in lists.items()
            for word in malformed(text)
        )
        return (*self.time_slicing.warnings(), *ignored)

    @property
    def by_cdi(self) -> bool:
        """Whether containers get their devices by CDI names alone."""
        return not {"envvar", "volume-mounts"} & set(self.device_list_strategy)

    @property
    def host_dev_root(self) -> str:
        """The directory of the host with /dev: `devRoot`, else the driver's root."""
        return self.dev_root or self.driver_root


#: Each setting with a description of what fits.
SETTINGS: dict[str, str] = setting_values.fitting(Options)
#: The default of each setting. timeSlicing has none: it is refused without resources.
DEFAULTS: dict[str, Any] = {
    key: value for key, value in msgspec.to_builtins(Options()).items() if key != "timeSlicing"
}
_BACKEND = setting_values.for_backend(Options)

#: Descriptions for keys within settings.
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
