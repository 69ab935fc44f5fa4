"""Reads the configurations of container runtimes: CDI directories, and the runtime that starts containers."""

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

#: The CDI directories of containerd and CRI-O by default (container-device-interface, pkg/cdi).
DEFAULTS = ("/etc/cdi", "/var/run/cdi")
CONTAINERD = ("etc/containerd/config.toml", "var/lib/rancher/k3s/agent/etc/containerd/config.toml")
CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d")
#: Docker's configuration, for kubelets that use Docker (dockershim, cri-dockerd).
DOCKER = "etc/docker/daemon.json"
#: The program that starts containers by default.
RUNC = "runc"
_MOST = 1 << 20
#: The CRI plugin of containerd 2 and of containerd 1.
_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")

Cdi = Literal["yes", "no", "unsaid"]


class Unreadable(AgentError):
    """Raised when the configuration of a runtime exists and cannot be read."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """`cdi` is "no" where CDI names are ignored.

    "unsaid" means no in containerd 1 and yes in containerd 2.
    """

    name: str
    source: str
    directories: tuple[str, ...]
    cdi: Cdi = "yes"


@dataclass(frozen=True, slots=True)
class DefaultRuntime:
    """The runtime that starts the containers of pods without a runtimeClass.

    `program` is empty where the configuration names none. `key` is the place in the configuration `source`;
    `restart` is the command after which a change takes effect.
    """

    engine: str
    source: str
    name: str
    program: str
    key: str
    restart: str


def defaults(root: Path) -> tuple[DefaultRuntime, ...]:
    """The default of each engine with a configuration below this root.

    Raises:
        Unreadable: A configuration is not TOML or JSON as it should be, or may not be read.
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
            continue  # this containerd serves Docker only
        parts = [
            part_of(part_of(part_of(part, "plugins"), plugin), "containerd")
            for part in (document, *_read_imports(document, root))
            for plugin in _PLUGINS
        ]
        name = next((found for it in reversed(parts) if (found := _text(it, "default_runtime_name"))), RUNC)
        entry = _merge(part_of(part_of(it, "runtimes"), name) for it in parts)
        program = _text(part_of(entry, "options"), "BinaryName")
        plugin = _PLUGINS[1 if document.get("version", 1) in (1, 2) else 0]
        key = f'default_runtime_name under [plugins."{plugin}".containerd]'
        yield DefaultRuntime("containerd", str(path), name, program, key, "systemctl restart containerd")


def _crio_default(root: Path) -> Iterator[DefaultRuntime]:
    """Source: cri-o docs/crio.conf.5.md (default_runtime, runtimes)."""
    if read := _crio_files(root):
        parts = [part_of(part_of(it, "crio"), "runtime") for _, it in read]
        name = _text(_merge(iter(parts)), "default_runtime") or "crun"
        entry = _merge(part_of(part_of(it, "runtimes"), name) for it in parts)
        program = _text(entry, "runtime_path")
        key, source = "default_runtime under [crio.runtime]", str(read[-1][0])
        yield DefaultRuntime("cri-o", source, name, program, key, "systemctl restart crio")


def runtimes(root: Path) -> tuple[Runtime, ...]:
    """The runtimes with a configuration below this root.

    Raises:
        Unreadable: A configuration is no TOML, or may not be read.
    """
    return (*_containerd(root), *_crio(root))


def _containerd(root: Path) -> Iterator[Runtime]:
    for place in CONTAINERD:
        path = root / place
        document = _document(path)
        if document is None:
            continue
        old = document.get("version", 1) in (1, 2)
        settings = _merge(
            part_of(part_of(document, "plugins"), name)
            for document in (document, *_read_imports(document, root))
            for name in _PLUGINS
        )
        # Off by default before 2.0 (containerd docs/cri/config.md, enable_cdi). 2.0 reads files of version 2
        # too.
        enabled = settings.get("enable_cdi")
        cdi: Cdi = ("unsaid" if old else "yes") if enabled is None else ("yes" if enabled else "no")
        yield Runtime("containerd", str(path), _texts(settings.get("cdi_spec_dirs")), cdi)


def _read_imports(document: Mapping[str, Any], root: Path) -> Iterator[Mapping[str, Any]]:
    for pattern in _list(document.get("imports"))[:20]:
        if pattern.startswith("/"):
            yield from (it for path in sorted(root.glob(pattern.lstrip("/")))[:50] if (it := _document(path)))


def _crio(root: Path) -> Iterator[Runtime]:
    if read := _crio_files(root):
        settings = _merge(part_of(part_of(it, "crio"), "runtime") for _, it in read)
        yield Runtime("CRI-O", str(read[-1][0]), _texts(settings.get("cdi_spec_dirs")))


def _crio_files(root: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    main, drops = (root / place for place in CRIO)
    return [(path, it) for path in (main, *sorted(drops.glob("*.conf"))) if (it := _document(path))]


def _document(path: Path, read: Callable[[str], Any] = tomllib.loads) -> Mapping[str, Any] | None:
    try:
        found = read(files.read(path, _MOST).decode())
        if not isinstance(found, dict):
            raise ValueError("the document is no object")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise Unreadable(f"{path}: cannot be read: {exc}") from exc


def _merge(parts: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _text(part: Mapping[str, Any], key: str) -> str:
    value = part.get(key)
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[str]:
    return [it for it in value if isinstance(it, str)] if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return DEFAULTS if value is None else tuple(_list(value))
