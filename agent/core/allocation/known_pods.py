"""The known pods of the node as of one moment, with what an answer to the kubelet asks of them. Pure.

Hundreds of pods run, and a few wait for devices. A change makes a new value, which shares with the one before
all that the change does not touch, so that neither a change nor an answer looks at all pods.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from msgspec import Struct

from agent.scheduler_api.candidate import Candidate


class PodsWith(Struct, frozen=True):
    """The pods for which a test holds, as far as the pods were tested."""

    #: What the test depends on besides the pod.
    depends_on: object
    uids: frozenset[str]
    untested: frozenset[str]


@dataclass(frozen=True, slots=True)
class KnownPods(Sequence[Candidate]):
    """The known pods, oldest first, every uid once, with indexes of them."""

    pods: tuple[Candidate, ...] = ()
    by_uid: Mapping[str, Candidate] = field(default_factory=dict, compare=False, repr=False)
    #: (namespace, name) to the pods of this name, oldest first: a deleted pod may be there beside a new one.
    by_name: Mapping[tuple[str, str], Sequence[Candidate]] = field(
        default_factory=dict, compare=False, repr=False
    )
    #: The uids of the pods that have not ended.
    alive: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    #: The pods that may still ask for devices, oldest first.
    waiting: tuple[Candidate, ...] = field(default=(), compare=False, repr=False)
    #: The pods with a message of the kubelet, oldest first.
    with_message: tuple[Candidate, ...] = field(default=(), compare=False, repr=False)
    #: Answers of `uids_with`, the only part that is filled later: name of a test to the pods for which the
    #: test holds.
    tested: dict[tuple[str, ...], PodsWith] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, pods: Iterable[Candidate]) -> KnownPods:
        """The value of these pods. Of several with the same uid, the last one counts."""
        return cls().after((), pods)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.pods)

    def __len__(self) -> int:
        return len(self.pods)

    @overload
    def __getitem__(self, number: int) -> Candidate: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Candidate]: ...

    def __getitem__(self, number: int | slice) -> Candidate | Sequence[Candidate]:
        return self.pods[number]

    def uids_with(
        self, name: tuple[str, ...], depends_on: object, test: Callable[[Candidate], bool]
    ) -> frozenset[str]:
        """The uids of the pods for which the test holds. Each pod is tested once, until it changes.

        `depends_on`: what the test depends on besides the pod. After another value each pod is tested again.
        """
        known = self.tested.get(name)
        if known is None or known.depends_on != depends_on:
            known = PodsWith(depends_on, frozenset(), frozenset(self.by_uid))
        if known.untested:
            found = known.uids.union(uid for uid in known.untested if test(self.by_uid[uid]))
            known = self.tested[name] = PodsWith(depends_on, found, frozenset())
        return known.uids

    def newest(self, namespace: str, name: str) -> Candidate | None:
        """The newest pod of this name: an older one may still be there while it is deleted."""
        return next(reversed(self.by_name.get((namespace, name), ())), None)

    def of_uids(self, uids: Iterable[str]) -> Sequence[Candidate]:
        """The pods of these uids, oldest first."""
        return sorted(map(self.by_uid.__getitem__, uids), key=_age)

    def updated(self, pods: Iterable[Candidate]) -> KnownPods:
        """The value of these pods, each uid once. All that this value has of them already is shared."""
        left = {pod.uid: pod for pod in pods}
        come = [pod for uid, pod in left.items() if self.by_uid.get(uid) is not pod]
        return self.after(self.by_uid.keys() - left.keys(), come)

    def after(self, gone: Iterable[str], come: Iterable[Candidate]) -> KnownPods:
        """The value without the pods of these uids, and with these pods, which replace those of their uid."""
        fresh = {pod.uid: pod for pod in come}
        changed = {*fresh, *gone}
        was = [pod for pod in map(self.by_uid.get, changed) if pod is not None]
        if not (was or fresh):
            return self
        pods, by_uid, by_name = [*self.pods], {**self.by_uid}, {**self.by_name}
        for pod in was:
            del pods[bisect_left(pods, _age(pod), key=_age)]
            del by_uid[pod.uid]
            _set_name(by_name, pod, [it for it in by_name[pod.namespace, pod.name] if it.uid != pod.uid])
        for pod in fresh.values():
            insort(pods, pod, key=_age)
            by_uid[pod.uid] = pod
            same_name = by_name.get((pod.namespace, pod.name), ())
            _set_name(by_name, pod, sorted((*same_name, pod), key=_age))
        return KnownPods(
            tuple(pods),
            by_uid,
            by_name,
            _alive_after(self.alive, was, fresh.values()),
            _with_replaced(self.waiting, changed, (pod for pod in fresh.values() if pod.waits)),
            _with_replaced(self.with_message, changed, (pod for pod in fresh.values() if pod.message)),
            {name: _retested(known, changed, by_uid) for name, known in self.tested.items()},
        )


def _age(pod: Candidate) -> tuple[float, str]:
    """The sort key of pods, oldest first."""
    return pod.created, pod.uid


def _set_name(
    by_name: dict[tuple[str, str], Sequence[Candidate]], pod: Candidate, pods: Sequence[Candidate]
) -> None:
    """Set the pods of this pod's name, or drop the name that no pod has."""
    if pods:
        by_name[pod.namespace, pod.name] = pods
    else:
        del by_name[pod.namespace, pod.name]


def _alive_after(
    alive: frozenset[str], was: Iterable[Candidate], fresh: Iterable[Candidate]
) -> frozenset[str]:
    """The uids of living pods after these pods were replaced; mostly the same ones."""
    before = {pod.uid for pod in was if not pod.ended}
    after = {pod.uid for pod in fresh if not pod.ended}
    return alive if before == after else (alive - before) | after


def _with_replaced(
    known: tuple[Candidate, ...], changed: Collection[str], more: Iterable[Candidate]
) -> tuple[Candidate, ...]:
    """The known pods without those that have changed, and with more, oldest first."""
    kept = [pod for pod in known if pod.uid not in changed]
    return tuple(sorted((*kept, *more), key=_age))


def _retested(known: PodsWith, changed: Collection[str], by_uid: Mapping[str, Candidate]) -> PodsWith:
    """The outcome of a test after the pods of these uids have changed. `by_uid`: the pods that are there."""
    untested = frozenset(uid for uid in (*known.untested, *changed) if uid in by_uid)
    return PodsWith(known.depends_on, known.uids.difference(changed), untested)
