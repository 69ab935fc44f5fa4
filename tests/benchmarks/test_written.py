"""What the counter of written bytes counts, by a process that writes in every way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.written import Count, Counter


def counted(code: str, directory: Path) -> Count:
    """Run the code with the counter, in a directory where `state` is counted."""
    (directory / "state").mkdir()
    counter = Counter.make(directory / "count", directory / "state")
    environment = {**os.environ, **counter.environment}
    subprocess.run([sys.executable, "-c", code], cwd=directory, env=environment, check=True)
    return counter.read()


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("open('state/a', 'wb').write(b'x' * 1234)", Count(1234, 1)),
        ("import os; os.write(os.open('state/a', 65), b'xx')", Count(2, 1)),
        ("import os; os.pwrite(os.open('state/a', 65), b'xxx', 9)", Count(3, 1)),
        ("import os; os.writev(os.open('state/a', 65), [b'x', b'yy'])", Count(3, 1)),
        ("import os; os.mkdir('state/b'); open('state/b/c', 'w').write('xy')", Count(2, 1)),
        ("f = open('state/a', 'wb', 0); f.write(b'x'); f.write(b'y')", Count(2, 2)),
        ("import os; open('state/new', 'w').write('xyz'); os.replace('state/new', 'state/a')", Count(3, 1)),
    ],
)
def test_bytes_below_the_directory_are_counted(code: str, count: Count, tmp_path: Path) -> None:
    assert counted(code, tmp_path) == count


@pytest.mark.parametrize(
    "code",
    [
        "open('a', 'w').write('x')",
        "import os; os.mkdir('state-of-another'); open('state-of-another/a', 'w').write('x')",
        "open('state/agent.log', 'w').write('x')",
        "import os; r, w = os.pipe(); os.write(w, b'x')",
        "open('state/a', 'w')",
        "import os; os.rename('count', 'x'); os.rename('x', 'count')",
    ],
)
def test_other_bytes_are_not_counted(code: str, tmp_path: Path) -> None:
    assert counted(code, tmp_path) == Count(0, 0)


def test_all_processes_count_together(tmp_path: Path) -> None:
    child = "import subprocess, sys; open('state/a', 'w').write('x'); "
    child += "subprocess.run([sys.executable, '-c', \"open('state/b', 'w').write('yy')\"], check=True)"

    assert counted(child, tmp_path) == Count(3, 2)


def test_a_failed_write_is_not_counted_and_its_error_stays(tmp_path: Path) -> None:
    code = "import os\ntry:\n    os.write(os.open('state/a', 64), b'x')\n"
    code += "except OSError as error:\n    assert error.errno == 9, error\nelse:\n    raise SystemExit(1)"

    assert counted(code, tmp_path) == Count(0, 0)
