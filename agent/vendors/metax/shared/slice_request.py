"""The slices that a request asks for: memory, compute and policy, for each card. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.vendor_api.backend import Request, RequestRefused

from .qos_policy import DEFAULT, Qos, policy

#: Slices of one card.
MAX_SLICES = 16
#: MiB; the memory of a slice is a multiple of this.
STEP = 128
WHOLE = 100  # percent
MIB = 1 << 20
#: Parameters of a scheduler's claim: percent of the compute, bytes, percent of the memory, a policy; and why
#: the claim cannot be served.
CORE, MEMORY, RATIO, QOS, REFUSED = "core", "memory", "ratio", "qos", "refused"
#: A further parameter: the slice takes the policy that the card has. It is a key of its own, because the
#: value of `QOS` is a pod's text.
ANY_QOS = "any-qos"
LIMIT = "the limit is one partial sGPU per container; several are whole cards, each chosen by a scheduler"

#: What a request without a scheduler's choice gets: an equal part of the card, the whole card, or a refusal.
Unclaimed = Literal["share", "whole", "refuse"]


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of the card with this uuid: MiB, percent, and the policy; None for all of the compute."""

    card: str
    memory: int
    compute: int
    qos: Qos | None = DEFAULT

    @property
    def whole(self) -> bool:
        return self.compute == WHOLE


def slices(request: Request, cards: Mapping[str, int], unclaimed: Unclaimed = "share") -> tuple[Slice, ...]:
    """One slice for each card, in the order of `cards`: uuid to bytes that slices may take.

    Raises:
        RequestRefused: There is no such slice; the text is a sentence for the pod.
    """
    asked = request.parameters
    if why := asked.get(REFUSED):
        raise RequestRefused(why)
    wanted = None if ANY_QOS in asked else policy(asked.get(QOS, ""))
    if not names_amounts(asked):
        asked = _unclaimed(request, tuple(cards.values()), unclaimed)
    core, ratio, memory = (int(asked[key]) if key in asked else None for key in (CORE, RATIO, MEMORY))
    made = tuple(_slice(card, size, core, ratio, memory, wanted) for card, size in cards.items())
    _counted(request, made)
    return made


def names_amounts(asked: Mapping[str, str]) -> bool:
    """Whether a claim has an amount; else the setting `unclaimed` decides."""
    return bool(asked.keys() & {CORE, MEMORY, RATIO})


def _unclaimed(request: Request, sizes: Sequence[int], how: Unclaimed) -> Mapping[str, str]:
    """The parameters of a request for which neither scheduler nor pod names an amount. `sizes`: bytes."""
    if how == "refuse":
        raise RequestRefused(
            f"no scheduler says how much of a card {request.resource} is to be, and no limit of the pod: let "
            "koord-scheduler or HAMi place the pod, ask for koordinator.sh/gpu-core and gpu-memory, or set "
            "'unclaimed' to share or whole"
        )
    if len(sizes) != 1 or len(request.ids) != 1:
        raise RequestRefused(
            f"{request.resource}: no scheduler chose the cards of {len(request.ids)}; {LIMIT}"
        )
    if how == "whole":
        return {CORE: str(WHOLE)}
    return {CORE: str(WHOLE // MAX_SLICES), MEMORY: str(sizes[0] // MAX_SLICES)}


def without_a_claim(how: Unclaimed, count: int) -> str:
    """What a container that asks for this number of IDs gets where no scheduler chose, in words."""
    if how == "refuse" or count != 1:
        return "is refused"
    return "gets a whole card" if how == "whole" else "gets a sixteenth of a card"


def _slice(
    card: str, size: int, core: int | None, ratio: int | None, memory: int | None, wanted: Qos | None
) -> Slice:
    """Without an amount of memory the slice has the same part of both; without compute it has the least."""
    if ratio is None and memory is None:
        ratio = WHOLE if core is None else core
    if ratio is not None and (memory is None or ratio >= WHOLE):
        memory = size * min(ratio, WHOLE) // WHOLE
    memory = memory or 0
    if core is None and ratio is not None and ratio >= WHOLE:
        core = WHOLE
    compute = min(WHOLE, max(1, core or 0))
    if memory > size and compute < WHOLE:
        raise RequestRefused(f"{memory // MIB} MiB are promised of {card}, which has {size // MIB}")
    steps = max(1, min(memory, size) // (STEP * MIB))
    return Slice(card, steps * STEP, compute, None if compute == WHOLE else wanted)


def _counted(request: Request, made: Sequence[Slice]) -> None:
    if len(made) != len(request.ids):
        raise RequestRefused(
            f"{len(request.ids)} of {request.resource} are asked for, and {len(made)} cards are promised: "
            "ask for as many as cards"
        )
    if len(made) > 1 and not all(it.whole for it in made):
        raise RequestRefused(f"{len(made)} of {request.resource} are parts of cards; {LIMIT}")
