"""Keys and values that are known but not served where they are written, and are refused by name."""

from __future__ import annotations

from agent.config.settings import AgentSettings
from agent.vendor_api.agent import ResourceRule, Sharing

#: By (class, key): where a key belongs instead.
ELSEWHERE: dict[tuple[type, str], str] = {
    (AgentSettings, "kubeconfig"): "give --kubeconfig",
    (ResourceRule, "modes"): "it applies to all resources of a vendor: write it next to 'resources'",
    (ResourceRule, "rename"): "name the resource itself as it shall be called",
    (ResourceRule, "spanCards"): "it belongs to how cards are shared: write it in 'sharing'",
}
#: By (class, key): a key of a later release, with a reason or "".
KEYS: dict[tuple[type, str], str] = {
    (Sharing, "profile"): "",
    (Sharing, "memory"): "",
    (Sharing, "core"): "",
}

#: By (class, key): values of a later release.
VALUES: dict[tuple[type, str], tuple[str, ...]] = {
    (Sharing, "kind"): ("slices", "fraction"),
}


def key(shape: type, name: str) -> str | None:
    """Why the key is not served there; None for other keys."""
    if elsewhere := ELSEWHERE.get((shape, name)):
        return f"is not served here; {elsewhere}"
    why = KEYS.get((shape, name))
    if why is None:
        return None
    return "is not served by this release" + (f"; {why}" if why else "")


def served(shape: type, name: str, choices: tuple[str, ...]) -> str:
    """The values among `choices` that are served."""
    left = (choice for choice in choices if choice not in VALUES.get((shape, name), ()))
    return "it serves " + " or ".join(f"'{choice}'" for choice in left)


def value(shape: type, name: str, found: object) -> str | None:
    """Why the value is not served; None for other values."""
    if found not in VALUES.get((shape, name), ()):
        return None
    return f"'{found}' is not served by this release"
