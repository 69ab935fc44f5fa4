"""What tools of others show, where they show it, and to whom."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from msgspec import structs
from support.http_views import EMPTY, VIEW

from agent import cli
from agent.cli.tool_format_request import NoSuchFormat, in_format
from agent.core.publishing.agent_status import AgentStatus
from agent.http import serving
from agent.http.routes import Audience, answer
from agent.vendor_api.agent import ContainerEdits, Format, NodeListing, NotShown, Vendor

PATHS = ["/inspect/acme", "/acme/inspect", "/acme/inspect/node-1"]


def told(picture: NodeListing, node: str, query: Mapping[str, str]) -> Any:
    if node == "fails":
        raise RuntimeError("a vendor's bug")
    if node not in ("", picture.node):
        raise NotShown({"error": f"no node {node}"})
    return {"node": picture.node, "asked": node, "query": dict(query), "held": len(picture.shares)}


ACME = Vendor(
    "nvidia",
    "acme:Acme",
    "nvidia.com/gpu",
    lambda devices, request: ContainerEdits(),
    formats=(Format("acme", told, "/acme/inspect"),),
)
SHOWN = structs.replace(VIEW, vendors={"nvidia": ACME})


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:  # the path of a socket is short
        yield Path(directory) / "agent.sock"


def ask(target: str, reach: Audience = Audience.LOCAL, view: AgentStatus = SHOWN) -> tuple[int, Any]:
    got = answer(lambda: view, reach, target)
    return got.status, json.loads(got.body) if got.content_type == "application/json" else got.body.decode()


@pytest.mark.parametrize("reach", [Audience.LOCAL, Audience.ADMIN])
@pytest.mark.parametrize("target", PATHS)
def test_a_format_is_shown_by_its_name_and_where_its_tool_has_it(target: str, reach: Audience) -> None:
    status, shown = ask(target, reach)

    assert (status, shown["node"], shown["held"]) == (200, "node-1", 2)
    assert shown["asked"] == ("node-1" if target.endswith("node-1") else "")


@pytest.mark.parametrize("target", [*PATHS, "/acme/inspect/node-1?drs=true"])
def test_the_network_sees_no_format_and_is_told_why(target: str) -> None:
    status, said = ask(target, Audience.NETWORK)

    path = target.partition("?")[0]
    assert (status, said) == (404, f"{path} is served on loopback and on the admin socket only\n")


def test_a_format_is_told_the_query() -> None:
    assert ask("/acme/inspect?drs=true&x=1")[1]["query"] == {"drs": "true", "x": "1"}


def test_what_a_format_has_nothing_of_it_says_itself() -> None:
    assert ask("/acme/inspect/other") == (404, {"error": "no node other"})


def test_a_format_that_no_vendor_has_is_told_with_those_that_there_are() -> None:
    assert ask("/inspect/nosuch") == (
        404,
        "no vendor in service here has the format 'nosuch'; there is acme\n",
    )
    assert ask("/inspect/nosuch", view=EMPTY)[1].endswith("'nosuch'; there is none\n")
    assert ask("/inspect/nosuch", Audience.NETWORK)[1].startswith("nothing is here; there is /healthz")


def test_who_stands_by_shows_none_and_says_so() -> None:
    standby = structs.replace(EMPTY, standby="pid 7 holds the lock")

    assert ask("/inspect/acme", view=standby) == (503, "this agent stands by: pid 7 holds the lock\n")


def test_an_unknown_path_names_the_formats_too_but_to_the_network() -> None:
    assert "/inspect/acme, /acme/inspect" in ask("/x")[1]
    assert "acme" not in ask("/x", Audience.NETWORK)[1]


def test_no_format_takes_the_place_of_a_view_of_ours() -> None:
    greedy = replace(ACME, formats=(Format("greedy", lambda *_: "mine", "/readyz"),))

    assert ask("/readyz", view=structs.replace(VIEW, vendors={"nvidia": greedy})) == (200, "ready\n")


async def test_a_format_is_served_on_loopback_and_on_the_admin_socket(path: Path) -> None:
    async with serving(lambda: SHOWN, path), serving(lambda: SHOWN, "127.0.0.1:0") as where:
        by_socket = await anyio.to_thread.run_sync(in_format, path, "acme")
        by_port = await anyio.to_thread.run_sync(_get, where, "/acme/inspect?x=1")

    assert json.loads(by_socket) == {"node": "node-1", "asked": "", "query": {}, "held": 2}
    assert json.loads(by_port)["query"] == {"x": "1"}


async def test_a_port_that_others_reach_serves_no_format() -> None:
    async with serving(lambda: SHOWN, "0.0.0.0:0") as where:
        said = await anyio.to_thread.run_sync(_get, where.replace("0.0.0.0", "127.0.0.1"), "/acme/inspect")

    assert said == "/acme/inspect is served on loopback and on the admin socket only\n"


async def test_a_format_that_fails_costs_its_answer_alone(path: Path) -> None:
    async with serving(lambda: SHOWN, "127.0.0.1:0") as where:
        said = await anyio.to_thread.run_sync(_get, where, "/acme/inspect/fails")
        again = await anyio.to_thread.run_sync(_get, where, "/acme/inspect")

    assert said == "this cannot be answered; the agent's log says why\n"
    assert json.loads(again)["node"] == "node-1"


async def test_the_verb_shows_a_format_and_refuses_one_that_is_not_there(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(lambda: SHOWN, path):
        state_dir = ("--state-dir", str(path.parent))
        good = await anyio.to_thread.run_sync(cli.main, ["inspect", "--format", "acme", *state_dir])
        shown = capsys.readouterr().out
        bad = await anyio.to_thread.run_sync(cli.main, ["inspect", "--format", "a/b?c", *state_dir])

    assert (good, bad) == (0, 1)
    assert json.loads(shown)["node"] == "node-1"
    assert "no vendor in service here has the format 'a/b?c'; there is acme" in capsys.readouterr().err


async def test_a_format_that_is_not_there_is_an_error_of_ours(path: Path) -> None:
    async with serving(lambda: SHOWN, path):
        with pytest.raises(NoSuchFormat, match="there is acme"):
            await anyio.to_thread.run_sync(in_format, path, "other")


def _get(where: str, target: str) -> str:
    import http.client

    connection = http.client.HTTPConnection(where, timeout=10)
    try:
        connection.request("GET", target)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
