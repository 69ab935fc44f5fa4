"""Keys and values that are refused by name, so that nobody believes they work where they are written."""

from __future__ import annotations

from agent.config.settings import AgentSettings
from agent.vendor_api.agent import ResourceRule, Sharing

#: (shape, key) of a key that is served elsewhere: where.
ELSEWHERE: dict[tuple[type, str], str] = {
    (AgentSettings, "kubeconfig"): "give --kubeconfig",
    (ResourceRule, "modes"): "it is said of all resources of a vendor: write it beside 'resources'",
    (ResourceRule, "rename"): "name the resource itself as it shall be called",
    (ResourceRule, "spanCards"): "it is said of how cards are shared: write it in 'sharing'",
}
#: (shape, key) of a key that a later release serves: why, or nothing.
KEYS: dict[tuple[type, str], str] = {
    (Sharing, "profile"): "",
    (Sharing, "memory"): "",
    (Sharing, "core"): "",
}

#: (shape, key): the values that are known and not served.
VALUES: dict[tuple[type, str], tuple[str, ...]] = {
    (Sharing, "kind"): ("slices", "fraction"),
}


def key(shape: type, name: str) -> str | None:
    """What to say of a key that is not served there; None where it is not one of them."""
    if elsewhere := ELSEWHERE.get((shape, name)):
        return f"is not served here; {elsewhere}"
    why = KEYS.get((shape, name))
    if why is None:
        return None
    return "is not served by this release" + (f"; {why}" if why else "")


def served(shape: type, name: str, choices: tuple[str, ...]) -> str:
    """The values of these that do work."""
    left = (choice for choice in choices if choice not in VALUES.get((shape, name), ()))
    return "it serves " + " or ".join(f"'{choice}'" for choice in left)


def value(shape: type, name: str, given: object) -> str | None:
    """What to say of a value that is not served yet; None where it is not one of them."""
    if given not in VALUES.get((shape, name), ()):
        return None
    return f"'{given}' is not served by this release"
