"""The conformance kit: checks of a vendor's own process against the contract, with or without hardware.

Tests and `xpu-agent conformance` iterate over `check_vendor` and read its findings. The first line of a
check's docstring is the name of its finding.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from agent.isolation import vendor_answers
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_process import CallRefused, ContactLost
from agent.testing.agent_half import (
    annotations_and_extended_resources_are_pure,
    doctor_checks_are_pure,
    edits_are_pure,
    formats_are_pure,
    imports_do_nothing,
    labels_are_pure,
    readme_is_complete,
    resource_is_accepted,
    resources_are_pure,
    signs_are_seen,
)
from agent.testing.bench import (
    Bench,
    CrashInjector,
    FaultInjector,
    NotMade,
    SliceInjector,
    Talk,
    WatchInjector,
)
from agent.vendor_api.agent import Device, HealthEvent, Link, Request, State, Vendor

__all__ = [
    "CHECKS",
    "CrashInjector",
    "FaultInjector",
    "Finding",
    "SliceInjector",
    "WatchInjector",
    "check_vendor",
]

T = TypeVar("T")

PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
#: The allocation for which slices are made.
MARK = "c04f0c04f0c04f0c"
WAIT = 0.5  # seconds of one wait for events
#: Seconds by which a wait may be longer: a busy machine must not make a vendor fail.
LATENESS = 5.0
SAMPLE_SECONDS = Deadlines().sample + LATENESS
EVENT_PATIENCE = 10.0  # seconds from a fault to its event


class Finding(NamedTuple):
    """The result of a check; `ok` None means that the check could not be made here."""

    name: str
    ok: bool | None
    detail: str


async def check_vendor(
    vendor: Vendor, faults: FaultInjector | None = None, python_path: Sequence[str] = ()
) -> AsyncIterator[Finding]:
    """Check the vendor against each rule of the contract. Hardware is changed only with a fault injector."""
    bench = Bench(vendor, faults, python_path)
    for check in CHECKS:
        finding = await judged(check, bench)
        yield finding
        if check is library_opens and not finding.ok:
            return


async def judged(check: Check, bench: Bench) -> Finding:
    """Make one check and return its finding."""
    name = (check.__doc__ or check.__name__).strip().rstrip(".")
    try:
        await check(bench)
    except NotMade as exc:
        return Finding(name, None, str(exc))
    except (AssertionError, CallRefused, ContactLost, vendor_answers.WrongAnswer) as exc:
        return Finding(name, False, str(exc))
    except TimeoutError:
        return Finding(name, False, "a call did not return in time")
    except Exception as exc:
        return Finding(name, False, f"{type(exc).__name__}: {exc}")
    return Finding(name, True, "")


async def library_opens(bench: Bench) -> None:
    """The library opens on this node; without the library no other check is made."""
    async with bench.opened():
        pass


async def discover_is_stable(bench: Bench) -> None:
    """`discover` lists the same devices at each call, and each uuid once."""
    async with bench.opened() as talk:
        first, second = await talk.discover(), await talk.discover()
    steady = [[replace(device, fault=None) for device in devices] for devices in (first, second)]
    assert steady[0] == steady[1], f"the second list differs: {_difference(*steady)}"
    assert len({device.uuid for device in first}) == len(first), "two devices share a uuid"


def _difference(first: list[Device], second: list[Device]) -> str:
    if len(first) != len(second):
        return f"{len(first)} devices, then {len(second)}"
    return next(f"{one} became {other}" for one, other in zip(first, second, strict=True) if one != other)


async def uuids_can_be_ids(bench: Bench) -> None:
    """A uuid is printable ASCII without space, comma or `::`."""
    for device in await bench.devices():
        trouble = vendor_answers.uuid_trouble(device.uuid)
        assert not trouble, f"{device.uuid!r} {trouble}"


async def pci_addresses_are_written_one_way(bench: Bench) -> None:
    """A PCI address reads `dddd:bb:dd.f`, lower case."""
    for device in await bench.devices():
        assert device.pci is None or PCI.fullmatch(device.pci), f"{device.uuid}: pci is {device.pci!r}"


async def numa_is_known_or_none(bench: Bench) -> None:
    """A NUMA node is 0 or more, or None if the node is unknown; never -1."""
    for device in await bench.devices():
        assert device.numa is None or device.numa >= 0, f"{device.uuid}: numa is {device.numa}"


async def links_agree(bench: Bench) -> None:
    """Links name other listed devices; both ends of a link name one type, or one end names none."""
    async with bench.opened() as talk:
        talk.needs("links")
        uuids = [device.uuid for device in await talk.discover()]
        links = {uuid: {link.peer: link for link in await talk.ask("links", uuid)} for uuid in uuids}
    for uuid, peers in links.items():
        for peer, link in peers.items():
            _check_link(uuid, link, links.get(peer))


def _check_link(uuid: str, link: Link, others: Mapping[str, Link] | None) -> None:
    assert others is not None, f"{uuid} names {link.peer}, which is not listed"
    assert link.peer != uuid, f"{uuid} names itself"
    back = others.get(uuid)
    same = back is None or (back.lanes, back.distance) == (link.lanes, link.distance)
    assert same, f"{uuid} says {link}, {link.peer} says {back}"


async def absence_is_unavailable(bench: Bench) -> None:
    """Without its library the backend raises BackendUnavailable, and nothing else."""
    settings = bench.injector().absent()
    if settings is None:
        raise NotMade("the injector cannot take the library away")
    async with bench.talk(settings) as talk:
        try:
            await talk.opened()
            await talk.discover()
        except CallRefused as exc:
            raised = exc.failure
        else:
            raise AssertionError("the backend listed devices without a library")
    assert raised.type == "unavailable", f"the backend raised {raised}"


async def opening_again_works(bench: Bench) -> None:
    """After `close`, `open` and `discover` work again."""
    async with bench.opened() as talk:
        first = await talk.discover()
        await talk.ask("close")
        await talk.ask("open")
        second = await talk.discover()
    assert {it.uuid for it in first} == {it.uuid for it in second}, "the second list has other devices"


async def events_return_within_their_timeout(bench: Bench) -> None:
    """`health_events` returns within its timeout and five seconds."""
    async with bench.opened() as talk:
        talk.needs("health_events")
        await talk.discover()
        await talk.ask("health_events", WAIT, seconds=WAIT + LATENESS)
        await talk.ask("health_events", WAIT, seconds=WAIT + LATENESS)


async def release_is_quiet(bench: Bench) -> None:
    """`release` raises no error for a mark without hardware, or for a released mark."""
    async with bench.opened() as talk:
        talk.needs("release")
        await talk.discover()
        await talk.ask("release", "conformance-unknown")
        await talk.ask("release", "conformance-unknown")


async def prepare_ensures(bench: Bench) -> None:
    """`prepare` makes hardware once for two equal calls; `release` removes it and keeps foreign slices."""
    bench.slicing()
    async with bench.opened() as talk:
        talk.needs("prepare")
        uuid = (await talk.discover())[0].uuid
        before = await talk.ask("partitions")
        request = Request(MARK, bench.making, (uuid,))
        made = await talk.ask("prepare", request, (uuid,))
        again = await talk.ask("prepare", request, (uuid,))
        marked = [it for it in await talk.ask("partitions") if it.allocation == MARK]
        await talk.ask("release", MARK)
        await talk.ask("release", MARK)
        after = await talk.ask("partitions")
    assert made == again, f"first {made}, then {again}"
    assert {it.id for it in made} == {it.id for it in marked}, f"made {made}, on the hardware are {marked}"
    assert set(before) == set(after), f"there were {before}, now there are {after}"


async def prepared_outlives_the_process(bench: Bench) -> None:
    """What `prepare` made has its mark in `partitions` of the next process."""
    bench.slicing()
    with tempfile.TemporaryDirectory() as directory:
        async with bench.opened(directory=Path(directory)) as talk:
            talk.needs("prepare")
            uuid = (await talk.discover())[0].uuid
            made = await talk.ask("prepare", Request(MARK, bench.making, (uuid,)), (uuid,))
        async with bench.opened(directory=Path(directory)) as talk:
            await talk.discover()
            found = await talk.ask("partitions")
            await talk.ask("release", MARK)
    marked = {it.id for it in found if it.allocation == MARK}
    assert {it.id for it in made} <= marked, f"made {made}, now there are {found}"


async def slices_of_others_stay(bench: Bench) -> None:
    """A slice that others made has no mark, and stays while the backend makes and removes slices."""
    faults = bench.slicing()
    if not isinstance(faults, SliceInjector):
        raise NotMade("the injector cannot make slices of others")
    uuid = (await bench.devices())[0].uuid
    faults.plant(uuid)
    try:
        async with bench.opened() as talk:
            await talk.discover()
            before = await talk.ask("partitions")
            await talk.ask("prepare", Request(MARK, bench.making, (uuid,)), (uuid,))
            for mark in (MARK, ""):
                await talk.ask("release", mark)
            after = await talk.ask("partitions")
    finally:
        faults.uproot()
    assert any(it.allocation is None and it.uuid == uuid for it in before), (
        f"{uuid} has no slice without a mark; there are {before}"
    )
    assert set(before) == set(after), f"there were {before}, now there are {after}"


async def a_crash_leaves_no_unmarked_slices(bench: Bench) -> None:
    """Wherever `prepare` crashes, the next process finds the slice with its mark, or removes the slice."""
    faults = bench.slicing()
    if not isinstance(faults, CrashInjector):
        raise NotMade("the injector cannot end the process in the middle of a slice")
    for step in faults.steps():
        with tempfile.TemporaryDirectory() as directory:
            await _die_at(step, bench, faults, Path(directory))


async def _die_at(step: str, bench: Bench, faults: CrashInjector, directory: Path) -> None:
    async with bench.opened(directory=directory) as talk:
        uuid = (await talk.discover())[0].uuid
        before = await talk.ask("partitions")
        request = Request(MARK, bench.making, (uuid,))
        faults.crash_at(step)
        try:
            await talk.ask("prepare", request, (uuid,))
        except ContactLost:
            pass
        else:
            raise AssertionError(f"the process did not end at {step}")
    async with bench.opened(directory=directory) as talk:
        await talk.discover()
        found = await talk.ask("partitions")
        made = await talk.ask("prepare", request, (uuid,))
        present = await talk.ask("partitions")
        await talk.ask("release", MARK)
        after = await talk.ask("partitions")
    unmarked = [it for it in set(found) - set(before) if it.allocation != MARK]
    assert not unmarked, f"the process that ended at {step} left {unmarked} without a mark"
    assert set(present) - set(before) == set(made), f"after {step} `prepare` made {made}, there are {present}"
    assert set(before) == set(after), f"after {step} there were {before}, now there are {after}"


async def names_are_specified(bench: Bench) -> None:
    """The CDI names of `container_edits` are in `cdi` from `prepare` until `release`."""
    bench.slicing()
    async with bench.opened() as talk:
        talk.needs("cdi")
        device = (await talk.discover())[0]
        request = Request(MARK, bench.vendor.resource, (device.uuid,))
        names = set(bench.vendor.container_edits((device,), request).cdi_devices)
        if not names:
            raise NotMade("containers get no CDI names")
        before = _specified(await talk.ask("cdi"))
        await talk.ask("prepare", request, (device.uuid,))
        present = _specified(await talk.ask("cdi"))
        await talk.ask("release", MARK)
        after = _specified(await talk.ask("cdi"))
    assert names <= present, f"{sorted(names - present)} is in no spec; the specs have {sorted(present)}"
    assert before == after, f"the specs had {sorted(before)} before, and have {sorted(after)} after"


def _specified(specs: Mapping[str, str]) -> set[str]:
    """The qualified names of all devices in these specs."""
    parsed = [json.loads(text) for text in specs.values() if text]
    return {f"{spec['kind']}={device['name']}" for spec in parsed for device in spec["devices"]}


async def use_is_of_listed_devices(bench: Bench) -> None:
    """`usage` and `processes` name listed devices or slices, and no figure is more than can be."""
    async with bench.opened() as talk:
        talk.needs_use()
        memory = {device.uuid: device.memory for device in await talk.discover()}
        slices = await talk.ask("partitions") if "partitions" in talk.overrides else ()
        sample = await talk.sample(SAMPLE_SECONDS)
    memory.update({it.id: memory.get(it.uuid, 0) for it in slices})
    complaints = "; ".join(f"`{method}`: {complaint}" for method, complaint in sample.complaints.items())
    assert not complaints, complaints
    usages, processes = sample.usages or (), sample.processes or ()
    _check_memory(memory, [(it.uuid, it.memory_used) for it in usages])
    _check_memory(memory, [(it.uuid, it.memory) for it in processes])
    assert len({it.uuid for it in usages}) == len(usages), "`usage` names a device twice"


def _check_memory(memory: Mapping[str, int], used: Sequence[tuple[str, int | None]]) -> None:
    for uuid, size in used:
        assert uuid in memory, f"{uuid} is not listed"
        assert not memory[uuid] or (size or 0) <= memory[uuid], f"{uuid} uses {size} of {memory[uuid]} bytes"


async def use_is_told_in_time(bench: Bench) -> None:
    """Use is told within the agent's deadline and five seconds, also while `discover` runs."""
    async with bench.opened() as talk:
        talk.needs_use()
        await talk.discover()
        await talk.sample(SAMPLE_SECONDS)
        if not talk.one_caller:
            await asyncio.gather(talk.discover(), talk.sample(SAMPLE_SECONDS))


async def cdi_specs_follow_the_devices(bench: Bench) -> None:
    """`cdi` returns equal specs while the devices stay the same."""
    async with bench.opened() as talk:
        talk.needs("cdi")
        await talk.discover()
        first = await talk.ask("cdi")
        await talk.discover()
        second = await talk.ask("cdi")
    assert first == second, "the second specs differ, although no device changed"


async def faults_become_events(bench: Bench) -> None:
    """Each fault of a device becomes an event for its uuid."""
    faults = bench.injector()
    async with bench.opened(watch=WAIT) as talk:
        talk.needs("health_events")
        for device in await talk.discover():
            faults.inject(device.uuid)
            try:
                await asyncio.wait_for(_event_for(talk, device.uuid), EVENT_PATIENCE)
            except TimeoutError:
                raise AssertionError(f"no event for {device.uuid}") from None
            finally:
                faults.clear(device.uuid)


async def _event_for(talk: Talk, uuid: str) -> None:
    """Wait for the event with a fault of this device. Events without a fault are skipped."""
    while True:
        event = await talk.heard.get()
        assert isinstance(event, HealthEvent), f"health_events raised {event}"
        if event.fault is not None:
            assert event.uuid == uuid, f"{uuid} broke, the event is for {event.uuid}"
            return


async def repaired_watch_is_reported(bench: Bench) -> None:
    """Good health is reported again after the repair of a broken watch."""
    faults = bench.injector()
    if not isinstance(faults, WatchInjector):
        raise NotMade("the injector cannot break the watch")
    async with bench.opened(watch=WAIT) as talk:
        talk.needs("health_events")
        await talk.discover()
        faults.blind()
        try:
            bad = await _within(_unknown(talk), "no event says that nothing watches the devices")
        finally:
            faults.sees()
        await _within(_good_news(talk, bad), "no event says that the watch works again")


async def _within(call: Awaitable[T], otherwise: str) -> T:
    try:
        return await asyncio.wait_for(call, EVENT_PATIENCE)
    except TimeoutError:
        raise AssertionError(otherwise) from None


async def _unknown(talk: Talk) -> str | None:
    """Wait until a device is not watched; returns its uuid, None for all devices."""
    while True:
        event = await talk.heard.get()
        if not isinstance(event, HealthEvent):
            return None
        if event.fault is not None:
            assert event.fault.state is State.UNKNOWN, f"the watch broke, the event says {event.fault}"
            return event.uuid


async def _good_news(talk: Talk, uuid: str | None) -> None:
    while True:
        event = await talk.heard.get()
        if isinstance(event, HealthEvent) and event.fault is None and event.uuid in (uuid, None):
            return


Check = Callable[[Bench], Awaitable[None]]

CHECKS: tuple[Check, ...] = (
    library_opens,
    discover_is_stable,
    uuids_can_be_ids,
    pci_addresses_are_written_one_way,
    numa_is_known_or_none,
    links_agree,
    edits_are_pure,
    resource_is_accepted,
    imports_do_nothing,
    signs_are_seen,
    absence_is_unavailable,
    opening_again_works,
    events_return_within_their_timeout,
    release_is_quiet,
    prepare_ensures,
    prepared_outlives_the_process,
    slices_of_others_stay,
    a_crash_leaves_no_unmarked_slices,
    names_are_specified,
    resources_are_pure,
    labels_are_pure,
    annotations_and_extended_resources_are_pure,
    formats_are_pure,
    doctor_checks_are_pure,
    cdi_specs_follow_the_devices,
    use_is_of_listed_devices,
    use_is_told_in_time,
    faults_become_events,
    repaired_watch_is_reported,
    readme_is_complete,
)
