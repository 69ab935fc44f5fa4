"""docs/enflame.md is what people move by: its configs are good, and its words are those of the programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.vendor_inputs import INPUTS

from agent.config import parse
from agent.daemon.vendor_config import check_config, wanted_plugins
from agent.vendors.enflame.agent.options import SETTINGS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/enflame.md").read_text()
CONFIGS = re.findall(r"```yaml\n(version: v1\n.*?)```", PAGE, re.DOTALL)
#: What others say: the kubelet, its scheduler, GCUShare's extender.
OTHERS = ("hostPath type check", "Insufficient ", "1 insufficient ", "kubectl ", "enflame.com/")


def troubles() -> list[str]:
    """The sentences in the first column of the last table but one."""
    table = PAGE.partition("## When something does not work")[2].partition("## Without cards")[0]
    firsts = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| ")][1:]
    said = [it for row in firsts for it in re.findall(r"`([^`]+)`", row)]
    return [it for it in said if it.count(" ") > 2 and not it.startswith(OTHERS)]


def sources() -> str:
    """All sources, each sentence in one piece, with a mark where something is filled in."""
    code = "\n".join(path.read_text() for path in (ROOT / "agent").rglob("*.py"))
    return re.sub(r"\{[^{}]*\}", "\0", re.sub(r"['\"]\s*\n\s*f?['\"]", "", code))


def as_written(sentence: str) -> str:
    """A pattern for the sentence: numbers, names, paths and lists may be filled in."""
    plain = sentence.removeprefix("... ").removesuffix(" ...")
    plain = re.sub(r"enflame\.com/[a-z-]+|/[^ ]+|gcushare-v[14]|default-scheduler|SRIOV", "\0", plain)
    filled = re.sub(r"\d+g.*$|(?<![a-z])\d+(, \d+)*", "\0", plain)
    return re.escape(filled).replace("\0", "[^ ]*\0?[^ ]*")


@pytest.mark.parametrize("said", troubles())
def test_a_trouble_on_the_page_is_in_the_words_of_the_program(said: str) -> None:
    assert re.search(as_written(said), sources()), as_written(said)


def test_there_are_troubles_on_the_page() -> None:
    assert len(troubles()) > 9


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_on_the_page_is_good(text: str, tmp_path: Path) -> None:
    (tmp_path / "topscloud.json").write_text('{"registerResource": ["tencent.com/zixiao"]}')
    here = text.replace("/etc/xpu-agent-enflame", str(tmp_path))
    held = check_config(parse(here, "enflame.md", "a-node", inputs=INPUTS))

    assert [it.reason for it in wanted_plugins(held) if it.name == "enflame"] == [""]


def test_every_setting_that_the_page_names_is_one() -> None:
    named = set(re.findall(r"`settings\.(\w+)`", PAGE))

    assert named
    assert named <= SETTINGS.keys()
