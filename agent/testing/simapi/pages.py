"""Lists in pages: where the next one goes on."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

from . import refusals

VERSION = "meta.k8s.io/v1"
#: Goes on at whatever is the latest then (k8s.io/apiserver pkg/storage/continue.go).
LATEST = -1


@dataclass(frozen=True, slots=True)
class Bookmark:
    """`version`: the resourceVersion of the listed state. `start`: the first key of the next page."""

    version: int
    start: str

    def encode(self) -> str:
        token = {"v": VERSION, "rv": self.version, "start": self.start}
        return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Bookmark:
        """Raises: Refused, 400: the text is no bookmark of this server."""
        try:
            token = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if token["v"] != VERSION or not token["start"]:
                raise ValueError(text)
            return cls(int(token["rv"]), str(token["start"]))
        except (binascii.Error, ValueError, KeyError, TypeError) as exc:
            raise refusals.bad_request("invalid continue token: continue key is not valid") from exc


def page(keys: Sequence[str], start: str, limit: int) -> tuple[Sequence[str], str, int]:
    """One page of sorted keys: the keys, the start of the next page ("" at the end), how many are left."""
    rest = [key for key in keys if key >= start]
    taken = rest[:limit] if limit else rest
    left = len(rest) - len(taken)
    return taken, f"{taken[-1]}\0" if left else "", left
