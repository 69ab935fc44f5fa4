"""An example of docs/, installed as a stranger's distribution beside the agent."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def installed(root: Path, example: Path) -> Path:
    """The Python of a new environment below `root` that has the agent and the example."""
    venv.create(root / "env", symlinks=True)
    _share_ours(root / "env")
    python = root / "env/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    alone = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, *alone, str(example)], check=True)
    return python


def _share_ours(env: Path) -> None:
    """Let the environment see what this one has, so that nothing has to be downloaded."""
    ours = sysconfig.get_paths()["purelib"]
    theirs = next(env.glob("lib/python*/site-packages"))
    (theirs / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
