"""The memory limit of the control group that the agent is in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.isolation.agent_memory_limit import memory_limit

V1_NONE = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "1610612736\n"}, 1536 << 20),
        ("0::/\n", {"memory.max": "max\n"}, 0),
        ("0::/\n", {}, 0),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "5\n", "memory.max": "7\n"}, 5),
        # Where a container sees its own group as the root, and the host's path of it.
        ("0::/kubepods/pod1/x\n", {"memory.max": "9\n"}, 9),
        ("4:memory:/k/x\n0::/\n", {"memory/memory.limit_in_bytes": "9\n"}, 9),
        ("4:cpu,memory:/k\n", {"memory/k/memory.limit_in_bytes": V1_NONE}, 0),
        ("4:cpu:/k\n", {"memory/k/memory.limit_in_bytes": "9\n"}, 0),
        ("nonsense\n", {"memory.max": "9\n"}, 0),
        ("0::/\n", {"memory.max": "nonsense\n"}, 0),
    ],
)
def test_the_smallest_limit_that_holds_is_found(
    own: str, files: Mapping[str, str], limit: int, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(content)
    (tmp_path / "own").write_text(own)

    assert memory_limit(tmp_path / "root", tmp_path / "own") == limit


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path / "own") == 0
