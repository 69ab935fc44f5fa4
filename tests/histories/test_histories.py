"""No card is given out beyond its share, in any unit, whatever a node has been through."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from agent.scheduler_api import PodContainer

from . import configs, plugins
from .cards import MAKES
from .kubelet import Entry
from .life import DOUBT_AGAIN, GRACE, SETTLE, Life, listed
from .mishaps import Mishaps
from .plugins import Plugin
from .uses import Use


class History(Mishaps):
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
        self.cards = MAKES[vendor]()
        self.lists_ended = lists_ended
        self.sees_cgroups = sees_cgroups
        if data.draw(st.booleans(), "another plugin was here before"):
            self.another_plugin_serves(data)
        self.text = data.draw(st.sampled_from(configs.OF[vendor]), "config")
        self.start()

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

    def in_the_end_all_cards_can_be_had_again(self) -> None:
        for pod in self.pods:
            pod.alive = pod.waits = pod.listed = False
        self.cards.slices = [it for it in self.cards.slices if it.mark is not None]
        self.knows_pods = True
        assert self.agent is not None
        for card in self.cordoned:
            self.agent.command("uncordon", card)
        self.now += SETTLE
        for _ in range(3):
            self.frees()
            self.kubelet.write()
            self.now += max(GRACE, DOUBT_AGAIN)
            self.follow(full=True)
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
