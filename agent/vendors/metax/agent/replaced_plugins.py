"""Which cards the answer of another device plugin names. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.vendor_api.agent import ContainerEdits
from agent.vendor_api.backend import Device

from .options import Options


def cards_of_answer(
    options: Options, answer: ContainerEdits, devices: Sequence[Device]
) -> tuple[str, ...] | None:
    """The uuids in the variable; None without the variable: then the device nodes tell the cards."""
    value = answer.env.get(options.visible_devices) if options.visible_devices else None
    if value is None:
        return None
    known = {it.uuid for it in devices}
    return tuple(it for it in dict.fromkeys(value.split(",")) if it in known)
