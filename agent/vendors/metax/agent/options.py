"""MetaX's settings as frozen values, strictly checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from agent.vendor_api.agent import MAX_REPLICAS, SettingsError, SettingsWarning
from agent.vendor_api.text import shorten
from agent.vendors.common import setting_values
from agent.vendors.common.setting_values import of_agent, of_backend
from agent.vendors.metax.shared.constants import DRIVER_ROOT
from agent.vendors.metax.shared.slice_request import Unclaimed

Mode = Literal["native", "shared", "sgpu", "vgpu"]
MODES: tuple[str, ...] = get_args(Mode)

_Path = Annotated[str, Meta(pattern=r"^(/[^\x00]*)?$", max_length=4096)]
_BELOW_DEV = r"^/dev/(?!([^\x00]*/)?\.\.(/|$))"
_Node = Annotated[str, Meta(pattern=_BELOW_DEV + r"[^\x00]+$", max_length=4096)]
_Pattern = Annotated[
    str, Meta(pattern=_BELOW_DEV + r"([^\x00{}]|\{(minor|sgpu|card|render)\})+$", max_length=4096)
]
_Variable = Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$", max_length=256)]


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every setting: the type, the half that reads it, a description of what fits, the default."""

    mode: Annotated[Mode, of_backend(f"{', '.join(MODES[:-1])} or {MODES[-1]}")] = "native"
    share_nums: Annotated[
        Annotated[int, Meta(ge=2, le=MAX_REPLICAS)], of_agent(f"a whole number from 2 to {MAX_REPLICAS}")
    ] = 2
    unclaimed: Annotated[Unclaimed, of_backend("share, whole or refuse")] = "share"
    slice_nodes: Annotated[
        Annotated[tuple[_Pattern, ...], Meta(min_length=1)],
        of_backend(
            "a list of one or more absolute paths below /dev without '..', "
            "with {minor}, {sgpu}, {card} or {render}"
        ),
    ] = ("/dev/dri/renderD{minor}",)
    control_nodes: Annotated[
        tuple[_Node, ...], of_backend("a list of absolute paths below /dev without '..'")
    ] = ("/dev/mxcd",)
    visible_devices: Annotated[_Variable, of_backend("the name of an environment variable")] = ""
    library: Annotated[
        _Path, of_backend("the absolute path of libmxsml.so or of the directory that holds the driver")
    ] = ""
    sysfs: Annotated[_Path, of_backend("the absolute path where sysfs is mounted")] = "/sys"
    container_driver_root: Annotated[
        _Path, of_backend("the absolute path where the agent sees the host's driver and /dev")
    ] = DRIVER_ROOT

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """Read the settings of the vendor, as plain JSON values.

        Raises:
            SettingsError: With what would fit, and the path to what is wrong.
        """
        options = setting_values.read(cls, given)
        for index, pattern in enumerate(options.slice_nodes):
            if "{" not in pattern:
                raise SettingsError(_one_for_all(pattern), ("sliceNodes", index))
        return options

    def for_backend(self) -> dict[str, Any]:
        """The settings of the vendor's process, by the names in `SETTINGS`."""
        settings = msgspec.json.decode(msgspec.json.encode(self))
        return {key: settings[key] for key in _BACKEND}

    def warnings(self) -> tuple[SettingsWarning, ...]:
        """Warnings about settings that are valid and hardly intended."""
        if any(map(_tells_apart, self.slice_nodes)):
            return ()
        return (
            SettingsWarning(
                "all paths are shared by several slices: a path with {card} or {render} by all slices of a "
                "card, a path with {sgpu} by one slice of each card; use "
                "{minor}, which is different for each slice",
                ("sliceNodes",),
            ),
        )


def _one_for_all(pattern: str) -> str:
    return (
        f"'{shorten(pattern)}' is one node for all slices of all cards; write the node of a slice with "
        "{minor}, {sgpu}, {card} or {render}, and list nodes that every container needs in controlNodes"
    )


def _tells_apart(pattern: str) -> bool:
    """Whether each slice of a machine has its own path by this pattern."""
    return "{minor}" in pattern or ("{sgpu}" in pattern and ("{card}" in pattern or "{render}" in pattern))


#: Each setting with a description of what fits.
SETTINGS: dict[str, str] = setting_values.fitting(Options)
#: The default of each setting.
DEFAULTS: dict[str, Any] = msgspec.to_builtins(Options())
_BACKEND = setting_values.for_backend(Options)
