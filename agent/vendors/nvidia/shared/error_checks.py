"""Decides which XIDs are faults, by NVIDIA's DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from . import xid

#: Stands for all XIDs. There is no XID 0, and the text 0 means all XIDs, as in NVIDIA's plugin.
ALL = 0
_WORDS = frozenset({"all", "xids"})
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_TOO_LARGE = 1 << 64


@dataclass(frozen=True, slots=True)
class Checks:
    """Which XIDs are disabled. For an XID without a value that of `ALL` counts; without both it is enabled.

    Grammar and precedence are those of k8s-device-plugin v0.20 (internal/rm/health.go): lists with commas;
    `all` or `xids` for every XID; malformed words are ignored; enabled wins over disabled and over the
    hard-coded six. One difference: if all XIDs are disabled and some enabled, NVIDIA's plugin watches
    nothing, and this agent watches the enabled ones.
    """

    disabled: Mapping[int, bool]

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Checks:
        ignored = settings.get("ignoreXids")
        disabled = dict.fromkeys(_listed(settings.get("disableHealthChecks") or ""), True)
        hard_coded = xid.IGNORED if ignored is None else frozenset(ignored) - {ALL}
        disabled |= dict.fromkeys(hard_coded, True)
        disabled |= dict.fromkeys(_listed(settings.get("enableHealthChecks") or ""), False)
        return cls(disabled)

    def ignores(self, code: int) -> bool:
        if self.disabled.get(ALL) is False:
            return False
        return self.disabled.get(code, not self.everything)

    @property
    def everything(self) -> bool:
        """Whether all errors count that have no value of their own: XIDs and the driver's other events."""
        return not self.disabled.get(ALL, False)

    @property
    def nothing(self) -> bool:
        return all(self.disabled.values()) and not self.everything


def malformed(text: str) -> list[str]:
    """The words of a list that are neither XIDs nor words for all of them."""
    return [word for word in _words(text) if word and word not in _WORDS and not _is_xid(word)]


def _listed(text: str) -> Collection[int]:
    words = _words(text)
    return [ALL] if _WORDS & set(words) else [int(word) for word in words if _is_xid(word)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.lower().split(",")]


def _is_xid(word: str) -> bool:
    return bool(_NUMBER.fullmatch(word)) and int(word) < _TOO_LARGE
