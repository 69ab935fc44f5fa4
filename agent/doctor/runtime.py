"""Where the container runtime looks for CDI specs, as its own configuration says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent import files
from agent.core.errors import AgentError
from agent.core.parts import part_of

#: What containerd and CRI-O have where they are told nothing (container-device-interface, pkg/cdi).
DEFAULTS = ("/etc/cdi", "/var/run/cdi")
CONTAINERD = ("etc/containerd/config.toml", "var/lib/rancher/k3s/agent/etc/containerd/config.toml")
CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d")
_MOST = 1 << 20
#: The CRI plugin of containerd 2 and of containerd 1.
_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")

Cdi = Literal["yes", "no", "unsaid"]


class Unreadable(AgentError):
    """Raised when a runtime's configuration is there and can not be read."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """`cdi` no: it leaves CDI names alone. Unsaid: containerd 1 does, containerd 2 does not."""

    name: str
    source: str
    directories: tuple[str, ...]
    cdi: Cdi = "yes"


def runtimes(root: Path) -> tuple[Runtime, ...]:
    """The runtimes whose configuration is seen below this root.

    Raises:
        Unreadable: One is there and is no TOML, or not ours to read.
    """
    return (*_containerd(root), *_crio(root))


def _containerd(root: Path) -> Iterator[Runtime]:
    for place in CONTAINERD:
        path = root / place
        document = _document(path)
        if document is None:
            continue
        old = document.get("version", 1) in (1, 2)
        given = _merged(
            part_of(part_of(document, "plugins"), name)
            for document in (document, *_imported(document, root))
            for name in _PLUGINS
        )
        # Off until 2.0 unless asked for (containerd docs/cri/config.md, enable_cdi). 2.0 reads old files too.
        said = given.get("enable_cdi")
        cdi: Cdi = ("unsaid" if old else "yes") if said is None else ("yes" if said else "no")
        yield Runtime("containerd", str(path), _texts(given.get("cdi_spec_dirs")), cdi)


def _imported(document: Mapping[str, Any], root: Path) -> Iterator[Mapping[str, Any]]:
    for pattern in _list(document.get("imports"))[:20]:
        if pattern.startswith("/"):
            yield from (it for path in sorted(root.glob(pattern.lstrip("/")))[:50] if (it := _document(path)))


def _crio(root: Path) -> Iterator[Runtime]:
    main, drops = (root / place for place in CRIO)
    read = [(path, it) for path in (main, *sorted(drops.glob("*.conf"))) if (it := _document(path))]
    if read:
        given = _merged(part_of(part_of(it, "crio"), "runtime") for _, it in read)
        yield Runtime("CRI-O", str(read[-1][0]), _texts(given.get("cdi_spec_dirs")))


def _document(path: Path) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(files.read(path, _MOST).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise Unreadable(f"{path}: can not be read: {exc}") from exc


def _merged(parts: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _list(value: object) -> list[str]:
    return [it for it in value if isinstance(it, str)] if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return DEFAULTS if value is None else tuple(_list(value))
