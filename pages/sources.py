"""A file of the repository as a block of code: what the page shows is what the tests run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".c": "c", ".md": "markdown"}


def source(path: str) -> str:
    """The file below docs/, whole."""
    file = ROOT / "docs" / path
    return f"```{_LANGUAGES[file.suffix]}\n{file.read_text().strip()}\n```"
