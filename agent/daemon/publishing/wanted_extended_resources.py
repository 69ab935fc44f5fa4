"""The extended resources that vendors want on the Node."""

from __future__ import annotations

from collections.abc import Mapping

from agent.config import Config
from agent.core.publishing.extended_resource_rules import counts_of
from agent.daemon.publishing.wanted_vendor_keys import WantedVendorKeys
from agent.vendor_api.agent import Device, Vendor


class WantedExtendedResources(WantedVendorKeys[int]):
    """Keeps what `NodeFacts.extended_resources` of the vendors computes: key to count."""

    fails = "extended resources not counted"
    again = "extended resources are counted again"

    def _keys(self, vendor: Vendor) -> tuple[str, ...]:
        return vendor.publishes.extended_resource_keys

    def _made(self, vendor: Vendor, config: Config, devices: tuple[Device, ...]) -> Mapping[str, int | None]:
        return counts_of(vendor, config.vendor(vendor.name).resources, devices)
