"""Schedulers' plugins of other distributions, on sys.path for one test."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

HEAD = """
from agent.scheduler_api import Dialect, ExternalUse, Reserved, Scheduler
from agent.scheduler_api.hooks import hookimpl
"""


class Installed:
    """Distributions as pip leaves them: a module and its metadata in a folder on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, code: str) -> None:
        (self.folder / f"scheduler_of_{name}.py").write_text(HEAD + dedent(code))
        info = self.folder / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[xpu_agent.schedulers]\n{name} = scheduler_of_{name}\n")
