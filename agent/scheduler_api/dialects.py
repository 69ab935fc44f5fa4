"""Dialects: how a scheduler writes its claims into pods, and reads receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim, Part, ServedClaim

#: Uuid to minor number, in the order of the numbers; None for a card without a number.
Cards = Mapping[str, int | None]
Claims = Callable[[Candidate, str, Cards], Sequence[Claim]]
"""The claims of a pod on a resource, given the cards of the vendor that serves it.

Pure. Raises ValueError for annotations that make no sense. The pod then has no claim, and an Event says why.
"""
Measure = Callable[[Mapping[str, str], int], Part | None]
"""The part of each card that a claim with these parameters takes, given a card's bytes (0: unknown).

Pure, and without errors for any parameters: these may come from a file. None: the part is the share of the
claim's device IDs in the card's.
"""
Receipt = Callable[[Candidate, Sequence[ServedClaim]], Mapping[str, str]]
"""The annotations by which a pod tells its scheduler that it has its devices, given what each container has.

Pure. For a pod that has its receipt the function returns nothing that differs from the pod's annotations.
Raises ValueError for a pod that makes no sense. Nothing is then written to the pod, and the text is logged.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way in which a scheduler writes its choice on pods, and learns that a pod has its devices."""

    name: str
    claims: Claims
    #: Prefixes of the annotation keys that the functions read, such as `acme.com/`.
    reads: tuple[str, ...] = ()
    #: Keys of the Node's annotations by which the scheduler locks the Node before a bind, such as
    #: `acme.com/mutex.lock`. The value is TIME,NAMESPACE,POD, or TIME alone. The agent frees the lock once it
    #: has served that pod.
    locks: tuple[str, ...] = ()
    #: The part of a card that a claim takes; None where the number of device IDs says the part. For a claim
    #: without cards it is the part of each card that the claim is served from.
    measure: Measure | None = None
    #: The annotations of a pod that has its devices; None where the scheduler reads no receipt.
    receipt: Receipt | None = None
    #: All keys that the receipt may have, such as `acme.com/assigned`. Other keys are not written.
    receipt_keys: tuple[str, ...] = ()
    #: The resource by which a pod says over how many cards its amounts are spread; empty without one.
    card_count: str = ""


@dataclass(frozen=True, slots=True)
class DialectOf:
    """A dialect that a vendor names; the scheduler's plugin makes it from the vendor's terms."""

    scheduler: str
    dialect: str
    #: What the dialect needs to know of the vendor, such as the names of resources. The scheduler's plugin
    #: chooses the keys.
    terms: Mapping[str, str] = field(default_factory=dict)
    #: The part of a card that a claim takes, where the vendor knows the part and the scheduler does not.
    measure: Measure | None = None
    #: Whether the claims come from the pod's own limits. Such a dialect is heard after all schedulers, for
    #: resources that are served without a scheduler's choice too.
    of_limits: bool = False
