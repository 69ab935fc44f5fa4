"""Enflame's settings as frozen values, strictly checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from agent.vendor_api.agent import SettingsError, Unit
from agent.vendor_api.kubernetes_names import wrong_name
from agent.vendors.common import setting_values
from agent.vendors.common.setting_values import of_agent, of_backend
from agent.vendors.enflame.shared.constants import DRIVER_ROOT

from .names import Brand

DialectName = Literal["none", "gcushare-v1", "gcushare-v4", "hami"]
#: How a container learns which slice of the hardware it has.
Variable = Literal["cdi", "env"]
#: The most shares of one card without isolation: more shares than units of memory are of no use.
MAX_SLICES = 128

_Path = Annotated[str, Meta(pattern=r"^(/[^\x00]*)?$", max_length=4096)]
_Library = Annotated[str, Meta(pattern=r"^[^\x00]*$", max_length=4096)]
_Prefix = Annotated[str, Meta(pattern=r"^([A-Za-z]{1,16})?$")]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_Resource = Annotated[str, Meta(pattern=rf"^{_LABEL}(\.{_LABEL})+/{_LABEL}$", max_length=128)]


def _one_of(names: tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every setting: the type, the half that reads it, a description of what fits, the default."""

    dialect: Annotated[DialectName, of_agent(_one_of(get_args(DialectName)))] = "none"
    register_resource: Annotated[
        _Resource, of_agent("the name of the whole card's resource, such as enflame.com/gcu")
    ] = "enflame.com/gcu"
    memory_unit: Annotated[Unit, of_agent(f"{_one_of(get_args(Unit))}: GB of one unit of gcu-memory")] = "1"
    slice_count: Annotated[
        Annotated[int, Meta(ge=2, le=MAX_SLICES)], of_agent(f"a whole number from 2 to {MAX_SLICES}")
    ] = 6
    device_nodes: Annotated[bool, of_agent("true or false")] = True
    drs_variable: Annotated[Variable, of_agent("cdi or env")] = "cdi"
    isolation: Annotated[bool, of_agent("true or false")] = False
    library: Annotated[
        _Library,
        of_backend("libefml.so's absolute path, the directory that holds it, or another library's name"),
    ] = ""
    symbol_prefix: Annotated[_Prefix, of_backend("the prefix of the library's functions, such as Erml")] = ""
    efsmi: Annotated[_Path, of_backend("the absolute path of Enflame's tool efsmi")] = ""
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
        read = setting_values.read(cls, given, "memoryUnit")
        if wrong := _wrong(read.brand):
            raise SettingsError(wrong, ("registerResource",))
        return read

    @property
    def brand(self) -> Brand:
        domain, _, kind = self.register_resource.partition("/")
        return Brand(domain, kind)

    def for_backend(self) -> dict[str, Any]:
        """The settings of the vendor's process, by the names in `SETTINGS`."""
        settings = msgspec.json.decode(msgspec.json.encode(self))
        return {key: settings[key] for key in _BACKEND}


def _wrong(brand: Brand) -> str:
    """Why the node cannot serve resources of these names; empty if the names are valid."""
    if brand.origin:
        return f"{brand.whole} is derived from the name of the whole card's resource: write {brand.origin}"
    return next(filter(None, map(wrong_name, brand.names)), "")


#: Each setting with a description of what fits.
SETTINGS: dict[str, str] = setting_values.fitting(Options)
#: The default of each setting.
DEFAULTS: dict[str, Any] = msgspec.to_builtins(Options())
_BACKEND = setting_values.for_backend(Options)
