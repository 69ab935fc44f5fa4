"""What is shown with a scenario that fails."""

from __future__ import annotations

import os
from pathlib import Path

from .conftest import SHOWN, last_words


def write(pod_logs: Path, name: str, lines: list[str], at: int) -> Path:
    path = pod_logs / name
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines))
    os.utime(path, (at, at))
    return path


def test_the_end_of_the_log_of_the_agent_that_printed_last_is_shown(tmp_path: Path) -> None:
    last = write(tmp_path, "xpu-agent_last_1/agent/0.log", [f"line {n}" for n in range(99)], 2)
    write(tmp_path, "xpu-agent_before_2/agent/0.log", ["of the one before"], 1)
    write(tmp_path, "test-1_pod_3/main/0.log", ["of a pod"], 3)

    told = last_words(tmp_path).splitlines()

    assert told == [str(last), *(f"line {n}" for n in range(99 - SHOWN, 99))]


def test_where_no_agent_has_printed_that_is_said(tmp_path: Path) -> None:
    assert last_words(tmp_path / "nowhere") == "no agent has printed"
