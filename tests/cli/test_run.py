"""How `xpu-agent run` ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli import main
from agent.core.errors import AgentError


def test_the_sentence_of_an_error_comes_after_the_lines_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def fail(*_: object) -> None:
        raise AgentError("a part has ended")

    monkeypatch.setattr("agent.cli.run.begin", lambda: None)
    monkeypatch.setattr("agent.logs.configure", lambda settings: None)
    monkeypatch.setattr("agent.logs.flush", lambda: order.append("the log"))
    monkeypatch.setattr("agent.cli.tell", order.append)
    monkeypatch.setattr("anyio.run", fail)
    config = tmp_path / "config.yaml"
    config.write_text(f"agent: {{stateDir: {tmp_path}/s, kubeletDir: {tmp_path}/k, http: ''}}\n")

    assert main(["run", "--config", str(config)]) == 1
    assert order == ["the log", "a part has ended"]
