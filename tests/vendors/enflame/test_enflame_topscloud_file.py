"""Enflame's topscloud.json: what the cards are called, and that a bad one takes nothing away."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.config_watching import following
from support.vendor_inputs import INPUTS, source_of
from support.waiting import eventually

from agent.cli import main
from agent.config import ConfigState, ConfigWatch, LastConfig, RememberedConfig, load, parse, to_yaml
from agent.core.cell import Cell
from agent.core.errors import ConfigError
from agent.state.last_config_file import LastConfigKeeper, last_config

#: As it is shipped.
SHIPPED = {
    "version": "v1",
    "registerResource": ["enflame.com/gcu", "enflame.com/vgcu"],
    "mainDevice": ["/dev/gcu"],
    "virtualDevice": ["/dev/vgcu"],
    "driverDevice": ["/dev/gcuctl"],
    "utilityBins": ["efsmi"],
    "utilityLibs": ["libefml.so"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "topscloud.json"


def says(file: Path, *names: Any, **more: Any) -> None:
    """Replace the file as a whole."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({**SHIPPED, "registerResource": names, **more}, indent="\t"))
    os.replace(fresh, file)


def spoil(file: Path) -> None:
    file.write_text("{")


def config(file: Path, more: str = "") -> Path:
    path = file.with_name("config.yaml")
    path.write_text(f"version: v1\nvendors:\n  enflame:\n    configFile: {file}\n{more}")
    return path


def name(file: Path, more: str = "") -> str:
    return str(load(source_of(config(file, more)), "node-1").vendor("enflame").settings["registerResource"])


def refusal(file: Path, more: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        name(file, more)
    return str(refused.value)


@pytest.mark.parametrize("names", [("enflame.com/gcu", "enflame.com/vgcu"), ("tencent.com/zixiao",)])
def test_the_first_of_its_resources_is_what_cards_are_called(file: Path, names: tuple[str, ...]) -> None:
    says(file, *names)

    assert name(file) == names[0]
    assert load(source_of(config(file)), "node-1").warnings == ()


AWAITED = ": registerResource: expected a list that begins with a resource such as enflame.com/gcu"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", ":1: is no JSON: "),
        (b"\xff", ": is not UTF-8 text"),
        (b"[]", ": expected a JSON object, found a list"),
        (b"{}", f"{AWAITED}, found "),
        (b'{"registerResource": []}', f"{AWAITED}, found an empty list"),
        (b'{"registerResource": [1]}', f"{AWAITED}, found the number 1"),
        (b'{"registerResource": "enflame.com/gcu"}', f"{AWAITED}, found the text 'enflame.com/gcu'"),
        (b"[" * 100_000, ": is too deep to be read"),
        (
            b'{"registerResource": ["a.b/c"], "registerResource": ["d.e/f"]}',
            ": the key registerResource stands here 2 times; leave one",
        ),
        (b'{"version": ' + b"1" * 5_000 + b"}", ": is no JSON: "),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_with_its_place(file: Path, content: bytes, why: str) -> None:
    file.write_bytes(content)

    assert refusal(file).startswith(f"{file}{why}")


def test_a_file_that_is_not_there_is_told_with_what_would_work(file: Path) -> None:
    assert refusal(file) == f"{file}: cannot be read: No such file or directory; mount the file, or name none"


def test_a_name_that_the_configuration_says_too_is_refused_at_its_place(file: Path) -> None:
    says(file, "enflame.com/gcu")
    error = refusal(file, "    settings:\n      registerResource: a.com/b\n")

    assert "config.yaml:6: vendors.enflame.settings.registerResource: " in error
    assert "(configFile) says it, too; remove one of both" in error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "vendors: {nvidia: {configFile: /x}}",
            "a:1: vendors.nvidia.configFile: is served for enflame alone",
        ),
        ("vendors: {enflame: {configFile: x}}", "a:1: vendors.enflame.configFile: must be an absolute path"),
    ],
)
def test_a_file_that_can_not_be_meant_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(text, "a", "node-1", inputs=INPUTS)


def test_a_strange_key_is_told_and_harms_nothing(file: Path) -> None:
    says(file, "enflame.com/gcu", mainDevices=["/dev/gcu"])

    (warning,) = load(source_of(config(file)), "node-1").warnings
    assert warning == f"{file}: mainDevices: unknown key; did you mean 'mainDevice'?"


def test_of_many_strange_keys_the_first_are_told_and_the_rest_is_counted(file: Path) -> None:
    says(file, "enflame.com/gcu", **{f"key-{n}": n for n in range(100)})

    warnings = load(source_of(config(file)), "node-1").warnings
    assert len(warnings) == 21
    assert warnings[-1] == f"{file}: and 80 more unknown keys"


def test_what_is_read_back_needs_no_file(file: Path) -> None:
    says(file, "tencent.com/zixiao")
    loaded = load(source_of(config(file)), "node-1")
    file.unlink()

    assert parse(to_yaml(loaded), "again", "node-1", inputs=INPUTS) == loaded


@pytest.mark.parametrize(
    ("name", "why"),
    [("gcu", "expected the name"), ("koordinator.sh/gpu", "the resource name 'koordinator.sh/gpu' is")],
)
def test_a_name_that_the_vendor_refuses_is_told_with_the_file(
    name: str, why: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says(file, name)

    assert main(["config", "check", "--config", str(config(file))]) == 1
    assert f"{file}: registerResource[0]: {why}" in capsys.readouterr().err


# As it changes


def called(state: ConfigState) -> object:
    return state.config.vendor("enflame").settings.get("registerResource")


async def test_a_change_of_the_file_is_taken_in_and_a_bad_one_keeps_the_last_good_one(file: Path) -> None:
    says(file, "enflame.com/gcu")
    async with following(source_of(config(file))) as watch:
        says(file, "tencent.com/zixiao")
        await eventually(lambda: called(watch.cell.value) == "tencent.com/zixiao")

        spoil(file)
        await eventually(lambda: "is no JSON" in watch.cell.value.error)
        assert called(watch.cell.value) == "tencent.com/zixiao"

        os.remove(file)
        await eventually(lambda: "No such file" in watch.cell.value.error)
        assert called(watch.cell.value) == "tencent.com/zixiao"

        says(file, "enflame.com/gcu")
        await eventually(lambda: called(watch.cell.value) == "enflame.com/gcu")
        assert watch.cell.value.error == ""


async def test_a_restart_with_a_bad_file_serves_by_the_last_good_name(file: Path) -> None:
    says(file, "tencent.com/zixiao")
    path = config(file)
    last = last_config(file.parent)
    kept = asyncio.create_task(
        LastConfigKeeper(last, Cell(ConfigWatch(source_of(path), "node-1").cell.value)).run()
    )
    await eventually(last.path.exists)
    kept.cancel()
    spoil(file)

    known = last.read()
    assert isinstance(known, LastConfig)
    state = ConfigWatch(source_of(path), "node-1", recall=lambda _: RememberedConfig(last=known)).cell.value

    assert called(state) == "tencent.com/zixiao"
    assert "is no JSON" in state.error
    assert not state.waiting
