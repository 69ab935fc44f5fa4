"""The agent works for every vendor and scheduler: outside of their rooms identifiers and texts name none.

Docstrings and comments may, since they say where a fact of the field comes from.
"""

from __future__ import annotations

import re
from pathlib import Path

from support.names_in_code import said

import agent.core

NAMES = re.compile(
    r"koord|hami|gcushare|gpu.?manager|tencent|enflame|topscloud|metax|nvidia|simulated|assigned-containers"
    r"|(?-i:\bDevice object|node's Device\b)",
    re.IGNORECASE,
)
CORE = Path(agent.core.__path__[0])
#: The other rooms that name no vendor and no scheduler.
ROOMS = (
    "cli",
    "cluster",
    "config",
    "daemon",
    "doctor",
    "host",
    "http",
    "isolation",
    "kubelet",
    "logs",
    "scheduler_api",
    "state",
    "vendor_api",
)
#: Names that users rely on: a label of the Node, values and a default of the config, metrics and their help.
KEPT = {
    "cli/__init__.py: NVIDIA",
    "cluster/api_connection.py: koord",
    "config/known_labels.py: nvidia",
    "config/settings.py: koord",
    "http/metric_texts.py: koord",
    "http/metric_texts.py: node's Device",
    "http/metrics.py: Koord",
    "vendor_api/agent.py: gpu-manager",
}


def test_no_vendor_and_no_scheduler_is_named_in_the_rules() -> None:
    found = {
        f"{path.relative_to(CORE)}: {text}"
        for path in CORE.rglob("*.py")
        for text in said(path)
        if NAMES.search(text)
    }

    assert found == set()


def test_the_other_rooms_name_only_what_users_rely_on() -> None:
    found = {
        f"{path.relative_to(CORE.parent)}: {match}"
        for room in ROOMS
        for path in (CORE.parent / room).rglob("*.py")
        for text in said(path)
        for match in NAMES.findall(text)
    }

    assert found == KEPT


def test_a_name_is_seen_as_identifier_as_module_and_as_text(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""HAMi."""\nfrom agent.hami import x as metax\nclass Koordlet: ...\nit = f"{x} of NVIDIA"'
    )

    assert {it for it in said(file) if NAMES.search(it)} == {"agent.hami", "metax", "Koordlet", " of NVIDIA"}
