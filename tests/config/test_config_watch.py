"""The watch: every way a file can change, and that a bad one never takes the good one away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.config_watching import (
    ASKS_ANY,
    BAD,
    BETTER,
    BY_LABEL,
    GOOD,
    following,
    http,
    labelled,
    remove,
    state,
    untold,
    write,
)
from support.vendor_inputs import source_of

from agent.config import (
    CONFIG_LABEL,
    Config,
    ConfigSource,
    ConfigState,
    ConfigWatch,
    Labels,
    given_flags,
)
from agent.config.source import SourceContent
from agent.core.cell import Cell
from agent.core.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    write(path, GOOD)
    return path


def move(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


async def test_the_first_file_must_be_good(path: Path) -> None:
    write(path, BAD)

    with pytest.raises(ConfigError, match="unknown key"):
        ConfigWatch(path, "n")
    with pytest.raises(ConfigError, match="cannot be read"):
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
        assert "cannot be read: No such file or directory" in gone.error

        write(path, BETTER)
        await state(watch, http(2))


async def test_reload_looks_at_once(path: Path) -> None:
    async with following(path, every=3600) as watch:
        write(path, BETTER)
        watch.reload()

        await state(watch, http(2))


async def test_a_file_seen_half_written_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ConfigWatch(path, "n", settle=0)
    looks = iter(
        [SourceContent("f"), SourceContent("f", BETTER.encode()), SourceContent("f", BETTER.encode())]
    )
    monkeypatch.setattr(ConfigSource, "look", lambda source, labels: next(looks))
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
def source(directory: Path, name: Path) -> ConfigSource:
    return ConfigSource(directory, node_config_file=name)


async def test_the_state_names_the_chosen_file(source: ConfigSource, directory: Path) -> None:
    assert ConfigWatch(source, "n").cell.value.source == str(directory / "default")


async def test_a_change_of_the_chosen_file_is_taken_in(source: ConfigSource, directory: Path) -> None:
    async with following(source) as watch:
        write(directory / "default", BETTER)

        assert (await state(watch, http(2))).source == str(directory / "default")


async def test_a_change_of_another_file_is_no_news(source: ConfigSource, directory: Path) -> None:
    watch = ConfigWatch(source, "n", settle=0)
    before = watch.cell.value
    write(directory / "any", BAD)

    await watch.once()

    assert watch.cell.value is before


async def test_a_node_that_names_a_config_gets_it_and_one_that_no_longer_does_the_default(
    source: ConfigSource, directory: Path, name: Path
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
    source: ConfigSource, directory: Path, name: Path
) -> None:
    write(directory / "any", GOOD)
    async with following(source) as watch:
        write(name, "any")

        await state(watch, lambda state: state.source == str(directory / "any"))


async def test_a_name_that_does_not_exist_keeps_the_last_good_configuration_and_says_so(
    source: ConfigSource, directory: Path, name: Path
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
    source: ConfigSource, directory: Path, name: Path
) -> None:
    write(directory / "any", BAD)
    async with following(source) as watch:
        write(name, "any")

        bad = await state(watch, lambda state: bool(state.error))
        assert bad.error.startswith(f"{directory}/any:1: agent.htp: unknown key")
        assert bad.source == str(directory / "default")
        assert bad.config.agent.http == "127.0.0.1:1"


async def test_a_start_without_a_good_choice_waits_for_one(source: ConfigSource, name: Path) -> None:
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


async def test_a_start_with_flags_that_are_wrong_waits_for_nothing(source: ConfigSource, name: Path) -> None:
    write(name, "other")

    with pytest.raises(ConfigError, match="--http: "):
        ConfigWatch(source, "n", flags=given_flags({"http": "nowhere"}, {}))


async def test_a_file_that_comes_or_goes_changes_the_choice(source: ConfigSource, directory: Path) -> None:
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

    async with following(ConfigSource(tmp_path, default_config="any")) as watch:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        (tmp_path / "other").symlink_to("..data/other")

        await state(watch, http(2))


async def test_a_directory_that_vanishes_keeps_the_last_good_configuration(
    source: ConfigSource, directory: Path
) -> None:
    async with following(source) as watch:
        move(directory, "away")

        gone = await state(watch, lambda state: bool(state.error))
        assert gone.config.agent.http == "127.0.0.1:1"
        assert "cannot be read: No such file or directory" in gone.error


# Warnings


async def test_warnings_come_with_the_configuration_and_go_with_it(path: Path) -> None:
    write(path, "flags: {migStrateg: none}")
    async with following(source_of(path)) as watch:
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
    async with labelled(ConfigSource(directory, default_config="default"), labels) as watch:
        waiting = watch.cell.value
        assert waiting.waiting
        assert waiting.labels_awaited, "nothing is wrong, and nobody is told that something was"
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

    assert ConfigWatch(ConfigSource(directory, fallbacks=("empty",)), "n", labels=untold()).cell.value.waiting


@pytest.mark.parametrize("labels", [None, Cell[Labels | None]({CONFIG_LABEL: "default"})])
async def test_what_the_command_line_chooses_needs_no_label(
    directory: Path, name: Path, labels: Cell[Labels | None] | None
) -> None:
    write(name, "any")
    for source in (ConfigSource(directory, "any"), ConfigSource(directory, node_config_file=name)):
        state = ConfigWatch(source, "n", labels=labels or untold()).cell.value

        assert (state.name, state.waiting) == ("any", False)


async def test_where_nobody_tells_labels_the_default_holds(directory: Path) -> None:
    state = ConfigWatch(directory, "n").cell.value

    assert (state.name, state.waiting, state.labels) == ("default", False, {})


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
