"""Registers Enflame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.scheduler_api import DialectOf
from agent.vendor_api.agent import Signs, Vendor
from agent.vendor_api.hooks import hookimpl

from . import capacities, constants, device_nodes, library_places, sysfs
from .agent.container_edits import VISIBLE, container_edits
from .agent.host_parts import host_parts, host_runtime
from .agent.labels import labels, machine, time
from .agent.offering import DRS_DIALECTS, judge, named, offering, unclaimed
from .agent.options import DEFAULTS, SETTINGS, Options
from .agent.other_plugins import cards_told
from .inspection import formats

__all__ = ["SETTINGS", "register_backend"]

#: Where what is given out is shown as GCUShare's first generation did; elsewhere as its fourth does.
FIRST = ("none", "gcushare-v1")
#: Enflame's own plugin, and GCUShare's two (gcushare v3.6.5, pkg/consts).
RIVALS = ("enflame.sock", "enflamegcushare*.sock")
#: Under which Enflame's plugin gives out whole cards a second time unless it is told not to.
ALIAS = "enflame-tech.com/gcu"


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    brand, root = options.brand, options.sysfs or "/sys"
    sliced = options.dialect in DRS_DIALECTS
    offers = partial(offering, options)
    counted = options.dialect != capacities.UNREAD
    return Vendor(
        name="enflame",
        backend="agent.vendors.enflame.child.backend:EnflameBackend",
        container_edits=partial(container_edits, options),
        resource=brand.whole,
        settings={**options.for_backend(), constants.DRS_WANTED: sliced},
        defaults=DEFAULTS,
        prepares=sliced,
        clears=True,
        by_cdi=sliced and options.drs_variable == "cdi",
        prepared=(brand.drs,) if sliced else (),
        resources=offers,
        judge=partial(judge, options),
        named=partial(named, options),
        modes="dynamic",
        annotations=partial(capacities.node_annotations, options, offers) if sliced else None,
        annotation_keys=capacities.annotation_keys(brand),
        extended_resources=partial(capacities.extended_resources, options, offers) if counted else None,
        extended_resource_keys=capacities.extended_resource_keys(brand),
        labels=partial(labels, brand),
        machine_label=machine(brand),
        time_label=time(brand),
        hears=(DialectOf("gcushare", options.dialect, brand.terms),) if counted else (),
        formats=formats(brand, first=options.dialect in FIRST),
        unclaimed=partial(unclaimed, options) if counted else None,
        visible=VISIBLE,
        shortage="insufficient GCU Memory in one gcu device",
        libraries=partial(library_places.searched, options.for_backend()),
        host_parts=host_parts(options, sliced=sliced),
        host_runtime=host_runtime(options),
        rivals=RIVALS,
        former=(brand.whole, brand.memory, brand.shared, brand.drs, ALIAS),
        cards_told=cards_told,
        signs=Signs(
            (*(f"{root}/module/{it}" for it in sysfs.NAMES), device_nodes.CONTROL),
            pci=sysfs.VENDORS,
            sysfs=root,
        ),
    )
