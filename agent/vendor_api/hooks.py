"""The hooks that a vendor's plugin implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.vendor_api.agent import Vendor
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hook_markers import PROJECT as PROJECT
from agent.vendor_api.hook_markers import hookimpl as hookimpl
from agent.vendor_api.hook_markers import hookspec

#: Entry-point group of other distributions: each entry point names a module that implements hooks.
ENTRY_POINTS = "xpu_agent.backends"


class VendorHooks:
    """The hooks of a vendor's plugin. A plugin implements the first one, and the second one if needed."""

    @hookspec(firstresult=True)
    def register_backend(self, settings: Mapping[str, Any]) -> Vendor | None:
        """Return the vendor, or None where the settings ask for no device; load no vendor library.

        Raises:
            SettingsError: The vendor's own settings are wrong.
        """

    @hookspec(firstresult=True)
    def register_config_inputs(self) -> ConfigInputs | None:
        """Name the files, flags and variables of other programs that the vendor reads; None: none.

        Asked before the configuration is read, and so before any setting of the vendor is known.
        """
