"""Vendors' plugins that are made up."""

from __future__ import annotations

from agent.daemon.vendor_plugins import VendorPlugin
from agent.vendor_api.agent import ContainerEdits, Vendor


def vendor(name: str, resource: str) -> Vendor:
    return Vendor(name, "a.b:C", resource, lambda devices, request: ContainerEdits())


def plugin(name: str, resource: str = "", reason: str = "") -> VendorPlugin:
    offered = vendor(name, resource) if resource else None
    return VendorPlugin(name, "here", "1", offered, reason, broken=offered is None)
