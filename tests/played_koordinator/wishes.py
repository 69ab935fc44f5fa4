"""What a pod asks of a kind of devices: how many, and how much of each.

Restated from koordinator a7a1b76b: pkg/scheduler/plugins/deviceshare/utils.go and devicehandler_gpu.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .amounts import Amounts

GPU, SHARED, CORE, MEMORY, RATIO, RDMA = (
    f"koordinator.sh/{it}"
    for it in ("gpu", "gpu.shared", "gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma")
)
#: Names of device plugins that it reads as whole cards.
PLUGINS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")

_ALLOWED = (
    *({it} for it in PLUGINS),
    {GPU},
    {MEMORY},
    {RATIO},
    {CORE, MEMORY},
    {CORE, RATIO},
    {SHARED, MEMORY},
    {SHARED, RATIO},
    {SHARED, CORE, MEMORY},
    {SHARED, CORE, RATIO},
)


class Unschedulable(Exception):
    """Why the node does not take the pod, in the scheduler's words."""


@dataclass(frozen=True, slots=True)
class Wish:
    count: int
    each: Amounts
    #: Less than a card.
    shared: bool = False


def wishes(total: Amounts) -> dict[str, Wish]:
    """Device type to what the pod asks of it, given the sums over its containers.

    Raises:
        Unschedulable: No such combination is allowed.
    """
    cards = {name: it for name in (*PLUGINS, GPU, SHARED, CORE, MEMORY, RATIO) if (it := total.get(name))}
    found = {"gpu": _of_cards(cards)} if cards else {}
    if ports := total.get(RDMA):
        _percent(total, RDMA)
        count = ports // 100 if ports > 100 else 1
        found["rdma"] = Wish(count, {RDMA: ports // count})
    return found


def _of_cards(asked: Mapping[str, int]) -> Wish:
    if set(asked) not in _ALLOWED:
        raise _invalid(asked)
    if GPU in asked:
        _percent(asked, GPU)
        asked = {CORE: asked[GPU], RATIO: asked[GPU]}
    elif plugin := next((it for it in PLUGINS if it in asked), ""):
        asked = {CORE: asked[plugin] * 100, RATIO: asked[plugin] * 100}
    elif SHARED in asked:
        for name in {CORE, RATIO} & asked.keys():
            if asked[name] % asked[SHARED] or asked[name] // asked[SHARED] > 100:
                raise _invalid(asked)
    _percent(asked, *({CORE, RATIO} & asked.keys() if SHARED not in asked else ()))
    ratio = asked.get(RATIO, 0)
    count = asked.get(SHARED) or (ratio // 100 if ratio > 100 and not ratio % 100 else 1)
    each = {name: asked[name] // count for name in (CORE, RATIO, MEMORY) if name in asked}
    return Wish(count, each, shared=each.get(RATIO, 0) < 100)


def _percent(asked: Mapping[str, int], *names: str) -> None:
    for name in names:
        if asked[name] > 100 and asked[name] % 100:
            raise _invalid(asked)


def _invalid(asked: Mapping[str, int]) -> Unschedulable:
    return Unschedulable(f"invalid resource device requests: {sorted(asked)}")
