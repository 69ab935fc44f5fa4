"""mkdocs' hooks: links that leave docs/ find their file in the site, which fetches nothing from elsewhere."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
#: Where files from outside of docs/ are in the site.
BESIDE = "repository"
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)]*\))")
#: What the page of a folder shows.
_SHOWN = {".c", ".md", ".py", ".toml", ".yaml"}
#: What a browser would get by itself; links that a reader may follow are none of it.
_FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'>\s]+"
)


def on_files(files: Files, *, config: Any) -> Files:
    """Add what pages link to outside of docs/: pages and folders as pages, other files as they are."""
    added: set[str] = set()
    while wanted := {it for file in files.documentation_pages() for it in _outside(file)} - added:
        for path in sorted(wanted):
            _add(files, path, config)
        added |= wanted
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn links of files in the repository into links of the site."""

    def turned(link: re.Match[str]) -> str:
        path = _repository_path(page.file, link[2])
        if path is None:
            return link[0]
        at = posixpath.relpath(_place(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}{at}{link[3]}"

    return _LINK.sub(turned, markdown)


def on_post_build(*, config: Any) -> None:
    """Refuse a site that is not whole without the internet."""
    for page in Path(config["site_dir"]).rglob("*.html"):
        if fetched := _FETCHED.search(page.read_text()):
            raise PluginError(f"{page}: {fetched[0]} is fetched from elsewhere; the site has to work offline")


def _outside(file: File) -> Iterator[str]:
    """What the page links to that docs/ does not bring into the site."""
    for _, target, _ in _LINK.findall(file.content_string):
        path = _repository_path(file, target)
        if path is not None and not _is_of_docs(path):
            yield path


def _repository_path(file: File, target: str) -> str | None:
    """The path in the repository that a link leads to; None where that is none, which mkdocs judges."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    at = posixpath.normpath(posixpath.join(_home(file), target))
    return None if at.startswith("..") or not (ROOT / at).exists() else at


def _is_of_docs(path: str) -> bool:
    return path.startswith("docs/") and (ROOT / path).is_file()


def _home(file: File) -> str:
    """The folder of the page in the repository."""
    beside = file.src_uri.startswith(f"{BESIDE}/")
    return posixpath.dirname(file.src_uri.removeprefix(f"{BESIDE}/") if beside else f"docs/{file.src_uri}")


def _place(path: str) -> str:
    """Where it is in the site's sources."""
    if _is_of_docs(path):
        return path.removeprefix("docs/")
    return f"{BESIDE}/{path}/index.md" if (ROOT / path).is_dir() else f"{BESIDE}/{path}"


def _add(files: Files, path: str, config: Any) -> None:
    source, place = ROOT / path, _place(path)
    if source.is_dir():
        files.append(File.generated(config, place, content=_listing(path)))
    else:
        files.append(File.generated(config, place, abs_src_path=str(source)))


def _listing(path: str) -> str:
    """Every file of the folder, with its content."""
    folder = ROOT / path
    files = sorted(it for it in folder.rglob("*") if it.suffix in _SHOWN)
    shown = (f"## {it.relative_to(folder)}\n\n````{it.suffix[1:]}\n{it.read_text()}````" for it in files)
    return "\n\n".join((f"# {path}", *shown))
