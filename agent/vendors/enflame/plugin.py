"""Registers Enflame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.scheduler_api import DialectOf
from agent.vendor_api.agent import (
    FormatOf,
    Host,
    NodeFacts,
    NodeFactsOf,
    Offers,
    ReplacedPlugins,
    Settings,
    Signs,
    Slices,
    Vendor,
)
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hooks import hookimpl

from .agent.container_edits import VISIBLE, container_edits
from .agent.counted_cards import counted_cards
from .agent.host_parts import host_parts, host_runtime
from .agent.labels import labels, machine, time
from .agent.offering import DRS_DIALECTS, check_rules, default_rule, offering, without_choice
from .agent.options import DEFAULTS, SETTINGS, Options
from .agent.replaced_plugins import cards_of_answer
from .agent.topscloud_file import TOPSCLOUD_FILE
from .shared import constants, device_nodes, library_places, sysfs

#: The formats of GCUShare's first generation in `inspect`, and of the fourth.
FIRST, FOURTH = ("gcushare-v1",), ("gcushare-v4", "gcushare-v4-drs")
#: The formats of each dialect.
FORMATS = {"none": FIRST, "gcushare-v1": FIRST, "gcushare-v4": FOURTH, "hami": FOURTH}
#: Enflame's own plugin, and GCUShare's two (gcushare v3.6.5, pkg/consts).
SOCKETS = ("enflame.sock", "enflamegcushare*.sock")
#: The second name under which Enflame's plugin serves whole cards, unless a flag switches the name off.
ALIAS = "enflame-tech.com/gcu"


@hookimpl
def register_config_inputs() -> ConfigInputs:
    return ConfigInputs(files=(TOPSCLOUD_FILE,))


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    brand, root = options.brand, options.sysfs or "/sys"
    sliced = options.dialect in DRS_DIALECTS
    resources = partial(offering, options)
    counted = options.dialect != "none"
    return Vendor(
        name="enflame",
        backend="agent.vendors.enflame.child.backend:EnflameBackend",
        resource=brand.whole,
        container_edits=partial(container_edits, options),
        settings=Settings(
            {**options.for_backend(), constants.DRS_WANTED: sliced}, DEFAULTS, descriptions=SETTINGS
        ),
        offers=Offers(
            resources=resources,
            check_rules=partial(check_rules, options),
            default_rule=partial(default_rule, options),
            modes="dynamic",
            cdi_only=sliced and options.drs_variable == "cdi",
            without_choice=partial(without_choice, options) if counted else None,
            insufficient_memory="insufficient GCU Memory in one gcu device",
        ),
        makes=Slices((brand.drs,)) if sliced else Slices(release_only=True),
        publishes=NodeFacts(
            labels=partial(labels, brand),
            machine_label=machine(brand),
            time_label=time(brand),
        ),
        named_node_facts=NodeFactsOf(
            "gcushare", options.dialect, brand.terms, partial(counted_cards, brand, resources)
        ),
        named_dialects=(DialectOf("gcushare", options.dialect, brand.terms),) if counted else (),
        replaces=ReplacedPlugins(
            sockets=SOCKETS,
            resources=(brand.whole, brand.memory, brand.shared, brand.drs, ALIAS),
            cards_of_answer=cards_of_answer,
        ),
        host=Host(
            libraries=partial(library_places.searched, options.for_backend()),
            signs=Signs(
                (*(f"{root}/module/{it}" for it in sysfs.NAMES), device_nodes.CONTROL),
                pci=sysfs.VENDORS,
                sysfs=root,
            ),
            parts=host_parts(options, sliced=sliced),
            runtime=host_runtime(options),
            devices_variable=VISIBLE,
            environment=("EFML_",),
        ),
        named_formats=tuple(FormatOf("gcushare", it, brand.terms) for it in FORMATS[options.dialect]),
    )
