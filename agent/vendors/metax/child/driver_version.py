"""Versions of the driver, as attributes of all cards."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from agent.vendors.metax.shared import constants, sysfs

from .library import Mxsml, MxsmlError


def attributes(mxsml: Mxsml, root: Path) -> dict[str, str]:
    """The versions of the driver and of MACA. A version that is not readable is absent."""
    found = {constants.DRIVER_VERSION: sysfs.driver_version(root) or _of_first_card(mxsml)}
    with suppress(MxsmlError):  # no version is no fault of a card
        found[constants.MACA_VERSION] = mxsml.maca_version()
    return {name: text for name, text in found.items() if text}


def _of_first_card(mxsml: Mxsml) -> str:
    for index in mxsml.devices():
        try:
            return mxsml.version(index)
        except MxsmlError:
            continue
    return ""
