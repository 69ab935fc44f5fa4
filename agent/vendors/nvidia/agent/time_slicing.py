"""NVIDIA's `timeSlicing`: which devices are advertised several times, and under which name.

Source, also of the texts of errors: api/config/v1/replicas.go of NVIDIA/k8s-device-plugin v0.20.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agent.vendor_api.agent import MAX_REPLICAS, SettingsError, SettingsWarning
from agent.vendor_api.text import shorten
from agent.vendors.common.setting_values import shown

from .names import full_name
from .strict_mappings import Strict, Text

MAX_REFERENCES = 1024
_SHARED = ".shared"
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: An index, the index of a MIG device, a uuid; uuids of MIG devices have two forms.
_REFERENCE = re.compile(rf"[0-9]+(:[0-9]+)?|(GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+", re.ASCII)
_KINDS = {str: "string", bool: "bool", int: "int", float: "float64", type(None): "nil", list: "list"}

Devices = Literal["all"] | int | tuple[int | str, ...]


class Replicated(Strict, frozen=True):
    """Devices of one resource, each advertised several times.

    The fields are as the config has them. `devices`: all, a count, or indices (0, "0", "0:1" of a MIG device)
    and uuids.
    """

    name: Text
    replicas: Annotated[int, Meta(le=MAX_REPLICAS)]
    rename: Text = ""
    devices: Any = "all"

    def __post_init__(self) -> None:
        full_name(self.name, "name")
        if self.rename not in ("", self.renamed):
            full_name(self.rename, "rename")
        if self.replicas < 2:
            raise SettingsError("number of replicas must be >= 2", ("replicas",))
        _devices(self.devices)

    @property
    def resource(self) -> str:
        """The resource that the devices have without replicas."""
        return full_name(self.name)

    @property
    def renamed(self) -> str:
        """The name that `renameByDefault` gives. NVIDIA's plugin does not check it."""
        return self.resource + _SHARED

    @property
    def advertised(self) -> str:
        """The resource of the replicas."""
        if self.rename in ("", self.renamed):
            return self.rename or self.resource
        return full_name(self.rename)

    @property
    def wanted(self) -> Devices:
        return _devices(self.devices)


class TimeSlicing(Strict, frozen=True):
    """NVIDIA's section `sharing.timeSlicing`."""

    resources: Annotated[tuple[Replicated, ...], Meta(min_length=1, max_length=256)]
    fail_requests_greater_than_one: bool = False
    rename_by_default: bool = False

    @property
    def entries(self) -> tuple[Replicated, ...]:
        """The resources, each with the name that its replicas have."""
        if not self.rename_by_default:
            return self.resources
        return tuple(
            resource if resource.rename else msgspec.structs.replace(resource, rename=resource.renamed)
            for resource in self.resources
        )

    def warnings(self) -> Iterator[SettingsWarning]:
        """A warning for each entry that gets no device."""
        taken: set[str] = set()
        for index, replicated in enumerate(self.resources):
            if replicated.resource in taken:
                all_taken = f"an earlier entry takes all devices of '{replicated.resource}'"
                why = f"{all_taken}; none is left for this one"
                yield SettingsWarning(why, ("timeSlicing", "resources", index))
            if replicated.devices == "all":
                taken.add(replicated.resource)


def _devices(value: Any) -> Devices:
    match value:
        case "all":
            return "all"
        case str():
            raise _wrong(f"devices set as '{shorten(value)}' but the only valid string input is 'all'")
        case bool() | float() | Mapping() | None:
            raise _wrong(f"unrecognized type for devices spec: {shown(value)}")
        case int() if value > 0:
            return value
        case int():
            raise _wrong(f"devices set as '{value}' but a count of devices must be > 0")
        case list() | tuple() if 0 < len(value) <= MAX_REFERENCES:
            return tuple(_references(value))
    raise _wrong(f"names {'too many' if value else 'none'}; write all, a count, or indices and uuids")


def _references(values: Sequence[Any]) -> Iterator[int | str]:
    for index, value in enumerate(values):
        match value:
            case bool():
                pass
            case int() if value >= 0:
                yield value
                continue
            case str() if _REFERENCE.fullmatch(value):
                yield value
                continue
        text = shorten(value, 60) if isinstance(value, str) else shown(value)
        kind = _KINDS.get(type(value), "map")
        raise _wrong(f"unsupported type for device in devices list: {text}, {kind}", index)


def _wrong(why: str, *below: int) -> SettingsError:
    return SettingsError(why, ("devices", *below))
