"""The short form of the campaign: every kind of fault once. `make campaign` runs the long one."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from scenarios.kubelets import REMEDY, simulated
from scenarios.kubelets import Kind as KubeletKind
from scenarios.kubelets import kinds as kubelets_of

from .bed import Bed
from .faults import KINDS, Fault, Kind
from .hardware import SimulatedCards
from .run import Plan, Result, run
from .traffic import Traffic

#: What needs a card that is broken comes after what breaks one.
BREAKS = "card breaks until it is reset"
AFTER = {
    "card is reset": [BREAKS, "card is reset"],
    "operator clears a fault": [BREAKS, "operator clears a fault"],
}
#: Those that only some kubelets can show.
PARTIAL = {"stream cut in the middle", "registration refused for a while", "kubelet frozen"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One simulated kubelet; with the peers the real ones instead, for the simulated one has had its turn."""
    if "kubelet" in metafunc.fixturenames:
        real = [it for it in kubelets_of(metafunc.config) if it.binary]
        metafunc.parametrize("kubelet", real or simulated()[:1], indirect=True, ids=lambda it: it.id)


@pytest.fixture
def kubelet(request: pytest.FixtureRequest) -> KubeletKind:
    kind: KubeletKind = request.param
    if not kind.is_built:
        words = f"{kind.id}: there is no {kind.binary}: {REMEDY}"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return kind


@pytest.fixture
def swept() -> Iterator[None]:
    """Have what the dying kubelets of this test left behind collected here, and in no later test."""
    yield
    gc.collect()


# asyncio's servers forget a client that comes while they close, and a simulated kubelet dies in the middle.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("swept")
@pytest.mark.timeout(300)
async def test_after_every_fault_everything_holds(kubelet: KubeletKind) -> None:
    names = [name for kind in KINDS for name in AFTER.get(kind, [kind]) if kind != BREAKS]
    half = len(names) // 2

    results = await asyncio.gather(
        tried(planned(kubelet, "sliced", names[:half])), tried(planned(kubelet, "mixed", names[half:]))
    )

    for result in results:
        assert not result.violations, told(result)
    struck = {name for result in results for it in result.struck for name in it.names}
    assert struck == {name for name in names if name not in PARTIAL} | (struck & PARTIAL)
    missed = [str(it) for result in results for it in result.struck if not all(it.reached)]
    assert missed == []


async def tried(plan: Plan) -> Result:
    """The result; a second one where the machine was too slow for the first, whose evidence is printed.

    What is wrong with the agent is wrong twice. The long form tries once, and stops at the first violation.
    """
    result = await run(plan)
    if result.violations or not all(all(it.reached) for it in result.struck):
        assert sys.__stderr__ is not None
        sys.__stderr__.write(f"{told(result)}\n")  # seen where the second one passes, too
        result = await run(plan)
    return result


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


@pytest.mark.parametrize(("fault", "kind"), [(SliceOfSomebodyTaken, "foreign"), (KilledByNobody, "exit")])
async def test_what_does_not_hold_ends_the_campaign(fault: type[Fault], kind: str) -> None:
    plan = Plan(1, 5, simulated()[:1], ["sliced"], [Kind("doctored", fault)], cap=2.0)

    result = await run(plan)

    assert len(result.struck) == 1
    assert kind in {it.kind for it in result.violations}
    assert result.struck[0].evidence
