"""No vendor has a privilege: the rooms that serve every vendor name none, in identifiers and in texts.

Docstrings and comments may, since they say where a fact of the field comes from.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.names_in_code import said

import agent
from agent.config import CONFIG_LABEL

NAMES = re.compile(r"enflame|topscloud|gcu|efml|metax|mxsml|nvidia|nvml|cuda|simulated", re.IGNORECASE)
AGENT = Path(agent.__path__[0])

#: Texts with a vendor's name. The label is the agent's own interface: a node that NVIDIA's config-manager
#: chose a configuration for keeps it. The doctor shows versions by the attributes that vendors give to their
#: devices.
EXCEPTIONS = {
    "config": {CONFIG_LABEL},
    "isolation": set[str](),
    "doctor": {"cuda-version"},
}


@pytest.mark.parametrize("room", EXCEPTIONS)
def test_a_room_that_serves_every_vendor_names_none(room: str) -> None:
    files = list(AGENT.joinpath(room).rglob("*.py"))
    found = {
        f"{path.relative_to(AGENT)}: {text}"
        for path in files
        for text in said(path)
        if NAMES.search(text) and not any(exception in text for exception in EXCEPTIONS[room])
    }

    assert files
    assert found == set()
