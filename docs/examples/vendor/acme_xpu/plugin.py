"""Registers Acme's cards; imports neither the backend nor the library."""

from collections.abc import Mapping
from typing import Any

from agent.vendor_api.agent import Host, NodeFacts, Settings, SettingsError, Signs, Vendor
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hooks import hookimpl

from .agent.checks import CHECKS
from .agent.container_edits import VISIBLE, container_edits
from .agent.labels import labels
from .agent.old_plugin import CONFIG_INPUTS

#: Each setting with the words for its allowed values.
SETTINGS = {"library": "the file of libacme.so"}


@hookimpl
def register_config_inputs() -> ConfigInputs:
    return CONFIG_INPUTS


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    for key in settings:
        if key not in SETTINGS:
            raise SettingsError(f"is not known; these are: {', '.join(SETTINGS)}", (key,))
    return Vendor(
        name="acme",
        backend="acme_xpu.child.backend:AcmeBackend",
        resource="acme.com/card",
        container_edits=container_edits,
        settings=Settings(dict(settings), descriptions=SETTINGS),
        publishes=NodeFacts(labels=labels),
        host=Host(
            libraries=lambda: (settings.get("library") or "libacme.so",),
            signs=Signs(driver=("/sys/module/acme",), pci=("0xacac",)),
            devices_variable=VISIBLE,
            environment=("ACME_",),
        ),
        checks=CHECKS,
    )
