"""The tables of the guides name every field of the values that a plugin fills."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agent.http.usage.usage_document import (
    ContainerHistory,
    UsageDocument,
    UsedCard,
    UsingContainer,
    UsingProcess,
    VendorSampling,
)
from agent.scheduler_api import Dialect, Scheduler
from agent.vendor_api.agent import Host, NodeFacts, Offers, ReplacedPlugins, Settings, Slices, Vendor
from agent.vendor_api.backend import ProcessUsage, Usage
from agent.vendor_api.config_inputs import ConfigInputs

DOCS = Path(__file__).parents[2] / "docs"
#: What the first pages of the guides explain, and no table.
FIRST = {Vendor: {"name", "backend", "resource", "container_edits"}, Scheduler: {"name"}, Dialect: {"name"}}


def rows(page: str, heading: str) -> str:
    """The rows of the tables below this heading, up to the next heading."""
    _, _, below = (DOCS / page).read_text().partition(f"\n{heading}\n")
    section = re.split(r"^#+ ", below, maxsplit=1, flags=re.MULTILINE)[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("| "))


@pytest.mark.parametrize(
    ("kind", "page", "heading"),
    [
        (Vendor, "vendor-guide.md", "## The groups of `Vendor`"),
        (Settings, "vendor-guide.md", "### `Settings`"),
        (Offers, "vendor-guide.md", "### `Offers`"),
        (Slices, "vendor-guide.md", "### `Slices`"),
        (NodeFacts, "vendor-guide.md", "### `NodeFacts`"),
        (Dialect, "vendor-guide.md", "### `dialects` and `pod_limits`"),
        (ReplacedPlugins, "vendor-guide.md", "### `ReplacedPlugins`"),
        (Host, "vendor-guide.md", "### `Host`"),
        (Usage, "vendor-guide.md", "### `Usage`"),
        (ProcessUsage, "vendor-guide.md", "### `ProcessUsage`"),
        (ConfigInputs, "vendor-guide.md", "## The program that you replace"),
        (Dialect, "scheduler-guide.md", "## 1. The plugin"),
        (Scheduler, "scheduler-guide.md", "## 2. What else a scheduler may say"),
    ],
)
def test_each_field_has_its_row(kind: Any, page: str, heading: str) -> None:
    names = {field.name for field in fields(kind)} - FIRST.get(kind, set())

    assert [name for name in sorted(names) if not re.search(rf"`{name}\b", rows(page, heading))] == []


@pytest.mark.parametrize(
    ("part", "heading"),
    [
        (UsageDocument, "## The document"),
        (VendorSampling, "### `sampling`"),
        (UsedCard, "### `cards`"),
        (UsingContainer, "### `containers`"),
        (UsingProcess, "### `processes`"),
        (ContainerHistory, "### `history`"),
    ],
)
def test_the_page_of_use_has_the_keys_of_the_document_and_no_others(part: Any, heading: str) -> None:
    of_rows = (row.split("|")[1] for row in rows("usage.md", heading).splitlines())
    keys = [key for keys in of_rows for key in re.findall(r"`(\w+)`", keys)]

    assert sorted(keys) == sorted(part.__struct_encode_fields__)
