"""Copies of a tree, each with a Python of its own that finds the agent in that copy and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

#: Build outputs, which the copy makes again. Compiled files are copied with their times.
LEFT_OUT = (".venv", "build", "dist", ".git", ".*_cache", ".hypothesis")
#: Imports a module and says from where; of all modules of the agent, none may come from another tree.
IMPORTED = """
import importlib, sys
importlib.import_module(sys.argv[1])
top = sys.argv[1].partition(".")[0]
mine = {module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == top}
print(*mine, sep="\\n")
"""


class Unsound(Exception):
    """Raised when a run would say nothing of the fault."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a tree."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / ".venv/bin/python"

    def write(self, file: str, text: str) -> None:
        """Replace a source file, and drop its compiled form.

        Python tells a source from another one by whole seconds and by size, which an edit may leave alone.
        """
        source = self.path / file
        source.write_text(text)
        Path(cache_from_source(str(source))).unlink(missing_ok=True)

    def prove(self, module: str) -> None:
        """See that the module can be imported, and comes from here.

        Isolated and far from the copy, as a vendor's process is: whoever is started by a test gets the same.

        Raises:
            Unsound: It cannot, or does not.
        """
        command = [str(self.python), "-I", "-c", IMPORTED, module]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unsound(f"{module} cannot be imported: {done.stderr.strip().splitlines()[-1:]}")
        strange = [
            line for line in done.stdout.split("\n") if line and not Path(line).is_relative_to(self.path)
        ]
        if strange:
            raise Unsound(f"{module} brings in {strange[0]}, which is not of the copy")

    def environment(self) -> dict[str, str]:
        """What its tests are run with: nothing that leads to another tree, or that has tests run again."""
        left_out = ("PYTHONPATH", "PYTHONHOME", "PYTEST_ADDOPTS", "VIRTUAL_ENV")
        return {name: value for name, value in os.environ.items() if name not in left_out}

    def pytest(self, tests: Sequence[str], *options: str) -> list[str]:
        """The command that runs these tests."""
        return [str(self.python), "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *options, *tests]


def copied(tree: Path, to: Path, build: Path) -> Copy:
    """Copy the tree. `build` is where its tests build their stubs, named by content: copies may share it."""
    shutil.copytree(tree, to, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    (to / "build").symlink_to(build)
    venv.EnvBuilder(symlinks=True).create(to / ".venv")
    # Paths that stand in a .pth are read for packages, and not for further .pth files: so the tree from which
    # the agent is installed here stays unknown there.
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(to / ".venv")}))
    (site / "planted.pth").write_text(f"{to}\n{sysconfig.get_path('purelib')}\n")
    return Copy(to)
