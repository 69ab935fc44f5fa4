"""The watch: every way a file can change, and that a bad one never takes the good one away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.config import (
    CONFIG_LABEL,
    Config,
    ConfigState,
    ConfigWatch,
    Labels,
    LastConfig,
    Remembered,
    Source,
    given_flags,
)
from agent.config.source import Seen
from agent.core.cell import Cell
from agent.core.errors import ConfigError
from agent.process import _follow

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


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


@asynccontextmanager
async def following(path: Source | Path | None, every: float = 0.01) -> AsyncIterator[ConfigWatch]:
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
    looks = iter([Seen("f"), Seen("f", BETTER.encode()), Seen("f", BETTER.encode())])
    monkeypatch.setattr(Source, "look", lambda source, labels: next(looks))
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
    watch = ConfigWatch(path, "n", settle=0, flags=given_flags({"http": "127.0.0.1:7"}, {}))
    write(path, "agent: {http: 127.0.0.1:2, log: {level: error}}")

    await watch.once()

    assert watch.cell.value.config.agent.http == "127.0.0.1:7"
    assert watch.cell.value.config.agent.log.level == "error"


async def test_a_vendor_that_does_not_exist_is_an_error(path: Path) -> None:
    watch = ConfigWatch(path, "n", settle=0, vendors=["nvidia"])
    write(path, "vendors: {metax: {}}")

    await watch.once()

    assert "vendors.metax: no such vendor" in watch.cell.value.error


# A directory of named configurations


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    write(directory / "default", GOOD)
    write(directory / "any", BETTER)
    return directory


@pytest.fixture
def name(tmp_path: Path) -> Path:
    return tmp_path / "name"


@pytest.fixture
def source(directory: Path, name: Path) -> Source:
    return Source(directory, node_config_file=name)


async def test_the_state_names_the_chosen_file(source: Source, directory: Path) -> None:
    assert ConfigWatch(source, "n").cell.value.source == str(directory / "default")


async def test_a_change_of_the_chosen_file_is_taken_in(source: Source, directory: Path) -> None:
    async with following(source) as watch:
        write(directory / "default", BETTER)

        assert (await state(watch, http(2))).source == str(directory / "default")


async def test_a_change_of_another_file_is_no_news(source: Source, directory: Path) -> None:
    watch = ConfigWatch(source, "n", settle=0)
    before = watch.cell.value
    write(directory / "any", BAD)

    await watch.once()

    assert watch.cell.value is before


async def test_a_node_that_names_a_config_gets_it_and_one_that_no_longer_does_the_default(
    source: Source, directory: Path, name: Path
) -> None:
    async with following(source) as watch:
        write(name, "any\n")
        assert (await state(watch, http(2))).source == str(directory / "any")

        write(name, "")
        assert (await state(watch, http(1))).source == str(directory / "default")

        write(name, "any")
        await state(watch, http(2))
        remove(name)
        await state(watch, http(1))


async def test_another_name_with_the_same_content_is_told(
    source: Source, directory: Path, name: Path
) -> None:
    write(directory / "any", GOOD)
    async with following(source) as watch:
        write(name, "any")

        await state(watch, lambda state: state.source == str(directory / "any"))


async def test_a_name_that_does_not_exist_keeps_the_last_good_configuration_and_says_so(
    source: Source, directory: Path, name: Path
) -> None:
    write(name, "any")
    async with following(source) as watch:
        write(name, "other")

        bad = await state(watch, lambda state: bool(state.error))
        assert bad.error == (
            f"{directory}: specified config other does not exist; there are: any, default; "
            "the last good configuration stays in force"
        )
        assert bad.config.agent.http == "127.0.0.1:2"
        assert bad.source == str(directory / "any")

        write(directory / "other", GOOD)
        assert (await state(watch, http(1))).source == str(directory / "other")


async def test_bad_content_of_the_chosen_file_keeps_the_last_good_configuration(
    source: Source, directory: Path, name: Path
) -> None:
    write(directory / "any", BAD)
    async with following(source) as watch:
        write(name, "any")

        bad = await state(watch, lambda state: bool(state.error))
        assert bad.error.startswith(f"{directory}/any:1: agent.htp: unknown key")
        assert bad.source == str(directory / "default")
        assert bad.config.agent.http == "127.0.0.1:1"


async def test_a_start_without_a_good_choice_waits_for_one(source: Source, name: Path) -> None:
    write(name, "other")
    async with following(source) as watch:
        waiting = watch.cell.value
        assert waiting.waiting
        assert "specified config other does not exist" in waiting.error
        assert waiting.error.endswith("nothing is served until there is a good one")

        write(name, "nobody")
        still = await state(watch, lambda state: "nobody" in state.error)
        assert still.waiting

        write(name, "default")
        good = await state(watch, lambda state: not state.error)
        assert not good.waiting


async def test_a_start_with_flags_that_are_wrong_waits_for_nothing(source: Source, name: Path) -> None:
    write(name, "other")

    with pytest.raises(ConfigError, match="--http: "):
        ConfigWatch(source, "n", flags=given_flags({"http": "nowhere"}, {}))


async def test_a_file_that_comes_or_goes_changes_the_choice(source: Source, directory: Path) -> None:
    async with following(source) as watch:
        remove(directory / "default")
        assert (await state(watch, http(2))).source == str(directory / "any")

        write(directory / "default", GOOD)
        assert (await state(watch, http(1))).source == str(directory / "default")


async def test_the_symlink_swap_of_a_mounted_config_map_changes_content_and_files(tmp_path: Path) -> None:
    for revision, files in (("..1", {"any": GOOD}), ("..2", {"any": BETTER, "other": GOOD})):
        (tmp_path / revision).mkdir()
        for file, text in files.items():
            write(tmp_path / revision / file, text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "any").symlink_to("..data/any")

    async with following(Source(tmp_path, default_config="any")) as watch:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        (tmp_path / "other").symlink_to("..data/other")

        await state(watch, http(2))


async def test_a_directory_that_vanishes_keeps_the_last_good_configuration(
    source: Source, directory: Path
) -> None:
    async with following(source) as watch:
        move(directory, "away")

        gone = await state(watch, lambda state: bool(state.error))
        assert gone.config.agent.http == "127.0.0.1:1"
        assert "can not be read: No such file or directory" in gone.error


# Warnings


async def test_warnings_come_with_the_configuration_and_go_with_it(path: Path) -> None:
    write(path, "flags: {migStrateg: none}")
    async with following(path) as watch:
        assert "did you mean 'migStrategy'?" in watch.cell.value.config.warnings[0]

        write(path, "flags: {migStrategy: none}")
        await state(watch, lambda state: not state.config.warnings)


async def test_what_the_check_warns_of_is_told_and_what_it_refuses_is_not_taken(path: Path) -> None:
    def check(config: Config) -> Config:
        if config.agent.http.endswith(":2"):
            raise ConfigError("not this one")
        return replace(config, warnings=("odd",))

    watch = ConfigWatch(path, "n", settle=0, check=check)
    assert watch.cell.value.config.warnings == ("odd",)

    write(path, BETTER)
    await watch.once()

    assert watch.cell.value.error.startswith("not this one; the last good configuration")
    assert watch.cell.value.config.agent.http == "127.0.0.1:1"


async def test_the_warnings_of_each_content_are_logged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.logs.set_level", lambda level: None)
    write(path, "flags: {one: 1}")
    with capture_logs() as told:
        async with following(path) as watch, asyncio.timeout(30):
            follower = asyncio.create_task(_follow(watch))
            await warned_of(told, "flags.one")
            write(path, "flags: {two: 2}")
            await warned_of(told, "flags.two")
            write(path, "flags: {}")
            await state(watch, lambda state: not state.config.warnings)
            follower.cancel()

    assert [it.split(": ")[1] for it in warned(told)] == ["flags.one", "flags.two"]


async def warned_of(told: Sequence[Mapping[str, Any]], key: str) -> None:
    while True:
        if any(key in it for it in warned(told)):
            return
        await asyncio.sleep(0.005)


def warned(told: Sequence[Mapping[str, Any]]) -> list[str]:
    return [it["warning"] for it in told if it["log_level"] == "warning" and "warning" in it]


async def test_a_file_that_becomes_empty_changes_nothing(path: Path) -> None:
    """Half of a write, or a slip: nobody means to take every resource away like this."""
    write(path, "agent: {http: '127.0.0.1:1'}")
    async with following(path) as watch:
        write(path, " \n")

        bad = await state(watch, lambda state: bool(state.error))
        assert "is empty now; write `version: v1` to mean all defaults" in bad.error
        assert bad.config.agent.http == "127.0.0.1:1"

        write(path, "version: v1")
        assert (await state(watch, lambda state: not state.error)).config == Config()


def test_a_file_that_is_empty_at_the_start_means_all_defaults(path: Path) -> None:
    write(path, "")

    assert ConfigWatch(path, "n").cell.value.config == Config()


# Labels of the Node

BY_LABEL = """
agent: {http: 127.0.0.1:1, stateDir: /s}
nodes: [{match: {labels: {pool: train}}, set: {agent: {http: 127.0.0.1:2}}}]
"""


def before_was(before: Remembered) -> Callable[[Path], Remembered]:
    return lambda _: before


def untold() -> Cell[Labels | None]:
    return Cell(None)


@asynccontextmanager
async def labelled(
    source: Source | Path,
    labels: Cell[Labels | None],
    before: Remembered | None = None,
    **settings: Any,
) -> AsyncIterator[ConfigWatch]:
    """A watch that looks only when it is asked to, or hears of labels."""
    watch = ConfigWatch(
        source,
        "node-1",
        3600,
        settle=0.001,
        labels=labels,
        recall=lambda _: before or Remembered(),
        **settings,
    )
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_label_set_before_the_start_decides_the_first_configuration(path: Path) -> None:
    write(path, BY_LABEL)

    state = ConfigWatch(path, "n", labels=Cell({"pool": "train", "other": "x"})).cell.value

    assert state.config.agent.http == "127.0.0.1:2"
    assert (state.waiting, state.error) == (False, "")
    assert state.labels == {"pool": "train"}


async def test_a_label_set_after_the_start_counts_at_once_and_unset_again_no_more(path: Path) -> None:
    write(path, BY_LABEL)
    labels: Cell[Labels | None] = Cell({})
    async with labelled(path, labels) as watch:
        assert watch.cell.value.config.agent.http == "127.0.0.1:1"

        labels.set({"pool": "train"})
        assert (await state(watch, http(2))).labels == {"pool": "train"}

        labels.set({"pool": "serve"})
        await state(watch, http(1))

        labels.set({"pool": "train"})
        await state(watch, http(2))

        labels.set({})
        assert (await state(watch, http(1))).labels == {"pool": None}


async def test_labels_that_are_not_known_yet_are_awaited_and_not_guessed(path: Path) -> None:
    write(path, BY_LABEL)
    labels = untold()
    async with labelled(path, labels) as watch:
        waiting = watch.cell.value
        assert waiting.waiting
        assert waiting.labels_awaited
        assert "match.labels: the label 'pool' is not known of this Node yet" in waiting.error
        assert waiting.error.endswith("nothing is served until it is")

        labels.set({"pool": "train"})

        taken_in = await state(watch, http(2))
        assert not taken_in.waiting
        assert not taken_in.labels_awaited


async def test_while_labels_are_awaited_the_agent_s_own_settings_hold(path: Path) -> None:
    write(path, BY_LABEL)

    waiting = ConfigWatch(path, "n", labels=untold()).cell.value

    assert (waiting.config.agent.http, str(waiting.config.agent.state_dir)) == ("127.0.0.1:1", "/s")


async def test_labels_that_are_not_known_keep_nothing_waiting_that_does_not_ask_for_them(path: Path) -> None:
    state = ConfigWatch(path, "n", labels=untold()).cell.value

    assert (state.waiting, state.error, state.labels) == (False, "", {})


async def test_labels_that_were_seen_last_time_are_known_at_the_start(path: Path) -> None:
    write(path, BY_LABEL)
    asked: list[str] = []

    def recall(state_dir: Path) -> Remembered:
        asked.append(str(state_dir))
        return Remembered({"pool": "train"})

    watch = ConfigWatch(path, "n", labels=untold(), recall=recall)

    assert asked == ["/s"]
    assert watch.cell.value.config.agent.http == "127.0.0.1:2"
    assert (watch.cell.value.waiting, watch.cell.value.labels) == (False, {"pool": "train"})


async def test_a_label_that_was_missing_last_time_is_known_to_be(path: Path) -> None:
    write(path, BY_LABEL)

    watch = ConfigWatch(path, "n", labels=untold(), recall=lambda _: Remembered({"pool": None}))

    assert (watch.cell.value.config.agent.http, watch.cell.value.waiting) == ("127.0.0.1:1", False)


async def test_a_label_that_nobody_asked_about_last_time_is_not_known(path: Path) -> None:
    write(path, BY_LABEL)

    watch = ConfigWatch(path, "n", labels=untold(), recall=lambda _: Remembered({"zone": "a"}))

    assert watch.cell.value.waiting


async def test_what_was_seen_last_time_counts_until_the_api_server_tells(path: Path) -> None:
    write(path, BY_LABEL)
    labels = untold()
    async with labelled(path, labels, Remembered({"pool": "train"})) as watch:
        await state(watch, http(2))

        labels.set({"pool": "serve"})
        await state(watch, http(1))


async def test_who_takes_over_goes_on_with_the_labels_that_the_last_one_knew(path: Path) -> None:
    write(path, BY_LABEL)
    known = {"pool": "train"}
    watch = ConfigWatch(path, "n", labels=untold(), recall=lambda _: Remembered(dict(known)))
    assert watch.cell.value.config.agent.http == "127.0.0.1:2"
    known["pool"] = "serve"

    await watch.recall()

    assert watch.cell.value.config.agent.http == "127.0.0.1:1"
    assert watch.cell.value.labels == {"pool": "serve"}


async def test_who_takes_over_believes_the_api_server_rather_than_a_checkpoint(path: Path) -> None:
    write(path, BY_LABEL)
    told: Cell[Labels | None] = Cell({"pool": "train"})
    watch = ConfigWatch(path, "n", labels=told, recall=lambda _: Remembered({"pool": "serve"}))

    await watch.recall()

    assert watch.cell.value.config.agent.http == "127.0.0.1:2"


async def test_who_takes_over_goes_on_with_the_config_that_the_last_one_had_chosen(path: Path) -> None:
    named = path.parent / "named"
    named.mkdir()
    write(named / "a", "agent: {http: '127.0.0.1:1'}")
    write(named / "b", "agent: {http: '127.0.0.1:2'}")
    before = Remembered()
    watch = ConfigWatch(Source(named, "a"), "n", recall=lambda _: before)
    assert watch.cell.value.name == "a"
    (named / "a").unlink()
    before = Remembered(config="b")

    await watch.recall()

    assert (watch.cell.value.name, watch.cell.value.config.agent.http) == ("b", "127.0.0.1:2")
    assert watch.cell.value.error.endswith("the configuration of before the restart stays in force")


async def test_who_takes_over_recalls_what_was_known_in_the_state_directory_of_its_start(path: Path) -> None:
    asked: list[Path] = []

    def recall(state_dir: Path) -> Remembered:
        asked.append(state_dir)
        return Remembered()

    write(path, "version: v1\nagent: {stateDir: /var/lib/old}\n")
    watch = ConfigWatch(path, "n", settle=0, recall=recall)
    write(path, "version: v1\nagent: {stateDir: /var/lib/new}\n")
    await watch.once()
    assert watch.cell.value.config.agent.state_dir == Path("/var/lib/new")

    await watch.recall()

    assert asked == [Path("/var/lib/old")]


async def test_who_takes_over_with_nothing_to_recall_keeps_what_it_had(path: Path) -> None:
    watch = ConfigWatch(path, "n")
    before = watch.cell.value
    write(path, "")

    await watch.recall()

    assert watch.cell.value.config == before.config
    assert "is empty now" in watch.cell.value.error


async def test_who_takes_over_goes_on_with_a_file_that_was_empty_from_the_beginning(path: Path) -> None:
    write(path, "")
    watch = ConfigWatch(path, "n")
    before = watch.cell.value

    await watch.recall()
    await watch.once()

    assert watch.cell.value == before
    assert before.error == ""


async def test_who_takes_over_waits_until_a_file_is_written_to_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ConfigWatch(path, "n", settle=0)
    looks = iter([Seen("f", b"version: v1"), Seen("f", BETTER.encode()), Seen("f", BETTER.encode())])
    monkeypatch.setattr(Source, "look", lambda source, labels: next(looks))
    published: list[ConfigState] = []
    monkeypatch.setattr(watch.cell, "set", published.append)

    await watch.recall()

    assert [state.config.agent.http for state in published] == ["127.0.0.1:2"]


async def test_who_takes_over_with_an_error_has_the_config_that_the_last_one_had(path: Path) -> None:
    named = path.parent / "named"
    named.mkdir()
    write(named / "a", "agent: {http: '127.0.0.1:1'}")
    write(named / "b", "agent: {http: '127.0.0.1:2'}")
    before = Remembered(config="a")
    watch = ConfigWatch(Source(named, "none"), "n", recall=lambda _: before)
    assert watch.cell.value.name == "a"
    before = Remembered(config="b")

    await watch.recall()

    assert watch.cell.value.name == "b"


async def test_an_empty_file_stays_all_defaults_when_labels_are_told(path: Path) -> None:
    write(path, "")
    labels = untold()
    watch = ConfigWatch(path, "n", settle=0, labels=labels)
    before = watch.cell.value
    labels.set({"pool": "train"})

    await watch.once()

    assert watch.cell.value == before
    assert before.error == ""


async def test_a_file_that_was_emptied_stays_an_error_when_labels_are_told(path: Path) -> None:
    labels = untold()
    watch = ConfigWatch(path, "n", settle=0, labels=labels)
    write(path, "")
    await watch.once()
    labels.set({"pool": "train"})

    await watch.once()

    assert "is empty now" in watch.cell.value.error


async def test_a_checkpoint_is_not_read_where_nothing_is_missing(path: Path) -> None:
    def recall(state_dir: Path) -> Remembered:
        raise AssertionError("read")

    ConfigWatch(path, "n", labels=untold(), recall=recall)
    write(path, BY_LABEL)
    ConfigWatch(path, "n", labels=Cell({}), recall=recall)


async def test_a_file_that_comes_to_ask_for_labels_nobody_told_keeps_the_last_good_one(path: Path) -> None:
    labels = untold()
    async with labelled(path, labels) as watch:
        write(path, BY_LABEL)
        watch.reload()

        bad = await state(watch, lambda state: bool(state.error))
        assert not bad.waiting
        assert bad.error.endswith("the last good configuration stays in force")

        labels.set({"pool": "train"})
        await state(watch, http(2))


async def test_labels_that_were_told_once_stay_known_when_the_server_is_away(path: Path) -> None:
    write(path, BY_LABEL)
    labels: Cell[Labels | None] = Cell({"pool": "train"})
    async with labelled(path, labels) as watch:
        labels.set(None)
        write(path, BY_LABEL.replace("127.0.0.1:2", "127.0.0.1:3"))
        watch.reload()

        await state(watch, http(3))


async def test_where_nobody_tells_labels_a_file_that_asks_for_them_is_refused_at_the_start(
    path: Path,
) -> None:
    write(path, BY_LABEL)

    with pytest.raises(ConfigError, match="there is no API server to ask for them"):
        ConfigWatch(path, "n")


async def test_a_file_that_is_wrong_is_refused_at_the_start_also_where_labels_are_awaited(path: Path) -> None:
    write(path, BY_LABEL + "  - 1")

    with pytest.raises(ConfigError):
        ConfigWatch(path, "n", labels=untold())


# The label that chooses one of a directory

ASKS_ANY = {CONFIG_LABEL: "any"}


async def test_the_label_chooses_before_the_start(directory: Path) -> None:
    state = ConfigWatch(directory, "n", labels=Cell(ASKS_ANY)).cell.value

    assert (state.source, state.name) == (str(directory / "any"), "any")
    assert state.labels == ASKS_ANY


async def test_the_label_chooses_after_the_start_and_unset_again_the_default_holds(directory: Path) -> None:
    labels: Cell[Labels | None] = Cell({})
    async with labelled(directory, labels) as watch:
        assert watch.cell.value.name == "default"

        labels.set(ASKS_ANY)
        assert (await state(watch, http(2))).name == "any"

        labels.set({})
        assert (await state(watch, http(1))).name == "default"

        labels.set(ASKS_ANY)
        await state(watch, http(2))

        labels.set({CONFIG_LABEL: ""})
        await state(watch, http(1))


async def test_a_label_with_a_name_that_does_not_exist_keeps_the_last_good_one(directory: Path) -> None:
    labels: Cell[Labels | None] = Cell(ASKS_ANY)
    async with labelled(directory, labels) as watch:
        labels.set({CONFIG_LABEL: "../any"})

        bad = await state(watch, lambda state: bool(state.error))
        assert "specified config ../any does not exist; there are: any, default" in bad.error
        assert (bad.name, bad.config.agent.http) == ("any", "127.0.0.1:2")


async def test_a_label_that_is_not_known_yet_is_awaited_before_anything_is_chosen(directory: Path) -> None:
    labels = untold()
    async with labelled(Source(directory, default_config="default"), labels) as watch:
        waiting = watch.cell.value
        assert waiting.waiting
        assert f"{directory}: the label '{CONFIG_LABEL}' chooses here, and is not known" in waiting.error

        labels.set({})

        assert (await state(watch, http(1))).name == "default"


async def test_where_there_is_one_to_choose_no_label_is_awaited(directory: Path) -> None:
    remove(directory / "any")
    labels = untold()
    async with labelled(directory, labels) as watch:
        assert (watch.cell.value.name, watch.cell.value.waiting) == ("default", False)

        labels.set({CONFIG_LABEL: "other"})
        assert (await state(watch, lambda state: bool(state.error))).name == "default"


async def test_where_no_label_would_mean_all_defaults_one_file_is_a_choice(directory: Path) -> None:
    remove(directory / "any")

    assert ConfigWatch(Source(directory, fallbacks=("empty",)), "n", labels=untold()).cell.value.waiting


@pytest.mark.parametrize("labels", [None, Cell[Labels | None]({CONFIG_LABEL: "default"})])
async def test_what_the_command_line_chooses_needs_no_label(
    directory: Path, name: Path, labels: Cell[Labels | None] | None
) -> None:
    write(name, "any")
    for source in (Source(directory, "any"), Source(directory, node_config_file=name)):
        state = ConfigWatch(source, "n", labels=labels or untold()).cell.value

        assert (state.name, state.waiting) == ("any", False)


async def test_where_nobody_tells_labels_the_default_holds(directory: Path) -> None:
    state = ConfigWatch(directory, "n").cell.value

    assert (state.name, state.waiting, state.labels) == ("default", False, {})


async def test_the_label_of_last_time_chooses_while_the_server_is_away(directory: Path) -> None:
    for answer, expected in ((ASKS_ANY, "any"), ({CONFIG_LABEL: None}, "default")):
        before = Remembered(answer)
        watch = ConfigWatch(directory, "n", labels=untold(), recall=before_was(before))

        assert (watch.cell.value.name, watch.cell.value.waiting) == (expected, False)


async def test_a_restart_keeps_the_last_good_one_where_the_label_names_none(directory: Path) -> None:
    labels: Cell[Labels | None] = Cell({CONFIG_LABEL: "typo"})
    async with labelled(directory, labels, Remembered({CONFIG_LABEL: "typo"}, "any")) as watch:
        kept = watch.cell.value
        assert (kept.name, kept.waiting, kept.config.agent.http) == ("any", False, "127.0.0.1:2")
        assert "specified config typo does not exist" in kept.error
        assert kept.error.endswith("the configuration of before the restart stays in force")

        labels.set({})
        assert (await state(watch, http(1))).name == "default"


async def test_a_restart_without_a_label_known_has_the_configuration_of_before(directory: Path) -> None:
    watch = ConfigWatch(directory, "n", labels=untold(), recall=lambda _: Remembered({}, "any"))

    assert (watch.cell.value.name, watch.cell.value.waiting) == ("any", False)


async def test_a_configuration_of_before_that_is_gone_or_bad_is_not_taken(directory: Path) -> None:
    write(directory / "any", BAD)
    for name in ("any", "gone", "../any"):
        before = Remembered({}, name)
        watch = ConfigWatch(directory, "n", labels=untold(), recall=before_was(before))

        assert watch.cell.value.waiting


async def test_a_label_in_a_file_that_a_label_chose_is_followed_too(directory: Path) -> None:
    write(directory / "any", BY_LABEL)
    labels: Cell[Labels | None] = Cell(ASKS_ANY)
    async with labelled(directory, labels) as watch:
        assert watch.cell.value.config.agent.http == "127.0.0.1:1"

        labels.set({**ASKS_ANY, "pool": "train"})

        assert (await state(watch, http(2))).labels == {**ASKS_ANY, "pool": "train"}


async def test_a_label_that_nobody_asks_about_is_no_news(path: Path) -> None:
    write(path, BY_LABEL)
    labels: Cell[Labels | None] = Cell({})
    watch = ConfigWatch(path, "n", settle=0, labels=labels)
    before = watch.cell.value
    labels.set({"beta": "x"})

    await watch.once()

    assert watch.cell.value is before


# A start with a configuration that is refused

SINCE = datetime(2026, 11, 22, 7, 30, tzinfo=UTC)
STAYS = "the last good configuration, of 2026-11-22T07:30:00Z, stays in force"


def kept(text: str = GOOD, **more: Any) -> Remembered:
    return Remembered(last=LastConfig("/etc/before", text, SINCE, **more))


REFUSED: Mapping[str, tuple[bytes, str]] = {
    "no YAML": (b"vendors: [", "config.yaml:1"),
    "an unknown key": (BAD.encode(), "agent.htp: unknown key"),
    "not UTF-8": (b"version: v1 # \xff", "is not UTF-8 text"),
    "NVIDIA's, with what is not served": (b"sharing: {mps: {resources: []}}", "sharing.mps"),
    "of another version": (b"version: v9", "unknown version: v9"),
}


@pytest.mark.parametrize(("content", "why"), REFUSED.values(), ids=REFUSED)
async def test_a_start_that_is_refused_serves_by_the_last_good_configuration(
    path: Path, content: bytes, why: str
) -> None:
    put(path, content)

    found = ConfigWatch(path, "n", recall=before_was(kept())).cell.value

    assert why in found.error
    assert found.error.endswith(f"; {STAYS}")
    assert found == ConfigState(
        replace(Config(), agent=replace(Config().agent, http="127.0.0.1:1")),
        "/etc/before",
        found.error,
        since=SINCE,
    )
    assert found.content == GOOD.encode()


async def test_a_start_without_its_file_serves_by_the_last_good_configuration(path: Path) -> None:
    remove(path)

    found = ConfigWatch(path, "n", recall=before_was(kept())).cell.value

    assert found.config.agent.http == "127.0.0.1:1"
    assert found.error.startswith(f"{path}: can not be read: No such file or directory")
    assert found.error.endswith(STAYS)


KINDS: Mapping[str, tuple[str, Callable[[Config], object], object]] = {
    "ours": ("vendors: {acme: {enabled: false}}", lambda it: it.vendor("acme").enabled, False),
    "NVIDIA's": (
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}",
        lambda it: it.vendor("nvidia").settings["timeSlicing"]["resources"][0]["replicas"],
        3,
    ),
    "all defaults": ("", lambda it: it, Config()),
}


@pytest.mark.parametrize(("text", "said", "expected"), KINDS.values(), ids=KINDS)
async def test_the_last_good_configuration_is_of_any_kind(
    path: Path, text: str, said: Callable[[Config], object], expected: object
) -> None:
    write(path, BAD)

    assert said(ConfigWatch(path, "n", recall=before_was(kept(text))).cell.value.config) == expected


async def test_a_file_that_is_mended_is_taken_in_as_at_any_reload(path: Path) -> None:
    write(path, BAD)
    watch = ConfigWatch(path, "n", settle=0, recall=before_was(kept()))
    write(path, BETTER)

    await watch.once()

    good = watch.cell.value
    assert (good.config.agent.http, good.error, good.since) == ("127.0.0.1:2", "", None)
    assert good.source == str(path)


async def test_a_file_that_is_bad_in_another_way_then_names_the_same_time(path: Path) -> None:
    write(path, BAD)
    watch = ConfigWatch(path, "n", settle=0, recall=before_was(kept()))
    write(path, "version: v9")

    await watch.once()

    assert "unknown version: v9" in watch.cell.value.error
    assert watch.cell.value.error.endswith(f"; {STAYS}")


async def test_flags_of_this_start_win_over_the_last_good_configuration(path: Path) -> None:
    write(path, BAD)
    flags = given_flags({"http": "127.0.0.1:7"}, {"XPU_AGENT_LOG_LEVEL": "error"})

    found = ConfigWatch(path, "n", flags=flags, recall=before_was(kept())).cell.value

    assert (found.config.agent.http, found.config.agent.log.level) == ("127.0.0.1:7", "error")


async def test_flags_that_are_wrong_are_refused_whatever_was_in_force(path: Path) -> None:
    for text in (GOOD, BAD):
        write(path, text)
        flags = given_flags({"http": "nowhere"}, {})

        with pytest.raises(ConfigError, match="--http: "):
            ConfigWatch(path, "n", flags=flags, recall=before_was(kept()))


async def test_a_file_that_is_good_needs_no_last_good_configuration(path: Path) -> None:
    write(path, "")

    assert ConfigWatch(path, "n", recall=before_was(kept())).cell.value == ConfigState(Config(), str(path))


UNUSABLE = {
    "of a newer release": (kept("agent: {warp: 9}"), "agent.warp: unknown key"),
    "spoilt": (Remembered(trouble="the last good one can not be used: it is empty"), "it is empty"),
}


@pytest.mark.parametrize(("before", "why"), UNUSABLE.values(), ids=UNUSABLE)
async def test_a_last_good_configuration_that_can_not_be_used_is_told_and_ignored(
    path: Path, directory: Path, before: Remembered, why: str
) -> None:
    write(path, BAD)
    with pytest.raises(ConfigError, match=f"agent.htp: unknown key.*; the last good one.*{why}"):
        ConfigWatch(path, "n", recall=before_was(before))

    waiting = ConfigWatch(Source(directory, "none"), "n", recall=before_was(before)).cell.value
    assert waiting.waiting
    assert "specified config none does not exist" in waiting.error
    assert f"{why}" in waiting.error
    assert waiting.error.endswith("; nothing is served until there is a good one")


async def test_a_last_good_configuration_that_its_vendor_refuses_now_is_told_and_ignored(path: Path) -> None:
    def check(config: Config) -> Config:
        raise ConfigError("not with this driver")

    with pytest.raises(ConfigError, match="of 2026-11-22T07:30:00Z, is refused, too: not with this driver"):
        ConfigWatch(path, "n", check=check, recall=before_was(kept()))


async def test_of_a_directory_the_last_good_configuration_goes_before_the_file_of_its_name(
    directory: Path,
) -> None:
    """A running agent holds on to the content, too, and not to the file that it once was."""
    before = replace(kept(name="any"), config="any")

    found = ConfigWatch(Source(directory, "none"), "n", recall=before_was(before)).cell.value

    assert (found.name, found.config.agent.http, found.waiting) == ("any", "127.0.0.1:1", False)
    assert found.error.endswith(STAYS)


async def test_where_the_last_good_configuration_is_refused_the_file_of_its_name_is_tried(
    directory: Path,
) -> None:
    before = replace(kept(BAD, name="any"), config="any")

    found = ConfigWatch(Source(directory, "none"), "n", recall=before_was(before)).cell.value

    assert (found.name, found.config.agent.http) == ("any", "127.0.0.1:2")
    assert found.error.endswith("the configuration of before the restart stays in force")


@pytest.mark.parametrize("labels", [None, untold(), Cell[Labels | None]({"pool": "serve"})])
async def test_the_last_good_configuration_is_read_by_the_labels_of_its_time(
    path: Path, labels: Cell[Labels | None] | None
) -> None:
    write(path, BAD)
    before = kept(BY_LABEL, labels={"pool": "train"})

    found = ConfigWatch(path, "n", labels=labels, recall=before_was(before)).cell.value

    assert (found.config.agent.http, found.labels) == ("127.0.0.1:2", {"pool": "train"})


async def test_labels_that_are_awaited_are_awaited_though_there_is_a_last_good_configuration(
    path: Path,
) -> None:
    write(path, BY_LABEL)
    labels = untold()
    async with labelled(path, labels, kept()) as watch:
        assert watch.cell.value.labels_awaited
        assert "last good" not in watch.cell.value.error

        labels.set({"pool": "train"})
        await state(watch, http(2))


async def test_what_proves_bad_once_its_labels_are_told_brings_the_last_good_configuration(
    path: Path,
) -> None:
    write(path, BY_LABEL.replace("127.0.0.1:2", "nowhere"))
    labels = untold()
    async with labelled(path, labels, kept()) as watch:
        assert watch.cell.value.waiting

        labels.set({"pool": "train"})

        found = await state(watch, lambda it: not it.waiting)
        assert "the address 'nowhere' has no port" in found.error
        assert found.error.endswith(STAYS)
        assert found.config.agent.http == "127.0.0.1:1"


async def test_who_takes_over_with_a_bad_file_has_the_configuration_that_the_last_one_had(path: Path) -> None:
    write(path, BAD)
    before = kept()
    watch = ConfigWatch(path, "n", recall=lambda _: before)
    before = kept(BETTER)

    await watch.recall()

    assert watch.cell.value.config.agent.http == "127.0.0.1:2"
    assert watch.cell.value.error.endswith(STAYS)


TOLD: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "by a flag": (BAD, {"state-dir": "/f"}, "/f"),
    "by a flag before the file": ("agent: {htp: x, stateDir: /s}", {"state-dir": "/f"}, "/f"),
    "by the file, of which the rest is bad": ("agent: {htp: x, stateDir: /s}", {}, "/s"),
    "by nobody": (BAD, {}, "/var/lib/xpu-agent"),
    "by a file that is no YAML": ("agent: {stateDir: /s", {}, "/var/lib/xpu-agent"),
    "by nonsense": ("agent: {stateDir: [/s]}", {}, "/var/lib/xpu-agent"),
    "by a path that is none": ('agent: {stateDir: "/s\\0"}', {}, "/var/lib/xpu-agent"),
    "by a file that is no mapping": ("[agent]", {}, "/var/lib/xpu-agent"),
}


@pytest.mark.parametrize(("text", "flags", "expected"), TOLD.values(), ids=TOLD)
async def test_the_last_good_configuration_is_looked_for_where_the_state_is_told_to_be(
    path: Path, text: str, flags: Mapping[str, Any], expected: str
) -> None:
    write(path, text)
    asked: list[str] = []

    def recall(state_dir: Path) -> Remembered:
        asked.append(str(state_dir))
        return kept()

    ConfigWatch(path, "n", flags=given_flags(flags, {}), recall=recall)

    assert asked == [expected]
