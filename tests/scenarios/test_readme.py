"""The list of scenarios is the list of tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_readme_has_one_line_per_scenario_with_the_kubelets_that_it_runs_with() -> None:
    scenarios = [
        (it.name.removeprefix("test_").replace("_", " "), kubelets(it))
        for path in sorted(HERE.glob("test_*.py"))
        for it in ast.parse(path.read_text()).body
        if isinstance(it, ast.AsyncFunctionDef) and it.name.startswith("test_")
    ]

    lines = re.findall(r"^\| (.+?) \| (.*(?:one|each)) \| .+ \|$", (HERE / "README.md").read_text(), re.M)

    assert lines == scenarios


def kubelets(scenario: ast.AsyncFunctionDef) -> str:
    marks = {it.id for it in scenario.decorator_list if isinstance(it, ast.Name)}
    simulated = any(it.arg == "sim" for it in scenario.args.args)
    return ("simulated, " if simulated else "") + ("each" if "EVERY_RELEASE" in marks else "one")
