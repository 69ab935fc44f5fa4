"""Reconcile against a model of a kubelet: nothing that lives is released, everything dead is, in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.core.ledger import Ledger
from agent.core.model import AllocationState
from agent.core.reconcile import Granted, Pods, Release, reconcile

from .values import GPU, allocation

GRACE = 60.0
IDS = ("a", "b", "c")


@dataclass
class Entry:
    """A container's devices as the kubelet keeps them."""

    uid: str
    container: str
    ids: frozenset[str]
    allocation: str


@dataclass
class Pod:
    name: str
    uid: str
    containers: dict[str, frozenset[str]] = field(default_factory=dict)
    alive: bool = True
    listed: bool = True


class Kubelet(RuleBasedStateMachine):
    """Frees devices late, writes its checkpoint later, hides init containers, rejects pods half-way."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.pods: list[Pod] = []
        self.entries: list[Entry] = []
        self.disk: list[Granted] = []
        self.now = 1000.0
        self.count = 0
        self.lists_ended = False

    @initialize(lists_ended=st.booleans())
    def version(self, lists_ended: bool) -> None:
        self.lists_ended = lists_ended  # kubelets up to 1.33 do

    @rule(
        name=st.sampled_from(["web-0", "web-1", "job"]),
        wants=st.lists(
            st.tuples(st.sampled_from(["setup", "main", "side"]), st.integers(1, 2)),
            min_size=1,
            max_size=3,
            unique_by=lambda it: it[0],
        ),
        rejected=st.booleans(),
    )
    def admit(self, name: str, wants: list[tuple[str, int]], rejected: bool) -> None:
        if any(pod.name == name and (pod.alive or pod.listed) for pod in self.pods):
            return
        self.free_devices()
        self.count += 1
        pod = Pod(name, f"uid-{self.count}")
        reusable: list[str] = []
        for container, count in sorted(wants, key=lambda it: it[0] != "setup"):
            taken = {device_id for entry in self.entries for device_id in entry.ids}
            ids = (reusable + [it for it in IDS if it not in taken])[:count]
            if len(ids) < count:
                rejected = True
                break
            self.allocate(pod, container, frozenset(ids))
            reusable = ids if container == "setup" else [it for it in reusable if it not in ids]
            if not rejected:
                self.write_checkpoint()
        pod.alive = pod.listed = not rejected
        self.pods.append(pod)

    def allocate(self, pod: Pod, container: str, ids: frozenset[str]) -> None:
        self.now += 1
        it = allocation(f"{pod.uid}-{container}", sorted(ids), since=self.now)
        self.ledger.record(it)
        self.entries.append(Entry(pod.uid, container, ids, it.id))
        pod.containers[container] = ids

    @precondition(lambda self: any(pod.alive for pod in self.pods))
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        pod = data.draw(st.sampled_from([pod for pod in self.pods if pod.alive]), "ends")
        pod.alive = False
        pod.listed = self.lists_ended

    @rule()
    def delete_ended(self) -> None:
        for pod in self.pods:
            pod.listed = pod.alive

    @rule()
    def free_devices(self) -> None:
        alive = {pod.uid for pod in self.pods if pod.alive}
        self.entries = [entry for entry in self.entries if entry.uid in alive]

    @rule()
    def write_checkpoint(self) -> None:
        self.disk = [Granted(it.allocation, it.uid, it.container) for it in self.entries]

    @rule()
    def agent_restarts(self) -> None:
        self.ledger = Ledger(self.ledger.all())

    @rule(seconds=st.sampled_from([1.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(checkpoint=st.booleans(), pod_resources=st.booleans())
    def reconcile(self, checkpoint: bool = True, pod_resources: bool = True) -> None:
        changes = reconcile(
            self.ledger.in_use(),
            self.disk if checkpoint else None,
            self.shown() if pod_resources else None,
            self.now,
            GRACE,
        )
        for change in changes:
            if isinstance(change, Release):
                assert checkpoint
                assert pod_resources
                self.ledger.release(change.allocation, change.reason, self.now)
            else:
                self.ledger.confirm(change.allocation, change.owner, alive=change.alive)

    @rule()
    def what_was_seen_alive_and_ended_is_released_without_the_checkpoint(self) -> None:
        self.delete_ended()
        self.now += GRACE
        seen = {it.id for it in self.ledger.in_use() if it.seen_alive}

        self.reconcile()

        assert not seen & self.in_use() - self.living()

    @rule()
    def once_the_checkpoint_is_written_all_that_ended_is_released(self) -> None:
        self.delete_ended()
        self.free_devices()
        self.write_checkpoint()
        self.now += GRACE

        self.reconcile()

        assert self.in_use() == self.living()

    @invariant()
    def nothing_that_lives_is_released(self) -> None:
        assert self.living() <= self.in_use()

    @invariant()
    def owners_are_true(self) -> None:
        pods = {pod.uid: pod.name for pod in self.pods}
        for it in self.ledger.all():
            if it.owner is not None:
                assert it.id == f"{it.owner.uid}-{it.owner.container}"
                assert self.lists_ended or it.owner.pod in ("", pods[it.owner.uid])

    def shown(self) -> Pods:
        return {
            ("default", pod.name): {
                container: {GPU: ids} for container, ids in pod.containers.items() if container != "setup"
            }
            for pod in self.pods
            if pod.listed
        }

    def living(self) -> set[str]:
        return {f"{pod.uid}-{container}" for pod in self.pods if pod.alive for container in pod.containers}

    def in_use(self) -> set[str]:
        return {it.id for it in self.ledger.all() if it.state is not AllocationState.RELEASED}


TestKubelet = Kubelet.TestCase
TestKubelet.settings = settings(max_examples=5 * settings().max_examples, stateful_step_count=30)
