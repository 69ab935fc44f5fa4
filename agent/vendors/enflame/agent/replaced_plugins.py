"""Which cards the answer of another device plugin names. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.vendor_api.agent import ContainerEdits, Device

from .container_edits import VISIBLE

#: The number of a card: bare, as GCUShare and Enflame's plugin write it, or as Enflame's runtime reads it.
_NUMBER = re.compile(r"(GCU-)?(0|[1-9][0-9]{0,5})")


def cards_of_answer(answer: ContainerEdits, devices: Sequence[Device]) -> tuple[str, ...] | None:
    """The uuids of the cards in Enflame's variable; None without the variable, empty where a name is no card.

    GCUShare's scheduler chooses the card, the kubelet IDs of any: the variable has the card's minor (gcushare
    v3.6.5, pkg/server). `all` is each card; `none`, `void` and nothing are no card.
    """
    value = answer.env.get(VISIBLE)
    if value is None:
        return None
    cards = [it for it in devices if it.parent is None and not it.nameless]
    if value == "all":
        return tuple(it.uuid for it in cards)
    named = [_card(it, cards) for it in value.split(",")]
    known = tuple(it for it in named if it is not None)
    return known if len({*known}) == len(named) else ()


def _card(name: str, cards: Sequence[Device]) -> str | None:
    """The uuid of the card with this minor, or with this uuid; None where there is no such card.

    What the number in `GCU-0` counts is not published. The card is known only where index and minor agree.
    """
    number = _NUMBER.fullmatch(name)
    if number is None:
        return next((it.uuid for it in cards if it.uuid == name), None)
    found = [it for it in cards if it.minor == int(number[2])]
    if len(found) != 1 or (number[1] and found[0].index != found[0].minor):
        return None
    return found[0].uuid
