"""Registers Enflame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.core.hooks import hookimpl
from agent.core.vendor import Signs, Vendor

from . import facts, nodes, places, sysfs
from .dialects import DIALECTS
from .edits import VISIBLE, container_edits
from .labels import TIME, labels, machine
from .offering import DRS_DIALECTS, judge, named, offering
from .options import DEFAULTS, SETTINGS, Options

__all__ = ["SETTINGS", "register_backend"]


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    brand, root = options.brand, options.sysfs or "/sys"
    sliced = options.dialect in DRS_DIALECTS
    dialect = DIALECTS.get(options.dialect)
    return Vendor(
        name="enflame",
        backend="agent.vendors.enflame.backend:EnflameBackend",
        container_edits=partial(container_edits, options),
        resource=brand.whole,
        settings={**options.for_backend(), facts.DRS_WANTED: sliced},
        defaults=DEFAULTS,
        prepares=sliced,
        by_cdi=sliced,
        prepared=(brand.drs,) if sliced else (),
        resources=partial(offering, options),
        judge=partial(judge, options),
        named=partial(named, options),
        modes="dynamic",
        labels=partial(labels, brand),
        machine_label=machine(brand),
        time_label=brand.name(TIME),
        dialects=(dialect(brand),) if dialect else (),
        visible=VISIBLE,
        shortage="insufficient GCU Memory in one gcu device",
        libraries=partial(places.searched, options.for_backend()),
        signs=Signs(
            (*(f"{root}/module/{it}" for it in sysfs.NAMES), nodes.CONTROL), pci=sysfs.VENDOR, sysfs=root
        ),
    )
