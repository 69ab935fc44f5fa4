"""Which of several named configurations holds on a node, and where it is looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.vendor_inputs import given_source

from agent.config import ConfigSource, load
from agent.config.named_configs import FALLBACKS, Fallback, chosen
from agent.core.errors import ConfigError

#: The chart's.
USUAL: tuple[Fallback, ...] = ("named", "single")
EXHAUSTED = "no config was set, no default was provided, and all fallbacks failed"


@pytest.mark.parametrize(
    ("names", "named", "default", "fallbacks", "expected"),
    [
        # What the node names holds, whatever else is there.
        (["any", "default"], "any", "default", USUAL, "any"),
        (["any", "default"], "any", "", (), "any"),
        # Else the default, also where a fallback would find something.
        (["any", "default"], "", "any", USUAL, "any"),
        # Else the first fallback that finds one.
        (["any", "default"], "", "", USUAL, "default"),
        (["default"], "", "", ("single",), "default"),
        (["any"], "", "", USUAL, "any"),
        (["any"], "", "", ("empty", "single"), ""),
        (["any", "other"], "", "", FALLBACKS, ""),
        (["any", "other"], "", "", ("empty",), ""),
        # Nothing suits.
        ([], "any", "any", FALLBACKS, ConfigError("no configuration files available")),
        (
            ["b", "a"],
            "any",
            "a",
            FALLBACKS,
            ConfigError("specified config any does not exist; there are: a, b"),
        ),
        (["a"], "", "any", FALLBACKS, ConfigError("specified config any does not exist; there are: a")),
        (["a", "b"], "", "", USUAL, ConfigError(EXHAUSTED)),
        (["a"], "", "", ("named",), ConfigError(EXHAUSTED)),
        (["a"], "", "", (), ConfigError(EXHAUSTED)),
        # Nothing but the name of one of them is one.
        (["a"], "../a", "", FALLBACKS, ConfigError("specified config ../a does not exist")),
    ],
)
def test_the_rules_of_config_manager(
    names: list[str], named: str, default: str, fallbacks: Sequence[Fallback], expected: str | ConfigError
) -> None:
    if isinstance(expected, str):
        assert chosen(names, named, default, fallbacks) == expected
        return
    with pytest.raises(ConfigError) as caught:
        chosen(names, named, default, fallbacks)
    assert str(caught.value).startswith(str(expected))


def test_a_hostile_name_is_shown_harmlessly_and_bounded() -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(["a" * 5000], "\x1b[31m" * 1000, "", USUAL)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


# The directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    write(directory, any=1, default=2)
    return directory


def write(directory: Path, **ports: int) -> None:
    for name, port in ports.items():
        (directory / name).write_text(f"agent: {{http: 127.0.0.1:{port}}}")


def port(source: ConfigSource) -> int:
    return int(load(source, "n").agent.http.rpartition(":")[2])


def refusal(source: ConfigSource) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, "n")
    return str(caught.value)


def test_the_name_is_given(directory: Path) -> None:
    assert port(ConfigSource(directory, node_config="any")) == 1
    assert ConfigSource(directory, node_config="any").look().source == str(directory / "any")


@pytest.mark.parametrize(("content", "expected"), [("any", 1), (" any\n", 1), ("", 2), ("\n", 2), (None, 2)])
def test_or_it_stands_in_a_file_where_empty_and_missing_is_not_set(
    content: str | None, expected: int, directory: Path, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "name").write_text(content)

    assert port(ConfigSource(directory, node_config_file=tmp_path / "name")) == expected


def test_a_name_that_is_given_goes_before_the_file_s(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "name").write_text("default")

    assert port(ConfigSource(directory, node_config="any", node_config_file=tmp_path / "name")) == 1


@pytest.mark.parametrize("content", [b"\xff", b"no\x00ne", b"x" * 100_000, b"../any", b"any\nany"])
def test_a_file_that_holds_no_name_of_a_config_is_refused(
    content: bytes, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "name").write_bytes(content)

    error = refusal(ConfigSource(directory, node_config_file=tmp_path / "name"))

    assert "does not exist; there are: any, default" in error
    assert len(error) < 500


def test_a_name_file_that_is_a_pipe_is_refused_without_waiting(directory: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "name")

    assert "name: cannot be read: is not a file" in refusal(
        ConfigSource(directory, node_config_file=tmp_path / "name")
    )


def test_the_default_of_those_that_name_none(directory: Path) -> None:
    assert port(ConfigSource(directory, default_config="any")) == 1


def test_the_empty_fallback_is_all_defaults(directory: Path) -> None:
    source = ConfigSource(directory, fallbacks=("empty",))

    assert (load(source, "n"), source.look().source) == (load(None, "n"), "defaults")


def test_only_files_and_links_to_files_are_configs(directory: Path) -> None:
    (directory / "..data").mkdir()
    write(directory / "..data", linked=3)
    (directory / "..hidden").write_text("")
    (directory / "folder").mkdir()
    (directory / "dangling").symlink_to("nowhere")
    (directory / "linked").symlink_to("..data/linked")

    assert port(ConfigSource(directory, node_config="linked")) == 3
    assert refusal(ConfigSource(directory, node_config="no")).endswith("there are: any, default, linked")


def test_an_error_in_the_chosen_file_names_it(directory: Path) -> None:
    (directory / "any").write_text("agent: {htp: 1}")

    assert refusal(ConfigSource(directory, node_config="any")).startswith(
        f"{directory}/any:1: agent.htp: unknown key"
    )


def test_an_error_of_the_choice_names_the_directory(directory: Path) -> None:
    assert refusal(ConfigSource(directory, node_config="no")).startswith(
        f"{directory}: specified config no does not"
    )


def test_a_name_chooses_nothing_where_there_is_no_directory(directory: Path) -> None:
    assert "is no directory" in refusal(ConfigSource(directory / "any", node_config="any"))
    assert "there is no --config" in refusal(ConfigSource(None, node_config="any"))


def test_a_default_for_a_directory_does_no_harm_to_a_file(directory: Path) -> None:
    assert port(ConfigSource(directory / "any", default_config="default", fallbacks=("empty",))) == 1


# Where it is looked for


@pytest.mark.parametrize(
    ("arguments", "environ", "source"),
    [
        ({}, {}, ConfigSource()),
        ({"config": "/c"}, {}, ConfigSource(Path("/c"))),
        ({"config": "/c"}, {"XPU_AGENT_CONFIG": "/d", "CONFIG_FILE": "/e"}, ConfigSource(Path("/c"))),
        ({}, {"XPU_AGENT_CONFIG": "/d", "CONFIG_FILE": "/e"}, ConfigSource(Path("/d"))),
        ({}, {"GFD_CONFIG_FILE": "/g", "CONFIG_FILE": "/e"}, ConfigSource(Path("/e"))),
        ({}, {"GFD_CONFIG_FILE": "/g"}, ConfigSource(Path("/g"))),
        ({}, {"CONFIG_FILE": "/e", "CONFIG_FILE_SRCDIR": "/available"}, ConfigSource(Path("/available"))),
        ({"node-config": "any"}, {"XPU_AGENT_NODE_CONFIG": "b"}, ConfigSource(node_config="any")),
        ({}, {"XPU_AGENT_NODE_CONFIG": "b"}, ConfigSource(node_config="b")),
        ({"node-config-file": "/n"}, {}, ConfigSource(node_config_file=Path("/n"))),
        ({}, {"XPU_AGENT_NODE_CONFIG_FILE": "/n"}, ConfigSource(node_config_file=Path("/n"))),
        ({"default-config": "a"}, {"DEFAULT_CONFIG": "b"}, ConfigSource(default_config="a")),
        ({}, {"XPU_AGENT_DEFAULT_CONFIG": "a", "DEFAULT_CONFIG": "b"}, ConfigSource(default_config="a")),
        ({}, {"DEFAULT_CONFIG": "b"}, ConfigSource(default_config="b")),
        (
            {"fallback-strategies": "empty"},
            {"FALLBACK_STRATEGIES": "named"},
            ConfigSource(fallbacks=("empty",)),
        ),
        ({}, {"FALLBACK_STRATEGIES": "single, named"}, ConfigSource(fallbacks=("single", "named"))),
        # As NVIDIA's chart writes what is not set.
        ({}, {"DEFAULT_CONFIG": "", "FALLBACK_STRATEGIES": "", "CONFIG_FILE": ""}, ConfigSource()),
    ],
)
def test_flags_go_before_our_variables_and_those_before_nvidia_s(
    arguments: dict[str, str], environ: dict[str, str], source: ConfigSource
) -> None:
    assert given_source(arguments, environ) == source


@pytest.mark.parametrize(
    ("arguments", "environ", "place"),
    [
        ({"fallback-strategies": "single,other"}, {}, "--fallback-strategies"),
        ({}, {"FALLBACK_STRATEGIES": "single,other"}, "FALLBACK_STRATEGIES"),
    ],
)
def test_an_unknown_fallback_is_refused_and_the_place_named(
    arguments: dict[str, str], environ: dict[str, str], place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        given_source(arguments, environ)

    assert str(caught.value) == f"{place}: unknown fallback strategy: other; there are named, single, empty"
