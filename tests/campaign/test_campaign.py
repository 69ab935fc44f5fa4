"""The short forms of the campaign: every kind of fault with the real kubelet, some with the simulated one.

`make campaign` runs the long one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence

import pytest
from scenarios.kubelets import Kind as KubeletKind
from scenarios.kubelets import built, simulated
from scenarios.kubelets import kinds as kubelets_of

from .bed import Bed
from .faults import KINDS, Fault, Kind, enflame, metax
from .faults.fault import appends
from .hardware import SimulatedCards
from .run import Plan, Result, run
from .traffic import Traffic

#: What needs a card that is broken comes after what breaks one.
BREAKS = "card breaks until it is reset"
AFTER = {
    "card is reset": [BREAKS, "card is reset"],
    "operator clears a fault": [BREAKS, "operator clears a fault"],
}
LOADED = "driver loaded anew"
OF_METAX = [*(it.name for it in metax.KINDS), LOADED]
OF_ENFLAME = [*(it.name for it in enflame.KINDS), LOADED]
#: What a node without made hardware alone comes by.
APPENDED = frozenset(name for name, kind in KINDS.items() if kind.fits is appends)
OF_ANY = [kind for kind in KINDS if kind not in (*OF_METAX, *OF_ENFLAME, BREAKS)]
#: Those that only some kubelets can show.
PARTIAL = {"stream cut in the middle", "registration refused for a while", "kubelet frozen"}
OF_BOTH = ["slice lost under a container", "kill at allocate/prepared"]


def following(kinds: Iterable[str]) -> list[str]:
    """The names to strike for these kinds, with what has to come before."""
    return [name for kind in kinds for name in AFTER.get(kind, [kind])]


def parts(kinds: Sequence[str], count: int) -> list[list[str]]:
    """The kinds in so many parts, in their order. Short tests are sooner done by several processes."""
    size = -(-len(kinds) // count)
    return [following(kinds[start : start + size]) for start in range(0, len(kinds), size)]


HALF = len(OF_ANY) // 2
#: What is struck on which node: layout and names, a test each.
NODES = [
    *(("sliced", it) for it in parts([name for name in OF_ANY[:HALF] if name not in APPENDED], 3)),
    *(("mixed", it) for it in parts([*(it for it in OF_ANY[:HALF] if it in APPENDED), *OF_ANY[HALF:]], 3)),
    ("metax", [*OF_METAX, *OF_BOTH]),
    *(("enflame", it) for it in parts([*OF_ENFLAME, *OF_BOTH], 3)),
]
#: With the simulated kubelet: what it alone can show, and enough others to hold the campaign itself.
FEW = [
    ("mixed", following(kind for place, kind in enumerate(OF_ANY) if kind in PARTIAL or place % 6 == 0)),
    ("metax", [*OF_METAX, *OF_BOTH][::4]),
    ("enflame", [*OF_ENFLAME, *OF_BOTH][::6]),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind of fault with the newest device manager; a few where there is none."""
    if "kubelet" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--every-case")
    real = [it for it in kubelets_of(metafunc.config) if it.binary or every]
    use = real if every else (real or simulated())[:1]
    nodes = NODES if real else FEW
    cases = [(kubelet, layout, names) for kubelet in use for layout, names in nodes]
    ids = [f"{kubelet.id}-{layout}-{names[0]}" for kubelet, layout, names in cases]
    metafunc.parametrize(("kubelet", "layout", "names"), cases, indirect=["kubelet"], ids=ids)


@pytest.fixture
def kubelet(request: pytest.FixtureRequest) -> KubeletKind:
    return built(request)


@pytest.mark.timeout(300)
async def test_after_every_fault_everything_holds(
    kubelet: KubeletKind, layout: str, names: list[str]
) -> None:
    """So no slice is without an owner and no owner without a slice, wherever a library or a tool died."""
    result = await run(planned(kubelet, layout, names))

    assert not result.violations, told(result)
    struck = {name for it in result.struck for name in it.names}
    assert struck == {name for name in names if name not in PARTIAL} | (struck & PARTIAL)
    assert [str(it) for it in result.struck if not all(it.reached)] == []


def planned(kubelet: KubeletKind, layout: str, names: list[str]) -> Plan:
    kinds = [KINDS[name] for name in names]
    if kubelet.binary:
        kinds = [it for it in kinds if it.name not in PARTIAL or it.name == "kubelet frozen"]
    else:
        kinds = [it for it in kinds if it.name != "kubelet frozen"]
    return Plan(1, len(kinds), [kubelet], [layout], kinds, shuffled=False, both=0.0, chapter=len(kinds))


def told(result: Result) -> str:
    return "\n".join(f"{it}\n{it.evidence}" for it in result.struck if it.violations)


# What the campaign must see


class SliceOfSomebodyTaken(Fault):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        for it in bed.hardware.vendors.values():
            assert isinstance(it, SimulatedCards)
            it.write_slices([])


class KilledByNobody(Fault):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        assert bed.agent.pid is not None
        os.kill(bed.agent.pid, signal.SIGKILL)
        assert await bed.agent.ended()


class MoreThanThereIs(Fault):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        await bed.make_room(bed.hardware.offers[0], 100)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(SliceOfSomebodyTaken, "foreign"), (KilledByNobody, "exit"), (MoreThanThereIs, "campaign")],
)
async def test_what_does_not_hold_ends_the_campaign(fault: type[Fault], kind: str) -> None:
    plan = Plan(1, 5, simulated()[:1], ["sliced"], [Kind("doctored", fault)], cap=2.0)

    result = await run(plan)

    assert len(result.struck) == 1
    assert kind in {it.kind for it in result.violations}
    assert result.struck[0].evidence
