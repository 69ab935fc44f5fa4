"""No card is given out beyond its share, in any unit, whatever a node has been through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.steps import Step

from agent import logs
from agent.core.claims import Candidate, PodContainer
from agent.core.errors import AllocationError, VendorError
from agent.core.evidence import Pods
from agent.core.marks import ALLOCATION

from . import configs, plugins
from .cards import MAKES, Cards
from .kubelet import Entry, Kubelet
from .life import DOUBT_AGAIN, GRACE, SETTLE, Killed, Life, listed
from .plugins import Plugin
from .uses import Kind, Use, beyond

#: What of a card a pod of slices asks for by its limits: percent, and bytes.
AMOUNTS = (None, (10, 1 << 30), (60, 40 << 30), (100, 64 << 30))
_BYTES = {"1": 1 << 30}


def _counted(numbers: Iterator[int], size: int) -> str:
    """A name as `secrets.token_hex` makes it, the next one."""
    return f"{next(numbers):0{2 * size}x}"


@dataclass
class Pod:
    name: str
    uid: str
    shape: tuple[PodContainer, ...]
    created: float
    waits: bool = True
    alive: bool = False
    listed: bool = True
    entries: list[Entry] = field(default_factory=list)
    #: What its answers say that it has; of slices the hardware says it.
    uses: list[Use] = field(default_factory=list)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logs.set_level("error")  # a history has thousands of lines
        self.names = patch("secrets.token_hex", partial(_counted, count()))  # the same in each run
        self.names.start()
        self.run = Step()
        self.now = 1000.0
        self.count = 0
        self.pods: list[Pod] = []
        self.kubelet = Kubelet()
        self.saved: list[bytes] = [b""]
        self.agent: Life | None = None
        self.knows_pods = True
        self.has_failed = False

    def teardown(self) -> None:
        try:
            if self.agent is not None and not self.has_failed:
                self.in_the_end_all_cards_can_be_had_again()
        finally:
            self.names.stop()
            self.run.close()

    @initialize(
        vendor=st.sampled_from(sorted(MAKES)),
        lists_ended=st.booleans(),
        sees_cgroups=st.booleans(),
        data=st.data(),
    )
    def begin(self, vendor: str, lists_ended: bool, sees_cgroups: bool, data: Any) -> None:
        self.cards: Cards = MAKES[vendor]()
        self.lists_ended = lists_ended  # kubelets up to 1.33 do
        self.sees_cgroups = sees_cgroups
        if data.draw(st.booleans(), "another plugin was here before"):
            self.another_plugin_serves(data)
        self.text = data.draw(st.sampled_from(configs.OF[vendor]), "config")
        self.start()

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
        return tuple(
            Candidate(
                it.uid,
                "default",
                it.name,
                it.shape,
                created=it.created,
                over=not it.alive and not it.waits,
                ended=not it.alive and not it.waits,
                pending=it.waits,
            )
            for it in self.pods
            if it.listed
        )

    def frees(self) -> None:
        """Done by List and by each admission, once the API server was heard."""
        if self.knows_pods:
            self.kubelet.frees(self.living())

    # The agent

    def start(self, *, rebooted: bool = False) -> None:
        self.agent = agent = Life(self)
        self.kubelet.lists = {}
        agent.begin(self.saved[-1], rebooted=rebooted)
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
        """The kubelet takes a pod back after its restart only where its IDs are listed as healthy."""
        assert self.agent is not None
        for entry in (it for pod in self.pods if pod.alive for it in pod.entries):
            if entry.resource in self.agent.plan:
                well = self.kubelet.lists.get(entry.resource, {})
                lost = [one for one in entry.ids if not well.get(one)]
                self.has_failed = bool(lost)
                assert not lost, f"{entry.resource} does not list {lost} of {entry.uid} as healthy"

    def follow(self, *, full: bool = False) -> None:
        """The kubelet has written its file, or it is time again."""
        assert self.agent is not None
        self.run(self.agent.reconciler.once(full=full))
        self.speak()

    # Pods

    @rule(data=st.data())
    def admit_and_admit(self, data: Any) -> None:
        """More of a node's life is this than anything else."""
        self.admit(data)
        self.admit(data)

    @rule(data=st.data())
    def admit(self, data: Any) -> None:
        served = sorted(filter(self.kubelet.free, self.kubelet.lists))  # as a scheduler counts
        if not served:
            return
        names = [f"web-{self.count}-{n}" for n in range(data.draw(st.sampled_from([1, 1, 2]), "pods"))]
        pods = [self.bound(name, data, served) for name in names]
        assert self.agent is not None
        self.agent.dies_at = data.draw(st.sampled_from([""] * 12 + ["intent", "prepared", "done"]), "dies at")
        self.agent.dies_after = data.draw(st.booleans(), "dies after it") if self.agent.dies_at else False
        hears_late = data.draw(st.sampled_from([False] * 5 + [True]), "the kubelet hears late")
        before = dict(self.kubelet.lists)
        self.speak()
        if hears_late:
            self.kubelet.lists = before
        for pod in data.draw(st.permutations(pods), "the kubelet's order"):
            self.admitted(pod, data)
        assert self.agent is not None
        self.agent.dies_at = ""

    def bound(self, name: str, data: Any, served: Sequence[str]) -> Pod:
        """A pod as Kubernetes' own scheduler binds it, which counts."""
        resource = data.draw(st.sampled_from(served), "resource")
        return self.pod(name, self.shape(data, resource))

    def shape(self, data: Any, resource: str) -> tuple[PodContainer, ...]:
        """Containers of one resource each; the setup first, as the kubelet takes it."""
        names = data.draw(st.sampled_from([("main",), ("main",), ("setup", "main"), ("main", "side")]), "has")
        found = []
        for name in names:
            limits: dict[str, int] = {resource: data.draw(st.sampled_from([1, 1, 1, 2, 4]), "count")}
            amount = data.draw(st.sampled_from(AMOUNTS), "amount") if self.cards.vendor == "metax" else None
            if amount is not None:
                limits |= {"koordinator.sh/gpu-core": amount[0], "koordinator.sh/gpu-memory": amount[1]}
            found.append(PodContainer(name, limits, init=name == "setup"))
        return tuple(found)

    def pod(self, name: str, shape: tuple[PodContainer, ...]) -> Pod:
        self.count += 1
        pod = Pod(name, f"uid-{self.count}", shape, self.now)
        self.pods.append(pod)
        return pod

    def admitted(self, pod: Pod, data: Any) -> None:
        """What the kubelet does for each container, until one can not be had."""
        self.frees()
        pod.alive = self.allocates_all(pod, data)
        pod.waits = False
        pod.listed = pod.alive
        if pod.alive and data.draw(st.booleans(), "it is confirmed at once"):
            self.follow()

    def allocates_all(self, pod: Pod, data: Any) -> bool:
        reusable: list[str] = []
        for one in pod.shape:
            resource = next(name for name in one.limits if not name.startswith("koordinator.sh/"))
            if resource not in self.kubelet.lists:
                return False
            free = self.kubelet.free(resource)
            count = one.limits[resource]
            handed = [it for it in reusable if it not in free][:count]
            ids = self.chosen(resource, handed, free, count, data)
            if len(ids) < count:
                return False
            if not self.allocates(pod, one, resource, ids):
                return False
            reusable = [*reusable, *ids] if one.init else [it for it in reusable if it not in ids]
        return self.starts(pod)

    def chosen(
        self, resource: str, handed: Sequence[str], free: Sequence[str], count: int, data: Any
    ) -> Sequence[str]:
        """The IDs that the kubelet takes: what init containers left, then as the agent prefers, or any."""
        if len(handed) + len(free) < count:
            return ()
        assert self.agent is not None
        if data.draw(st.sampled_from([True] * 4 + [False]), "prefers"):
            preferred = self.agent.allocator.preferred(resource, [*handed, *free], handed, count)
            if len(preferred) == count:
                return preferred
        shuffled = data.draw(st.permutations(free), "any") if len(free) < 12 else free
        return [*handed, *shuffled][:count]

    def allocates(self, pod: Pod, one: PodContainer, resource: str, ids: Sequence[str]) -> bool:
        self.now += 1
        agent = self.agent
        assert agent is not None
        try:
            answer = self.run(agent.allocate(resource, ids))
        except (AllocationError, VendorError):
            return False
        except Killed:
            self.start()
            return False
        entry = Entry(pod.uid, one.name, resource, tuple(ids), answer)
        fresh = self.given(agent, pod, entry)
        pod.entries.append(entry)
        pod.uses += fresh
        pod.alive = True
        self.holds({it.card for it in fresh} or set(self.cards.named(answer)), agent, resource)
        self.kubelet.gives(entry)
        return True

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
        return [Use(pod.uid, card, kind, frozenset(ids), of) for card, ids in on.items()]

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

    def holds(self, cards: set[str], agent: Life, resource: str) -> None:
        sharing = agent.sharing(resource)
        shares = sharing.replicas if sharing.kind == "replicas" and not agent.makes(resource) else 0
        its = [it for it in self.uses() if it.card in cards]
        found = list(beyond(its, self.cards.memory, shares))
        self.has_failed = bool(found)
        assert not found, f"{resource} is given beyond its share: {'; '.join(found)}"

    def starts(self, pod: Pod) -> bool:
        """Have the containers started that need hardware; one that is refused is tried again later."""
        assert self.agent is not None
        for entry in pod.entries:
            if entry.resource in self.agent.plan and self.agent.makes(entry.resource):
                try:
                    self.run(self.agent.allocator.pre_start(entry.resource, entry.ids))
                except (AllocationError, VendorError):
                    return True
                except Killed:
                    self.start()
                    return True
                self.holds(set(self.cards.named(entry.answer)), self.agent, entry.resource)
        return True

    @precondition(lambda self: any(it.alive for it in self.pods))
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        for pod in self.pods:
            pod.listed = pod.alive
        pod = data.draw(st.sampled_from([it for it in self.pods if it.alive]), "ends")
        pod.alive = False
        pod.listed = self.lists_ended and data.draw(st.booleans(), "stays listed")

    # Configs, names, plugins

    @rule(data=st.data(), restarts=st.booleans())
    def another_config(self, data: Any, restarts: bool) -> None:
        self.text = data.draw(st.sampled_from(configs.OF[self.cards.vendor]), "config")
        if restarts:
            self.start()
            return
        assert self.agent is not None
        self.agent.configure(self.text)
        self.agent.discover()
        self.speak()

    @rule(data=st.data())
    def another_plugin_comes_and_goes(self, data: Any) -> None:
        self.agent = None
        self.another_plugin_serves(data)
        self.start()

    def another_plugin_serves(self, data: Any) -> None:
        """In the agent's place: it knows of nobody's pods but those of its own resource."""
        plugin = data.draw(st.sampled_from(plugins.OF[self.cards.vendor]), "plugin")
        ids = dict.fromkeys(plugin.listed(self.cards.plain), True)
        self.kubelet.lists = {}
        self.kubelet.hears(plugin.resource, ids, self.now)
        self.frees()
        for n in range(data.draw(st.integers(0, 2), "pods")):
            self.plugin_answers(plugin, f"old-{self.count}-{n}", data)

    def plugin_answers(self, plugin: Plugin, name: str, data: Any) -> None:
        by_id = plugin.listed(self.cards.plain)
        free = self.kubelet.free(plugin.resource)
        if len(free) < plugin.takes:
            return
        first = data.draw(st.sampled_from(free), "its ID")
        ids = (first, *(it for it in free if it != first))[: plugin.takes]
        card = next(it for it in self.cards.plain if it.uuid == by_id[first])
        if plugin.steered:
            held = [(it.card, len(it.ids)) for pod in self.pods if pod.alive for it in pod.uses]
            left = [
                it
                for it in self.cards.plain
                if sum(n for on, n in held if on == it.uuid) + plugin.takes <= plugin.of
            ]
            card = data.draw(st.sampled_from(left or [card]), "its scheduler's choice")
        pod = self.pod(name, (PodContainer("main", {plugin.resource: plugin.takes}),))
        pod.waits, pod.alive = False, True
        pod.uses.append(
            Use(pod.uid, card.uuid, plugin.kind, frozenset(ids), plugin.of, plugin.name, plugin.sized)
        )
        pod.entries.append(Entry(pod.uid, "main", plugin.resource, ids, plugin.answer([card])))
        self.kubelet.gives(pod.entries[-1])
        if plugin.with_it:
            of_memory = tuple(f"{plugin.with_it}-{self.count}-{n}" for n in range(4))
            pod.entries.append(Entry(pod.uid, "main", plugin.with_it, of_memory, plugin.answer([])))
            self.kubelet.gives(pod.entries[-1])

    # Time and mishaps

    @rule(seconds=st.sampled_from([1.0, 30.0, 200.0]), full=st.booleans())
    def time_passes(self, seconds: float, full: bool) -> None:
        self.now += seconds
        self.follow(full=full)

    @rule(data=st.data())
    def mishap(self, data: Any) -> None:
        """One of several, so that more of a node's life is the life of pods."""
        kinds = [self.agent_restarts, self.kubelet_restarts, self.api_server_is_away]
        if not self.forgotten() and not any(use.sized for pod in self.pods if pod.alive for use in pod.uses):
            # Into how many shares another plugin cut a card stands in our checkpoint alone once we serve.
            kinds += [self.our_checkpoint_is_lost, self.our_checkpoint_is_an_older_one]
        if self.cards.vendor != "nvidia":
            kinds.append(self.others_slice_a_card)
        data.draw(st.sampled_from(kinds), "mishap")(data)

    def agent_restarts(self, data: Any) -> None:
        self.start()

    def our_checkpoint_is_lost(self, data: Any) -> None:
        self.kubelet.write()
        self.saved = [b""]
        self.start()

    def our_checkpoint_is_an_older_one(self, data: Any) -> None:
        self.kubelet.write()
        self.saved = self.saved[: data.draw(st.integers(1, len(self.saved)), "older")]
        self.start()

    def kubelet_restarts(self, data: Any) -> None:
        self.kubelet.begins(self.kubelet.books)
        assert self.agent is not None
        self.agent.registered.clear()
        self.speak()

    def api_server_is_away(self, data: Any) -> None:
        """Until it answers again; what the kubelet forgot meanwhile nobody could tell from what ended."""
        self.knows_pods = not self.knows_pods or bool(self.forgotten())

    def others_slice_a_card(self, data: Any) -> None:
        free = [it.uuid for it in self.cards.plain if all(use.card != it.uuid for use in self.uses())]
        if free and self.cards.others_slice(data.draw(st.sampled_from(free), "card")):
            assert self.agent is not None
            self.agent.discover()
            self.speak()

    def forgotten(self) -> set[tuple[str, str, str]]:
        """What of living pods the kubelet knows no more."""
        kept = {(it.uid, it.container, it.resource) for it in self.kubelet.books}
        its = ((pod.uid, it.container, it.resource) for pod in self.pods if pod.alive for it in pod.entries)
        return {*its} - kept

    def in_the_end_all_cards_can_be_had_again(self) -> None:
        for pod in self.pods:
            pod.alive = pod.waits = pod.listed = False
        self.cards.slices = [it for it in self.cards.slices if it.mark is not None]
        self.knows_pods = True
        self.now += SETTLE
        for _ in range(3):
            self.frees()
            self.kubelet.write()
            self.now += max(GRACE, DOUBT_AGAIN)
            self.follow(full=True)
        assert self.agent is not None
        self.agent.discover()
        self.speak()
        assert not self.agent.ledger.in_use(), "what is over is still in use"
        assert not self.cards.slices, "slices of pods that are over are still there"
        fresh = Life(self)
        fresh.begin(b"")
        fresh.configure(self.text)
        fresh.discover()
        for name, resource in fresh.plan.items():
            assert self.kubelet.lists.get(name) == listed(resource), f"{name} is not listed as on a new node"
        name = next(iter(fresh.plan))
        assert self.run(self.agent.allocate(name, self.kubelet.free(name)[:1]))


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=10 * settings().max_examples // 3, stateful_step_count=20)
