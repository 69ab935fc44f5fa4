"""The steps of the demo. Each step does something real, waits for the effect, and returns the evidence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from agent.demo.stage import REPLICAS, SHARED, WHOLE, Stage
from agent.http.inspect_document import InspectDocument, InspectedAllocation, InspectedHealth
from agent.http.usage.usage_document import UsageDocument, UsingContainer
from agent.testing.node_kubelet import Capacity
from agent.vendor_api.agent import Proof

Evidence = Mapping[str, object]

LABELS = {
    "xpu-agent.io/simulated.count": "4",
    "xpu-agent.io/simulated.memory": "81920",
    "xpu-agent.io/simulated.product": "Simulated-H100-80GB",
}

#: What the pods use of their cards at one look and at the next: GiB, and the part of the time.
USES = (
    {"trainer": (24, 0.35), "notebook-0": (6, 0.1), "notebook-1": (3, 0.0)},
    {"trainer": (61, 0.97), "notebook-0": (11, 0.25), "notebook-1": (3, 0.6)},
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step does not hold where `play` raises AssertionError or takes more than `seconds`."""

    name: str
    says: str
    play: Callable[[Stage], Awaitable[Evidence]]
    seconds: float = 20.0


async def devices_found(stage: Stage) -> Evidence:
    await stage.start_agent()
    document = await stage.until(lambda it: len(it.devices) == 4)
    return {
        device.uuid: (
            f"{device.model}, NUMA {device.numa}, {device.memory_bytes >> 30} GiB, {device.health.state}"
        )
        for device in document.devices
    }


async def kubelet_sees_them(stage: Stage) -> Evidence:
    await stage.kubelet.wait(
        lambda it: it.counts() == {WHOLE: Capacity(2, 2), SHARED: Capacity(2 * REPLICAS, 2 * REPLICAS)}
    )
    await stage.api.wait(lambda _: stage.labels() == LABELS)
    return {**_counts(stage), **{f"the Node's label {key}": it for key, it in LABELS.items()}}


async def pod_admitted(stage: Stage) -> Evidence:
    pod = await stage.admit("trainer", {WHOLE: 1})
    options = await stage.kubelet.run_options(pod.uid, "main")
    assert options.env["XPU_VISIBLE_DEVICES"] in stage.scenario.uuids[:2], options.env
    shared = [await stage.admit(f"notebook-{n}", {SHARED: 1}) for n in range(2)]
    cards = [(await stage.kubelet.run_options(it.uid, "main")).env["XPU_VISIBLE_DEVICES"] for it in shared]
    assert len(set(cards)) == 2, f"two notebooks share {cards[0]} while another card is free"
    await stage.until(lambda it: _owners(it) >= {"trainer", "notebook-0", "notebook-1"})
    return {
        "trainer's environment": dict(options.env),
        "trainer's annotations": dict(options.annotations),
        "notebooks": "spread over both shared cards",
    }


async def cards_used(stage: Stage) -> Evidence:
    looks = [await _look(stage, uses) for uses in USES]
    stage.processes.sway()
    shown = {name: ", then ".join(look[name] for look in looks) for name in USES[0]}
    return {**shown, "live, in another terminal": f"xpu-agent top --state-dir {stage.state_dir}"}


async def card_breaks(stage: Stage) -> Evidence:
    broken = stage.scenario.uuids[2]
    stage.scenario.fault(
        broken, "xid-79", "GPU has fallen off the bus", cleared_by=(Proof.RESET, Proof.REBOOT)
    )
    await stage.kubelet.wait(lambda it: it.counts()[SHARED].allocatable == REPLICAS)
    assert stage.kubelet.counts()[WHOLE] == Capacity(2, 2), "another card's IDs went too"
    document = await stage.inspect()
    health = _health(document, broken)
    return {**_counts(stage), broken: f"{health.state}: {health.reason}, {health.message}"}


async def card_repaired(stage: Stage) -> Evidence:
    broken = stage.scenario.uuids[2]
    stage.scenario.heal(broken)
    document = await stage.until(lambda it: _health(it, broken).state == "unhealthy")
    before = _health(document, broken)
    stage.scenario.heal(broken, Proof.RESET)
    await stage.kubelet.wait(lambda it: it.counts()[SHARED].allocatable == 2 * REPLICAS)
    return {
        "good readings alone": f"still {before.state} ({before.reason})",
        "with proof of a reset": "healthy",
        **_counts(stage),
    }


async def library_crashes(stage: Stage) -> Evidence:
    streams, lists = dict(stage.kubelet.journal.streams), dict(stage.kubelet.journal.lists)
    stage.scenario.crash()
    await stage.until(lambda it: _state(it) == "failed")
    pod = await stage.admit("during-the-crash", {SHARED: 1})
    await stage.until(lambda it: _state(it) == "open")
    assert dict(stage.kubelet.journal.streams) == streams, "a stream was opened again"
    assert dict(stage.kubelet.journal.lists) == lists, "the kubelet was told of a change"
    await stage.delete(pod)
    return {
        "the vendor's process": "died of SIGSEGV and was replaced",
        "a pod admitted meanwhile": "got its card",
        "what the kubelet noticed": "nothing",
    }


async def kubelet_restarts(stage: Stage) -> Evidence:
    before = stage.kubelet.journal.registrations.copy()
    await stage.kubelet.restart()
    shared = Capacity(2 * REPLICAS, 2 * REPLICAS)
    await stage.kubelet.wait(lambda it: it.counts() == {WHOLE: Capacity(2, 2), SHARED: shared})
    again = {name: count - before[name] for name, count in stage.kubelet.journal.registrations.items()}
    assert again == {WHOLE: 1, SHARED: 1}, f"registrations after the restart: {again}"
    return {"registered again, once each": sorted(again), **_counts(stage)}


async def api_server_goes(stage: Stage) -> Evidence:
    registrations = stage.kubelet.journal.registrations.copy()
    await stage.until(lambda it: _follows(it) and stage.api.watchers)
    await stage.api.go_away()
    await stage.until(lambda it: it.api_server and it.api_server.error)
    pod = await stage.admit("during-the-outage", {SHARED: 1})
    card = (await stage.kubelet.run_options(pod.uid, "main")).env["XPU_VISIBLE_DEVICES"]
    broken = next(it for it in stage.scenario.uuids[2:] if it != card)
    stage.scenario.fault(broken, "xid-48", "double bit error", cleared_by=(Proof.RESET,))
    await stage.kubelet.wait(lambda it: it.counts()[SHARED].allocatable == REPLICAS)
    stage.scenario.heal(broken, Proof.RESET)
    await stage.kubelet.wait(lambda it: it.counts()[SHARED].allocatable == 2 * REPLICAS)
    await stage.api.come_back()
    await stage.until(lambda it: _follows(it) and stage.api.watchers)
    await stage.delete(pod)
    await stage.until(lambda it: _states(it, "during-the-outage") == {"released"})
    assert stage.kubelet.journal.registrations == registrations, "the kubelet was registered with again"
    return {
        "a pod admitted meanwhile": f"got {card}",
        broken: "broke and was repaired; the kubelet heard of both",
        "the agent": "knew that it is away, and follows it again",
        **_counts(stage),
    }


async def agent_killed(stage: Stage) -> Evidence:
    held = {it.id for it in (await stage.inspect()).allocations if it.state == "done"}
    await stage.kill_agent()
    await stage.kubelet.wait(lambda it: it.counts()[WHOLE].allocatable == 0)
    await stage.start_agent()
    await stage.kubelet.wait(lambda it: it.counts()[WHOLE].allocatable == 2)
    document = await stage.until(lambda it: _owners(it) >= {"trainer", "notebook-0", "notebook-1"})
    kept = {it.id for it in document.allocations}
    assert held <= kept, f"allocations lost: {sorted(held - kept)}"
    return {
        "the agent": "killed with SIGKILL",
        "the next agent": f"knows all {len(held)} allocations from the checkpoint",
        **_counts(stage),
    }


async def pod_goes(stage: Stage) -> Evidence:
    trainer = stage.pods["trainer"]
    card = next(it.devices[0] for it in (await stage.inspect()).allocations if _pod(it) == "trainer")
    await stage.delete(trainer)
    document = await stage.until(lambda it: _states(it, "trainer") == {"released"})
    pods = [await stage.admit(f"next-{n}", {WHOLE: 1}) for n in range(2)]
    cards = {(await stage.kubelet.run_options(it.uid, "main")).env["XPU_VISIBLE_DEVICES"] for it in pods}
    assert card in cards, f"{card} was not given out again"
    reason = next(it.reason for it in document.allocations if _pod(it) == "trainer")
    return {"trainer's allocation": f"released ({reason})", "its card": f"{card} went to a new pod"}


async def goodbye(stage: Stage) -> Evidence:
    status = await stage.end_agent()
    assert status == 0, f"exit status {status}"
    await stage.kubelet.wait(lambda it: it.counts()[WHOLE].allocatable == 0)
    assert stage.labels() == LABELS, f"labels of the Node: {stage.labels()}"
    return {
        "SIGTERM": "exit 0",
        "sockets left behind": len(list(stage.kubelet.plugin_dir.glob("xpu-*"))),
        "the Node's labels": "stay, for pods select by them",
    }


STORY = (
    Step("devices found", "The agent starts and finds four cards.", devices_found),
    Step(
        "kubelet sees them",
        f"Two cards go out whole, two as {REPLICAS} replicas each; the Node is labelled.",
        kubelet_sees_them,
    ),
    Step("pods admitted", "A trainer gets a whole card, two notebooks share the others.", pod_admitted),
    Step("cards are used", "The agent sees what each container uses of its card.", cards_used),
    Step("a card breaks", "One card falls off the bus: its replicas go, no other ID does.", card_breaks),
    Step("repaired by proof", "Looking well again is not enough; a reset is proof.", card_repaired),
    Step("the library crashes", "The vendor's library segfaults. No other part notices.", library_crashes),
    Step("the kubelet restarts", "It wipes every socket; the agent registers again.", kubelet_restarts),
    Step(
        "the API server goes away",
        "Nothing stops: pods get cards, faults are told. Then it is back.",
        api_server_goes,
        seconds=30.0,
    ),
    Step("the agent is killed", "SIGKILL. The next one continues from the checkpoint.", agent_killed),
    Step("the pod goes", "Its card is free again, and the ledger knows.", pod_goes),
    Step("goodbye", "SIGTERM: streams end in order.", goodbye),
)


def _counts(stage: Stage) -> dict[str, object]:
    return {
        name: f"{capacity.allocatable} of {capacity.capacity} allocatable"
        for name, capacity in sorted(stage.kubelet.counts().items())
    }


async def _look(stage: Stage, uses: Mapping[str, tuple[int, float]]) -> Mapping[str, str]:
    """Let the pods use so much of their cards; returns what the agent says of each pod then."""
    for name, (gigabytes, busy) in uses.items():
        pod = stage.pods[name]
        card = (await stage.kubelet.run_options(pod.uid, "main")).env["XPU_VISIBLE_DEVICES"]
        stage.processes.use(pod, card, gigabytes << 30, busy)
    wanted = {(name, "main", gigabytes << 30, busy) for name, (gigabytes, busy) in uses.items()}
    document = await stage.until_used(lambda it: wanted <= _figures(it))
    return {it.pod: _use(it) for it in document.containers}


def _figures(document: UsageDocument) -> set[tuple[object, ...]]:
    return {(it.pod, it.container, it.memory_bytes, it.utilization) for it in document.containers}


def _use(container: UsingContainer) -> str:
    return f"{(container.memory_bytes or 0) >> 30} GiB, {container.utilization or 0:.0%} busy"


def _follows(document: InspectDocument) -> bool:
    server = document.api_server
    return server is not None and server.synced and not server.error


def _health(document: InspectDocument, uuid: str) -> InspectedHealth:
    return next((it.health for it in document.devices if it.uuid == uuid), InspectedHealth())


def _state(document: InspectDocument) -> str:
    """The state of the vendor of the demo's cards. Other installed vendors are in the document too."""
    return next((it.state for it in document.vendors if it.name == "simulated"), "")


def _pod(allocation: InspectedAllocation) -> str:
    return allocation.owner.pod if allocation.owner else ""


def _owners(document: InspectDocument) -> set[str]:
    return {_pod(it) for it in document.allocations if it.state == "done"}


def _states(document: InspectDocument, pod: str) -> set[str]:
    return {it.state for it in document.allocations if _pod(it) == pod}
