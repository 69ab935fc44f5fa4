"""CDI specs on disk: whole or not there, as the vendors want them, and still there when we are not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.host.cdi_directory import CdiDirectory, Note, Specs, keep

NAME, SPEC = "acme.com-card.json", '{"cdiVersion": "0.5.0"}'
SPECS: Specs = {"acme": {NAME: SPEC}}
EMPTY: Specs = {"acme": {NAME: "{}"}}


@asynccontextmanager
async def kept(
    path: Path, specs: Cell[Specs], every: float = 0.01, note: Note = lambda path, text: None
) -> AsyncIterator[CdiDirectory]:
    directory = CdiDirectory(path, specs, every, note)
    task = asyncio.create_task(directory.run())
    try:
        yield directory
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def holds(path: Path, text: str) -> None:
    await eventually(lambda: path.is_file() and path.read_text() == text)


def test_a_spec_is_readable_by_all_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    keep(tmp_path / "cdi", SPECS)

    assert (tmp_path / "cdi" / NAME).read_text() == SPEC
    assert (tmp_path / "cdi" / NAME).stat().st_mode & 0o777 == 0o644
    assert [it.name for it in (tmp_path / "cdi").iterdir()] == [NAME]


def test_each_file_that_is_ours_is_told_and_one_of_another_vendor_once(tmp_path: Path) -> None:
    told: list[tuple[Path, str]] = []

    keep(tmp_path, {"acme": {NAME: SPEC}, "other": {NAME: SPEC}}, lambda *it: told.append(it))

    assert told == [(tmp_path / NAME, SPEC)]


def test_a_file_that_could_not_be_written_is_not_told(tmp_path: Path) -> None:
    told: list[tuple[Path, str]] = []
    (tmp_path / "cdi").touch()

    keep(tmp_path / "cdi", SPECS, lambda *it: told.append(it))

    assert told == []


def test_a_spec_that_is_as_it_should_be_is_left_alone(tmp_path: Path) -> None:
    keep(tmp_path, SPECS)
    before = (tmp_path / NAME).stat().st_ino

    keep(tmp_path, SPECS)

    assert (tmp_path / NAME).stat().st_ino == before


def test_a_changed_spec_replaces_the_old_one_in_one_step(tmp_path: Path) -> None:
    keep(tmp_path, SPECS)
    before = (tmp_path / NAME).stat().st_ino

    keep(tmp_path, EMPTY)

    assert (tmp_path / NAME).read_text() == "{}"
    assert (tmp_path / NAME).stat().st_ino != before


def test_a_link_in_the_place_of_a_spec_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    (tmp_path / NAME).symlink_to(tmp_path / "precious")

    keep(tmp_path, SPECS)

    assert (tmp_path / "precious").read_text() == "keep me"
    assert not (tmp_path / NAME).is_symlink()


def test_without_specs_no_directory_is_made(tmp_path: Path) -> None:
    keep(tmp_path / "cdi", {"acme": {}})

    assert not (tmp_path / "cdi").exists()


async def test_the_directory_follows_the_specs_and_keeps_them_at_the_end(tmp_path: Path) -> None:
    specs: Cell[Specs] = Cell({})
    async with kept(tmp_path, specs):
        specs.set(SPECS)
        await holds(tmp_path / NAME, SPEC)
        specs.set(EMPTY)
        await holds(tmp_path / NAME, "{}")

    assert (tmp_path / NAME).exists()


async def test_a_spec_that_somebody_removes_is_written_again(tmp_path: Path) -> None:
    async with kept(tmp_path, Cell(SPECS)):
        await holds(tmp_path / NAME, SPEC)

        (tmp_path / NAME).unlink()

        await holds(tmp_path / NAME, SPEC)


async def test_a_directory_that_can_not_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("in the way")
    async with kept(tmp_path / "cdi", Cell(SPECS)) as directory:
        await eventually(lambda: directory.errors.value)
        assert directory.errors.value["acme"].startswith(f"{tmp_path / 'cdi' / NAME}: ")

        (tmp_path / "cdi").unlink()

        await holds(tmp_path / "cdi" / NAME, SPEC)
        await eventually(lambda: not directory.errors.value)


def test_a_file_that_is_another_vendors_is_left_to_the_first(tmp_path: Path) -> None:
    wrong = keep(tmp_path, {"bolt": {NAME: "{}"}, **SPECS})

    assert wrong == {"bolt": f"{NAME} is acme's already"}
    assert (tmp_path / NAME).read_text() == SPEC


def test_a_spec_that_can_not_be_written_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()

    wrong = keep(tmp_path, {"acme": {NAME: SPEC, "acme.com-other.json": "{}"}})

    assert wrong["acme"].startswith(f"{tmp_path / NAME}: ")
    assert (tmp_path / "acme.com-other.json").read_text() == "{}"


def test_a_pipe_in_the_place_of_a_spec_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)

    keep(tmp_path, SPECS)

    assert (tmp_path / NAME).is_file()


def test_a_spec_without_content_is_no_file(tmp_path: Path) -> None:
    told: list[tuple[Path, str]] = []
    keep(tmp_path, SPECS)

    assert keep(tmp_path, {"acme": {NAME: ""}}, lambda *it: told.append(it)) == {}
    assert keep(tmp_path, {"acme": {NAME: ""}}, lambda *it: told.append(it)) == {}

    assert list(tmp_path.iterdir()) == []
    assert told == []


async def test_who_settles_finds_on_disk_what_is_wanted_now(tmp_path: Path) -> None:
    specs: Cell[Specs] = Cell(SPECS)
    async with kept(tmp_path, specs, every=600) as directory:
        await directory.settle("acme")
        assert (tmp_path / NAME).read_text() == SPEC
        specs.set(EMPTY)
        await directory.settle("acme")
        assert (tmp_path / NAME).read_text() == "{}"
        (tmp_path / NAME).unlink()  # as a reboot does
        await directory.settle("acme")
        assert (tmp_path / NAME).read_text() == "{}"


async def test_nobody_waits_for_a_vendor_without_specs(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "cdi", Cell(SPECS))

    await directory.settle("other")

    assert not (tmp_path / "cdi").exists()


async def test_who_settles_is_told_of_the_error_of_its_own_vendor_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    specs: Cell[Specs] = Cell({**SPECS, "other": {"other.com-card.json": SPEC}})
    async with kept(tmp_path, specs, every=600) as directory:
        await directory.settle("other")
        with pytest.raises(VendorError, match=f"acme: its CDI specs cannot be written: {tmp_path / NAME}: "):
            await directory.settle("acme")


class Late:
    """A disk that takes a file and says so late, while it `hangs`."""

    def __init__(self) -> None:
        self.hangs = True
        self.writes, self.goes_on = threading.Event(), threading.Event()

    def note(self, _path: Path, _text: str) -> None:
        if self.hangs:
            self.writes.set()
            self.goes_on.wait(30)


@pytest.fixture
def late() -> Iterator[Late]:
    disk = Late()
    yield disk
    disk.goes_on.set()


async def test_a_disk_that_hangs_costs_who_settles_its_patience_alone(tmp_path: Path, late: Late) -> None:
    async with kept(tmp_path, Cell(SPECS), note=late.note) as directory:
        await eventually(late.writes.is_set)
        with pytest.raises(VendorError, match=r"are not in .* after 0\.01 s"):
            await directory.settle("acme", within=0.01)


async def test_nothing_is_written_beside_a_write_that_is_late(tmp_path: Path, late: Late) -> None:
    specs: Cell[Specs] = Cell(SPECS)
    late.hangs = False
    async with kept(tmp_path, specs, every=600, note=late.note) as directory:
        await holds(tmp_path / NAME, SPEC)
        await directory.settle("acme")
        late.hangs = True
        (tmp_path / NAME).unlink()
        settling = asyncio.create_task(directory.settle("acme"))
        await eventually(late.writes.is_set)
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        specs.set(EMPTY)
        late.hangs = False
        with pytest.raises(VendorError, match="does the disk work"):
            await directory.settle("acme", within=0.05)
        assert (tmp_path / NAME).read_text() == SPEC

        late.goes_on.set()

        await directory.settle("acme")
        assert (tmp_path / NAME).read_text() == "{}"
