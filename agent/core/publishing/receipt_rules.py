"""What schedulers are to read on pods that have their devices, and do not read there yet. Pure.

It follows from the ledger and the pods alone, so that nothing of it is stored: who is killed before it is
written finds it wanting again, and where it stands nothing is to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.core.kubernetes_names import wrong_label
from agent.core.model import Allocation, AllocationSource, AllocationState
from agent.core.publishing.label_rules import domain
from agent.scheduler_api import Candidate, Dialect, ServedClaim
from agent.vendor_api.text import shorten

#: Keys of one dialect, and bytes of its keys and texts on one pod: what is kept of a pod has room for it.
KEYS = 16
MAX_BYTES = 32 << 10
#: Characters of what is wrong with a receipt.
WORDS = 240
_NOBODYS = ("kubernetes.io", "k8s.io")


@dataclass(frozen=True, slots=True)
class OwedReceipt:
    """The annotations that a pod lacks. `there`: what stands at their keys instead, of those that stand."""

    uid: str
    namespace: str
    pod: str
    texts: Mapping[str, str]
    there: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwedReceipts:
    """Those that are to be written, oldest pod first, and why others cannot be made, a sentence each."""

    owed: tuple[OwedReceipt, ...] = ()
    wrong: tuple[str, ...] = ()


#: The dialect of a name that is heard for a vendor; None where there is none.
Dialects = Callable[[str, str], Dialect | None]
#: Vendor and dialect to what a pod has under claims of it.
Held = Mapping[tuple[str, str], Sequence[Allocation]]


@dataclass(frozen=True, slots=True)
class PodReceipts:
    """What followed of one pod, and from what."""

    pod: Candidate
    held: Held
    owed: OwedReceipt | None
    wrong: tuple[str, ...]


def receipts(
    pods: Iterable[Candidate],
    in_use: Iterable[Allocation],
    dialects: Dialects,
    known: dict[str, PodReceipts] | None = None,
) -> OwedReceipts:
    """What is owed to the pods of this node. One that is over is nobody's any more; a static pod bears
    another uid at the API server than here, and no scheduler placed it.

    `known`: by uid what followed of pods before with the same dialects; brought up to date.
    """
    held, known = _held(in_use), {} if known is None else known
    found: list[PodReceipts] = []
    for pod in pods:
        if pod.over or pod.static or pod.uid not in held:
            continue
        it = known.get(pod.uid)
        if it is None or it.pod != pod or it.held != held[pod.uid]:
            it = known[pod.uid] = _looked_at(pod, held[pod.uid], dialects)
        found.append(it)
    for uid in known.keys() - held.keys():
        del known[uid]
    owed = tuple(it.owed for it in found if it.owed is not None)
    return OwedReceipts(owed, tuple(why for it in found for why in it.wrong))


def _looked_at(pod: Candidate, held: Held, dialects: Dialects) -> PodReceipts:
    texts: dict[str, str] = {}
    wrong: list[str] = []
    for (vendor, name), its in held.items():
        dialect = dialects(vendor, name)
        if dialect is None or dialect.receipt is None:
            continue
        try:
            texts |= _lacking(dialect, pod, _given(pod, its))
        except Exception as exc:  # annotations are strangers' words, and dialects are contributors'
            why = shorten(str(exc) or repr(exc), WORDS)
            wrong.append(f"{pod.namespace}/{pod.name}: {name}: {why}")
    there = {key: pod.annotations[key] for key in texts if key in pod.annotations}
    owed = OwedReceipt(pod.uid, pod.namespace, pod.name, texts, there) if texts else None
    return PodReceipts(pod, held, owed, tuple(wrong))


def wrong_key(key: str) -> str:
    """Why no dialect may write it to pods; empty where it may. Some of the field have no domain."""
    of = domain(key)
    if any(of == it or of.endswith(f".{it}") for it in _NOBODYS):
        return f"{shorten(key)!r} is of a domain that is Kubernetes' own"
    return wrong_label(key, "") or ""


def _held(in_use: Iterable[Allocation]) -> Mapping[str, Held]:
    """Pod uid to what the pod has."""
    found: dict[str, dict[tuple[str, str], list[Allocation]]] = {}
    for it in in_use:
        if it.claim is not None and it.claim.dialect and _is_confirmed(it):
            of = found.setdefault(it.claim.uid, {})
            of.setdefault((it.vendor, it.claim.dialect), []).append(it)
    return found


def _is_confirmed(it: Allocation) -> bool:
    """Whether the kubelet's word is that who was promised it has it: a claim alone is our best guess, and
    one that was never answered, as the agent was killed meanwhile, is nobody's."""
    if it.claim is None or it.owner is None or it.source is AllocationSource.ANNOTATION:
        return False
    if it.state is not AllocationState.DONE:
        return False
    owner, claim = it.owner, it.claim
    if owner.uid:
        return (owner.uid, owner.container) == (claim.uid, claim.container)
    # PodResources knows no uids.
    its = (owner.namespace, owner.pod, owner.container)
    return its == (claim.namespace, claim.pod, claim.container)


def _given(pod: Candidate, its: Iterable[Allocation]) -> tuple[ServedClaim, ...]:
    """In the order of the pod's containers; of what one has twice, for a while, what it got last."""
    newest = {
        (it.claim.container, it.resource): ServedClaim(
            it.claim.container, it.resource, len(it.ids), it.cards, it.partitions
        )
        for it in its
        if it.claim is not None
    }
    places = {it.name: n for n, it in enumerate(pod.containers)}
    known = (it for it in newest.values() if it.container in places)
    return tuple(sorted(known, key=lambda it: places[it.container]))


def _lacking(dialect: Dialect, pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    """What of its receipt does not stand on the pod.

    Raises:
        Exception: The dialect's own, or ValueError where it made what cannot be written.
    """
    texts = _made(dialect, pod, given) if given else {}
    lacking = _differing(texts, pod)
    if lacking:
        bearing = replace(pod, annotations={**pod.annotations, **lacking})
        if _differing(_made(dialect, bearing, given), bearing):
            raise ValueError("its receipt is another one once it stands there, and would be written for ever")
    return lacking


def _differing(texts: Mapping[str, str], pod: Candidate) -> Mapping[str, str]:
    return {key: text for key, text in texts.items() if pod.annotations.get(key) != text}


def _made(dialect: Dialect, pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    assert dialect.receipt is not None
    texts = dict(dialect.receipt(pod, given))
    if others := sorted(texts.keys() - {*dialect.receipt_keys}):
        raise ValueError(f"{shorten(others[0])!r} is not among its receipt_keys")
    if strange := next((it for it in texts.values() if not isinstance(it, str)), None):
        raise ValueError(f"a text is needed, and no {type(strange).__name__}")
    size = sum(len(it.encode()) for pair in texts.items() for it in pair)
    if size > MAX_BYTES:
        raise ValueError(f"its receipt has {size} bytes, at most {MAX_BYTES} work")
    return texts
