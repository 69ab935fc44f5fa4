"""Where the API server is, and with which files it is spoken to; their secrets stay in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent.core.errors import ConfigError
from agent.host import files
from agent.vendor_api.text import shorten

#: Where the kubelet mounts a pod's service account (k8s.io/client-go/rest: InClusterConfig).
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BYTES = 1 << 20
OWN_VARIABLE = "XPU_AGENT_KUBECONFIG"
VARIABLE = "KUBECONFIG"

_REMEDY = "`kubectl config view --kubeconfig F` shows one that works"


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """`server` is a URL, `namespace` ours there. With a `kubeconfig` that says the rest.

    `token_file` is read anew whenever it changes; `ca_file` None: what the system trusts.
    """

    server: str
    namespace: str = "default"
    ca_file: Path | None = None
    token_file: Path | None = None
    kubeconfig: Path | None = None
    #: What the kubeconfig names beside itself: CA, client certificate, client key.
    certificates: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """What connections are made of; where one of them changes, new ones are."""
        return tuple(it for it in (self.ca_file, self.kubeconfig, *self.certificates) if it is not None)

    def __str__(self) -> str:
        return f"{self.server} ({self.kubeconfig})" if self.kubeconfig else self.server


@dataclass(frozen=True, slots=True)
class NamedKubeconfig:
    """The kubeconfig that was named, and `by` what. `missing`: those of KUBECONFIG, where none is there."""

    path: Path | None = None
    by: str = ""
    missing: tuple[Path, ...] = ()

    @property
    def warning(self) -> str:
        """What to tell of it; empty where all is well."""
        files = ", ".join(map(str, self.missing))
        return f"KUBECONFIG names {files}: no such file, so it is as if it were not set" if files else ""


def named(flag: str | None, environ: Mapping[str, str]) -> NamedKubeconfig:
    """The kubeconfig that the command line names, or our own variable, or the one that all clients know.

    What is said to this agent alone has to be there. KUBECONFIG is a list, and set for kubectl: of it what is
    missing is passed over, as client-go does (k8s.io/client-go/tools/clientcmd, loader.go).

    Raises:
        ConfigError: KUBECONFIG names several files; others would lay them over each other.
    """
    for by, path in (("--kubeconfig", flag), (OWN_VARIABLE, environ.get(OWN_VARIABLE))):
        if path:
            return NamedKubeconfig(Path(path), by)
    listed = tuple(Path(it) for it in environ.get(VARIABLE, "").split(os.pathsep) if it)
    there = [it for it in listed if _is_there(it)]
    if len(there) > 1:
        files, remedy = ", ".join(map(str, there)), "`kubectl config view --flatten` makes one of them"
        raise ConfigError(f"{VARIABLE}: names {files}; give one with --kubeconfig, {remedy}")
    return NamedKubeconfig(there[0], VARIABLE) if there else NamedKubeconfig(missing=listed)


def find(
    kubeconfig: Path | None,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
    *,
    by: str = "",
) -> ApiAccess | None:
    """The kubeconfig that was named, or what a pod is given, or None: there is no API server here.

    Raises:
        ConfigError: The file named cannot be used, which begins with what named it; or the pod was given
            half of it.
    """
    if kubeconfig is None:
        return in_cluster(environ, service_account)
    try:
        return of_kubeconfig(kubeconfig)
    except ConfigError as error:
        raise ConfigError(f"{by}: {error}" if by else str(error)) from None


def in_cluster(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ApiAccess | None:
    """What every pod is given that has a service account; None outside of one, and where it was refused.

    Raises:
        ConfigError: There is a token, and nothing to know the server by.
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
    """The current context of the file.

    Raises:
        ConfigError: The file, or what its current context names, is not there or makes no sense.
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
    named = [_there(path, part, key) for part, key in keys]
    return ApiAccess(
        server.rstrip("/"),
        str(context.get("namespace") or "default"),
        token_file=_there(path, user, "tokenFile") if not user.get("token") else None,
        kubeconfig=path,
        certificates=tuple(it for it in named if it is not None),
    )


def parsed(path: Path) -> Any:
    """What a kubeconfig holds.

    Raises:
        ConfigError: It cannot be read, is no YAML or too long; the text quotes nothing of it.
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
        # The text of such an error quotes the line, and that may be a token.
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise ConfigError(f"{where}: not YAML; {_REMEDY}") from None


def _entry(path: Path, config: Mapping[str, Any], kind: str, name: Any, by: str) -> Mapping[str, Any]:
    """The part of `contexts`, `clusters` or `users` that is called so."""
    if not isinstance(name, str) or not name:
        what = by if by == "current-context" else f"{kind} of {by}"
        raise ConfigError(f"{path}: {what} is {_shown(name)}; set it to a name that stands in {kind}s")
    entries = config.get(f"{kind}s")
    named = [it for it in entries if isinstance(it, dict)] if isinstance(entries, list) else []
    for entry in named:
        if entry.get("name") == name:
            return _mapping(path, entry.get(kind), f"{kind} {_shown(name)}")
    there = ", ".join(_shown(it.get("name")) for it in named[:8]) or "none"
    raise ConfigError(f"{path}: {by} names {kind} {_shown(name)}, there is {there}; {_REMEDY}")


def _mapping(path: Path, value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {what} is no mapping; {_REMEDY}")
    return value


def _there(path: Path, part: Mapping[str, Any], key: str) -> Path | None:
    """The file that this key names, from the kubeconfig's own directory on; None if it names none."""
    named = part.get(key)
    if not named or part.get(f"{key}-data"):
        return None
    file = path.parent / str(named)
    if not file.is_file():
        raise ConfigError(
            f"{path}: {key} names {file}, there is no such file; copy it there or mend the name"
        )
    return file


def _is_there(path: Path) -> bool:
    """Whether it is, or nobody can tell."""
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
