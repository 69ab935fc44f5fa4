"""A node: its cards, its kubelet, the pods on it, and the agent, which is held to what the pods have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from unittest.mock import patch

from hypothesis.stateful import RuleBasedStateMachine
from support.steps import Step

from agent import logs
from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.reconciling.reconcile_evidence import Pods
from agent.scheduler_api import Candidate, PodContainer

from .cards import Cards
from .kubelet import Entry, Kubelet
from .life import Killed, Life
from .uses import Kind, Use, beyond

_BYTES = {"1": 1 << 30}


def _counted(numbers: Iterator[int], size: int) -> str:
    """A name as `secrets.token_hex` makes it, the next one."""
    return f"{next(numbers):0{2 * size}x}"


#: The agent's own pod.
OWN = Candidate("uid-own", "kube-system", "xpu-agent", pending=False)


@dataclass
class Pod:
    name: str
    uid: str
    shape: tuple[PodContainer, ...]
    created: float
    #: The card that a scheduler chose, and how much of it; and the percent that a container is held to.
    chosen: tuple[str, int] | None = None
    percent: int = 0
    scheduler: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: When it was bound to the node, in whole seconds.
    bound: float = 0.0
    #: The place in the order in which the kubelet hears of pods; 0 where nobody knows.
    appeared: int = 0
    waits: bool = True
    alive: bool = False
    listed: bool = True
    entries: list[Entry] = field(default_factory=list)
    #: What its answers say that it has; of slices the hardware says it.
    uses: list[Use] = field(default_factory=list)


class Node(RuleBasedStateMachine):
    """What is declared here alone is there once a history has begun."""

    cards: Cards
    #: The config.
    text: str
    #: Whether the kubelet lists pods that have ended, as those up to 1.33 do.
    lists_ended: bool
    #: Whether the agent sees the cgroups of pods.
    sees_cgroups: bool

    def __init__(self) -> None:
        super().__init__()
        logs.set_level("error")  # a history has thousands of lines
        self.names = patch("secrets.token_hex", partial(_counted, count()))  # the same in each run
        self.names.start()
        self.run = Step()
        self.now = 1000.0
        self.count = 0
        self.appeared = 0
        self.pods: list[Pod] = []
        self.kubelet = Kubelet()
        self.saved: list[bytes] = [b""]
        self.agent: Life | None = None
        self.knows_pods = True
        self.has_failed = False
        #: Cards that an operator has given to nobody new.
        self.cordoned: frozenset[str] = frozenset()

    # What the agent meets

    def living(self) -> frozenset[str]:
        return frozenset(it.uid for it in self.pods if it.alive)

    def pod_resources(self) -> Pods:
        self.frees()
        kept = {(it.uid, it.container, it.resource): frozenset(it.ids) for it in self.kubelet.books}
        return {
            ("default", pod.name): {
                one.name: {
                    entry.resource: kept.get((pod.uid, one.name, entry.resource), frozenset())
                    for entry in pod.entries
                    if entry.container == one.name
                }
                for one in pod.shape
                if not one.init
            }
            for pod in self.pods
            if pod.listed and self.knows_pods
        }

    def running(self) -> frozenset[str] | None:
        return self.living() if self.sees_cgroups else None

    def candidates(self) -> tuple[Candidate, ...]:
        """The pods as the API server lists them, beside the agent's own, which is always there."""
        its = (
            Candidate(
                it.uid,
                "default",
                it.name,
                it.shape,
                it.annotations,
                created=it.created,
                scheduler=it.scheduler,
                over=not it.alive and not it.waits,
                ended=not it.alive and not it.waits,
                pending=it.waits,
                appeared=it.appeared,
                bound=it.bound,
            )
            for it in self.pods
            if it.listed
        )
        return OWN, *its

    def frees(self) -> None:
        """Done by List and by each admission, once the API server was heard."""
        if self.knows_pods:
            self.kubelet.frees(self.living())

    def pod(self, name: str, shape: tuple[PodContainer, ...]) -> Pod:
        self.count += 1
        pod = Pod(name, f"uid-{self.count}", shape, self.now, bound=self.now)
        self.pods.append(pod)
        return pod

    # The agent

    def start(self, *, rebooted: bool = False) -> None:
        self.agent = agent = Life(self)
        self.kubelet.lists = {}
        agent.begin(self.saved[-1], rebooted=rebooted)
        self.run(agent.kubelet_began())
        agent.configure(self.text)
        agent.discover()
        self.speak()

    def speak(self) -> None:
        assert self.agent is not None
        try:
            self.run(self.agent.speak())
        except Killed:
            self.start()
        self.keeps()

    def keeps(self) -> None:
        """The kubelet takes a pod back after its restart only where its IDs are listed as healthy.

        Those that it has forgotten, and gives to the next pod of whatever plugin, are nobody's.
        """
        assert self.agent is not None
        gone, its = self.forgotten(), [it for pod in self.pods if pod.alive for it in pod.entries]
        hidden = {(it.resource, one) for it in its if it.place in gone for one in it.ids}
        for entry in its:
            if entry.resource in self.agent.plan:
                well = self.kubelet.lists.get(entry.resource, {})
                lost = [one for one in entry.ids if not (well.get(one) or (entry.resource, one) in hidden)]
                self.has_failed = bool(lost)
                assert not lost, f"{entry.resource} does not list {lost} of {entry.uid} as healthy"

    def follow(self, *, full: bool = False) -> None:
        """The kubelet has written its file, or it is time again."""
        assert self.agent is not None
        self.run(self.agent.reconciler.reconcile(full=full))
        self.speak()

    def forgotten(self) -> set[tuple[str, str, str]]:
        """What of living pods the kubelet knows no more."""
        return self.had() - {(it.uid, it.container, it.resource) for it in self.kubelet.books}

    def had(self) -> set[tuple[str, str, str]]:
        """Pod, container and resource of all that living pods were given."""
        return {(pod.uid, it.container, it.resource) for pod in self.pods if pod.alive for it in pod.entries}

    # What pods have

    def given(self, agent: Life, pod: Pod, entry: Entry) -> list[Use]:
        """What the answer gives; nothing of slices, for the hardware says that."""
        if agent.makes(entry.resource):
            return []
        cards = self.cards.named(entry.answer)
        assert cards, f"the answer names no card: {entry}"
        sharing = agent.sharing(entry.resource)
        kind: Kind = "whole"
        of = 0
        if sharing.kind == "replicas":
            kind, of = "share", sharing.replicas
        elif sharing.kind == "memory":
            kind, of = "memory", _BYTES[str(sharing.unit)]
        its = agent.plan[entry.resource]
        on: dict[str, set[str]] = {card: set() for card in cards}
        said = {one: card.uuid for one in entry.ids if (card := its.card_of(one)) and card.uuid in on}
        for one in sorted(entry.ids, key=lambda one: one not in said):
            on[said.get(one) or self.emptiest(on, of)].add(one)
        percent = pod.percent if kind == "share" else 0
        return [Use(pod.uid, card, kind, frozenset(ids), of, percent=percent) for card, ids in on.items()]

    def emptiest(self, on: Mapping[str, set[str]], of: int) -> str:
        """Of the cards that an answer names and its IDs do not: how much it has of each, it does not say."""
        its = [*self.uses()]

        def percent(card: str) -> float:
            there = (100 * len(it.ids) / max(1, it.of) for it in its if it.card == card)
            return sum(there) + 100 * len(on[card]) / max(1, of)

        return min(on, key=lambda card: (bool(on[card]), percent(card)))

    def uses(self) -> Iterator[Use]:
        for pod in self.pods:
            if pod.alive:
                yield from pod.uses
        marks = {
            entry.answer.annotations.get(ALLOCATION, ""): pod for pod in self.pods for entry in pod.entries
        }
        for it in self.cards.slices:
            owner = marks.get(it.mark or "")
            if it.mark is None:
                yield Use("others", it.card, "slice", frozenset(), by="others")
            elif owner is not None and owner.alive:
                yield Use(owner.uid, it.card, "slice", frozenset())

    def is_new_on(self, cards: set[str], resource: str) -> None:
        cordoned = cards & self.cordoned
        self.has_failed = bool(cordoned)
        assert not cordoned, f"{resource} is given on {cordoned}, which an operator has cordoned"

    def holds(self, cards: set[str], agent: Life, resource: str) -> None:
        sharing = agent.sharing(resource)
        shares = sharing.replicas if sharing.kind == "replicas" and not agent.makes(resource) else 0
        its = [it for it in self.uses() if it.card in cards]
        if agent.plan[resource].rule.placement == "local":
            # Promises are heard no more: shares are counted, and who has none by the kubelet is not.
            its = [replace(it, percent=0) for it in its if it.by != "word"]
        found = list(beyond(its, self.cards.memory, shares))
        self.has_failed = bool(found)
        assert not found, f"{resource} is given beyond its share: {'; '.join(found)}"
