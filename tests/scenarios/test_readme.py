"""The list of scenarios is the list of tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_readme_has_one_line_per_scenario() -> None:
    names = [
        it.name.removeprefix("test_").replace("_", " ")
        for path in sorted(HERE.glob("test_*.py"))
        for it in ast.parse(path.read_text()).body
        if isinstance(it, ast.AsyncFunctionDef) and it.name.startswith("test_")
    ]

    lines = re.findall(
        r"^\| (.+?) \| (?:all|any|simulated) \| .+ \|$", (HERE / "README.md").read_text(), re.M
    )

    assert lines == names
