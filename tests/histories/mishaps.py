"""Time, and what befalls a node: restarts, lost files, an operator, others' slices, an API server away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from agent.state.checkpoint import SavedState
from agent.state.file_envelope import opened

from .admitting import Admitting
from .kubelet import Entry


class Mishaps(Admitting):
    @rule(seconds=st.sampled_from([1.0, 30.0, 200.0]), full=st.booleans())
    def time_passes(self, seconds: float, full: bool) -> None:
        self.now += seconds
        self.follow(full=full)

    @rule(data=st.data())
    def mishap(self, data: Any) -> None:
        """One of several, so that more of a node's life is the life of pods."""
        kinds = [self.agent_restarts, self.kubelet_restarts, self.api_server_is_away, self.operator_speaks]
        if not self.forgotten() and not any(use.sized for pod in self.pods if pod.alive for use in pod.uses):
            # Into how many shares another plugin cut a card stands in our checkpoint alone once we serve.
            kinds += [self.our_checkpoint_is_lost, self.our_checkpoint_is_an_older_one]
        if self.knows_pods and not self.forgotten():
            kinds += [self.kubelet_loses_its_checkpoint, self.kubelets_checkpoint_is_an_older_one]
        if self.cards.vendor != "nvidia":
            kinds.append(self.others_slice_a_card)
        data.draw(st.sampled_from(kinds), "mishap")(data)

    def agent_restarts(self, data: Any) -> None:
        self.start()

    def our_checkpoint_is_lost(self, data: Any) -> None:
        self.kubelet.write()
        self.saved = [b""]
        self.cordoned = frozenset()
        self.start()

    def our_checkpoint_is_an_older_one(self, data: Any) -> None:
        self.kubelet.write()
        self.saved = self.saved[: data.draw(st.integers(1, len(self.saved)), "older")]
        self.cordoned = (
            frozenset(opened(self.saved[-1], SavedState).cordons) if self.saved[-1] else frozenset()
        )
        self.start()

    def kubelet_restarts(self, data: Any) -> None:
        self.kubelet_begins(self.kubelet.books)

    @rule(data=st.data())
    def pods_wait_for_a_kubelet(self, data: Any) -> None:
        """They are bound while it is away: it takes them by their age, and those of one second in any order.

        Who is bound afterwards comes after them.
        """
        served = sorted(filter(self.kubelet.free, self.kubelet.lists))
        if not served:
            return
        waiting = [self.bound(f"early-{self.count}-{n}", data, served) for n in range(3)]
        for pod in waiting:
            pod.appeared = self.appeared = self.appeared + 1
            pod.created -= data.draw(st.sampled_from([0.0, 1.0, 2.0]), "is older")
        self.kubelet_begins(self.kubelet.books)
        late = [self.bound(f"late-{self.count}", data, served)] if data.draw(st.booleans(), "more") else []
        for pod in late:
            pod.appeared = self.appeared = self.appeared + 1
            pod.created -= data.draw(st.sampled_from([0.0, 5.0]), "is older")
        in_any_order = data.draw(st.permutations(waiting), "the kubelet's order")
        self.admit_all([*sorted(in_any_order, key=lambda it: it.created), *late], data)

    def kubelet_loses_its_checkpoint(self, data: Any) -> None:
        """Pods that run go on, and nothing is asked for them.

        What the agent has not seen whose it is, nobody remembers.
        """
        self.kubelet_begins_with(b"", ())

    def kubelets_checkpoint_is_an_older_one(self, data: Any) -> None:
        """The same for pods that it does not have; those that have ended since, it lets go of again."""
        if self.kubelet.written:
            last = len(self.kubelet.written) - 1
            disk, books = self.kubelet.written[data.draw(st.integers(0, last), "older")]
            self.kubelet_begins_with(disk, books)

    def kubelet_begins_with(self, disk: bytes, books: Sequence[Entry]) -> None:
        self.follow(full=True)
        if self.knows_all_that_live():
            self.kubelet.disk = disk
            self.kubelet_begins(books)

    def knows_all_that_live(self) -> bool:
        assert self.agent is not None
        known = {
            (it.owner.uid, it.owner.container, it.resource)
            for it in self.agent.ledger.in_use()
            if it.owner is not None and it.owner.pod
        }
        return known.issuperset(self.had())

    def kubelet_begins(self, books: Sequence[Entry]) -> None:
        self.now += 0.01  # no two kubelets begin at one moment
        self.kubelet.begins(books, self.now)
        assert self.agent is not None
        self.agent.registered.clear()
        self.run(self.agent.kubelet_began())
        self.speak()

    def operator_speaks(self, data: Any) -> None:
        """A card is given to nobody new from now on, or again to all."""
        card = data.draw(st.sampled_from([it.uuid for it in self.cards.plain]), "card")
        assert self.agent is not None
        self.agent.command("uncordon" if card in self.cordoned else "cordon", card)
        self.cordoned ^= {card}
        self.run(self.agent.save(durable=True))
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
