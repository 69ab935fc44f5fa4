"""Registers NVIDIA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agent.core.hooks import hookimpl
from agent.core.vendor import Vendor

from .edits import VISIBLE_DEVICES, container_edits
from .labels import labels
from .names import DOMAIN, GPU
from .offering import offering
from .options import DEFAULTS, SETTINGS, Options

__all__ = ["SETTINGS", "register_backend"]


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    return Vendor(
        name="nvidia",
        backend="agent.vendors.nvidia.backend:NvmlBackend",
        container_edits=partial(container_edits, options),
        resource=GPU,
        settings=options.for_backend(),
        defaults=DEFAULTS,
        resources=partial(offering, options),
        labels=partial(labels, options),
        machine_label=f"{GPU}.machine",
        time_label=f"{DOMAIN}gfd.timestamp",
        by_cdi=options.by_cdi,
        doubts=options.doubts(),
        visible=VISIBLE_DEVICES,
        libraries=partial(_libraries, options),
    )


def _libraries(options: Options) -> Sequence[str]:
    from . import library  # ctypes, which the agent itself can do without

    return library.searched(options.for_backend())
