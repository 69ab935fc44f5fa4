"""Configuration files of other programs, which stand in place of the agent's own file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.config.flag_overlay import with_flags
from agent.config.given_flags import GivenValue, flags_of_file
from agent.config.settings import Config, VendorSettings
from agent.config.vendor_files import called, places_of
from agent.vendor_api.config_inputs import ConfigFormat, ConfigInputs, FileContent, FileValue, YamlNode


def keys_of_formats(inputs: Mapping[str, ConfigInputs]) -> tuple[str, ...]:
    """The keys that tell these files from the agent's own."""
    return tuple(key for vendor in inputs.values() for kind in vendor.formats for key in kind.keys)


def format_with(
    keys: Sequence[str], inputs: Mapping[str, ConfigInputs]
) -> tuple[str, ConfigFormat, str] | None:
    """The vendor and the format of a document with these keys at its top, and the first such key."""
    for vendor, reads in inputs.items():
        for kind in reads.formats:
            known = {key.lower() for key in kind.keys}
            first = next((key for key in keys if key.lower() in known), None)
            if first is not None:
                return vendor, kind, first
    return None


def read(
    root: YamlNode,
    source: str,
    vendor: str,
    kind: ConfigFormat,
    inputs: Mapping[str, ConfigInputs],
    flags: Sequence[GivenValue],
) -> Config:
    """The configuration of a document in this format of the vendor, with the flags laid over.

    Raises:
        ConfigError: The plugin's function refuses the document, or a value cannot be used.
    """
    of_vendor = {flag.flag: flag.value for flag in flags if flag.vendor == vendor}
    content: FileContent = called(source, lambda: kind.read(FileValue(source, root), of_vendor))
    config = Config(
        vendors={vendor: VendorSettings(enabled=True, settings=content.settings)},
        warnings=content.warnings,
        places=places_of(vendor, content),
    )
    return with_flags(config, (*flags_of_file(vendor, inputs[vendor], content.flags), *flags))
