"""Rules of how much of the cards is in use: each figure by its call, and what is not told."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import DOUBLE_BIT_ECC, GPU_IS_LOST, Mig, NvmlStub

from agent.vendor_api.agent import Usage
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.driver_errors import DriverErrors

pytest_plugins = ["nvml_fixtures"]

GIB = 1 << 30
MEMORY_OF_AN_H100 = 85520809984
NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN_ERROR = 3, 13, 999

RECORDED: Mapping[str, Any] = json.loads((Path(__file__).parent / "recorded_driver.json").read_text())

#: What each call is the only source of.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetUtilizationRates": ("memory_utilization",),
    "nvmlDeviceGetEncoderUtilization": ("encoder_utilization",),
    "nvmlDeviceGetDecoderUtilization": ("decoder_utilization",),
    "nvmlDeviceGetPowerUsage": ("power",),
    "nvmlDeviceGetTemperature": ("temperature",),
    "nvmlDeviceGetClockInfo": ("clock", "memory_clock"),
    "nvmlDeviceGetTotalEccErrors": ("ecc_errors",),
    "nvmlDeviceGetFieldValues": ("memory_temperature",),
    "nvmlGpmQueryDeviceSupport": ("tensor_utilization",),
    "nvmlGpmSampleAlloc": ("tensor_utilization",),
    "nvmlGpmSampleGet": ("tensor_utilization",),
    "nvmlGpmMetricsGet": ("tensor_utilization",),
}


@pytest.fixture
def stub(stub: NvmlStub) -> NvmlStub:
    """Two cards, of which the first can tell all figures."""
    stub.cards(2)
    stub.used(0, 13986365440, reserved=644939776)
    stub.rates(0, 60, 12)
    stub.video(0, 7, 9)
    stub.power(0, 147499)
    stub.energy(0, 5368265)
    stub.temperature(0, 37, 45)
    stub.clocks(0, graphics=1, sm=1980, memory=3201, video=1545)
    stub.ecc(0, 3, 1)
    stub.gpm(0, 59.5, 25)
    return stub


@pytest.fixture
def sampled(backend: NvmlBackend) -> NvmlBackend:
    """A backend that knows its cards, and took its first sample."""
    backend.discover()
    backend.usage()
    return backend


def by_uuid(backend: NvmlBackend) -> Mapping[str, Usage]:
    found = backend.usage()
    assert len({it.uuid for it in found}) == len(found)
    return {it.uuid: it for it in found}


def of_card(backend: NvmlBackend, card: int = 0) -> Usage:
    return by_uuid(backend)[NvmlStub.uuid(card)]


def known(usage: Usage) -> set[str]:
    """The names of the figures that are told."""
    absent = Usage(usage.uuid)
    return {it.name for it in fields(Usage) if getattr(usage, it.name) != getattr(absent, it.name)} - {"uuid"}


def test_every_figure_is_told_in_its_unit(sampled: NvmlBackend, stub: NvmlStub) -> None:
    assert of_card(sampled) == Usage(
        stub.uuid(0),
        memory_used=13986365440,
        memory_total=MEMORY_OF_AN_H100,
        memory_reserved=644939776,
        utilization=0.6,
        memory_utilization=0.12,
        tensor_utilization=0.25,
        encoder_utilization=0.07,
        decoder_utilization=0.09,
        power=147.499,
        energy=5368.265,
        temperature=37,
        memory_temperature=45,
        clock=1.98e9,
        memory_clock=3.201e9,
        ecc_errors={"corrected": 3, "uncorrected": 1},
    )


def test_every_figure_that_the_contract_has_is_told_of_some_card(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    sampled.health_events(0.01)
    stub.xid(0, 13)
    sampled.health_events(0.01)

    assert known(of_card(sampled)) == {it.name for it in fields(Usage)} - {"uuid", "parent"}


def test_what_a_card_does_not_tell_is_left_out(sampled: NvmlBackend) -> None:
    """Power, temperatures, clocks, memory errors and GPM of the second card."""
    told = known(of_card(sampled, 1))

    assert told == {
        "memory_used",
        "memory_total",
        "memory_reserved",
        "utilization",
        "memory_utilization",
        "encoder_utilization",
        "decoder_utilization",
    }


def test_what_a_real_driver_keeps_is_not_counted_as_used(backend: NvmlBackend, stub: NvmlStub) -> None:
    """By the second version of the call; the first one counts it."""
    load = RECORDED["load"]
    second, first = load["memoryV2"], load["nvmlDeviceGetMemoryInfo"]["value"]
    stub.memory(0, second["total"])
    stub.used(0, second["used"], reserved=second["reserved"])
    backend.discover()
    with_reserved = of_card(backend)
    stub.fail("nvmlDeviceGetMemoryInfo_v2", FUNCTION_NOT_FOUND)
    without = of_card(backend)

    assert (with_reserved.memory_used, with_reserved.memory_reserved) == (second["used"], second["reserved"])
    assert (without.memory_used, without.memory_reserved) == (first["used"], None)
    assert with_reserved.memory_total == without.memory_total == first["total"]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN_ERROR])
@pytest.mark.parametrize("call", SOURCES)
def test_a_call_that_fails_costs_its_own_figures_alone(
    backend: NvmlBackend, stub: NvmlStub, call: str, code: int
) -> None:
    backend.discover()
    stub.fail(call, code)
    backend.usage()
    told = known(of_card(backend))
    stub.clear()
    backend.usage()

    assert known(of_card(backend)) - told == set(SOURCES[call])


def test_without_its_rates_a_cards_utilization_is_gpms(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)

    assert of_card(sampled).utilization == 0.595


def test_memory_of_no_version_leaves_the_other_figures(sampled: NvmlBackend, stub: NvmlStub) -> None:
    """As on boards whose cards share the node's memory."""
    stub.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    stub.fail("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED)
    usage = of_card(sampled)

    assert (usage.memory_used, usage.memory_total, usage.memory_reserved) == (None, None, None)
    assert usage.utilization == 0.6


def test_the_energy_is_that_of_the_last_discovery(sampled: NvmlBackend, stub: NvmlStub) -> None:
    """The call takes a real driver more than 3 ms."""
    stub.energy(0, 6_000_000)
    stub.trace()
    before = of_card(sampled).energy
    assert stub.calls("nvmlDeviceGetTotalEnergyConsumption") == 0
    sampled.discover()

    assert (before, of_card(sampled).energy) == (5368.265, 6000.0)


def test_garbage_comes_out_as_it_is(sampled: NvmlBackend, stub: NvmlStub) -> None:
    """What is believed is decided where all vendors' answers are checked."""
    stub.rates(0, (1 << 32) - 1, 101)
    stub.used(0, 1 << 62, reserved=1 << 61)
    usage = of_card(sampled)

    assert (usage.utilization, usage.memory_utilization) == (1.0, 1.01)
    assert (usage.memory_used, usage.memory_reserved) == (1 << 62, 1 << 61)


# Cards that are not there


def test_a_lost_card_is_left_out_and_hides_no_other(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.lose(0)
    assert by_uuid(sampled).keys() == {stub.uuid(1)}

    sampled.discover()

    assert by_uuid(sampled).keys() == {stub.uuid(1)}


def test_a_card_that_is_lost_between_two_calls_is_left_out(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetTemperature", GPU_IS_LOST, 0)

    assert by_uuid(sampled).keys() == {stub.uuid(1)}


def test_a_lost_card_is_told_with_the_error_that_says_why(sampled: NvmlBackend, stub: NvmlStub) -> None:
    sampled.health_events(0.01)
    stub.xid(0, 79)
    sampled.health_events(0.01)
    stub.lose(0)

    assert of_card(sampled) == Usage(stub.uuid(0), driver_errors={"79": 1}, last_driver_error=79)


def test_a_card_that_comes_back_is_told_again(sampled: NvmlBackend, stub: NvmlStub) -> None:
    before = of_card(sampled)
    stub.lose(0)
    sampled.discover()
    sampled.usage()
    stub.restore(0)
    sampled.discover()
    sampled.usage()

    assert of_card(sampled) == before


# Errors of the driver


def test_every_xid_counts_also_one_that_says_nothing_about_health(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    sampled.health_events(0.01)
    for code in (13, 79, 13):
        stub.xid(0, code)
    stub.event(0, DOUBLE_BIT_ECC)
    stub.xid(1, 31)
    for _ in range(5):
        sampled.health_events(0.01)
    first, second = of_card(sampled, 0), of_card(sampled, 1)

    assert (first.driver_errors, first.last_driver_error) == ({"13": 2, "79": 1}, 13)
    assert (second.driver_errors, second.last_driver_error) == ({"31": 1}, 31)


def test_an_xid_of_a_mig_device_counts_for_its_card(backend: NvmlBackend, stub: NvmlStub) -> None:
    [uuid] = stub.mig(0, [Mig(gi=7)])
    backend.discover()
    backend.health_events(0.01)
    stub.xid(0, 43, gi=7, ci=0)
    backend.health_events(0.01)

    assert by_uuid(backend)[uuid].driver_errors == {}
    assert of_card(backend).driver_errors == {"43": 1}


def test_errors_count_from_open_on(sampled: NvmlBackend, stub: NvmlStub) -> None:
    sampled.health_events(0.01)
    stub.xid(0, 13)
    sampled.health_events(0.01)
    assert of_card(sampled).driver_errors == {"13": 1}
    sampled.close()
    sampled.open()
    sampled.discover()

    assert (of_card(sampled).driver_errors, of_card(sampled).last_driver_error) == ({}, None)


def test_what_was_read_of_the_errors_stays_as_it_was() -> None:
    errors = DriverErrors()
    errors.count("GPU-a", 13)
    counts, _ = errors.of("GPU-a")
    errors.count("GPU-a", 13)

    assert counts == {"13": 1}
    assert errors.of("GPU-b") == ({}, None)


def test_no_error_is_lost_between_two_threads() -> None:
    errors = DriverErrors()

    def count() -> None:
        for _ in range(2000):
            errors.count("GPU-a", 13)

    counting = [threading.Thread(target=count) for _ in range(2)]
    for thread in counting:
        thread.start()
    while any(thread.is_alive() for thread in counting):
        errors.of("GPU-a")

    assert errors.of("GPU-a") == ({"13": 4000}, 13)


# MIG devices and GPM


def test_mig_devices_have_memory_of_their_own_and_utilization_by_gpm(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    first, second = stub.mig(0, [Mig(gi=7), Mig(gi=8)])
    stub.used(0, 3 * GIB, reserved=GIB, number=0)
    stub.gpm(0, 80, 40, number=0)
    backend.discover()
    backend.usage()
    usages = by_uuid(backend)

    assert usages[first] == Usage(
        first,
        memory_used=3 * GIB,
        memory_total=9984 << 20,
        memory_reserved=GIB,
        utilization=0.8,
        tensor_utilization=0.4,
    )
    assert usages[second] == Usage(second, memory_used=0, memory_total=9984 << 20, memory_reserved=0)


def test_a_card_in_mig_mode_has_the_utilization_that_gpm_tells_and_none_else(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.mig(0)
    backend.discover()
    backend.usage()
    usage = of_card(backend)

    assert (usage.utilization, usage.memory_utilization, usage.encoder_utilization) == (0.595, None, None)


def test_what_mig_devices_in_one_gpu_instance_use_is_not_told_apart(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    uuids = stub.mig(0, [Mig("1c.2g.20gb", gi=3, ci=0), Mig("1c.2g.20gb", gi=3, ci=1)])
    stub.gpm(0, 80, 40, number=0)
    backend.discover()
    backend.usage()

    assert [by_uuid(backend)[uuid].utilization for uuid in uuids] == [None, None]


def test_the_first_sample_tells_no_utilization_by_gpm(backend: NvmlBackend) -> None:
    backend.discover()

    assert [of_card(backend).tensor_utilization for _ in range(4)] == [None, 0.25, 0.25, 0.25]


def test_gpm_tells_the_time_since_the_last_sample(sampled: NvmlBackend, stub: NvmlStub) -> None:
    told = []
    for percent in (10, 20, 30):
        stub.gpm(0, 0, percent)
        told.append(of_card(sampled).tensor_utilization)

    assert told == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("figure", ["nan", "inf"])
def test_a_figure_of_gpm_that_is_no_number_is_left_out(
    sampled: NvmlBackend, stub: NvmlStub, figure: str
) -> None:
    stub.gpm(0, float(figure), 20)
    stub.fail("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    usage = of_card(sampled)

    assert (usage.utilization, usage.tensor_utilization) == (None, 0.2)


def test_samples_of_gpm_are_freed_when_the_card_or_the_session_goes(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    stub.trace()
    stub.mig(1, [Mig(gi=7)])
    stub.gpm(1, 1, 1)
    stub.gpm(1, 1, 1, number=0)
    sampled.discover()
    for _ in range(3):
        sampled.usage()
    assert (stub.calls("nvmlGpmSampleAlloc"), stub.calls("nvmlGpmSampleFree")) == (1 + 4, 0)
    stub.remove(1)
    sampled.discover()
    sampled.usage()
    assert stub.calls("nvmlGpmSampleFree") == 4

    sampled.close()

    assert stub.calls("nvmlGpmSampleFree") == 6


def test_failures_of_gpm_cost_no_samples(sampled: NvmlBackend, stub: NvmlStub) -> None:
    """The stub has 256 of them, and each reading after a failure takes new ones."""
    for call in ("nvmlGpmSampleGet", "nvmlGpmMetricsGet"):
        stub.fail(call, UNKNOWN_ERROR)
        for _ in range(300):
            sampled.usage()
        stub.clear()
    sampled.usage()

    assert of_card(sampled).tensor_utilization == 0.25


def test_a_driver_that_cannot_free_a_sample_costs_nothing_else(sampled: NvmlBackend, stub: NvmlStub) -> None:
    sampled.usage()
    stub.trace()
    stub.fail("nvmlGpmSampleFree", UNKNOWN_ERROR)

    sampled.close()

    assert stub.calls("nvmlShutdown") == 1


def test_a_card_that_gpm_does_not_support_is_asked_nothing_else_of_it(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    stub.trace()
    stub.remove(0)
    sampled.discover()
    sampled.usage()

    assert stub.calls("nvmlGpmQueryDeviceSupport") == 1
    assert stub.calls("nvmlGpmSampleAlloc") == 0


def test_use_is_not_read_before_it_is_asked_for(stub: NvmlStub, settings: Mapping[str, Any]) -> None:
    done = stub.run(
        "import sys\n"
        "from agent.vendors.nvidia.child.backend import NvmlBackend\n"
        f"backend = NvmlBackend({dict(settings)!r})\n"
        "backend.open()\n"
        "backend.discover()\n"
        "backend.health_events(0.01)\n"
        "backend.close()\n"
        "print(sorted(it for it in sys.modules if it.endswith(('.card_usage', '.card_processes', '.gpm'))))\n"
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
