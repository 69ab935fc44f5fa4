"""What the plugin of mypy reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Calls that fail when they run, in each way in which the code makes them for a Struct; then calls that work.
CODE = """
from dataclasses import dataclass, fields, replace
from typing import TypeVar
from msgspec import Struct, structs

class Value(Struct, frozen=True):
    size: int

@dataclass(frozen=True)
class Other:
    size: int

S = TypeVar("S", bound=Value)

def grown(value: Value, maybe: Value | Other, any_value: S) -> None:
    replace(value, size=2)
    replace(maybe, size=2)
    replace(any_value, size=2)
    fields(value)

def well(value: Value, other: Other) -> None:
    structs.replace(value, size=2)
    replace(other, size=2)
    fields(other)
"""


def test_a_struct_is_refused_where_a_dataclass_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "values.py"
    file.write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", os.devnull, str(file)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    lines = [line for line in done.stdout.splitlines() if "A Struct is no dataclass" in line]
    assert [line.split(":")[1] for line in lines] == ["16", "17", "18", "19"], done.stdout + done.stderr
