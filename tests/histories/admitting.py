"""Pods that come and go: what schedulers, the kubelet and containers do with the agent for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from agent.core.errors import AllocationError, VendorError
from agent.scheduler_api import PodContainer

from .kubelet import Entry
from .life import Killed
from .node import Node, Pod
from .scheduler import Extender, GcuShare, Koordinator, Scheduler, Wish
from .uses import Use

#: What of a card a pod of slices asks for by its limits: percent, and bytes.
AMOUNTS = (None, (10, 1 << 30), (60, 40 << 30), (100, 64 << 30))


class Admitting(Node):
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
        bound = [self.bound(name, data, served) for name in names]
        pods = data.draw(st.permutations(bound), "the kubelet's order")
        for pod in pods:
            pod.appeared = self.appeared = self.appeared + 1
        self.admit_all(pods, data)

    def admit_all(self, pods: Sequence[Pod], data: Any) -> None:
        """What becomes of bound pods, in the order in which the kubelet takes them."""
        assert self.agent is not None
        self.agent.dies_at = data.draw(st.sampled_from([""] * 12 + ["intent", "prepared", "done"]), "dies at")
        self.agent.dies_after = data.draw(st.booleans(), "dies after it") if self.agent.dies_at else False
        hears_late = data.draw(st.sampled_from([False] * 5 + [True]), "the kubelet hears late")
        before = dict(self.kubelet.lists)
        self.speak()
        if hears_late:
            self.kubelet.lists = before
        for pod in pods:
            self.admitted(pod, data)
        assert self.agent is not None
        self.agent.dies_at = ""

    def bound(self, name: str, data: Any, served: Sequence[str]) -> Pod:
        """A pod as its scheduler binds it; one that promises cards knows of its own pods alone."""
        resource = data.draw(st.sampled_from(served), "resource")
        chooses = self.scheduler(resource)
        if chooses is not None and data.draw(st.sampled_from([True, True, False]), "a scheduler chooses"):
            wishes = chooses.wishes(resource, self.shares(resource))
            wish = data.draw(st.sampled_from(wishes), "promised")
            if cards := wish.with_room(self.cards.plain, self.promised(wish)):
                card = data.draw(st.sampled_from(cards), "its choice")
                limits = {resource: wish.count, **(wish.limits or {})}
                pod = self.pod(name, (PodContainer("main", limits),))
                pod.chosen, pod.percent = (card.uuid, wish.amount), wish.percent
                pod.scheduler, pod.annotations = chooses.name, chooses.said(card, wish, self.now)
                return pod
        return self.pod(name, self.shape(data, resource))

    @rule(data=st.data())
    def a_card_is_given_by_word_alone(self, data: Any) -> None:
        """To a pod that asks no device plugin: a scheduler's annotation is all that says so."""
        assert self.agent is not None
        heard = [it.name for it in self.agent.plan.values() if it.rule.placement == "auto"]
        if self.cards.vendor != "nvidia" or not heard:
            return
        chooses = Koordinator()
        wish = data.draw(st.sampled_from(chooses.wishes(heard[0], 100)), "promised")
        if cards := wish.with_room(self.cards.plain, self.promised(wish)):
            card = data.draw(st.sampled_from(cards), "its choice")
            pod = self.pod(f"word-{self.count}", (PodContainer("main", wish.limits or {}),))
            pod.chosen, pod.scheduler = (card.uuid, wish.amount), chooses.name
            pod.annotations = chooses.said(card, wish, self.now)
            pod.waits, pod.alive = False, True
            pod.uses.append(
                Use(pod.uid, card.uuid, "share", frozenset({pod.uid}), by="word", percent=wish.percent)
            )
            self.speak()

    def promised(self, wish: Wish) -> Iterator[tuple[str, int]]:
        """Card and amount of each pod that is not over; GCUShare's shares no card in two ways."""
        for pod in self.pods:
            if pod.chosen and (pod.alive or pod.waits):
                card, amount = pod.chosen
                other = self.cards.vendor == "enflame" and wish.resource not in pod.shape[0].limits
                yield card, wish.whole if other else amount

    def scheduler(self, resource: str) -> Scheduler | None:
        """Who chooses cards for the pods that ask for it."""
        assert self.agent is not None
        planned = self.agent.plan.get(resource)
        if planned is None or planned.rule.placement != "auto":
            return None
        if self.cards.vendor == "nvidia":
            return Koordinator() if planned.rule.sharing.kind == "replicas" else None
        if self.cards.vendor == "enflame" and "gcushare-v4" in self.text:
            return GcuShare()
        return Extender() if self.cards.vendor == "enflame" and "gcushare-v1" in self.text else None

    def shares(self, resource: str) -> int:
        assert self.agent is not None
        return self.agent.sharing(resource).replicas

    def is_heard(self, resource: str) -> bool:
        """Whether percents are asked for: of shares of several cards no answer says how many."""
        return isinstance(self.scheduler(resource), Koordinator)

    def shape(self, data: Any, resource: str) -> tuple[PodContainer, ...]:
        """Containers of one resource each; the setup first, as the kubelet takes it."""
        names = data.draw(st.sampled_from([("main",), ("main",), ("setup", "main"), ("main", "side")]), "has")
        found = []
        for name in names:
            counts = [1] if self.is_heard(resource) else [1, 1, 1, 2, 4]
            limits: dict[str, int] = {resource: data.draw(st.sampled_from(counts), "count")}
            amount = data.draw(st.sampled_from(AMOUNTS), "amount") if self.cards.vendor == "metax" else None
            if amount is not None:
                limits |= {"koordinator.sh/gpu-core": amount[0], "koordinator.sh/gpu-memory": amount[1]}
            found.append(PodContainer(name, limits, init=name == "setup"))
        return tuple(found)

    def admitted(self, pod: Pod, data: Any) -> None:
        """What the kubelet does for each container, until one cannot be had."""
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
        cards = {it.card for it in fresh} or set(self.cards.named(answer))
        self.is_new_on(cards, resource)
        self.holds(cards, agent, resource)
        self.kubelet.gives(entry)
        return True

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
