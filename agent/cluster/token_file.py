"""Tokens that change while the agent runs: in a file that the kubelet rewrites, or from a program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from agent.cluster.api_errors import ApiAway
from agent.host import files
from agent.vendor_api.text import shorten

MAX_BYTES = 1 << 16
#: kubernetes-asyncio's name for the value of the Authorization header.
KEY = "BearerToken"


class Token(Protocol):
    """Called before each request with the configuration that the request is made from."""

    async def __call__(self, configuration: Any) -> None:
        """Put the current token into the configuration; raises ApiAway where there is none."""

    def refused(self) -> None:
        """The server refused the token (401): get another one next time."""


class FixedToken:
    """The token of the kubeconfig itself, or none."""

    async def __call__(self, configuration: Any) -> None: ...

    def refused(self) -> None: ...


class FileToken:
    """Reads the file again when it changes: the kubelet renews a service account's token within an hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int, int] | None = None

    async def __call__(self, configuration: Any) -> None:
        try:
            self._renew(configuration)
        except (OSError, ValueError) as error:
            # The file is being replaced; the last token is valid for some minutes more.
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
            raise ValueError("the file is empty, or holds no token")
        configuration.api_key[KEY] = f"Bearer {token}"
        self._read = mark


class PluginToken:
    """Asks the program that the kubeconfig names under `exec`, again when its token expires.

    A token without an expiry is kept until the server refuses it, as kubectl does
    (k8s.io/client-go/plugin/pkg/client/auth/exec).
    """

    def __init__(self, loader: Any) -> None:
        """`loader` is kubernetes-asyncio's KubeConfigLoader, which has run the program once."""
        self._loader = loader
        self._refused = False

    async def __call__(self, configuration: Any) -> None:
        if not self._refused and not hasattr(self._loader, "exec_plugin_expiry"):
            return
        try:
            await self._loader.load_from_exec_plugin()
        except Exception as error:  # anything that the program or its output causes
            raise ApiAway(f"the kubeconfig's exec plugin gave no token: {shorten(str(error), 300)}") from None
        self._refused = False
        if hasattr(self._loader, "token"):
            configuration.api_key[KEY] = self._loader.token

    def refused(self) -> None:
        self._refused = True
        vars(self._loader).pop("exec_plugin_expiry", None)
