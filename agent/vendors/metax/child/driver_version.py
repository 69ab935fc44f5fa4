"""What the driver says of itself, for all cards."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from agent.vendors.metax import constants, sysfs

from .library import Mxsml, MxsmlError


def attributes(mxsml: Mxsml, root: Path) -> dict[str, str]:
    """The versions of the driver and of MACA; one that is not told is absent."""
    found = {constants.DRIVER_VERSION: sysfs.driver_version(root) or _of_first_card(mxsml)}
    with suppress(MxsmlError):  # it says nothing of the cards
        found[constants.MACA_VERSION] = mxsml.maca_version()
    return {name: text for name, text in found.items() if text}


def _of_first_card(mxsml: Mxsml) -> str:
    for index in mxsml.devices():
        try:
            return mxsml.version(index)
        except MxsmlError:
            continue
    return ""
