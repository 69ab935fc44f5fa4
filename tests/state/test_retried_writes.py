"""The checkpoint follows the ledger, whatever the disk does."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs
from support.waiting import eventually

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.ledger_change import LedgerChange
from agent.core.devices.inventory import Inventory
from agent.core.model import Allocation, AllocationState, Cordon, FirstList, Owner
from agent.state.checkpoint import SavedState
from agent.state.journaled_checkpoint import JournaledCheckpoint
from agent.state.retried_writes import LedgerStore
from agent.vendor_api.agent import Device


class Disk(JournaledCheckpoint):
    """A checkpoint whose writes can be held up, or fail."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.flows = threading.Event()
        self.flows.set()
        self.broken: OSError | None = None
        self.tries: list[bool] = []  # of each, whether it was durable

    def save(
        self, state: SavedState, changes: Sequence[LedgerChange], *, durable: bool, whole: bool = False
    ) -> None:
        self.tries.append(durable)
        self.flows.wait(30)
        if self.broken is not None:
            raise self.broken
        super().save(state, changes, durable=durable, whole=whole)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "state")
    yield disk
    disk.flows.set()


@pytest.fixture
def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def allocation(name: str) -> Allocation:
    return Allocation(name, "example.com/x", "acme", (name,), (name,), AllocationState.DONE, 1.0)


def store(
    disk: JournaledCheckpoint,
    ledger: Ledger,
    patience: float = 30.0,
    pauses: tuple[float, float] = (0.001, 0.01),
) -> LedgerStore:
    return LedgerStore(disk, ledger, Inventory(), SavedState("boot"), patience, pauses)


@asynccontextmanager
async def running(it: LedgerStore) -> AsyncIterator[LedgerStore]:
    async with anyio.create_task_group() as group:
        group.start_soon(it.run)
        yield it
        group.cancel_scope.cancel()


def loaded(disk: JournaledCheckpoint) -> SavedState:
    """What another process would load."""
    state, aside = JournaledCheckpoint(disk.path.parent).load()
    assert aside == ()
    return state


def journal(disk: JournaledCheckpoint) -> Path:
    return disk.path.with_name("checkpoint.journal")


def saved(disk: JournaledCheckpoint) -> list[str]:
    return [it.id for it in loaded(disk).allocations]


async def test_what_is_in_the_ledger_is_in_the_file(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])

    await store(disk, ledger).save(durable=True)

    assert saved(disk) == ["a"]


async def test_what_neither_ledger_nor_inventory_holds_is_saved_again(disk: Disk, state: SavedState) -> None:
    it = LedgerStore(disk, Ledger(), Inventory(), structs.replace(state, boot_id="this boot"))

    await it.save(durable=False)

    expected = SavedState("this boot", labels=state.labels, config=state.config, first=state.first)
    assert loaded(disk) == expected


async def test_what_decided_the_configuration_is_saved_when_it_changes(disk: Disk, state: SavedState) -> None:
    it = LedgerStore(disk, Ledger(), Inventory(), state)

    await it.remember(state.labels, state.config)
    assert it.saves == 0

    await it.remember({"pool": "b200"}, "small")
    assert (loaded(disk).labels, loaded(disk).config) == ({"pool": "b200"}, "small")

    await it.save(durable=False)
    assert loaded(disk).config == "small"


async def test_whom_the_kubelet_found_is_saved_when_it_changes(disk: Disk, state: SavedState) -> None:
    it = LedgerStore(disk, Ledger(), Inventory(), state)

    await it.remember_first(state.first)
    assert it.saves == 0

    await it.remember_first(FirstList(7, ("uid-9",)))
    assert loaded(disk).first == FirstList(7, ("uid-9",))


async def test_what_was_loaded_and_is_given_to_ledger_and_inventory_is_saved_whole(
    disk: Disk, state: SavedState
) -> None:
    inventory = Inventory(state.health, devices=state.devices, cordons=state.cordons)

    await LedgerStore(disk, Ledger(state.allocations), inventory, state).save(durable=False)

    assert loaded(disk) == state


async def test_a_disk_that_hangs_is_said_and_holds_nobody_up(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])
    it = store(disk, ledger, patience=0.01)
    disk.flows.clear()

    with anyio.fail_after(30):
        await it.save(durable=False)
        await it.save(durable=False)

    assert "has not answered" in it.error
    assert it.saves == 0


async def test_who_comes_while_others_wait_waits_no_longer_than_they(disk: Disk) -> None:
    """Each waits its own patience, not the sum of theirs."""
    it = store(disk, Ledger(), patience=0.5)
    disk.flows.clear()

    with anyio.fail_after(30):  # less than the sum
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(lambda: it.save(durable=False))

    assert len(disk.tries) == 1


async def hung(it: LedgerStore, disk: Disk) -> None:
    """Run out of patience for a write; whoever waits from now on waits for ever."""
    disk.flows.clear()
    await it.save(durable=False)
    it._patience = 3600.0


async def ends_at_once(saving: Coroutine[Any, Any, None]) -> bool:
    task = asyncio.create_task(saving)
    for _ in range(10):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.wait([task])
    return ended


@pytest.mark.parametrize("durable", [False, True])
async def test_the_patience_with_a_disk_that_hangs_is_paid_once(disk: Disk, durable: bool) -> None:
    it = store(disk, Ledger(), patience=0.01)
    await hung(it, disk)

    assert await ends_at_once(it.save(durable=durable))
    assert await ends_at_once(it.save(durable=durable))
    assert "has not answered" in it.error
    assert disk.tries == [False]


async def test_who_waits_already_waits_no_longer_when_the_patience_of_another_ends(disk: Disk) -> None:
    it = store(disk, Ledger(), patience=0.01)
    disk.flows.clear()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: it.save(durable=False))
            await anyio.lowlevel.checkpoint()
            it._patience = 3600.0
            group.start_soon(lambda: it.save(durable=True))


async def test_who_comes_when_a_disk_that_hung_has_answered_waits_for_it_again(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])
    it = store(disk, ledger, patience=0.01)
    await hung(it, disk)
    disk.flows.set()
    await eventually(lambda: it._writing is not None and it._writing.done())
    ledger.record(allocation("b"))

    await it.save(durable=False)

    assert (it.error, saved(disk)) == ("", ["a", "b"])


async def test_what_nobody_waited_for_is_as_durable_as_it_was_to_be(disk: Disk) -> None:
    it = store(disk, Ledger(), patience=0.01)
    await hung(it, disk)
    await it.save(durable=True)
    disk.flows.set()

    async with running(it):
        await eventually(lambda: not it.error)

    assert disk.tries == [False, True]


async def test_the_last_write_waits_for_a_disk_that_hangs(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])
    it = store(disk, ledger, patience=0.01)
    await hung(it, disk)
    ledger.record(allocation("b"))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: it.save(durable=False, last=True))
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            disk.flows.set()

    assert (it.error, saved(disk)) == ("", ["a", "b"])


async def test_a_disk_that_flows_again_is_written_with_the_newest(disk: Disk) -> None:
    """At once, however long the next pause would be."""
    ledger = Ledger([allocation("a")])
    async with running(store(disk, ledger, patience=0.01, pauses=(3600, 3600))) as it:
        await hung(it, disk)
        ledger.record(allocation("b"))
        await it.save(durable=False)
        await anyio.lowlevel.checkpoint()

        disk.flows.set()

        await eventually(lambda: not it.error and saved(disk) == ["a", "b"])


async def test_a_write_that_was_taken_when_patience_had_just_ended_is_followed_at_once(disk: Disk) -> None:
    it = store(disk, Ledger([allocation("a")]), patience=0.01, pauses=(3600, 3600))
    await hung(it, disk)
    disk.flows.set()
    await eventually(lambda: it._writing is not None and it._writing.done())

    async with running(it):
        await eventually(lambda: not it.error)


async def test_a_disk_that_fails_is_tried_until_it_takes_the_newest_and_then_left_alone(
    disk: Disk, full: OSError
) -> None:
    ledger = Ledger([allocation("a")])
    async with running(store(disk, ledger, pauses=(0, 0))) as it:
        disk.broken = full
        await it.save(durable=False)
        assert it.error == f"{disk.path}: [Errno 28] No space left on device"
        await eventually(lambda: len(disk.tries) > 3)
        ledger.record(allocation("b"))  # nobody saves it
        tries = len(disk.tries)
        await eventually(lambda: len(disk.tries) > tries + 1)  # the one that began before is over

        disk.broken = None

        await eventually(lambda: not it.error)
        assert saved(disk) == ["a", "b"]
        tries = len(disk.tries)
        for _ in range(20):
            await it.save(durable=False)
        assert (len(disk.tries), it.saves) == (tries + 20, 21)


async def test_a_disk_that_fails_again_is_tried_again(disk: Disk, full: OSError) -> None:
    async with running(store(disk, Ledger())) as it:
        for _ in range(3):
            disk.broken = full
            await it.save(durable=False)
            disk.broken = None
            await eventually(lambda: not it.error)

    assert it.saves == 3


async def test_what_was_to_survive_a_power_cut_still_is_when_it_is_tried_again(
    disk: Disk, full: OSError
) -> None:
    it = store(disk, Ledger())
    disk.broken = full
    await it.save(durable=True)
    await it.save(durable=False)
    disk.broken = None

    await it.save(durable=False)
    await it.save(durable=False)

    assert disk.tries == [True, True, True, False]


async def test_whoever_stops_waiting_does_not_let_writes_meet(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])
    it = store(disk, ledger)
    disk.flows.clear()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: it.save(durable=False))
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    ledger.record(allocation("b"))
    disk.flows.set()
    with anyio.fail_after(30):
        while saved(disk) != ["a", "b"]:
            await it.save(durable=False)

    assert {path.name for path in disk.path.parent.iterdir()} <= {"checkpoint.json", "checkpoint.journal"}


async def test_a_change_of_the_ledger_is_appended_and_any_other_change_is_written_whole(disk: Disk) -> None:
    ledger, inventory = Ledger(), Inventory()
    it = LedgerStore(disk, ledger, inventory, SavedState())
    await it.save(durable=False)
    whole = disk.path.read_bytes()

    ledger.record(allocation("a"))
    await it.save(durable=False)
    assert (disk.path.read_bytes(), saved(disk)) == (whole, ["a"])

    inventory.cordon("GPU-0", Cordon("ops", "", 1.0))
    await it.save(durable=False)
    assert disk.path.read_bytes() != whole
    assert loaded(disk).cordons.keys() == {"GPU-0"}


async def test_the_last_save_leaves_no_journal(disk: Disk) -> None:
    ledger = Ledger()
    it = store(disk, ledger)
    await it.save(durable=False)
    ledger.record(allocation("a"))
    await it.save(durable=False)
    assert journal(disk).exists()

    await it.save(durable=False, last=True)

    assert not journal(disk).exists()
    assert saved(disk) == ["a"]
    ledger.record(allocation("b"))  # by a task that ends after the last save
    await it.save(durable=False)
    assert not journal(disk).exists()
    assert saved(disk) == ["a", "b"]


async def test_what_a_failed_save_lacked_comes_with_the_next_one_in_the_order_of_the_ledger(
    disk: Disk, full: OSError
) -> None:
    ledger = Ledger()
    it = store(disk, ledger)
    await it.save(durable=False)
    disk.broken = full
    for name in ("a", "b", "c"):
        ledger.record(allocation(name))
        await it.save(durable=False)
    ledger.release("a", "over", 2.0)
    ledger.drop("b")
    await it.save(durable=False)
    disk.broken = None

    await it.save(durable=False)

    assert journal(disk).exists()
    assert [(one.id, one.state) for one in loaded(disk).allocations] == [
        ("c", AllocationState.DONE),
        ("a", AllocationState.RELEASED),
    ]


async def test_a_write_that_ended_after_the_patience_is_not_appended_twice(disk: Disk) -> None:
    ledger = Ledger()
    it = store(disk, ledger)
    await it.save(durable=False)
    it._patience = 0.01
    ledger.record(allocation("a"))
    await hung(it, disk)
    disk.flows.set()
    await eventually(lambda: it._writing is not None and it._writing.done())
    ledger.record(allocation("b"))

    await it.save(durable=False)

    assert saved(disk) == ["a", "b"]
    assert journal(disk).read_bytes().count(b"\n") == 3  # header, a, b


@asynccontextmanager
async def folding(it: LedgerStore) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(it.fold_journal)
        yield
        group.cancel_scope.cancel()


async def test_a_journal_is_folded_once_it_is_long_though_the_agent_is_busy(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.state.journaled_checkpoint.SHORT_JOURNAL", 0)
    ledger = Ledger()
    it = LedgerStore(disk, ledger, Inventory(), SavedState(), quiet=3600)
    await it.save(durable=False)
    async with folding(it):
        for n in range(1000):
            ledger.record(allocation(str(n)))
            await it.save(durable=False)
            if not journal(disk).exists():
                break

    assert 4 < n < 100
    assert saved(disk) == [*map(str, range(n + 1))]


async def test_a_journal_is_folded_while_nothing_is_written_once_that_is_worth_it(disk: Disk) -> None:
    ledger = Ledger()
    it = LedgerStore(disk, ledger, Inventory(), SavedState(), quiet=0.001)
    await it.save(durable=False)
    async with folding(it):
        ledger.record(allocation("a"))
        await it.save(durable=False)
        await anyio.wait_all_tasks_blocked()
        assert journal(disk).exists()
        for n in range(10):
            ledger.record(allocation(str(n)))
        await it.save(durable=False)

        await eventually(lambda: not journal(disk).exists())

    assert len(saved(disk)) == 11


async def test_a_journal_that_a_full_disk_keeps_from_being_folded_is_kept_and_folded_later(
    disk: Disk, full: OSError
) -> None:
    ledger = Ledger()
    it = LedgerStore(disk, ledger, Inventory(), SavedState(), quiet=0.001)
    await it.save(durable=False)
    for n in range(10):
        ledger.record(allocation(str(n)))
    await it.save(durable=False)
    disk.broken, tries = full, len(disk.tries)
    async with folding(it):
        await eventually(lambda: len(disk.tries) > tries + 2)
        assert journal(disk).exists()
        disk.broken = None

        await eventually(lambda: not journal(disk).exists())

    assert len(saved(disk)) == 10


async def test_a_thousand_allocates_write_at_most_a_kilobyte_each_however_many_pods_there_are(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their confirmations, and with checkpoints that fold the journal."""
    uuids = [f"GPU-{n:08x}-7f3a-4c1e-9d2b-0123456789ab" for n in range(8)]
    bytes_written = 0
    write = os.write

    def counted(descriptor: int, text: Any) -> int:
        nonlocal bytes_written
        count = write(descriptor, text)
        is_state = os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(disk.path.parent))
        bytes_written += count if is_state else 0
        return count

    def answered(n: int) -> Allocation:
        uuid = uuids[n % 8]
        ids = (f"{uuid}::{n // 8}",)
        done = AllocationState.DONE
        return Allocation(
            f"{n:016x}", "nvidia.com/gpu", "nvidia", ids, (uuid,), done, 1.7e9 + n / 7, life="1.7e9-4711"
        )

    owner = Owner("0f6b3a52-5c1e-4c2b-9f1d-3a52f6b30c1e", "main", "default", "web-7d4b9c6f5-x2x9k")
    ledger = Ledger([replace(answered(n), owner=owner) for n in range(500)])
    it = LedgerStore(disk, ledger, Inventory(), SavedState(), quiet=3600)
    await it.save(durable=False)
    monkeypatch.setattr(os, "write", counted)
    async with folding(it):
        for n in range(500, 1500):
            ledger.record(answered(n))
            await it.save(durable=False)
            ledger.confirm(f"{n:016x}", owner, "1.7e9-4711")
            await it.save(durable=False)

    assert 100 < bytes_written / 1000 <= 1000
    assert len(saved(disk)) == 1500


async def test_a_directory_that_can_not_be_written_is_said_and_mended(tmp_path: Path) -> None:
    blocker = tmp_path / "state"
    blocker.write_text("in the way")
    it = store(JournaledCheckpoint(blocker), Ledger())

    await it.save(durable=False)
    said = it.error
    blocker.unlink()
    await it.save(durable=False)

    assert str(blocker) in said
    assert (it.error, it.saves) == ("", 1)


@pytest.mark.parametrize(
    "device",
    [Device("\udc80", 0), Device("a", 0, counters={"ecc": object()})],  # type: ignore[dict-item]
    ids=["half a character", "no number"],
)
async def test_what_can_not_be_written_at_all_is_said_and_fails_nobody(disk: Disk, device: Device) -> None:
    inventory = Inventory(devices={"acme": (device,)})
    it = LedgerStore(disk, Ledger(), inventory, SavedState())

    with anyio.fail_after(30):
        await it.save(durable=False)
        await it.save(durable=False)

    assert it.error
    assert it.saves == 0
