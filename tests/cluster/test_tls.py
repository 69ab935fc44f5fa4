"""Which server is trusted, and what is shown to it. `tls/` holds a CA, and certificates by it."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from agent.cluster.access import Access, find
from agent.cluster.errors import ApiAway

from .contract import talking
from .wire import says, wire

TLS = Path(__file__).parent / "tls"
NODE = "/api/v1/nodes/n"


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


def kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> Access:
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
        talking(Access(tls.url, ca_file=TLS / "ca.crt")) as client,
    ):
        assert await client.get(NODE) == {"kind": "Node"}


@pytest.mark.parametrize("ca", [None, TLS / "client.crt"], ids=["the system's", "another"])
async def test_a_server_that_nobody_vouches_for_is_away(ca: Path | None) -> None:
    async with wire(says(200, {}), server()) as tls, talking(Access(tls.url, ca_file=ca)) as client:
        with pytest.raises(ApiAway, match="certificate verify failed"):
            await client.get(NODE)

    assert not tls.asked


async def test_a_server_of_another_name_is_away() -> None:
    async with wire(says(200, {}), server()) as tls:
        named = tls.url.replace("127.0.0.1", "localhost")
        async with talking(Access(named, ca_file=TLS / "ca.crt")) as client:
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


async def test_a_ca_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")

    with pytest.raises(ApiAway, match="its CA or client certificate can not be used"):
        async with talking(Access("https://127.0.0.1:1", ca_file=tmp_path / "ca")):
            pass
