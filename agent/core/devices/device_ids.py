"""The forms of a device ID: the stem that names the card. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence

from agent.core.model import DeviceStatus
from agent.vendor_api.agent import IdForm


def stems(statuses: Sequence[DeviceStatus]) -> dict[str, dict[IdForm, str]]:
    """Card uuid to the card's stem in each form.

    A card without a minor number has no stem of that form. Of two cards with one minor number only the first
    has such a stem.
    """
    shorts = short_forms([status.uuid for status in statuses])
    stems: dict[str, dict[IdForm, str]] = {}
    minors: set[tuple[str, int]] = set()
    for status in statuses:
        stems[status.uuid] = {"uuid": status.uuid, "short": shorts[status.uuid]}
        minor = status.device.minor
        if minor is not None and (status.vendor, minor) not in minors:
            minors.add((status.vendor, minor))
            stems[status.uuid]["minor"] = str(minor)
    return stems


def short_forms(uuids: Sequence[str]) -> dict[str, str]:
    """Uuid to a short stem: six or more base32 characters of SHA-256(uuid), as many as make it unique."""
    left = {
        uuid: base64.b32encode(hashlib.sha256(uuid.encode()).digest()).decode().lower().rstrip("=")
        for uuid in uuids
    }
    shorts: dict[str, str] = {}
    length = 6
    while left:
        count = Counter(digest[:length] for digest in left.values())
        alone = {uuid for uuid, digest in left.items() if count[digest[:length]] == 1}
        shorts.update((uuid, left.pop(uuid)[:length]) for uuid in alone)
        length += 1
    return shorts
