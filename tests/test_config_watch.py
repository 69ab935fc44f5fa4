"""The watch: every way a file can change, and that a bad one never takes the good one away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from agent.config import Config, ConfigState, ConfigWatch
from agent.core.errors import ConfigError

GOOD = "agent: {http: 127.0.0.1:1}"
BETTER = "agent: {http: 127.0.0.1:2}"
BAD = "agent: {htp: x}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    write(path, GOOD)
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


@asynccontextmanager
async def following(path: Path | None, every: float = 0.01) -> AsyncIterator[ConfigWatch]:
    watch = ConfigWatch(path, "node-1", every, settle=0.005)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def state(watch: ConfigWatch, wanted: Callable[[ConfigState], bool]) -> ConfigState:
    async with asyncio.timeout(30):
        async for found in watch.cell.watch():
            if wanted(found):
                return found
    raise AssertionError


def http(port: int) -> Callable[[ConfigState], bool]:
    return lambda state: state.config.agent.http == f"127.0.0.1:{port}" and not state.error


async def test_the_first_file_must_be_good(path: Path) -> None:
    write(path, BAD)

    with pytest.raises(ConfigError, match="unknown key"):
        ConfigWatch(path, "n")
    with pytest.raises(ConfigError, match="can not be read"):
        ConfigWatch(path.with_name("none"), "n")


async def test_without_a_file_the_defaults_hold() -> None:
    watch = ConfigWatch(None, "n")

    assert watch.cell.value == ConfigState(Config(), "defaults")


async def test_an_edit_in_place_is_taken_in(path: Path) -> None:
    async with following(path) as watch:
        write(path, BETTER)

        assert (await state(watch, http(2))).source == str(path)


async def test_an_atomic_rename_is_taken_in(path: Path) -> None:
    async with following(path) as watch:
        path.with_name("new").write_text(BETTER)
        path.with_name("new").rename(path)

        await state(watch, http(2))


async def test_the_symlink_swap_of_a_config_map_is_taken_in(tmp_path: Path) -> None:
    for name, text in (("..1", GOOD), ("..2", BETTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")

    async with following(tmp_path / "config.yaml") as watch:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")

        await state(watch, http(2))


async def test_a_bad_file_keeps_the_last_good_configuration_and_says_so(path: Path) -> None:
    async with following(path) as watch:
        write(path, BAD)

        bad = await state(watch, lambda state: bool(state.error))
        assert bad.config.agent.http == "127.0.0.1:1"
        assert "config.yaml:1: agent.htp: unknown key" in bad.error
        assert bad.error.endswith("the last good configuration stays in force")

        write(path, GOOD)
        await state(watch, http(1))


async def test_a_file_that_vanishes_keeps_the_last_good_configuration_and_says_so(path: Path) -> None:
    async with following(path) as watch:
        remove(path)

        gone = await state(watch, lambda state: bool(state.error))
        assert gone.config.agent.http == "127.0.0.1:1"
        assert "can not be read: No such file or directory" in gone.error

        write(path, BETTER)
        await state(watch, http(2))


async def test_reload_looks_at_once(path: Path) -> None:
    async with following(path, every=3600) as watch:
        write(path, BETTER)
        watch.reload()

        await state(watch, http(2))


async def test_a_file_seen_half_written_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ConfigWatch(path, "n", settle=0)
    looks = iter([b"", BETTER.encode(), BETTER.encode()])
    monkeypatch.setattr(watch, "_look", lambda: next(looks))
    published: list[ConfigState] = []
    monkeypatch.setattr(watch.cell, "set", published.append)

    await watch.once()

    assert [state.config.agent.http for state in published] == ["127.0.0.1:2"]


async def test_the_same_content_anew_is_no_news(path: Path) -> None:
    watch = ConfigWatch(path, "n", settle=0)
    before = watch.cell.value
    write(path, GOOD)

    await watch.once()

    assert watch.cell.value is before


async def test_flags_win_over_every_new_file(path: Path) -> None:
    watch = ConfigWatch(path, "n", settle=0, flags={"http": "127.0.0.1:7", "log-level": None})
    write(path, "agent: {http: 127.0.0.1:2, log: {level: error}}")

    await watch.once()

    assert watch.cell.value.config.agent.http == "127.0.0.1:7"
    assert watch.cell.value.config.agent.log.level == "error"


async def test_a_vendor_that_does_not_exist_is_an_error(path: Path) -> None:
    watch = ConfigWatch(path, "n", settle=0, vendors=["nvidia"])
    write(path, "vendors: {metax: {}}")

    await watch.once()

    assert "vendors.metax: no such vendor" in watch.cell.value.error
