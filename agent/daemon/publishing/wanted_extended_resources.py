"""Which extended resources of vendors the node is to have: config and devices in, one value out."""

from __future__ import annotations

from collections.abc import Mapping

from agent.config import Config
from agent.core.publishing.extended_resource_rules import counts_of
from agent.daemon.publishing.wanted_vendor_keys import WantedVendorKeys
from agent.vendor_api.agent import Device, Vendor


class WantedExtendedResources(WantedVendorKeys[int]):
    """Those of `NodeFacts.extended_resources`."""

    fails = "extended resources not counted"
    again = "extended resources are counted again"

    def _keys(self, vendor: Vendor) -> tuple[str, ...]:
        return vendor.publishes.extended_resource_keys

    def _made(self, vendor: Vendor, config: Config, devices: tuple[Device, ...]) -> Mapping[str, int | None]:
        return counts_of(vendor, config.vendor(vendor.name).resources, devices)
