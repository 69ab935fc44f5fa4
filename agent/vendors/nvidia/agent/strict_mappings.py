"""The base of mappings that refuse unknown keys, with keys spelled as NVIDIA spells them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(max_length=4096)]

_SPELLED = {"id": "ID", "ids": "IDs", "cdi": "CDI"}


def _key(name: str) -> str:
    """`device_id_strategy` as NVIDIA writes it: deviceIDStrategy."""
    first, *rest = name.split("_")
    return first + "".join(_SPELLED.get(part, part.capitalize()) for part in rest)


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=_key):
    """A frozen mapping that refuses unknown keys."""
