"""What the agent knew when it last ran: it counts until something better is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.config_watching import (
    ASKS_ANY,
    BAD,
    BETTER,
    BY_LABEL,
    GOOD,
    before_was,
    http,
    labelled,
    put,
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
    LastConfig,
    RememberedConfig,
    given_flags,
)
from agent.config.source import SourceContent
from agent.core.cell import Cell
from agent.core.errors import ConfigError

SINCE = datetime(2026, 11, 22, 7, 30, tzinfo=UTC)
STAYS = "the last good configuration, of 2026-11-22T07:30:00Z, stays in force"


def kept(text: str = GOOD, **more: Any) -> RememberedConfig:
    return RememberedConfig(last=LastConfig("/etc/before", text, SINCE, **more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    write(path, GOOD)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    write(directory / "default", GOOD)
    write(directory / "any", BETTER)
    return directory


# Labels and choice of last time


async def test_labels_that_were_seen_last_time_are_known_at_the_start(path: Path) -> None:
    write(path, BY_LABEL)
    asked: list[str] = []

    def recall(state_dir: Path) -> RememberedConfig:
        asked.append(str(state_dir))
        return RememberedConfig({"pool": "train"})

    watch = ConfigWatch(path, "n", labels=untold(), recall=recall)

    assert asked == ["/s"]
    assert watch.cell.value.config.agent.http == "127.0.0.1:2"
    assert (watch.cell.value.waiting, watch.cell.value.labels) == (False, {"pool": "train"})


async def test_a_label_that_was_missing_last_time_is_known_to_be(path: Path) -> None:
    write(path, BY_LABEL)

    watch = ConfigWatch(path, "n", labels=untold(), recall=lambda _: RememberedConfig({"pool": None}))

    assert (watch.cell.value.config.agent.http, watch.cell.value.waiting) == ("127.0.0.1:1", False)


async def test_a_label_that_nobody_asked_about_last_time_is_not_known(path: Path) -> None:
    write(path, BY_LABEL)

    watch = ConfigWatch(path, "n", labels=untold(), recall=lambda _: RememberedConfig({"zone": "a"}))

    assert watch.cell.value.waiting


KNOWN: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "of the checkpoint alone": ({"pool": "train"}, {}),
    "of the last good configuration, as the checkpoint is lost": ({}, {"pool": "train"}),
    "of the checkpoint, which is newer": ({"pool": "train"}, {"pool": "serve"}),
    "of both": ({"zone": "a"}, {"pool": "train"}),
}


@pytest.mark.parametrize(("saved", "last"), KNOWN.values(), ids=KNOWN)
async def test_the_labels_that_are_known_are_those(
    path: Path, saved: Mapping[str, str], last: Mapping[str, str]
) -> None:
    write(path, BY_LABEL)
    before = replace(kept(BY_LABEL, labels=last), labels=saved)

    found = ConfigWatch(path, "n", labels=untold(), recall=before_was(before)).cell.value

    assert (found.config.agent.http, found.waiting, found.error) == ("127.0.0.1:2", False, "")


async def test_who_takes_over_knows_the_labels_of_the_last_good_configuration(path: Path) -> None:
    write(path, BY_LABEL)
    before = RememberedConfig()
    watch = ConfigWatch(path, "n", settle=0, labels=untold(), recall=lambda _: before)
    assert watch.cell.value.waiting
    before = kept(BY_LABEL, labels={"pool": "train"})

    await watch.recall()

    assert (watch.cell.value.config.agent.http, watch.cell.value.waiting) == ("127.0.0.1:2", False)


async def test_what_was_seen_last_time_counts_until_the_api_server_tells(path: Path) -> None:
    write(path, BY_LABEL)
    labels = untold()
    async with labelled(path, labels, RememberedConfig({"pool": "train"})) as watch:
        await state(watch, http(2))

        labels.set({"pool": "serve"})
        await state(watch, http(1))


async def test_who_takes_over_goes_on_with_the_labels_that_the_last_one_knew(path: Path) -> None:
    write(path, BY_LABEL)
    known = {"pool": "train"}
    watch = ConfigWatch(path, "n", labels=untold(), recall=lambda _: RememberedConfig(dict(known)))
    assert watch.cell.value.config.agent.http == "127.0.0.1:2"
    known["pool"] = "serve"

    await watch.recall()

    assert watch.cell.value.config.agent.http == "127.0.0.1:1"
    assert watch.cell.value.labels == {"pool": "serve"}


async def test_who_takes_over_believes_the_api_server_rather_than_a_checkpoint(path: Path) -> None:
    write(path, BY_LABEL)
    told: Cell[Labels | None] = Cell({"pool": "train"})
    watch = ConfigWatch(path, "n", labels=told, recall=lambda _: RememberedConfig({"pool": "serve"}))

    await watch.recall()

    assert watch.cell.value.config.agent.http == "127.0.0.1:2"


async def test_who_takes_over_goes_on_with_the_config_that_the_last_one_had_chosen(path: Path) -> None:
    named = path.parent / "named"
    named.mkdir()
    write(named / "a", "agent: {http: '127.0.0.1:1'}")
    write(named / "b", "agent: {http: '127.0.0.1:2'}")
    before = RememberedConfig()
    watch = ConfigWatch(ConfigSource(named, "a"), "n", recall=lambda _: before)
    assert watch.cell.value.name == "a"
    (named / "a").unlink()
    before = RememberedConfig(config="b")

    await watch.recall()

    assert (watch.cell.value.name, watch.cell.value.config.agent.http) == ("b", "127.0.0.1:2")
    assert watch.cell.value.error.endswith("the configuration of before the restart stays in force")


async def test_who_takes_over_recalls_what_was_known_in_the_state_directory_of_its_start(path: Path) -> None:
    asked: list[Path] = []

    def recall(state_dir: Path) -> RememberedConfig:
        asked.append(state_dir)
        return RememberedConfig()

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
    looks = iter(
        [
            SourceContent("f", b"version: v1"),
            SourceContent("f", BETTER.encode()),
            SourceContent("f", BETTER.encode()),
        ]
    )
    monkeypatch.setattr(ConfigSource, "look", lambda source, labels: next(looks))
    published: list[ConfigState] = []
    monkeypatch.setattr(watch.cell, "set", published.append)

    await watch.recall()

    assert [state.config.agent.http for state in published] == ["127.0.0.1:2"]


async def test_who_takes_over_with_an_error_has_the_config_that_the_last_one_had(path: Path) -> None:
    named = path.parent / "named"
    named.mkdir()
    write(named / "a", "agent: {http: '127.0.0.1:1'}")
    write(named / "b", "agent: {http: '127.0.0.1:2'}")
    before = RememberedConfig(config="a")
    watch = ConfigWatch(ConfigSource(named, "none"), "n", recall=lambda _: before)
    assert watch.cell.value.name == "a"
    before = RememberedConfig(config="b")

    await watch.recall()

    assert watch.cell.value.name == "b"


async def test_a_checkpoint_is_not_read_where_nothing_is_missing(path: Path) -> None:
    def recall(state_dir: Path) -> RememberedConfig:
        raise AssertionError("read")

    ConfigWatch(path, "n", labels=untold(), recall=recall)
    write(path, BY_LABEL)
    ConfigWatch(path, "n", labels=Cell({}), recall=recall)


async def test_the_label_of_last_time_chooses_while_the_server_is_away(directory: Path) -> None:
    for answer, expected in ((ASKS_ANY, "any"), ({CONFIG_LABEL: None}, "default")):
        before = RememberedConfig(answer)
        watch = ConfigWatch(directory, "n", labels=untold(), recall=before_was(before))

        assert (watch.cell.value.name, watch.cell.value.waiting) == (expected, False)


async def test_a_restart_keeps_the_last_good_one_where_the_label_names_none(directory: Path) -> None:
    labels: Cell[Labels | None] = Cell({CONFIG_LABEL: "typo"})
    async with labelled(directory, labels, RememberedConfig({CONFIG_LABEL: "typo"}, "any")) as watch:
        kept = watch.cell.value
        assert (kept.name, kept.waiting, kept.config.agent.http) == ("any", False, "127.0.0.1:2")
        assert "specified config typo does not exist" in kept.error
        assert kept.error.endswith("the configuration of before the restart stays in force")

        labels.set({})
        assert (await state(watch, http(1))).name == "default"


async def test_a_restart_without_a_label_known_has_the_configuration_of_before(directory: Path) -> None:
    watch = ConfigWatch(directory, "n", labels=untold(), recall=lambda _: RememberedConfig({}, "any"))

    assert (watch.cell.value.name, watch.cell.value.waiting) == ("any", False)


async def test_a_configuration_of_before_that_is_gone_or_bad_is_not_taken(directory: Path) -> None:
    write(directory / "any", BAD)
    for name in ("any", "gone", "../any"):
        before = RememberedConfig({}, name)
        watch = ConfigWatch(directory, "n", labels=untold(), recall=before_was(before))

        assert watch.cell.value.waiting


# A start with a configuration that is refused

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

    found = ConfigWatch(source_of(path), "n", recall=before_was(kept())).cell.value

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
    assert found.error.startswith(f"{path}: cannot be read: No such file or directory")
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

    assert (
        said(ConfigWatch(source_of(path), "n", recall=before_was(kept(text))).cell.value.config) == expected
    )


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
    write(path, "version: v1")

    assert ConfigWatch(path, "n", recall=before_was(kept())).cell.value == ConfigState(Config(), str(path))


async def test_a_file_that_is_empty_after_a_restart_was_emptied(path: Path) -> None:
    """A slip before a restart costs no more than one before none."""
    write(path, " \n")

    found = ConfigWatch(path, "n", recall=before_was(kept())).cell.value

    assert found.config.agent.http == "127.0.0.1:1"
    assert found.error == f"{path}: is empty now; write `version: v1` to mean all defaults; {STAYS}"


@pytest.mark.parametrize("before", [RememberedConfig(), kept("")], ids=["nothing", "an empty file"])
async def test_a_file_that_is_empty_as_ever_means_all_defaults(path: Path, before: RememberedConfig) -> None:
    write(path, "")

    assert ConfigWatch(path, "n", recall=before_was(before)).cell.value == ConfigState(Config(), str(path))


UNUSABLE = {
    "of a newer release": (kept("agent: {warp: 9}"), "agent.warp: unknown key"),
    "spoilt": (RememberedConfig(trouble="the last good one cannot be used: it is empty"), "it is empty"),
}


@pytest.mark.parametrize(("before", "why"), UNUSABLE.values(), ids=UNUSABLE)
async def test_a_last_good_configuration_that_can_not_be_used_is_told_and_ignored(
    path: Path, directory: Path, before: RememberedConfig, why: str
) -> None:
    write(path, BAD)
    with pytest.raises(ConfigError, match=f"agent.htp: unknown key.*; the last good one.*{why}"):
        ConfigWatch(path, "n", recall=before_was(before))

    waiting = ConfigWatch(ConfigSource(directory, "none"), "n", recall=before_was(before)).cell.value
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

    found = ConfigWatch(ConfigSource(directory, "none"), "n", recall=before_was(before)).cell.value

    assert (found.name, found.config.agent.http, found.waiting) == ("any", "127.0.0.1:1", False)
    assert found.error.endswith(STAYS)


async def test_where_the_last_good_configuration_is_refused_the_file_of_its_name_is_tried(
    directory: Path,
) -> None:
    before = replace(kept(BAD, name="any"), config="any")

    found = ConfigWatch(ConfigSource(directory, "none"), "n", recall=before_was(before)).cell.value

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

    def recall(state_dir: Path) -> RememberedConfig:
        asked.append(str(state_dir))
        return kept()

    ConfigWatch(path, "n", flags=given_flags(flags, {}), recall=recall)

    assert asked == [expected]
