"""Stretches of time beside Koordinator: minutes with a koordlet, others without the API server, an idle hour.

A speed above 1 shortens a stretch, koordlet's rounds and what the agent does at the API server alike.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

from cluster.koordlets import Koordlet, from_files, pod
from scenarios.kubelets import Kind as KubeletKind
from support.short_places import SHORT_PLACE

from agent.testing.simapi import SimApiServer

from .bed import LOOK, Bed, Broken, bed
from .hardware import Card
from .invariants import Violation
from .node import SPEED
from .traffic import Traffic

#: Seconds: beside a koordlet, from one round of it to the next, and without the API server.
BESIDE, ROUND, AWAY = 600.0, 3.0, 300.0
#: Seconds of a node where nothing happens, and from one heartbeat of its kubelet to the next; it is lived so
#: many times as fast as the others. And how often the agent may write meanwhile, whatever it is.
IDLE, HEARTBEAT, HASTE = 3600.0, 300.0, 12.0
WRITES = ("create", "update", "patch", "delete")
ADMISSIONS = 50
#: Seconds in which all must be told once there is somebody to tell it to, at any speed.
CAP = 30.0
NODE = "node"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
CHOSEN = "how the cards are reported to Koordinator"
LAYOUT = "plain"


@dataclass(slots=True)
class Stretch:
    """What was seen. `seconds` are those of the stretch, which took so many times less as `speed` says."""

    name: str
    seconds: float
    speed: float
    seen: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        seen = ", ".join(f"{what}: {count}" for what, count in self.seen.items())
        outcome = "; ".join(map(str, self.violations)) or "holds"
        return f"{self.name}, {self.seconds:g} s at speed {self.speed:g} ({seen}): {outcome}"


@dataclass(frozen=True, slots=True)
class Case:
    """A koordlet beside the agent. `writes`: how often that may write the Device before it knows of it."""

    name: str
    mode: str
    shown: bool
    writes: int
    fed: bool = True


CASES = (
    Case("beside a koordlet that its pod shows", "auto", shown=True, writes=0),
    Case("beside a koordlet that no pod shows", "auto", shown=False, writes=1),
    Case(
        "report.mode device beside a koordlet that no pod shows", "device", shown=False, writes=1, fed=False
    ),
)


class Beside:
    """The API server and the directory of files, as the agent's process and the koordlet have them."""

    def __init__(self, server: SimApiServer, node: Bed, infos: Path) -> None:
        self.server = server
        self.node = node
        self.infos = infos

    def cards(self) -> Mapping[int, bool] | None:
        """The cards of the Device and their health, by minor; None where there is no Device."""
        device: Any = self.server.find("Device", NODE)
        its = device["spec"].get("devices", ()) if device else ()
        return {it["minor"]: it["health"] for it in its} if device else None

    def truth(self) -> Mapping[int, bool]:
        broken = self.node.hardware.broken
        return {it.index: it not in broken for it in self.node.hardware.cards()}

    def writes(self) -> int:
        asked = (it for it in self.server.requests if it.path.startswith(DEVICES))
        return sum(it.verb in WRITES for it in asked)

    def choices(self) -> list[str]:
        """Which ways the agent's processes went, one after another."""
        lines = self.node.agent.log.read_text(errors="replace").splitlines()
        modes = (json.loads(it)["mode"] for it in lines if f'"{CHOSEN}"' in it)
        return [mode for mode, _ in groupby(modes)]


@asynccontextmanager
async def _beside(kubelet: KubeletKind, mode: str, speed: float, *before: Any) -> AsyncIterator[Beside]:
    with tempfile.TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        root, infos = Path(name), Path(name) / "infos"
        infos.mkdir()
        async with SimApiServer() as server:
            server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            for it in before:
                server.put_object(it)
            environment = {
                "XPU_AGENT_KUBECONFIG": str(server.kubeconfig(root / "kubeconfig")),
                SPEED: str(speed),
            }
            report = {"mode": mode, "deviceInfosDir": str(infos)}
            async with bed(kubelet, LAYOUT, root, report, environment) as node:
                yield Beside(server, node, infos)


async def beside_koordlet(kubelet: KubeletKind, case: Case, speed: float = 1.0) -> Stretch:
    """A koordlet that does its rounds, each begun anew once, as the agent is, and a card that breaks."""
    stretch = Stretch(case.name, BESIDE, speed)
    before = [pod(NODE)] if case.shown else []
    async with _beside(kubelet, case.mode, speed, *before) as here:
        if not case.shown:
            await _within(lambda: here.cards() == here.truth(), stretch, "the Device has our cards at first")
        koordlet = Koordlet(here.server, NODE)
        rounds = int(BESIDE / ROUND)
        begun = time.monotonic()
        for number in range(rounds):
            if number == rounds // 3:
                await here.node.agent.kill()
                await here.node.agent.start()
            if number == rounds // 2:
                here.node.hardware.fail(here.node.hardware.cards()[0])
            if number in (0, rounds * 2 // 3):
                koordlet.report([])  # before its first look at files
            koordlet.report((from_files(here.infos) or []) if case.fed else [])
            await asyncio.sleep(max(0.0, begun + (number + 1) * ROUND / speed - time.monotonic()))
        await _settled(here, koordlet, case, stretch)
    return stretch


async def _settled(here: Beside, koordlet: Koordlet, case: Case, stretch: Stretch) -> None:
    def told() -> bool:
        koordlet.report((from_files(here.infos) or []) if case.fed else [])
        return here.cards() == (here.truth() if case.fed else {})

    await _within(told, stretch, "the Device is as koordlet tells it")
    # An agent that nobody shows a koordlet to finds it once in each life, by what it undoes.
    lives, writes, choices = here.node.agent.starts, here.writes(), here.choices()
    stretch.seen |= {"writes of the agent": writes, "of koordlet": koordlet.writes, "lives": lives}
    allowed = case.writes * (1 if case.fed else lives)
    if writes > allowed:
        stretch.violations.append(Violation("flap", f"{writes} writes of the agent, {allowed} at most"))
    if len(choices) > (2 if case.fed else 2 * lives):
        stretch.violations.append(Violation("flap", f"the ways followed each other: {choices}"))
    stretch.violations += [Violation("exit", it) for it in here.node.agent.unplanned]


async def without_the_api_server(kubelet: KubeletKind, speed: float = 1.0, seed: int = 1) -> Stretch:
    """Admissions while nobody answers, a card that breaks and one that is cordoned; then all is told."""
    stretch = Stretch("without the API server", AWAY, speed)
    async with _beside(kubelet, "device", speed) as here:
        node = here.node
        await _within(lambda: here.cards() == here.truth(), stretch, "the Device has our cards at first")
        before = here.writes()
        await here.server.go_away()
        refused = await _admissions(node, Traffic(node, Random(seed)), AWAY / speed)
        stretch.seen |= {"admissions": ADMISSIONS, "refused": len(refused), "pods": len(node.pods)}
        stretch.violations += [Violation("outage", f"refused: {it}") for it in refused]
        await here.server.come_back()
        await _within(lambda: here.cards() == _told(here), stretch, "the Device catches up")
        try:
            await node.settle()
        except Broken as exc:
            stretch.violations += exc.violations
        stretch.seen["writes of the agent after it"] = after = here.writes() - before
        if after > 2:
            stretch.violations.append(Violation("outage", f"{after} writes to catch up, 2 at most"))
    return stretch


async def idle(kubelet: KubeletKind, speed: float = HASTE) -> Stretch:
    """An hour of heartbeats, in which the agent looks at all that it keeps, and has nothing to write."""
    stretch = Stretch("an idle hour", IDLE, speed)
    async with _beside(kubelet, "auto", speed) as here:
        await _within(lambda: here.cards() == here.truth(), stretch, "the Device has our cards at first")
        before, told = len(here.server.requests), here.writes()
        for beat in range(int(IDLE / HEARTBEAT)):
            await asyncio.sleep(HEARTBEAT / speed)
            node: Any = here.server.find("Node", NODE)
            at = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:{beat:02}:00Z"}
            here.server.put_object({**node, "status": {**node.get("status", {}), "conditions": [at]}})
        asked = here.server.requests[before:]
        writes = [f"{it.verb} {it.path}" for it in asked if it.verb in WRITES]
        looks = sum(it.verb == "get" and it.path == f"{DEVICES}/{NODE}" for it in asked)
        stretch.seen |= {"looks at the Device": looks, "writes of the agent": len(writes)}
        if len(writes) > 1 or told != 1:
            stretch.violations.append(Violation("idle", f"{told} writes at first; then {writes}, 1 at most"))
        if looks < 4:
            stretch.violations.append(Violation("idle", f"{looks} looks at the Device say nothing of writes"))
    return stretch


def _told(here: Beside) -> Mapping[int, bool]:
    """What is to be told in the end: nobody gets a cordoned card either."""
    cordoned = {it.index for it in here.node.hardware.cordoned}
    return {minor: well and minor not in cordoned for minor, well in here.truth().items()}


async def _admissions(node: Bed, traffic: Traffic, seconds: float) -> Sequence[str]:
    """So many pods over the time, each with room for it; returns those that were not admitted."""
    refused, begun = [], time.monotonic()
    for number in range(ADMISSIONS):
        if number == ADMISSIONS // 3:
            node.hardware.fail(Card("simulated", 0))
        if number == ADMISSIONS // 2:
            card = Card("simulated", 1)
            if not await node.say("cordon", card):
                node.hardware.cordoned.add(card)
        if number in (ADMISSIONS // 3, ADMISSIONS // 2):
            await node.until(node.counted)
        offer = node.hardware.offers[number % len(node.hardware.offers)]
        it = traffic.single(offer)
        while node.free(offer) < 1:
            await node.delete(next(uid for uid, pod in node.pods.items() if _asks(pod, offer.name)))
        if not await node.admit(it):
            refused.append(node.history[-1])
        await asyncio.sleep(max(0.0, begun + (number + 1) * seconds / ADMISSIONS - time.monotonic()))
    return refused


def _asks(pod: Any, resource: str) -> bool:
    return any(resource in it.limits for it in pod.containers)


async def _within(condition: Callable[[], bool], stretch: Stretch, what: str) -> None:
    until = time.monotonic() + CAP
    while not condition():
        if time.monotonic() > until:
            stretch.violations.append(Violation("late", f"it does not come that {what}"))
            return
        await asyncio.sleep(LOOK)


async def all_of(kubelet: KubeletKind, speed: float = 1.0, cases: Sequence[Case] = CASES) -> list[Stretch]:
    """Every stretch, at the same time; beside koordlet those of the cases."""
    beside = (beside_koordlet(kubelet, it, speed) for it in cases)
    others = (without_the_api_server(kubelet, speed), idle(kubelet, HASTE * speed))
    return list(await asyncio.gather(*beside, *others))
