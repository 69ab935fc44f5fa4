"""Which server is trusted, and what is shown to it. `tls/` holds a CA, and certificates by it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.cluster.api_client import Client
from agent.cluster.api_errors import ApiAway
from agent.cluster.credentials import ApiAccess, find

from .contract import talking
from .wire import Asked, head, line, says, wire

TLS = Path(__file__).parent / "tls"
NODE = "/api/v1/nodes/n"
BOOKMARK = line("BOOKMARK", resourceVersion="7")


def server(*, asks: bool = False) -> ssl.SSLContext:
    """The server's side; it may ask for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.crt", TLS / "server.key")
    if asks:
        context.load_verify_locations(TLS / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def data(name: str) -> str:
    return base64.b64encode((TLS / name).read_bytes()).decode()


def kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> ApiAccess:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    access = find(path, {})
    assert access is not None
    return access


async def test_the_server_is_known_by_the_ca() -> None:
    async with (
        wire(says(200, {"kind": "Node"}), server()) as tls,
        talking(ApiAccess(tls.url, ca_file=TLS / "ca.crt")) as client,
    ):
        assert await client.get(NODE) == {"kind": "Node"}


@pytest.mark.parametrize("ca", [None, TLS / "client.crt"], ids=["the system's", "another"])
async def test_a_server_that_nobody_vouches_for_is_away(ca: Path | None) -> None:
    async with wire(says(200, {}), server()) as tls, talking(ApiAccess(tls.url, ca_file=ca)) as client:
        with pytest.raises(ApiAway, match="certificate verify failed"):
            await client.get(NODE)

    assert not tls.asked


async def test_a_server_of_another_name_is_away() -> None:
    async with wire(says(200, {}), server()) as tls:
        named = tls.url.replace("127.0.0.1", "localhost")
        async with talking(ApiAccess(named, ca_file=TLS / "ca.crt")) as client:
            with pytest.raises(ApiAway, match="certificate is not valid for 'localhost'"):
                await client.get(NODE)


@pytest.mark.parametrize("opened", [1, 2], ids=["once", "again"])
async def test_certificates_inside_a_kubeconfig_are_shown_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: int
) -> None:
    private = tmp_path / "tmp"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    user = {"client-certificate-data": data("client.crt"), "client-key-data": data("client.key")}
    async with wire(says(200, {}), server(asks=True)) as tls:
        access = kubeconfig(tmp_path / "k", tls.url, user, **{"certificate-authority-data": data("ca.crt")})
        for _ in range(opened):
            async with talking(access) as client:
                assert not list(private.iterdir())
                assert await client.get(NODE) == {}

    assert len(tls.asked) == opened


async def test_certificates_beside_a_kubeconfig_are_found(tmp_path: Path) -> None:
    for name in ("ca.crt", "client.crt", "client.key"):
        (tmp_path / name).write_bytes((TLS / name).read_bytes())
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    async with wire(says(200, {}), server(asks=True)) as tls:
        access = kubeconfig(tmp_path / "k", tls.url, user, **{"certificate-authority": "ca.crt"})
        async with talking(access) as client:
            assert await client.get(NODE) == {}


async def test_a_server_may_be_named_or_not_verified_at_all(tmp_path: Path) -> None:
    async with wire(says(200, {}), server()) as tls:
        localhost = tls.url.replace("127.0.0.1", "localhost")
        ca = {"certificate-authority-data": data("ca.crt")}
        for each in ({**ca, "tls-server-name": "127.0.0.1"}, {"insecure-skip-tls-verify": True}):
            async with talking(kubeconfig(tmp_path / "k", localhost, {"token": "t"}, **each)) as client:
                assert await client.get(NODE) == {}


def copied(directory: Path, **files: str) -> dict[str, str]:
    """Copy files of `tls/` under other names, as whoever rotates them does; returns their paths."""
    for name, source in files.items():
        fresh = directory / f"{name}.new"
        fresh.write_bytes((TLS / source).read_bytes())
        fresh.replace(directory / name)
    return {name: str(directory / name) for name in files}


async def asked_until(client: Client, condition: Callable[[], bool]) -> None:
    """Files are looked at beside the calls, so one of the next ones goes by the new ones."""
    async with asyncio.timeout(30):
        while not condition():
            with suppress(ApiAway):
                await client.get(NODE)
            await asyncio.sleep(0.005)


async def test_a_ca_is_read_again_when_its_file_is_another(tmp_path: Path) -> None:
    copied(tmp_path, ca="client.crt")
    async with (
        wire(says(200, {}), server()) as tls,
        talking(ApiAccess(tls.url, ca_file=tmp_path / "ca")) as client,
    ):
        with pytest.raises(ApiAway, match="certificate verify failed"):
            await client.get(NODE)
        copied(tmp_path, ca="ca.crt")

        await asked_until(client, lambda: bool(tls.asked))


async def test_a_client_s_certificate_is_shown_anew_when_it_was_rotated(tmp_path: Path) -> None:
    copied(tmp_path, crt="client.crt", key="client.key")
    user = {"client-certificate": "crt", "client-key": "key"}
    ca = {"certificate-authority-data": data("ca.crt")}
    async with (
        wire(says(200, {}), server(asks=True)) as tls,
        talking(kubeconfig(tmp_path / "k", tls.url, user, **ca)) as client,
    ):
        await client.get(NODE)
        copied(tmp_path, crt="server.crt", key="server.key")
        await asked_until(client, lambda: tls.asked[-1].shown == "test server")


async def test_a_kubeconfig_is_read_again_when_it_is_another(tmp_path: Path) -> None:
    ca = {"certificate-authority-data": data("ca.crt")}
    async with (
        wire(says(200, {}), server(asks=True)) as tls,
        talking(kubeconfig(tmp_path / "k", tls.url, {"token": "t"}, **ca)) as client,
    ):
        with pytest.raises(ApiAway):
            await client.get(NODE)
        user = {"client-certificate-data": data("client.crt"), "client-key-data": data("client.key")}
        kubeconfig(tmp_path / "k", tls.url, user, **ca)

        await asked_until(client, lambda: bool(tls.asked))

    assert tls.asked[-1].shown == "test client"


async def test_while_certificates_are_exchanged_one_by_one_the_old_ones_serve_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.renewed_certificates.AGAIN", 0.0)
    copied(tmp_path, crt="client.crt", key="client.key")
    user = {"client-certificate": "crt", "client-key": "key"}
    ca = {"certificate-authority-data": data("ca.crt")}
    async with (
        wire(says(200, {}), server(asks=True)) as tls,
        talking(kubeconfig(tmp_path / "k", tls.url, user, **ca)) as client,
    ):
        await client.get(NODE)
        with capture_logs() as logs:
            copied(tmp_path, crt="server.crt")
            await asked_until(client, lambda: any(it["log_level"] == "warning" for it in logs))
            await client.get(NODE)
            (tmp_path / "key").unlink()
            await client.get(NODE)
            assert {it.shown for it in tls.asked} == {"test client"}
            copied(tmp_path, key="server.key")
            await asked_until(client, lambda: tls.asked[-1].shown == "test server")

    refused = [it for it in logs if it["log_level"] == "warning"]
    assert "cannot be used" in refused[0]["error"]


async def test_a_watch_outlives_the_certificates_that_it_was_opened_with(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "watch=true" not in asked.target:
            return await says(200, {})(asked, writer)
        writer.write(head(200, **{"Content-Length": str(2 * len(BOOKMARK))}) + BOOKMARK)
        await more.wait()
        writer.write(BOOKMARK)
        return None

    copied(tmp_path, ca="ca.crt")
    async with (
        wire(answer, server()) as tls,
        talking(ApiAccess(tls.url, ca_file=tmp_path / "ca")) as client,
        client.watch(NODE, {}) as events,
    ):
        assert (await anext(events)).kind == "BOOKMARK"
        with capture_logs() as logs:
            (tmp_path / "fresh").write_bytes((TLS / "ca.crt").read_bytes() + b"\n")
            (tmp_path / "fresh").replace(tmp_path / "ca")
            await asked_until(client, lambda: any(it["event"] == "certificates read again" for it in logs))
        more.set()

        assert (await anext(events)).kind == "BOOKMARK"


async def test_a_ca_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")

    with pytest.raises(ApiAway, match="its CA or client certificate cannot be used"):
        async with talking(ApiAccess("https://127.0.0.1:1", ca_file=tmp_path / "ca")):
            pass
