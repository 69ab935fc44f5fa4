"""The file that koordlet reads: whole or not at all, beside others, and there after the agent."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cluster.koordlets import from_files
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.errors import ConfigError
from agent.host.scheduler_report_file import MAX_BYTES, NAME, OtherFiles, ReportFileWriter, keep, report_in
from agent.scheduler_api.node_report import PublishedReport, Report, ReportedCard
from agent.schedulers.koordinator.node_report import DEVICE_INFOS, NODE_REPORT

GIB = 1 << 30


def reported(*uuids: str, healthy: bool = True) -> Report:
    cards = tuple(
        ReportedCard(
            uuid, minor, healthy, memory=64 * GIB, model="C500", numa=0, pcie="pci0000:3a", pci="0000:3b:00.0"
        )
        for minor, uuid in enumerate(uuids)
    )
    return Report("metax", cards, "C500")


def seen(directory: Path) -> list[tuple[str, int, bool]]:
    """The cards that koordlet knows from the directory."""
    devices = from_files(directory)
    assert devices is not None, "koordlet takes no file of it"
    return [(it["id"], it["minor"], it["health"]) for it in devices]


def others(directory: Path, *uuids: str) -> Path:
    """A file as koord-device-daemon writes it."""
    entries = [
        {"vendor": "metax", "model": "C500", "uuid": it, "minor": str(n), "resources": {"gpu-core": "100"}}
        for n, it in enumerate(uuids)
    ]
    path = directory / "ic-device"
    path.write_text(json.dumps(entries))
    return path


@asynccontextmanager
async def keeping(
    telling: Cell[PublishedReport | None], every: float = 0.01, noted: list[Path] | None = None
) -> AsyncIterator[ReportFileWriter]:
    its = noted if noted is not None else []
    file = ReportFileWriter(NODE_REPORT, telling, every, its.append, lambda: tuple(its))
    async with anyio.create_task_group() as group:
        group.start_soon(file.run)
        yield file
        group.cancel_scope.cancel()


async def test_what_is_told_stands_in_the_file_follows_it_and_stays_after_the_agent(tmp_path: Path) -> None:
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a", "b"), str(tmp_path)))
    noted: list[Path] = []
    async with keeping(telling, noted=noted) as file:
        await eventually(lambda: (tmp_path / NAME).exists())
        assert seen(tmp_path) == [("a", 0, True), ("b", 1, True)]

        telling.set(PublishedReport("feed", reported("a", "b", healthy=False), str(tmp_path)))
        await eventually(lambda: seen(tmp_path) == [("a", 0, False), ("b", 1, False)])
        await eventually(lambda: file.writes == 2)
        # What is not known is no reason to tell less.
        telling.set(PublishedReport("feed", None, str(tmp_path)))
        await file.once()
        telling.set(None)
        await file.once()

    assert seen(tmp_path) == [("a", 0, False), ("b", 1, False)]
    assert file.writes == 2
    assert noted[0] == tmp_path / NAME
    assert report_in(tmp_path, DEVICE_INFOS) is not None


async def test_a_file_that_somebody_removes_or_changes_is_written_again(tmp_path: Path) -> None:
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a"), str(tmp_path)))
    async with keeping(telling):
        await eventually(lambda: (tmp_path / NAME).exists())
        (tmp_path / NAME).unlink()
        await eventually(lambda: (tmp_path / NAME).exists())
        (tmp_path / NAME).write_text("[]")
        await eventually(lambda: seen(tmp_path) == [("a", 0, True)])


def test_no_half_written_and_no_other_file_of_ours_is_ever_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []
    real = os.replace

    def look(source: Any, target: Any) -> None:
        there.append([it.name for it in tmp_path.iterdir() if not it.is_dir()])
        assert Path(source).read_text().endswith("]\n")
        real(source, target)

    monkeypatch.setattr(os, "replace", look)
    keep(tmp_path, reported("a"), NODE_REPORT)
    keep(tmp_path, reported("a", "b"), NODE_REPORT)

    assert there[0] == []
    assert there[-1] == [NAME]
    assert all(it in ([], [NAME]) for it in there)
    assert [it.name for it in tmp_path.iterdir()] == [NAME]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o644


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    assert keep(tmp_path, reported("a"), NODE_REPORT)[0]
    before = (tmp_path / NAME).stat()

    assert not keep(tmp_path, reported("a"), NODE_REPORT)[0]
    after = (tmp_path / NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_card_that_another_file_lists_is_not_counted_twice(tmp_path: Path) -> None:
    others(tmp_path, "a")
    changed, kept = keep(tmp_path, reported("a", "b"), NODE_REPORT)

    assert changed
    assert seen(tmp_path) == [("a", 0, True), ("b", 1, True)]
    assert kept.left_out == {"a": "a is not written: another file lists it: 'ic-device'"}


async def test_the_cards_for_which_other_files_answer_are_handed_on(tmp_path: Path) -> None:
    elsewhere: Cell[frozenset[str]] = Cell(frozenset())
    telling: Cell[PublishedReport | None] = Cell(
        PublishedReport("feed", reported("a", "b", "c"), str(tmp_path))
    )
    file = ReportFileWriter(NODE_REPORT, telling, elsewhere=elsewhere)
    others(tmp_path, "a", "x")  # x has the minor of b

    await file.once()

    assert elsewhere.value == {"a", "b", "x"}
    assert seen(tmp_path) == [("a", 0, True), ("x", 1, True), ("c", 2, True)]
    telling.set(PublishedReport("device", reported("a", "b", "c"), str(tmp_path)))
    await file.once()
    assert elsewhere.value == frozenset()


def test_where_others_list_every_card_there_is_no_file_of_ours_and_one_when_they_are_gone(
    tmp_path: Path,
) -> None:
    keep(tmp_path, reported("a"), NODE_REPORT)
    theirs = others(tmp_path, "a")
    keep(tmp_path, reported("a"), NODE_REPORT)
    assert seen(tmp_path) == [("a", 0, True)]
    assert not (tmp_path / NAME).exists()

    theirs.unlink()
    keep(tmp_path, reported("a"), NODE_REPORT)
    assert seen(tmp_path) == [("a", 0, True)]


@pytest.mark.parametrize("text", ["", "[", '[{"uuid": 1}]', "{}"])
async def test_a_file_for_which_koordlet_takes_none_is_told_and_ours_is_written(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "broken").write_text(text)
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a"), str(tmp_path)))
    async with keeping(telling) as file:
        await eventually(lambda: "'broken' is broken" in file.error)
        (tmp_path / "broken").unlink()
        await eventually(lambda: not file.error)

    assert seen(tmp_path) == [("a", 0, True)]


def test_a_file_where_the_directory_should_be_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")

    with pytest.raises(ConfigError, match=r"passwd is a file, not a directory: .* report\.deviceInfosDir"):
        keep(tmp_path / "passwd", reported("a"), NODE_REPORT)


async def test_without_the_directory_it_is_said_and_the_file_comes_with_it(tmp_path: Path) -> None:
    directory = tmp_path / "xpu-device-infos"
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a"), str(directory)))
    async with keeping(telling) as file:
        await eventually(lambda: "there is no directory" in file.error)
        directory.mkdir()
        await eventually(lambda: not file.error)

    assert seen(directory) == [("a", 0, True)]


async def test_the_file_goes_where_nobody_wants_it_told_and_stays_while_the_way_may_change_again(
    tmp_path: Path,
) -> None:
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a"), str(tmp_path)))
    async with keeping(telling) as file:
        await eventually(lambda: (tmp_path / NAME).exists())
        telling.set(PublishedReport("device", reported("a"), str(tmp_path)))
        await file.once()
        telling.set(PublishedReport("none", None, str(tmp_path)))
        await file.once()
        assert (tmp_path / NAME).exists()

        telling.set(PublishedReport("none", None, str(tmp_path), withdraw_file=True))
        await eventually(lambda: not (tmp_path / NAME).exists())


@pytest.mark.parametrize("directory", ["a-file", "nothing/here"])
async def test_where_no_directory_is_no_file_of_ours_is_to_go_and_the_agent_goes_on(
    tmp_path: Path, directory: str
) -> None:
    (tmp_path / "a-file").write_text("")
    telling: Cell[PublishedReport | None] = Cell(
        PublishedReport("none", None, str(tmp_path / directory), withdraw_file=True)
    )
    async with keeping(telling) as file:
        await file.once()
        assert not file.error

        telling.set(PublishedReport("feed", reported("a"), str(tmp_path)))
        await eventually(lambda: (tmp_path / NAME).exists())


async def test_a_file_that_can_not_be_removed_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    keep(tmp_path, reported("a"), NODE_REPORT)
    telling: Cell[PublishedReport | None] = Cell(
        PublishedReport("none", None, str(tmp_path), withdraw_file=True)
    )
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        async with keeping(telling) as file:
            await eventually(lambda: "Permission denied" in file.error)
            patch.undo()
            await eventually(lambda: not file.error and not (tmp_path / NAME).exists())


async def test_a_file_goes_from_the_directory_that_is_not_koordlet_s_any_more(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a"), str(before)))
    noted: list[Path] = []
    async with keeping(telling, noted=noted):
        await eventually(lambda: (before / NAME).exists())

        telling.set(PublishedReport("feed", reported("a"), str(after)))
        await eventually(lambda: (after / NAME).exists() and not (before / NAME).exists())

    telling.set(PublishedReport("feed", reported("a"), str(before)))
    file = ReportFileWriter(
        NODE_REPORT, telling, note=noted.append, noted=lambda: tuple(noted)
    )  # of the next agent
    await file.once()
    assert (before / NAME).exists()
    assert not (after / NAME).exists()


async def test_a_file_that_is_there_stays_true_while_the_device_tells_it_and_none_is_made(
    tmp_path: Path,
) -> None:
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("device", reported("a"), str(tmp_path)))
    async with keeping(telling) as file:
        await file.once()
        assert seen(tmp_path) == []
        keep(tmp_path, reported("a"), NODE_REPORT)

        telling.set(PublishedReport("device", reported("a", healthy=False), str(tmp_path)))

        await eventually(lambda: seen(tmp_path) == [("a", 0, False)])


def test_a_link_to_a_directory_breaks_all_for_koordlet_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")

    error = keep(tmp_path, reported("a"), NODE_REPORT)[1].error

    assert (
        f"koordlet reads no file of {tmp_path} while 'link' is broken: is not a file but a directory" in error
    )


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("nothing", "is a link to what is not there"),
        ("it", "Too many levels of symbolic links"),
        ("/dev/zero", "is not a file but a device"),
    ],
)
def test_what_is_wrong_with_a_link_is_said(tmp_path: Path, to: str, why: str) -> None:
    (tmp_path / "it").symlink_to(to)

    error = keep(tmp_path, reported("a"), NODE_REPORT)[1].error

    assert error.endswith(f"while 'it' is broken: {why}; have its writer mend it, or take it away")


def test_a_file_of_which_not_all_is_read_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "it").write_text(f"[{' ' * MAX_BYTES}]")

    assert (
        "'it' is broken: has more than 1 MiB, and no more is read"
        in keep(tmp_path, reported("a"), NODE_REPORT)[1].error
    )


@pytest.mark.parametrize("broken", [None, "[", ""])
def test_while_another_writer_restarts_its_cards_are_not_told_by_us(
    tmp_path: Path, broken: str | None
) -> None:
    now = 0.0
    neighbours = OtherFiles(DEVICE_INFOS, lambda: now)
    theirs = others(tmp_path, "a")
    keep(tmp_path, reported("a", "b"), NODE_REPORT, neighbours)
    theirs.unlink()
    if broken is not None:
        theirs.write_text(broken)

    now = 29.0
    keep(tmp_path, reported("a", "b"), NODE_REPORT, neighbours)
    assert [it["uuid"] for it in json.loads((tmp_path / NAME).read_text())] == ["b"]

    now = 31.0
    keep(tmp_path, reported("a", "b"), NODE_REPORT, neighbours)
    assert [it["uuid"] for it in json.loads((tmp_path / NAME).read_text())] == ["a", "b"]


async def test_directories_pipes_and_a_crowd_of_files_hold_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "ic-device-tmp").mkdir()
    os.mkfifo(tmp_path / "pipe")
    telling: Cell[PublishedReport | None] = Cell(PublishedReport("feed", reported("a"), str(tmp_path)))
    async with keeping(telling) as file:
        await eventually(lambda: "'pipe' is broken" in file.error)
        assert (tmp_path / NAME).exists()
        (tmp_path / "pipe").unlink()
        await eventually(lambda: not file.error)
        for it in range(65):
            (tmp_path / f"other-{it}").write_text("[]")
        await eventually(lambda: "more than 64 files" in file.error)
