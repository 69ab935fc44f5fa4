"""The forms of a device ID: what stands for the card in it. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence

from agent.core.model import DeviceStatus
from agent.vendor_api.agent import IdForm


def stems(statuses: Sequence[DeviceStatus]) -> dict[str, dict[IdForm, str]]:
    """Card to its ID in each form. A minor that is not known, or another card's too, makes none."""
    shorts = short_forms([status.uuid for status in statuses])
    stems: dict[str, dict[IdForm, str]] = {}
    minors: set[tuple[str, int]] = set()
    for it in statuses:
        stems[it.uuid] = {"uuid": it.uuid, "short": shorts[it.uuid]}
        minor = it.device.minor
        if minor is not None and (it.vendor, minor) not in minors:
            minors.add((it.vendor, minor))
            stems[it.uuid]["minor"] = str(minor)
    return stems


def short_forms(uuids: Sequence[str]) -> dict[str, str]:
    """Six base32 characters of SHA-256(uuid) each, longer for those that collide; derived, never stored."""
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
