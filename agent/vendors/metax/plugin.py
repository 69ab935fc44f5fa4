"""Registers MetaX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.scheduler_api import DialectOf
from agent.vendor_api.agent import Host, NodeFacts, Offers, ReplacedPlugins, Settings, Signs, Slices, Vendor
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hooks import hookimpl

from .agent.container_edits import container_edits
from .agent.device_config import DEVICE_CONFIG
from .agent.host_parts import HOST_RUNTIME, host_parts
from .agent.labels import labels
from .agent.names import GPU, SGPU
from .agent.nodedevices import ANNOTATION, node_annotations
from .agent.offering import check_rules, offering, sharing
from .agent.options import DEFAULTS, SETTINGS, Options
from .agent.replaced_plugins import cards_of_answer
from .agent.slice_room import cards_with_room, part
from .shared import library_places
from .shared.constants import SGPU as SLICED
from .shared.slice_request import without_a_claim
from .shared.sysfs import MODULE

PCI_VENDOR = "0x9999"
#: metax-gpu-device is not published. Device plugins name their socket after the vendor.
SOCKETS = ("metax*.sock",)


@hookimpl
def register_config_inputs() -> ConfigInputs:
    return ConfigInputs(files=(DEVICE_CONFIG,))


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    sysfs = options.sysfs or "/sys"
    sliced = options.mode == SLICED
    return Vendor(
        name="metax",
        backend="agent.vendors.metax.child.backend:MetaxBackend",
        resource=SGPU if sliced else GPU,
        container_edits=partial(container_edits, options),
        settings=Settings(options.for_backend(), DEFAULTS, options.warnings(), SETTINGS),
        offers=Offers(
            resources=partial(offering, options),
            check_rules=partial(check_rules, options),
            sharing=sharing(options),
            placement="auto" if sliced else "local",
            cdi_only=sliced,
            cards_with_room=partial(cards_with_room, options) if sliced else None,
            without_choice=partial(without_a_claim, options.unclaimed) if sliced else None,
        ),
        makes=Slices(release_only=not sliced),
        publishes=NodeFacts(
            labels=labels,
            annotations=partial(node_annotations, options) if sliced else None,
            annotation_keys=(ANNOTATION,),
        ),
        named_dialects=_hears(options) if sliced else (),
        replaces=ReplacedPlugins(
            sockets=SOCKETS,
            resources=(GPU, SGPU),
            cards_of_answer=partial(cards_of_answer, options),
        ),
        host=Host(
            libraries=partial(library_places.searched, options.for_backend()),
            signs=Signs((f"{sysfs}/{MODULE}", "/dev/mxcd"), pci=(PCI_VENDOR,), sysfs=sysfs),
            parts=host_parts(options),
            runtime=HOST_RUNTIME,
            devices_variable=options.visible_devices,
        ),
    )


def _hears(options: Options) -> tuple[DialectOf, ...]:
    """The dialects of schedulers, and that of a pod's own limits.

    A pod that names no amount takes the part of a card that its ID stands for, or the whole card.
    """
    of_limits = partial(part, unclaimed="whole") if options.unclaimed == "whole" else part
    return (
        # koord-scheduler writes its choice in MetaX's annotation and in its own.
        DialectOf("hami", "metax-sgpu", {"compared": "koordinator"}, measure=part),
        DialectOf("hami", "metax-limits", measure=of_limits, of_limits=True),
    )
