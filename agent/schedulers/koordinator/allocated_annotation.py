"""Reads the annotation of koord-scheduler on a pod: cards, and the amount of each. Any author may write it.

Source: koordinator-sh/koordinator, apis/extension/device_share.go and
pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go, at a7a1b76b.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from agent.scheduler_api.quantities import exact
from agent.schedulers.common.grants import MAX_GRANTS, MAX_MEMORY, CardGrant
from agent.schedulers.common.resource_names import CORE, MEMORY, RATIO
from agent.vendor_api.text import shorten

#: JSON: device type to a list of {"minor", "id", "resources"}, for the whole pod in the order of allocation.
ALLOCATED = "scheduling.koordinator.sh/device-allocated"

MAX_MINOR = (1 << 31) - 1
MAX_ID = 253
#: Most characters of an annotation that the cache keeps.
KNOWN = 4096
#: The name of each amount, its maximum for one card, and the maximum in words.
_AMOUNTS = (
    (CORE, 100, "a percentage, 1 to 100"),
    (RATIO, 100, "a percentage, 1 to 100"),
    (MEMORY, MAX_MEMORY, "a number of bytes, such as 8Gi"),
)


def allocated(text: str) -> tuple[CardGrant, ...]:
    """The grants in the annotation `ALLOCATED`; none where it names devices of other types alone.

    Raises:
        ValueError: The text is not what a scheduler writes.
    """
    try:
        return _known(text) if len(text) <= KNOWN else _read(text)
    except json.JSONDecodeError as exc:
        raise ValueError(f"{ALLOCATED} is no JSON: {exc}") from exc
    except ValueError as exc:
        raise ValueError(f"{ALLOCATED}: {exc}") from exc


def _read(text: str) -> tuple[CardGrant, ...]:
    try:
        document: Any = json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as exc:
        raise ValueError("too deep to be read") from exc
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    cards = document.get("gpu", [])
    if not isinstance(cards, list) or len(cards) > MAX_GRANTS:
        raise ValueError(f"gpu is no list of up to {MAX_GRANTS} cards")
    grants = tuple(map(_grant, cards))
    if len({it.minor for it in grants}) < len(grants):
        raise ValueError("a minor is named twice")
    uuids = [it.uuid for it in grants if it.uuid]
    if len(set(uuids)) < len(uuids):
        raise ValueError("an id is named twice")
    return grants


#: Each Allocate reads the annotations of all waiting pods again, and they rarely change.
_known = lru_cache(maxsize=256)(_read)


def _grant(card: Any) -> CardGrant:
    if not isinstance(card, dict):
        raise ValueError("a card is no JSON object")
    minor, uuid, resources = card.get("minor"), card.get("id", ""), card.get("resources", {})
    if type(minor) is not int or not 0 <= minor <= MAX_MINOR:
        raise ValueError(f"minor {shorten(repr(minor), 40)} is no number from 0 on")
    if not isinstance(uuid, str) or len(uuid) > MAX_ID:
        raise ValueError(f"the id of minor {minor} is no text of up to {MAX_ID} characters")
    if not isinstance(resources, dict):
        raise ValueError(f"the resources of minor {minor} are no JSON object")
    amounts = dict(_amounts(minor, resources))
    return CardGrant(minor, uuid, amounts.get(CORE), amounts.get(MEMORY), amounts.get(RATIO))


def _amounts(minor: int, resources: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, most, awaited in _AMOUNTS:
        if name in resources:
            found = exact(resources[name])
            if found is None or found > most:
                value = shorten(repr(resources[name]), 40)
                raise ValueError(f"{name} of minor {minor} is {value}, awaited is {awaited}")
            yield name, int(found)


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without a repeated key: two readers may take different ones of two values."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{shorten(key, 40)!r} stands there twice")
        found[key] = value
    return found
