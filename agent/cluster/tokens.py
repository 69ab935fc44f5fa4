"""Tokens that change while we run: in a file that the kubelet rewrites, or from a program that is asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from agent.cluster.api_errors import ApiAway
from agent.host import files
from agent.vendor_api.text import shorten

MAX_BYTES = 1 << 16
#: How kubernetes-asyncio calls what it sends as the header Authorization.
KEY = "BearerToken"


class Token(Protocol):
    """Called before each request, with the configuration that the request is made of."""

    async def __call__(self, configuration: Any) -> None:
        """Put the token of now into the configuration; raises ApiAway where there is none."""

    def refused(self) -> None:
        """The server took it no more (401): get another next time."""


class FixedToken:
    """A token, or none, that stands in the kubeconfig."""

    async def __call__(self, configuration: Any) -> None: ...

    def refused(self) -> None: ...


class FileToken:
    """Read again when the file is another: the kubelet renews a service account's token within its hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int, int] | None = None

    async def __call__(self, configuration: Any) -> None:
        try:
            self._renew(configuration)
        except (OSError, ValueError) as error:
            # The file is swapped under us: the last token is good for minutes yet.
            if KEY not in configuration.api_key:
                raise ApiAway(f"{self._path}: no token to read: {error}") from None

    def refused(self) -> None:
        self._read = None

    def _renew(self, configuration: Any) -> None:
        found = os.stat(self._path)
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if mark == self._read:
            return
        token = files.read(self._path, MAX_BYTES).decode("ascii", errors="replace").strip()
        if not token or not token.isascii() or not token.isprintable():
            raise ValueError("it is empty, or no token")
        configuration.api_key[KEY] = f"Bearer {token}"
        self._read = mark


class PluginToken:
    """From the program that the kubeconfig names under `exec`, asked again when its token is over.

    Kept where it does not say when that is, until the server refuses it; so does kubectl
    (k8s.io/client-go/plugin/pkg/client/auth/exec).
    """

    def __init__(self, loader: Any) -> None:
        """`loader` is kubernetes-asyncio's KubeConfigLoader, which has asked once."""
        self._loader = loader
        self._refused = False

    async def __call__(self, configuration: Any) -> None:
        if not self._refused and not hasattr(self._loader, "exec_plugin_expiry"):
            return
        try:
            await self._loader.load_from_exec_plugin()
        except Exception as error:  # whatever somebody's program, and its words, may cause
            raise ApiAway(f"the kubeconfig's exec plugin gave no token: {shorten(str(error), 300)}") from None
        self._refused = False
        if hasattr(self._loader, "token"):
            configuration.api_key[KEY] = self._loader.token

    def refused(self) -> None:
        self._refused = True
        vars(self._loader).pop("exec_plugin_expiry", None)
