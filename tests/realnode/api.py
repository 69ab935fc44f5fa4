"""The API server as its admin sees it: objects by HTTP, and kubectl for the rest."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

from peers.apiserver import KubectlFailed, kubectl

from .place import TOOLS
from .until import PATIENCE

__all__ = ["Api", "KubectlFailed", "Object", "Refused"]

Object = dict[str, Any]


class Refused(Exception):
    """The API server answered with an error: its status, and its own words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status


class Api:
    """All that it needs to know is in the admin's kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        content = json.loads(kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        self.url: str = cluster["server"]
        self._token = user["token"]
        trust = urllib.request.HTTPSHandler(
            context=ssl.create_default_context(cafile=cluster["certificate-authority"])
        )
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trust)

    async def get(self, path: str) -> Object:
        """The object or list at this path, such as /api/v1/nodes/NAME.

        Raises:
            Refused: There is none, or it may not be seen.
            OSError: The server does not answer.
        """
        return cast("Object", json.loads(await self.text(path)))

    async def items(self, path: str) -> list[Object]:
        """The objects of the list at this path."""
        return cast("list[Object]", (await self.get(path))["items"])

    async def text(self, path: str) -> str:
        return (await asyncio.to_thread(self._read, path)).decode(errors="replace")

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl and return what it printed.

        Raises:
            KubectlFailed: It ended with an error.
        """
        cache = self.kubeconfig.parent / "kubectl"
        command: list[str | Path] = [
            TOOLS / "kubectl",
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={cache}",
        ]
        return await kubectl(command, *arguments, stdin=stdin)

    async def apply(self, *objects: Object) -> None:
        content = {"apiVersion": "v1", "kind": "List", "items": objects}
        await self.kubectl("apply", "--filename=-", stdin=json.dumps(content))

    def _read(self, path: str) -> bytes:
        request = urllib.request.Request(
            f"{self.url}{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode(errors="replace")) from None
