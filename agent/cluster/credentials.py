"""Finds the API server's address and credentials, which stay in their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from agent.core.errors import ConfigError
from agent.host import files
from agent.vendor_api.text import shorten

#: Where the kubelet mounts a pod's service account (k8s.io/client-go/rest: InClusterConfig).
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BYTES = 1 << 20
OWN_VARIABLE = "XPU_AGENT_KUBECONFIG"
VARIABLE = "KUBECONFIG"

_REMEDY = "`kubectl config view --kubeconfig F` shows one that works"


class ApiAccess(Struct, frozen=True):
    """How to reach the API server: `server` is a URL, `namespace` the agent's own.

    With a `kubeconfig`, the other credentials are in it. `token_file` is read again whenever it changes.
    Without a `ca_file`, the system's CAs are trusted.
    """

    server: str
    namespace: str = "default"
    ca_file: Path | None = None
    token_file: Path | None = None
    kubeconfig: Path | None = None
    #: The other files that the kubeconfig names: CA, client certificate, client key.
    certificates: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that connections depend on; when one changes, connections are made again."""
        return tuple(it for it in (self.ca_file, self.kubeconfig, *self.certificates) if it is not None)

    def __str__(self) -> str:
        return f"{self.server} ({self.kubeconfig})" if self.kubeconfig else self.server


class NamedKubeconfig(Struct, frozen=True):
    """The named kubeconfig, and `by` which setting. `missing`: the files of KUBECONFIG, if none exists."""

    path: Path | None = None
    by: str = ""
    missing: tuple[Path, ...] = ()

    @property
    def warning(self) -> str:
        """A warning for the log; empty where there is nothing to warn of."""
        files = ", ".join(map(str, self.missing))
        return f"KUBECONFIG names {files}: no such file; the variable is ignored" if files else ""


def named(flag: str | None, environ: Mapping[str, str]) -> NamedKubeconfig:
    """The kubeconfig named by the flag, else by our own variable, else by KUBECONFIG.

    A file that is named for this agent alone must exist. KUBECONFIG is a list, and set for kubectl: files of
    it that do not exist are skipped, as in client-go (k8s.io/client-go/tools/clientcmd, loader.go).

    Raises:
        ConfigError: KUBECONFIG names several existing files; other clients would merge them.
    """
    for by, path in (("--kubeconfig", flag), (OWN_VARIABLE, environ.get(OWN_VARIABLE))):
        if path:
            return NamedKubeconfig(Path(path), by)
    listed = tuple(Path(it) for it in environ.get(VARIABLE, "").split(os.pathsep) if it)
    existing = [it for it in listed if _may_exist(it)]
    if len(existing) > 1:
        files, remedy = ", ".join(map(str, existing)), "`kubectl config view --flatten` makes one of them"
        raise ConfigError(f"{VARIABLE}: names {files}; give one with --kubeconfig, {remedy}")
    return NamedKubeconfig(existing[0], VARIABLE) if existing else NamedKubeconfig(missing=listed)


def find(
    kubeconfig: Path | None,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
    *,
    by: str = "",
) -> ApiAccess | None:
    """The access by the named kubeconfig, or as a pod has it; None where there is no API server.

    Raises:
        ConfigError: The named file cannot be used (the text begins with `by`), or the pod's service account
            is incomplete.
    """
    if kubeconfig is None:
        return in_cluster(environ, service_account)
    try:
        return of_kubeconfig(kubeconfig)
    except ConfigError as error:
        raise ConfigError(f"{by}: {error}" if by else str(error)) from None


def in_cluster(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ApiAccess | None:
    """The access of a pod with a service account; None elsewhere, or where no account is mounted.

    Raises:
        ConfigError: There is a token, but no CA certificate.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token = directory / "token"
    if not host or not port or not token.is_file():
        return None
    ca = directory / "ca.crt"
    if not ca.is_file():
        raise ConfigError(f"{ca}: not there, though {token} is; mount the service account's whole volume")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ApiAccess(server, _namespace(directory / "namespace"), ca, token)


def of_kubeconfig(path: Path) -> ApiAccess:
    """The access of the file's current context.

    Raises:
        ConfigError: The file cannot be used, or its current context names what is not in it.
    """
    config = _mapping(path, parsed(path), "the file")
    context = _entry(path, config, "context", config.get("current-context"), "current-context")
    cluster = _entry(path, config, "cluster", context.get("cluster"), "the current context")
    user = (
        _entry(path, config, "user", context.get("user"), "the current context") if "user" in context else {}
    )
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise ConfigError(f"{path}: the cluster's server is {_shown(server)}; give a URL, https://HOST:PORT")
    if "@" in server:
        raise ConfigError(f"{path}: the cluster's server holds a password; give it under `users`")
    keys = ((cluster, "certificate-authority"), (user, "client-certificate"), (user, "client-key"))
    files = [_file_of(path, part, key) for part, key in keys]
    return ApiAccess(
        server.rstrip("/"),
        str(context.get("namespace") or "default"),
        token_file=_file_of(path, user, "tokenFile") if not user.get("token") else None,
        kubeconfig=path,
        certificates=tuple(it for it in files if it is not None),
    )


def parsed(path: Path) -> Any:
    """The content of a kubeconfig.

    Raises:
        ConfigError: The file is unreadable, too long or no YAML; the text quotes nothing of the file.
    """
    try:
        content = files.read(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a kubeconfig that can be read") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes; is it a kubeconfig?")
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # The error's own text quotes the line, which may be a token.
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise ConfigError(f"{where}: not YAML; {_REMEDY}") from None


def _entry(path: Path, config: Mapping[str, Any], kind: str, name: Any, by: str) -> Mapping[str, Any]:
    """The element of `contexts`, `clusters` or `users` with this name."""
    if not isinstance(name, str) or not name:
        what = by if by == "current-context" else f"{kind} of {by}"
        raise ConfigError(f"{path}: {what} is {_shown(name)}; set it to a name in {kind}s")
    entries = config.get(f"{kind}s")
    rows = [it for it in entries if isinstance(it, dict)] if isinstance(entries, list) else []
    for row in rows:
        if row.get("name") == name:
            return _mapping(path, row.get(kind), f"{kind} {_shown(name)}")
    names = ", ".join(_shown(it.get("name")) for it in rows[:8]) or "none"
    raise ConfigError(f"{path}: {by} names {kind} {_shown(name)}, there is {names}; {_REMEDY}")


def _mapping(path: Path, value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {what} is no mapping; {_REMEDY}")
    return value


def _file_of(path: Path, part: Mapping[str, Any], key: str) -> Path | None:
    """The file that the key names, relative to the kubeconfig; None where the key names none."""
    name = part.get(key)
    if not name or part.get(f"{key}-data"):
        return None
    file = path.parent / str(name)
    if not file.is_file():
        raise ConfigError(
            f"{path}: {key} names {file}, there is no such file; copy it there or correct the name"
        )
    return file


def _may_exist(path: Path) -> bool:
    """Whether the file exists; True where that cannot be found out."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _namespace(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"


def _shown(value: Any) -> str:
    return "missing" if value is None else f"'{shorten(value)}'" if isinstance(value, str) else "no text"
