"""What `agent.scheduler_api` hands to plugins: what a plugin uses, and no tool of the agent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from agent import scheduler_api

ROOT = Path(__file__).parents[2]
#: Plugins, the kit that tries them, and the example that is installed from outside of the tree.
USERS = ("agent/schedulers", "agent/vendors", "agent/testing", "docs/examples")


def imported() -> Iterator[str]:
    """The names that these import from the package itself."""
    for path in (path for folder in USERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == scheduler_api.__name__:
                yield from (name.name for name in node.names)


def words_of_fields() -> Iterator[str]:
    """The words in the types of the fields that a plugin fills."""
    for kind in (scheduler_api.Scheduler, scheduler_api.Dialect):
        for field in fields(kind):
            yield from re.findall(r"\w+", str(field.type))


def test_each_name_is_used_by_a_plugin_or_is_the_type_of_a_field_that_a_plugin_fills() -> None:
    names = set(scheduler_api.__all__)

    assert names - {*imported(), *words_of_fields()} == set()
