"""Gives the checks of each vendor the look at the node that their contract has."""

from __future__ import annotations

from pathlib import Path

from agent.doctor.surroundings import Surroundings
from agent.host import files
from agent.scheduler_api.node_checks import UNREAD, Observed
from agent.vendor_api.agent import VendorCheck, VendorLook

#: Bytes that are read of a file. The rest of a longer file is left out.
_LONGEST = 64 * 1024


def vendor_look(around: Surroundings, vendor: str, check: VendorCheck) -> VendorLook:
    """The surroundings as this check of the vendor sees them."""
    return VendorLook(
        around.vendors.get(vendor, UNREAD), {path: _text(around.root, path) for path in check.files}
    )


def _text(root: Path, path: str) -> Observed[str]:
    """The file below the root of the host."""
    try:
        content = files.read(root / path.lstrip("/"), _LONGEST)
    except OSError as exc:
        return Observed(why=f"{path}: {exc.strerror}", is_absent=isinstance(exc, FileNotFoundError))
    return Observed(content[:_LONGEST].decode(errors="replace"))
