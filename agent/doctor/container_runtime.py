"""The container runtimes of a node by their own configurations: CDI specs, and who starts containers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent.core.errors import AgentError
from agent.host import files
from agent.scheduler_api.document_parts import part_of

#: What containerd and CRI-O have where they are told nothing (container-device-interface, pkg/cdi).
DEFAULTS = ("/etc/cdi", "/var/run/cdi")
CONTAINERD = ("etc/containerd/config.toml", "var/lib/rancher/k3s/agent/etc/containerd/config.toml")
CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d")
#: Docker's, of nodes whose kubelet speaks with it (dockershim, cri-dockerd).
DOCKER = "etc/docker/daemon.json"
#: Who starts containers where nobody says so.
RUNC = "runc"
_MOST = 1 << 20
#: The CRI plugin of containerd 2 and of containerd 1.
_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")

Cdi = Literal["yes", "no", "unsaid"]


class Unreadable(AgentError):
    """Raised when a runtime's configuration is there and cannot be read."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """`cdi` no: it leaves CDI names alone. Unsaid: containerd 1 does, containerd 2 does not."""

    name: str
    source: str
    directories: tuple[str, ...]
    cdi: Cdi = "yes"


@dataclass(frozen=True, slots=True)
class DefaultRuntime:
    """Who starts the containers of pods that name no runtimeClass: a name, and the program where one is said.

    `key`: where its configuration `source` says so; `restart` makes it hold.
    """

    engine: str
    source: str
    name: str
    program: str
    key: str
    restart: str


def defaults(root: Path) -> tuple[DefaultRuntime, ...]:
    """What each runtime whose configuration is seen below this root has as its default.

    Raises:
        Unreadable: One is there and is not TOML or JSON as it should be, or not ours to read.
    """
    return (*_docker_default(root), *_containerd_default(root), *_crio_default(root))


def _docker_default(root: Path) -> Iterator[DefaultRuntime]:
    """Source: docker docs, dockerd, daemon configuration file (default-runtime, runtimes)."""
    path = root / DOCKER
    document = _document(path, json.loads)
    if document is not None:
        name = _text(document, "default-runtime") or RUNC
        program = _text(part_of(part_of(document, "runtimes"), name), "path")
        yield DefaultRuntime(
            "docker", str(path), name, program, '"default-runtime"', "systemctl restart docker"
        )


def _containerd_default(root: Path) -> Iterator[DefaultRuntime]:
    """Source: containerd docs/cri/config.md (default_runtime_name, runtimes)."""
    for place in CONTAINERD:
        path = root / place
        document = _document(path)
        if document is None or "cri" in _list(document.get("disabled_plugins")):
            continue  # one that serves Docker alone
        parts = [
            part_of(part_of(part_of(one, "plugins"), plugin), "containerd")
            for one in (document, *_imported(document, root))
            for plugin in _PLUGINS
        ]
        name = next((found for it in reversed(parts) if (found := _text(it, "default_runtime_name"))), RUNC)
        its = _merged(part_of(part_of(it, "runtimes"), name) for it in parts)
        program = _text(part_of(its, "options"), "BinaryName")
        plugin = _PLUGINS[1 if document.get("version", 1) in (1, 2) else 0]
        key = f'default_runtime_name under [plugins."{plugin}".containerd]'
        yield DefaultRuntime("containerd", str(path), name, program, key, "systemctl restart containerd")


def _crio_default(root: Path) -> Iterator[DefaultRuntime]:
    """Source: cri-o docs/crio.conf.5.md (default_runtime, runtimes)."""
    if read := _crio_files(root):
        parts = [part_of(part_of(it, "crio"), "runtime") for _, it in read]
        name = _text(_merged(iter(parts)), "default_runtime") or "crun"
        its = _merged(part_of(part_of(it, "runtimes"), name) for it in parts)
        key, source = "default_runtime under [crio.runtime]", str(read[-1][0])
        yield DefaultRuntime("cri-o", source, name, _text(its, "runtime_path"), key, "systemctl restart crio")


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
    if read := _crio_files(root):
        given = _merged(part_of(part_of(it, "crio"), "runtime") for _, it in read)
        yield Runtime("CRI-O", str(read[-1][0]), _texts(given.get("cdi_spec_dirs")))


def _crio_files(root: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    main, drops = (root / place for place in CRIO)
    return [(path, it) for path in (main, *sorted(drops.glob("*.conf"))) if (it := _document(path))]


def _document(path: Path, read: Callable[[str], Any] = tomllib.loads) -> Mapping[str, Any] | None:
    try:
        found = read(files.read(path, _MOST).decode())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise Unreadable(f"{path}: cannot be read: {exc}") from exc


def _merged(parts: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _text(part: Mapping[str, Any], key: str) -> str:
    value = part.get(key)
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[str]:
    return [it for it in value if isinstance(it, str)] if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return DEFAULTS if value is None else tuple(_list(value))
