"""The texts in the tables of `inspect` and `health list`: ages, amounts, names of pods and cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent.http.inspect_document import (
    InspectedAbsentDevice,
    InspectedCordon,
    InspectedDevice,
    InspectedMismatch,
    InspectedOwner,
    InspectedUse,
)


def age(since: float, now: float) -> str:
    """How long ago; empty without a time. Both are Unix times in seconds."""
    return lasting(now - since) if since > 0 else ""


def lasting(count: float) -> str:
    """So many seconds in their largest two units at most: 45s, 12m, 3h20m, 5d."""
    seconds = max(0, int(count))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 2:
        return f"{seconds}s"
    if hours < 2:
        return f"{minutes}m"
    return f"{hours}h{minutes % 60}m" if hours < 24 else f"{days}d" if days > 6 else f"{days}d{hours % 24}h"


def memory(count: int) -> str:
    """Bytes in GiB or MiB; empty for none."""
    if count <= 0:
        return ""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def amount(taken: int | None, total: int | None) -> str:
    """Bytes in use, with the bytes that there are; a dash where these or those are not known."""
    of_total = f" / {memory(total)}" if total else ""
    return f"{'-' if taken is None else memory(taken) or '0 MiB'}{of_total}"


def share(parameters: Mapping[str, str]) -> str:
    """The parameters of a claim, with the memory in units."""
    if not parameters:
        return "no limits"
    return ", ".join(f"{key}={_amount(key, text)}" for key, text in sorted(parameters.items()))


def _amount(key: str, text: str) -> str:
    is_bytes = key == "memory" and text.isascii() and text.isdigit() and len(text) < 20
    return (memory(int(text)) if is_bytes else "") or text


def pod(owner: InspectedOwner | InspectedMismatch | None) -> str:
    """Namespace and name of the pod, or the uid while the name is not known; empty without an owner."""
    if owner is None:
        return ""
    name = owner.pod or (owner.uid if isinstance(owner, InspectedOwner) else "")
    return "/".join(part for part in (owner.namespace, name) if part)


#: Characters of a reason in a table.
MAX_REASON = 160
#: A container that used its card within so many seconds is not called idle, nor an older sample new.
A_WHILE = 60


def use(uses: Sequence[InspectedUse]) -> str:
    """What a container uses of each card, of what it was granted, and since when it is idle."""
    return "; ".join(", ".join(filter(None, _used_parts(it))) for it in uses)


def _used_parts(used: InspectedUse) -> Iterator[str]:
    if used.memory_bytes is not None:
        yield amount(used.memory_bytes, used.memory_limit_bytes)
    if used.utilization is not None:
        granted = f" of {used.compute_limit:.0%}" if used.compute_limit is not None else ""
        yield f"{used.utilization:.0%}{granted}"
    if used.idle_seconds is not None and used.idle_seconds > A_WHILE:
        yield f"idle {lasting(used.idle_seconds)}"
    if used.age_seconds is not None and used.age_seconds > A_WHILE:
        yield f"{lasting(used.age_seconds)} ago"


def place(device: InspectedDevice) -> str | int | None:
    """The index of the card; for a slice INDEX:NUMBER, with the number of the slice on the card."""
    return device.index if device.slice is None else f"{device.index}:{device.slice}"


def brief(reason: str) -> str:
    """The beginning of a long reason: a column is as wide as its longest text. --json has all."""
    return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"


def health_reason(device: InspectedDevice | InspectedAbsentDevice) -> str:
    """Why the device is in its state of health, in a few words."""
    return ": ".join(text for text in (device.health.reason, device.health.message) if text)


def cordoned_by(cordon: InspectedCordon | None) -> str:
    """The author and the reason of the cordon; empty without one."""
    if cordon is None:
        return ""
    return f"cordoned by {': '.join(text for text in (cordon.author, cordon.reason) if text)}"


def foreign_slices(device: InspectedDevice) -> str:
    """How many slices of the card the agent did not make; empty for none."""
    return f"foreign slices: {device.foreign_slices}" if device.foreign_slices > 0 else ""
