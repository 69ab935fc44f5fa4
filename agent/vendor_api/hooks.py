"""The hooks through which vendors join: what a plugin needs beside `agent.vendor_api.agent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from agent.vendor_api.agent import Vendor
from agent.vendor_api.config_inputs import ConfigInputs

PROJECT = "xpu_agent"
#: Entry-point group of other distributions: each entry names a module with hook implementations.
ENTRY_POINTS = "xpu_agent.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class VendorHooks:
    @hookspec(firstresult=True)
    def register_backend(self, settings: Mapping[str, Any]) -> Vendor | None:
        """Offer the vendor, or None to sit out; loads no vendor library.

        Raises:
            SettingsError: The vendor's own settings are wrong.
        """

    @hookspec(firstresult=True)
    def register_config_inputs(self) -> ConfigInputs | None:
        """Name the files, flags and variables of other programs that the vendor reads; None: none.

        Asked before the configuration is read, and so before any setting of the vendor is known.
        """
