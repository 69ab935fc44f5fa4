"""Registers NVIDIA."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from agent.core.hooks import hookimpl
from agent.core.vendor import SettingsError, Vendor

from .edits import container_edits

_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_xid_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(code) is int and code >= 0 for code in value)


#: What may be set, whether a value fits, and what would.
SETTINGS: Mapping[str, tuple[_Check, str]] = {
    "library": (_is_text, "the path of libnvidia-ml.so.1 or of the driver's root directory"),
    "sysfs": (_is_text, "the path where sysfs is mounted"),
    "ignoreXids": (_is_xid_list, "a list of XID numbers"),
}


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    _check(settings)
    return Vendor(
        name="nvidia",
        backend="agent.vendors.nvidia.backend:NvmlBackend",
        container_edits=container_edits,
        resource="nvidia.com/gpu",
        settings=dict(settings),
    )


def _check(settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if key not in SETTINGS:
            raise SettingsError(f"nvidia has no setting {key!r}; {_nearest(key)}")
        fits, wanted = SETTINGS[key]
        if not fits(value):
            raise SettingsError(f"nvidia.{key} is {value!r}; use {wanted}")


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, SETTINGS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(SETTINGS))}"
