"""The checkpoint follows the ledger, whatever the disk does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agent.core.inventory import Inventory
from agent.core.ledger import Ledger
from agent.core.model import Allocation, AllocationState
from agent.state.checkpoint import CheckpointFile, Saved
from agent.state.store import LedgerStore


class Disk(CheckpointFile):
    """A checkpoint file whose writes can be held up."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.flows = threading.Event()
        self.flows.set()

    def save(self, state: Saved, *, durable: bool) -> None:
        self.flows.wait(30)
        super().save(state, durable=durable)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "state" / "checkpoint.json")
    yield disk
    disk.flows.set()


def allocation(name: str) -> Allocation:
    return Allocation(name, "example.com/x", "acme", (name,), (name,), AllocationState.DONE, 1.0)


def store(disk: CheckpointFile, ledger: Ledger, patience: float = 5.0) -> LedgerStore:
    return LedgerStore(disk, ledger, Inventory(), "boot", patience)


def saved(disk: CheckpointFile) -> list[str]:
    return [it.id for it in disk.load()[0].allocations]


async def test_what_is_in_the_ledger_is_in_the_file(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])

    await store(disk, ledger).save(durable=True)

    assert saved(disk) == ["a"]


async def test_a_disk_that_hangs_is_said_and_holds_nobody_up(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])
    it = store(disk, ledger, patience=0.01)
    disk.flows.clear()

    with anyio.fail_after(5):
        await it.save(durable=False)
        await it.save(durable=False)

    assert "has not answered" in it.error
    assert it.saves == 0


async def test_a_disk_that_flows_again_is_written_with_the_newest(disk: Disk) -> None:
    ledger = Ledger([allocation("a")])
    it = store(disk, ledger, patience=0.01)
    disk.flows.clear()
    await it.save(durable=False)
    ledger.record(allocation("b"))
    await it.save(durable=False)

    disk.flows.set()

    with anyio.fail_after(5):
        while True:
            await anyio.sleep(0.001)
            if not it.error and saved(disk) == ["a", "b"]:
                return


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
    with anyio.fail_after(5):
        while saved(disk) != ["a", "b"]:
            await it.save(durable=False)

    assert [path.name for path in disk.path.parent.iterdir()] == ["checkpoint.json"]


async def test_a_directory_that_can_not_be_written_is_said_and_mended(tmp_path: Path) -> None:
    blocker = tmp_path / "state"
    blocker.write_text("in the way")
    it = store(CheckpointFile(blocker / "checkpoint.json"), Ledger())

    await it.save(durable=False)
    said = it.error
    blocker.unlink()
    await it.save(durable=False)

    assert str(blocker) in said
    assert (it.error, it.saves) == ("", 1)
