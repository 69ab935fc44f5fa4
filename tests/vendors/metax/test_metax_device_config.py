"""MetaX's ConfigMap metax-device-config: the mode of this node, and that a bad one takes nothing away."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.config_watching import following, state
from support.vendor_inputs import INPUTS, source_of
from support.waiting import eventually

from agent.cli import main
from agent.config import ConfigState, ConfigWatch, LastConfig, RememberedConfig, load, parse, to_yaml
from agent.config.side_files import look
from agent.core.cell import Cell
from agent.core.errors import ConfigError
from agent.host import files
from agent.state.last_config_file import LastConfigKeeper, last_config
from agent.vendors.metax.agent.device_config import DEVICE_CONFIG

NODES = """
- nodeName: "node-1"
  mode: "sgpu"
- nodeName: "node-2"
  mode: "vgpu"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "metax"


def mount(directory: Path, files: Mapping[str, str]) -> None:
    """The files as the kubelet mounts a ConfigMap: behind a link that is swapped."""
    directory.mkdir(exist_ok=True)
    data = directory / f"..{len(list(directory.iterdir()))}"
    data.mkdir()
    for name, text in files.items():
        (data / name).write_text(text)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..new").symlink_to(data.name)
    os.replace(directory / "..new", directory / "..data")


def written(directory: Path, more: str = "") -> Path:
    path = directory.with_name("config.yaml")
    path.write_text(f"version: v1\nvendors:\n  metax:\n    configDir: {directory}\n{more}")
    return path


def mode(directory: Path, node: str = "node-1", more: str = "") -> str:
    return str(load(source_of(written(directory, more)), node).vendor("metax").settings["mode"])


def refusal(directory: Path, node: str = "node-1", more: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        mode(directory, node, more)
    return str(refused.value)


@pytest.mark.parametrize(
    ("files", "node", "expected"),
    [
        ({"version": "v1"}, "node-1", "native"),
        ({"version": "v1", "cluster-config": ""}, "node-1", "native"),
        ({"version": "v1", "cluster-config": 'mode: "shared"\n'}, "node-1", "shared"),
        ({"version": "v1", "cluster-config": "mode: native", "nodes-config": NODES}, "node-1", "sgpu"),
        ({"version": "v1", "cluster-config": "mode: native", "nodes-config": NODES}, "node-2", "vgpu"),
        ({"version": "v1", "cluster-config": "mode: shared", "nodes-config": NODES}, "node-3", "shared"),
        ({"nodes-config": NODES}, "node-1", "sgpu"),
        ({"cluster-config": "mode: sgpu", "nodes-config": ""}, "", "sgpu"),
        ({"cluster-config": "mode: sgpu", "nodes-config": "[]"}, "", "sgpu"),
    ],
)
def test_a_node_has_the_mode_of_its_own_entry_else_the_clusters_else_native(
    directory: Path, files: Mapping[str, str], node: str, expected: str
) -> None:
    mount(directory, files)
    assert mode(directory, node) == expected


def test_a_directory_that_is_no_mount_is_read_as_well(directory: Path) -> None:
    directory.mkdir()
    (directory / "cluster-config").write_text("mode: sgpu")
    assert mode(directory) == "sgpu"


FOUR = "expected native, shared, sgpu or vgpu, found"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"cluster-config": 'mode: "mig"'}, f"cluster-config:1: mode: {FOUR} the text 'mig'"),
        ({"cluster-config": "\nmode: 1"}, f"cluster-config:2: mode: {FOUR} the number 1"),
        ({"cluster-config": "mod: sgpu"}, "cluster-config:1: mod: unknown key; did you mean 'mode'?"),
        ({"cluster-config": "sgpu"}, "cluster-config:1: expected a mapping of keys"),
        ({"cluster-config": "{"}, "cluster-config:1: "),
        ({"version": "v2"}, "version:1: expected v1, found the text 'v2'"),
        ({"nodes-config": "mode: sgpu"}, "nodes-config:1: expected a list, found a mapping"),
        ({"nodes-config": "- mode: sgpu"}, "nodes-config:1: [0]: needs the key 'nodeName'"),
        ({"nodes-config": "- nodeName: a"}, "nodes-config:1: [0]: needs the key 'mode'"),
        ({"nodes-config": "- {nodeName: 1, mode: sgpu}"}, "[0].nodeName: expected the name of a node"),
        (
            {"nodes-config": f"{NODES}- {{nodeName: node-1, mode: sgpu}}"},
            "nodes-config:6: [2].nodeName: the node",
        ),
        (
            {"nodes-config": "- {nodeName: other, mode: mig}"},
            f"nodes-config:1: [0].mode: {FOUR} the text 'mig'",
        ),
        ({"nodes-config": "- {nodename: a, mode: sgpu}"}, "did you mean 'nodeName'?"),
        ({}, "has none of version, cluster-config, nodes-config"),
    ],
)
def test_what_is_wrong_is_told_with_its_file_and_line_whichever_node_it_is_for(
    directory: Path, files: Mapping[str, str], says: str
) -> None:
    mount(directory, files)
    error = refusal(directory)
    assert says in error
    assert str(directory) in error


@pytest.mark.parametrize("late", ["listdir", "read"])
def test_a_directory_that_is_swapped_while_it_is_looked_at_is_looked_at_once_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    mount(directory, {"version": "v1", "cluster-config": "mode: native"})
    owner, name = (os, "listdir") if late == "listdir" else (files, "read")
    real = getattr(owner, name)

    def swapped(path: Any, *more: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        before = directory.joinpath("..data").resolve()
        mount(directory, {"version": "v1", "cluster-config": "mode: sgpu"})
        shutil.rmtree(before)
        return real(path, *more)

    monkeypatch.setattr(owner, name, swapped)
    assert b"mode: sgpu" in dict(look(str(directory), DEVICE_CONFIG).files)["cluster-config"]


def test_a_directory_that_is_not_there_is_told(directory: Path) -> None:
    assert f"{directory}: cannot be read: No such file or directory; mount" in refusal(directory)


def test_without_a_name_of_the_node_its_entry_can_not_be_found(directory: Path) -> None:
    mount(directory, {"nodes-config": NODES})
    assert "nodes-config: needs the name of this node; give --node-name" in refusal(directory, node="")


def test_a_mode_that_the_file_says_too_is_refused_at_its_place(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    error = refusal(directory, more="    settings:\n      mode: sgpu\n")
    assert "config.yaml:6: vendors.metax.settings.mode: " in error
    assert "(configDir) says it, too; remove one of both" in error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vendors: {nvidia: {configDir: /x}}", "a:1: vendors.nvidia.configDir: is served for metax alone"),
        ("vendors: {metax: {configDir: x}}", "a:1: vendors.metax.configDir: must be an absolute path"),
    ],
)
def test_a_directory_that_can_not_be_meant_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text, "a", "node-1", inputs=INPUTS)


def test_a_strange_file_is_told_with_the_key_that_was_probably_meant(directory: Path) -> None:
    mount(directory, {"version": "v1", "node-config": NODES})
    (warning,) = load(source_of(written(directory)), "node-1").warnings
    assert "node-config: is no key of metax-device-config; did you mean 'nodes-config'?" in warning


def test_a_directory_that_holds_for_some_nodes_is_read_there_alone(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    text = f"nodes: [{{match: {{names: [a]}}, set: {{vendors: {{metax: {{configDir: {directory}}}}}}}}}]"
    assert parse(text, "f", "a", inputs=INPUTS).vendor("metax").settings == {"mode": "sgpu"}
    assert parse(text, "f", "b", inputs=INPUTS).vendor("metax").settings == {}


def test_the_effective_configuration_says_the_mode_and_reads_back_the_same(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    config = load(source_of(written(directory)), "node-1")
    assert parse(to_yaml(config), "again", "node-1", inputs=INPUTS) == config


def test_config_check_shows_the_mode_of_a_node(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount(directory, {"nodes-config": NODES})
    path = written(directory)
    assert main(["config", "check", "--config", str(path), "--node-name", "node-2"]) == 0
    assert "mode: vgpu" in capsys.readouterr().out
    mount(directory, {"nodes-config": "- {nodeName: node-2, mode: all}"})
    assert main(["config", "check", "--config", str(path), "--node-name", "node-2"]) == 1
    assert "nodes-config:1: [0].mode: expected native" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"nodes-config": NODES}, "/nodes-config:5: [1].mode"),
        ({"cluster-config": "mode: sgpu"}, "/cluster-config:1: mode"),
        ({"version": "v1"}, " (names no mode)"),
    ],
)
def test_config_check_says_which_part_of_the_config_map_the_mode_is_from(
    directory: Path, capsys: pytest.CaptureFixture[str], files: Mapping[str, str], says: str
) -> None:
    mount(directory, files)
    path = written(directory)
    assert main(["config", "check", "--config", str(path), "--node-name", "node-2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [f"# {path}", f"# vendors.metax.settings.mode: {directory}{says}"]


def test_config_check_prints_what_each_of_metax_s_settings_is_and_reads_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("vendors: {metax: {settings: {mode: sgpu}, resources: [{name: a.com/x}]}}")
    assert main(["config", "check", "--config", str(path)]) == 0
    printed = capsys.readouterr().out
    settings = yaml.safe_load(printed)["vendors"]["metax"]["settings"]
    assert settings["sliceNodes"] == ["/dev/dri/renderD{minor}"]
    assert (settings["mode"], settings["shareNums"]) == ("sgpu", 2)
    path.write_text(printed)
    assert main(["config", "check", "--config", str(path)]) == 0
    assert capsys.readouterr().out == printed


# As it changes


def in_mode(found: ConfigState, wanted: str) -> bool:
    return found.config.vendor("metax").settings.get("mode") == wanted


async def test_a_change_of_the_config_map_is_taken_in(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: native"})
    async with following(source_of(written(directory))) as watch:
        assert in_mode(watch.cell.value, "native")
        mount(directory, {"cluster-config": "mode: native", "nodes-config": NODES})
        found = await state(watch, lambda it: in_mode(it, "sgpu"))
    assert not found.error


async def test_a_bad_config_map_keeps_the_last_good_one_until_it_is_mended(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    async with following(source_of(written(directory))) as watch:
        mount(directory, {"cluster-config": "mode: half"})
        found = await state(watch, lambda it: bool(it.error))
        assert in_mode(found, "sgpu")
        assert "cluster-config:1: mode: expected native, shared, sgpu or vgpu" in found.error
        assert "the last good configuration stays in force" in found.error
        mount(directory, {"cluster-config": "mode: shared"})
        await state(watch, lambda it: in_mode(it, "shared") and not it.error)


async def test_a_directory_that_the_file_names_only_now_is_followed_too(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    path = directory.with_name("config.yaml")
    path.write_text("version: v1")
    async with following(source_of(path)) as watch:
        written(directory)
        await state(watch, lambda it: in_mode(it, "sgpu"))
        mount(directory, {"cluster-config": "mode: shared"})
        await state(watch, lambda it: in_mode(it, "shared"))


async def test_a_directory_that_holds_for_some_nodes_is_followed_too(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    path = directory.with_name("config.yaml")
    sets = f"{{vendors: {{metax: {{configDir: {directory}}}}}}}"
    path.write_text(f"nodes: [{{match: {{names: [node-1]}}, set: {sets}}}]")
    async with following(source_of(path)) as watch:
        mount(directory, {"cluster-config": "mode: shared"})
        await state(watch, lambda it: in_mode(it, "shared"))


async def test_a_restart_with_a_bad_config_map_serves_in_the_last_good_mode(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: sgpu"})
    path = written(directory)
    file = last_config(directory.parent)
    kept = asyncio.create_task(
        LastConfigKeeper(file, Cell(ConfigWatch(source_of(path), "node-1").cell.value)).run()
    )
    await eventually(lambda: file.path.exists(), 30)
    kept.cancel()
    mount(directory, {"cluster-config": "mode: half"})

    last = file.read()
    assert isinstance(last, LastConfig)
    found = ConfigWatch(source_of(path), "node-1", recall=lambda _: RememberedConfig(last=last)).cell.value

    assert in_mode(found, "sgpu")
    assert "cluster-config:1: mode: expected native" in found.error
    assert not found.waiting


def test_a_start_with_a_bad_config_map_and_nothing_before_is_refused(directory: Path) -> None:
    mount(directory, {"cluster-config": "mode: half"})
    with pytest.raises(ConfigError, match="cluster-config:1: mode"):
        ConfigWatch(source_of(written(directory)), "node-1")
