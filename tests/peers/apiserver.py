"""A real kube-apiserver on loopback, with an etcd of its own, and the kubectl to it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .real import BUILD

ADMIN = "admin"
#: The group that RBAC lets do everything.
MASTERS = "system:masters"
#: How long a start or an end may take, in seconds; on an idle machine a start takes some three.
PATIENCE = 60.0
ASK_EVERY = 0.05
#: kubectl's option that no error repeats.
TOKEN = "--token="
#: For a program that runs for a fifth of a second: to look for garbage takes a fifth of its CPU time.
NO_GARBAGE = {"GOGC": "off"}


def built_cluster() -> Path | None:
    """Find the binary of the whole cluster, if build.sh has made it."""
    built = [path for path in BUILD.glob("cluster-*") if path.suffix not in {".stamp", ".new"}]
    return max(built, default=None)


class KubectlFailed(Exception):
    """kubectl ended with an error, here in its own words."""


class ServerDown(Exception):
    """The API server did not come up, or is not running."""


async def kubectl(command: Sequence[str | Path], *arguments: str, stdin: str = "") -> str:
    """Run `command`, which is kubectl and its options, with these arguments, and return what it printed.

    Raises:
        KubectlFailed: It ended with an error. A token given as one argument, --token=..., is left out of it.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **NO_GARBAGE},
    )
    try:
        printed, complaint = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = (it for it in arguments if not it.startswith(TOKEN))
        raise KubectlFailed(f"kubectl {' '.join(said)}: {complaint.decode(errors='replace').strip()}")
    return printed.decode()


class RealApiServer:
    """One kube-apiserver on a port of its own; what it stores is in `directory` and outlives a restart.

    `users` are names with their groups: each has a token from the start on, and no rights but those that a
    test binds to it. It belongs to no event loop, so a fixture may keep it for longer than a test.
    """

    def __init__(
        self,
        binary: Path,
        directory: Path,
        *,
        users: Mapping[str, Sequence[str]] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._binary = binary
        self._directory = directory
        self._users = {ADMIN: (MASTERS,), **(users or {})}
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        # Bound but never listening: nobody else gets the port, also while the server is down.
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reservation.bind(("127.0.0.1", 0))
        self._port = int(self._reservation.getsockname()[1])

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca(self) -> Path:
        """What the server's certificate is to be verified with; written by its first start."""
        return self._directory / "certs" / "apiserver.crt"

    @property
    def token(self) -> str:
        """May do everything."""
        return self.token_for(ADMIN)

    @property
    def log(self) -> Path:
        return self._directory / "kube-apiserver.log"

    @property
    def pid(self) -> int:
        if self._process is None or self._process.poll() is not None:
            raise ServerDown(self._last_words())
        return self._process.pid

    def token_for(self, user: str) -> str:
        """The token of the admin or of one of `users`."""
        return self._tokens[user]

    async def service_account_token(
        self, name: str, namespace: str = "default", *, seconds: int = 3600
    ) -> str:
        """Issue a token as pods have it, for a service account that exists; the least is 600 seconds."""
        options = ["--namespace", namespace, "--duration", f"{seconds}s"]
        return (await self.kubectl("create", "token", name, *options)).strip()

    def kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Write a kubeconfig, the admin's if no token is given, and return its path."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "peer", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}
            ],
            "users": [{"name": "peer", "user": {"token": self.token if token is None else token}}],
            "contexts": [{"name": "peer", "context": {"cluster": "peer", "user": "peer"}}],
            "current-context": "peer",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    async def kubectl(self, *arguments: str, stdin: str = "", token: str | None = None) -> str:
        """Run kubectl, as the admin if no token is given, and return what it printed.

        Raises:
            KubectlFailed: It ended with an error.
        """
        cache = self._directory / "kubectl"
        command: list[str | Path] = [
            self._binary,
            "kubectl",
            "--kubeconfig",
            self._kubectl_config,
            "--cache-dir",
            cache,
        ]
        as_user = [] if token is None else [f"{TOKEN}{token}"]
        return await kubectl(command, *as_user, *arguments, stdin=stdin)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._reservation.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        self._reservation.close()

    async def start(self) -> None:
        """Start the server with what it had stored before, and wait until it is ready."""
        self._write_tokens()
        self.kubeconfig(self._kubectl_config)
        self._process = self._spawn()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ready()
        except BaseException as error:
            words = self._last_words()
            await self.kill()
            if isinstance(error, TimeoutError):
                raise ServerDown(f"not ready in {PATIENCE:.0f} s: {words}") from None
            raise

    async def stop(self) -> None:
        """End the server in good order; it keeps its port."""
        if self._process is not None:
            self._process.terminate()
            await self._gone(self._process)

    async def kill(self) -> None:
        """End the server as a crash would."""
        if self._process is not None:
            self._process.kill()
            await self._gone(self._process)

    async def restart(self, *, down: float = 0.0) -> None:
        """Stop it, leave it down for some seconds and start it: connections end, objects stay."""
        await self.stop()
        await asyncio.sleep(down)
        await self.start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            # Attached: it goes when its input ends, so also when this process dies.
            return subprocess.Popen(
                [self._binary, "attached", "kube-apiserver", *self._options()],
                cwd=self._directory,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    async def _ready(self) -> None:
        while True:
            if await asyncio.to_thread(self._is_ready):
                return
            await asyncio.sleep(ASK_EVERY)

    async def _gone(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        try:
            await asyncio.to_thread(process.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        process.stdin.close()
        self._process = None

    @property
    def _kubectl_config(self) -> Path:
        return self._directory / "kubeconfig"

    def _write_tokens(self) -> None:
        path = self._directory / "tokens.csv"
        path.touch(mode=0o600)
        path.write_text(
            "".join(
                f'{self._tokens[user]},{user},{user},"{",".join(groups)}"\n'
                for user, groups in self._users.items()
            )
        )

    def _options(self) -> list[str]:
        return [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # it would refuse a loopback address
            f"--secure-port={self._port}",
            "--permit-port-sharing=true",
            "--cert-dir=certs",
            "--token-auth-file=tokens.csv",
            "--service-account-issuer=https://local",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--shutdown-watch-termination-grace-period=1s",  # else an open watch holds it up for a minute
            *self._flags,
        ]

    def _is_ready(self) -> bool:
        """Whether /readyz says so.

        Raises:
            ServerDown: The process ended.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerDown(self._last_words())
        request = urllib.request.Request(
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            trust = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.ca))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trust)
            with opener.open(request, timeout=5):
                return True
        except OSError:  # refused, not ready (503), or its certificate is not written yet
            return False

    def _last_words(self) -> str:
        status = "not running" if self._process is None else f"exit status {self._process.poll()}"
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-10:]
        except OSError:
            lines = []
        return "\n".join([f"kube-apiserver: {status}", *lines])
