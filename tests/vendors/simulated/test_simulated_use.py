"""The use of simulated cards: scripted in the scenario, or told by processes that register themselves."""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agent.isolation import child, sample_answers
from agent.vendor_api.agent import ProcessUsage, Usage
from agent.vendors.simulated.child.backend import SimulatedBackend
from agent.vendors.simulated.child.scenario import MEMORY, Scenario


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path / "scenario.json", devices=2)


@pytest.fixture
def backend(scenario: Scenario) -> SimulatedBackend:
    backend = SimulatedBackend({"scenario": str(scenario.path)})
    backend.open()
    return backend


def idle(uuid: str) -> Usage:
    return Usage(uuid, memory_used=0, memory_total=MEMORY, utilization=0.0)


def test_a_card_without_a_script_is_idle(backend: SimulatedBackend, scenario: Scenario) -> None:
    assert backend.processes() == ()
    assert backend.usage() == tuple(map(idle, scenario.uuids))


def test_the_memory_of_a_card_is_that_of_the_processes_on_it(
    backend: SimulatedBackend, scenario: Scenario
) -> None:
    first, second = scenario.uuids
    scenario.run(
        {"uuid": first, "pid": 1, "memory": 5, "utilization": 0.75},
        {"uuid": first, "pid": 2, "memory": 6, "utilization": 0.75},
        {"uuid": second, "pid": 2},
    )

    assert backend.processes() == (
        ProcessUsage(first, 1, 5, 0.75),
        ProcessUsage(first, 2, 6, 0.75),
        ProcessUsage(second, 2),
    )
    assert backend.usage() == (replace(idle(first), memory_used=11, utilization=1.0), idle(second))


def test_a_figure_that_is_no_number_makes_no_card_busy(backend: SimulatedBackend, scenario: Scenario) -> None:
    first, _ = scenario.uuids
    scenario.run({"uuid": first, "pid": 1, "utilization": math.nan})
    busy = backend.usage()[0].utilization
    assert busy is not None
    assert math.isnan(busy)


def test_a_scripted_figure_takes_the_place_of_the_sum_and_can_be_of_any_device(
    backend: SimulatedBackend, scenario: Scenario
) -> None:
    first, second = scenario.uuids
    scenario.run({"uuid": first, "pid": 1, "memory": 5, "utilization": 0.5})
    scenario.use(first, memory_used=9, power=350.0)
    scenario.use("slice-1", temperature=61.0)

    assert backend.usage() == (
        replace(idle(first), memory_used=9, utilization=0.5, power=350.0),
        idle(second),
        Usage("slice-1", temperature=61.0),
    )


def test_each_sample_reads_the_scenario_anew(backend: SimulatedBackend, scenario: Scenario) -> None:
    for memory in (1, 2):
        scenario.run({"uuid": "a", "pid": 1, "memory": memory})

        assert backend.processes() == (ProcessUsage("a", 1, memory),)


def test_a_process_that_registers_is_listed_until_its_end(
    backend: SimulatedBackend, scenario: Scenario, tmp_path: Path
) -> None:
    place = tmp_path / "registrations"
    place.mkdir()
    scenario.register_in(place)
    running = subprocess.Popen(["sleep", "60"])
    for pid in (running.pid, os.getpid()):
        (place / f"{pid}.json").write_text(json.dumps({"uuid": "a", "pid": pid, "memory": pid}))
    both = {ProcessUsage("a", pid, pid) for pid in (running.pid, os.getpid())}

    assert set(backend.processes()) == both
    running.kill()
    running.wait()
    assert backend.processes() == (ProcessUsage("a", os.getpid(), os.getpid()),)


@pytest.mark.parametrize(
    "text", ["", "{", "5", "[]", "{}", '{"uuid": "a"}', "\xff", '{"uuid": "a", "pid": "\\u0000"}']
)
def test_a_registration_that_is_half_written_hides_no_other(
    text: str, backend: SimulatedBackend, scenario: Scenario, tmp_path: Path
) -> None:
    scenario.register_in(tmp_path)
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    (tmp_path / "b.json").write_text(json.dumps({"uuid": "a", "pid": os.getpid()}))

    assert backend.processes() == (ProcessUsage("a", os.getpid()),)


def test_a_directory_that_is_not_there_registers_nobody(
    backend: SimulatedBackend, scenario: Scenario, tmp_path: Path
) -> None:
    scenario.register_in(tmp_path / "nowhere")

    assert backend.processes() == ()


def test_a_figure_that_does_not_exist_costs_the_cards_and_no_process(
    backend: SimulatedBackend, scenario: Scenario
) -> None:
    scenario.use("a", flavour="sweet")
    scenario.run({"uuid": "a", "pid": 1})

    sample = child.SampleMaker(backend, lambda message: None).answer(7)
    found = sample_answers.sample(json.dumps(json.loads(sample)["answer"]).encode())

    assert found.usages is None
    assert found.complaints["usage"].startswith("TypeError: ")
    assert found.processes == (ProcessUsage("a", 1),)
    assert len(backend.discover()) == 2
