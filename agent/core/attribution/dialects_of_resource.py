"""Which dialects are read for a resource, and how schedulers number the cards. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.model import NodeSnapshot, Resource
from agent.scheduler_api.dialects import Cards, Dialect
from agent.scheduler_api.scheduler import Scheduler, common_dialects
from agent.vendor_api.agent import Vendor


def scheduler_dialects(
    schedulers: Sequence[Scheduler], vendor: Vendor, resource: Resource
) -> Sequence[Dialect]:
    """The dialects of schedulers, the vendor's own first. With placement `local` the vendor's own alone."""
    is_local = resource.rule.placement == "local"
    return vendor.dialects if is_local else (*vendor.dialects, *common_dialects(schedulers))


def dialects(schedulers: Sequence[Scheduler], vendor: Vendor, resource: Resource) -> Sequence[Dialect]:
    """The dialects of schedulers, and after them the one that reads the pod's own limits."""
    limits = limits_dialect(vendor, resource)
    own = [limits] if limits is not None else []
    return (*scheduler_dialects(schedulers, vendor, resource), *own)


def limits_dialect(vendor: Vendor, resource: Resource) -> Dialect | None:
    """The dialect that reads a pod's own limits, where a scheduler may choose cards and none has to."""
    return vendor.pod_limits if resource.rule.placement == "auto" else None


def choosing_scheduler(schedulers: Sequence[Scheduler]) -> str:
    """The first scheduler that chooses cards, with what it writes; empty where none is registered."""
    chooser = next((it for it in schedulers if it.program and it.writes), None)
    return f"{chooser.program}, which writes {chooser.writes}" if chooser else ""


def cards_by_minor(snapshot: NodeSnapshot, vendor: str) -> Cards:
    """The vendor's present devices in the order of their minor numbers. A slice has no number of its own."""
    devices = sorted(snapshot.present(vendor), key=lambda it: (it.minor is None, it.minor or 0))
    return {device.uuid: device.minor if device.parent is None else None for device in devices}
