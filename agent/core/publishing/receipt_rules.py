"""The receipts that are owed: annotations that tell a scheduler that a pod has its devices. Pure.

The owed receipts follow from the ledger and the pods alone and are stored nowhere. An agent that is killed
before it wrote a receipt finds the receipt owed again after its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, field

from agent.core.model import Allocation, AllocationSource, AllocationState
from agent.core.publishing.label_rules import domain
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import ServedClaim
from agent.scheduler_api.dialects import Dialect
from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendor_api.text import shorten

#: How many keys one dialect may have.
KEYS = 16
#: The limit on one receipt with its keys, in bytes. Pods in the agent's memory have room for this.
MAX_BYTES = 32 << 10
#: How many characters of an error are shown.
WORDS = 240
_RESERVED_DOMAINS = ("kubernetes.io", "k8s.io")


class OwedReceipt(Struct, frozen=True):
    """The annotations that a pod lacks. `current`: the other values that some of their keys have now."""

    uid: str
    namespace: str
    pod: str
    texts: Mapping[str, str]
    current: Mapping[str, str] = field(default_factory=dict)


class OwedReceipts(Struct, frozen=True):
    """The receipts to write, oldest pod first. `wrong`: a sentence for each receipt that cannot be made."""

    owed: tuple[OwedReceipt, ...] = ()
    wrong: tuple[str, ...] = ()


#: (vendor, dialect name) to the dialect; None where the vendor's pods do not use such a dialect.
Dialects = Callable[[str, str], Dialect | None]
#: (vendor, dialect name) to the allocations of one pod under claims of this dialect.
Held = Mapping[tuple[str, str], Sequence[Allocation]]


class PodReceipts(Struct, frozen=True):
    """The receipts of one pod, with the inputs that they were made from."""

    pod: Candidate
    held: Held
    owed: OwedReceipt | None
    wrong: tuple[str, ...]


def owed_receipts(
    pods: Iterable[Candidate],
    in_use: Iterable[Allocation],
    dialects: Dialects,
    known: dict[str, PodReceipts] | None = None,
) -> OwedReceipts:
    """The receipts that are owed to the pods of this node.

    Pods that have ended get none, nor static pods: no scheduler placed them, and their uid at the API server
    is not the kubelet's.

    `known`: the last results by pod uid, made with the same dialects. They are used again for unchanged pods,
    and the mapping is brought up to date.
    """
    held, known = _held(in_use), {} if known is None else known
    found: list[PodReceipts] = []
    for pod in pods:
        if pod.over or pod.static or pod.uid not in held:
            continue
        receipt = known.get(pod.uid)
        if receipt is None or receipt.pod != pod or receipt.held != held[pod.uid]:
            receipt = known[pod.uid] = _looked_at(pod, held[pod.uid], dialects)
        found.append(receipt)
    for uid in known.keys() - held.keys():
        del known[uid]
    owed = tuple(it.owed for it in found if it.owed is not None)
    return OwedReceipts(owed, tuple(why for it in found for why in it.wrong))


def _looked_at(pod: Candidate, held: Held, dialects: Dialects) -> PodReceipts:
    texts: dict[str, str] = {}
    wrong: list[str] = []
    for (vendor, name), allocations in held.items():
        dialect = dialects(vendor, name)
        if dialect is None or dialect.receipt is None:
            continue
        try:
            texts |= _lacking(dialect, pod, _served(pod, allocations))
        except Exception as exc:  # annotations can have any content, and dialects can be contributed
            why = shorten(str(exc) or repr(exc), WORDS)
            wrong.append(f"{pod.namespace}/{pod.name}: {name}: {why}")
    current = {key: pod.annotations[key] for key in texts if key in pod.annotations}
    owed = OwedReceipt(pod.uid, pod.namespace, pod.name, texts, current) if texts else None
    return PodReceipts(pod, held, owed, tuple(wrong))


def wrong_key(key: str) -> str:
    """Why no dialect may write this key to pods; empty where one may. Keys can have no domain."""
    key_domain = domain(key)
    if any(key_domain == it or key_domain.endswith(f".{it}") for it in _RESERVED_DOMAINS):
        return f"{shorten(key)!r} is of a domain that is Kubernetes' own"
    return wrong_label(key, "") or ""


def _held(in_use: Iterable[Allocation]) -> Mapping[str, Held]:
    """Pod uid to the confirmed allocations of the pod."""
    found: dict[str, dict[tuple[str, str], list[Allocation]]] = {}
    for allocation in in_use:
        if allocation.claim is not None and allocation.claim.dialect and _is_confirmed(allocation):
            of_pod = found.setdefault(allocation.claim.uid, {})
            of_pod.setdefault((allocation.vendor, allocation.claim.dialect), []).append(allocation)
    return found


def _is_confirmed(allocation: Allocation) -> bool:
    """Whether the kubelet confirms that the claim's container has the allocation.

    A claim alone is a guess of the agent. An allocation that is not DONE may never have been answered.
    """
    if (
        allocation.claim is None
        or allocation.owner is None
        or allocation.source is AllocationSource.ANNOTATION
    ):
        return False
    if allocation.state is not AllocationState.DONE:
        return False
    owner, claim = allocation.owner, allocation.claim
    if owner.uid:
        return (owner.uid, owner.container) == (claim.uid, claim.container)
    # PodResources knows no uids.
    place = (owner.namespace, owner.pod, owner.container)
    return place == (claim.namespace, claim.pod, claim.container)


def _served(pod: Candidate, allocations: Iterable[Allocation]) -> tuple[ServedClaim, ...]:
    """The served claims in the order of the pod's containers.

    A container can have two allocations of a resource for a while; the later one counts.
    """
    newest = {
        (allocation.claim.container, allocation.resource): ServedClaim(
            allocation.claim.container,
            allocation.resource,
            len(allocation.ids),
            allocation.cards,
            allocation.partitions,
        )
        for allocation in allocations
        if allocation.claim is not None
    }
    places = {it.name: n for n, it in enumerate(pod.containers)}
    known = (it for it in newest.values() if it.container in places)
    return tuple(sorted(known, key=lambda it: places[it.container]))


def _lacking(dialect: Dialect, pod: Candidate, served: Sequence[ServedClaim]) -> Mapping[str, str]:
    """The annotations of the receipt that the pod lacks.

    Raises:
        Exception: The dialect's code failed; ValueError where it made a receipt that cannot be written.
    """
    texts = _made(dialect, pod, served) if served else {}
    lacking = _differing(texts, pod)
    if lacking:
        bearing = replace(pod, annotations={**pod.annotations, **lacking})
        if _differing(_made(dialect, bearing, served), bearing):
            raise ValueError("its receipt changes once it is written, and would be written for ever")
    return lacking


def _differing(texts: Mapping[str, str], pod: Candidate) -> Mapping[str, str]:
    return {key: text for key, text in texts.items() if pod.annotations.get(key) != text}


def _made(dialect: Dialect, pod: Candidate, served: Sequence[ServedClaim]) -> Mapping[str, str]:
    assert dialect.receipt is not None
    texts = dict(dialect.receipt(pod, served))
    if others := sorted(texts.keys() - {*dialect.receipt_keys}):
        raise ValueError(f"{shorten(others[0])!r} is not among its receipt_keys")
    if wrong := next((it for it in texts.values() if not isinstance(it, str)), None):
        raise ValueError(f"a text is needed, and no {type(wrong).__name__}")
    size = sum(len(it.encode()) for pair in texts.items() for it in pair)
    if size > MAX_BYTES:
        raise ValueError(f"its receipt has {size} bytes, at most {MAX_BYTES} work")
    return texts
