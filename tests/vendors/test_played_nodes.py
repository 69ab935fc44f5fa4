"""The nodes that people without cards may play with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.played_node import PlayedNode

from agent.config import load

sys.path += [str(Path(__file__).parent / vendor) for vendor in ("enflame", "metax")]

import played
import played_enflame

NODES = [played.NODE, played_enflame.NODE]
STUBS = {"enflame": "XPU_EFML_STUB", "metax": "XPU_MXSML_STUB"}

each_node = pytest.mark.parametrize("node", NODES, ids=[node.vendor for node in NODES])


@pytest.mark.parametrize(("node", "chosen"), [(node, it) for node in NODES for it in node.choice.values])
def test_what_is_played_has_a_good_config_and_says_how_to_run_it(
    node: PlayedNode, chosen: str, tmp_path: Path
) -> None:
    place = tmp_path / node.vendor
    conformance, run, inspect = node.play(place, chosen)

    config = load(place / "config.yaml", "node-1")
    assert config.vendor(node.vendor).settings[node.choice.name] == chosen
    assert conformance.startswith(f"{STUBS[node.vendor]}=")
    assert run.endswith(f"--config {place}/config.yaml")
    assert inspect.endswith(f"--state-dir {place}/state")


@each_node
@pytest.mark.parametrize(
    ("argv", "said"), [([], "required: directory"), (["{}/new", "other"], "invalid choice: 'other'")]
)
def test_what_can_not_be_played_is_said_and_nothing_made(
    node: PlayedNode, argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        node.main([it.format(tmp_path) for it in argv])

    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@each_node
def test_where_something_is_already_nothing_is_played_and_a_sentence_says_so(
    node: PlayedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        node.main([str(tmp_path)])

    assert f"{tmp_path} is there already: remove it, or name a directory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
