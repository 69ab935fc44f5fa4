"""What a file that cannot be used as a whole still says of the agent itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import AgentSettings, ConfigWatch, RememberedConfig, stated
from agent.config.source import SourceContent
from agent.core.errors import ConfigError

PLACED = AgentSettings(state_dir=Path("/s"), http="127.0.0.1:7")
GOOD = "agent:\n  stateDir: /s\n  http: 127.0.0.1:7\n"

FILES = {
    "another part is wrong": (f"{GOOD}vendors: {{metax: {{mode: 7}}}}\n", PLACED),
    "a ConfigMap beside it is missing": (f"{GOOD}vendors: {{metax: {{configDir: /nowhere}}}}\n", PLACED),
    "another key is unknown": (f"{GOOD}  warp: 9\n", PLACED),
    "another value is of no use": (f"{GOOD}  kubeletDir: here\n", PLACED),
    "a slip below": (f"version: v1\n{GOOD}vendors: {{nvidia: [\n", PLACED),
    "a slip above": (f"vendors:\n  x: [1\n{GOOD}", PLACED),
    "a slip within": (f"{GOOD}\n  # log\n  log: {{level: debug\nvendors: {{}}\n", PLACED),
    "a slip, and lines of Windows": (f"{GOOD}vendors: [".replace("\n", "\r\n"), PLACED),
    "no UTF-8": (GOOD + "report: \udcff\n", PLACED),
    "entries for nodes": (
        f"{GOOD}nodes: [{{match: {{names: [n]}}, set: {{agent: {{stateDir: /n}}}}}}]\nx: 1\n",
        None,
    ),
    "entries that cannot be used": (f"{GOOD}nodes: 7\n", PLACED),
    "two that do not go together": (
        "agent: {stateDir: /var/lib/kubelet/device-plugins/x}\nx: 1",
        AgentSettings(),
    ),
    "no part of the agent": ("vendors: [", AgentSettings()),
    "no mapping": ("agent: [", AgentSettings()),
    "nothing": ("", AgentSettings()),
    "another file's": ("flags: {migStrategy: 7}", AgentSettings()),
}


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES)
def test_what_is_good_of_it_holds_whatever_is_wrong_elsewhere(
    text: str, expected: AgentSettings | None
) -> None:
    found = stated(SourceContent("f.yaml", text.encode(errors="surrogateescape")), "n")

    assert found == (expected or AgentSettings(state_dir=Path("/n"), http="127.0.0.1:7"))


def test_a_slip_below_the_state_directory_does_not_hide_where_the_last_good_config_lies(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.yaml").write_text(f"{GOOD}vendors: {{nvidia: [\n")
    asked: list[Path] = []

    def recall(place: Path) -> RememberedConfig:
        asked.append(place)
        return RememberedConfig()

    with pytest.raises(ConfigError):
        ConfigWatch(tmp_path / "c.yaml", "n", recall=recall)

    assert asked == [Path("/s")]
