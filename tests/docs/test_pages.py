"""What docs/ says of keys, metrics and findings is what the code says; `make pages` writes it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from support.short_places import SHORT_PLACE

from agent.core.errors import AgentError
from agent.doctor.checks import CHECKS
from agent.http.admin_client import fetch
from agent.http.metrics import metrics
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer
from pages.keys import keys
from pages.made import PAGES, made
from pages.meanings import MEANINGS
from pages.metrics import VIEW, Described, described
from pages.regions import regions, rewritten
from pages.sources import ROOT

PATIENCE = 60.0
CONFIG = """\
vendors:
  nvidia: {{enabled: false}}
  simulated: {{settings: {{devices: 2}}, resources: [{{name: example.com/xpu}}]}}
agent:
  kubeletDir: {kubelet}
  podResourcesSocket: {root}/nobody.sock
  stateDir: {root}/s
  cdiDir: {root}/cdi
  http: ""
report: {{deviceInfosDir: {root}/infos}}
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_has_of_the_code_is_as_the_code_has_it(page: Path) -> None:
    assert made(page.read_text()) == page.read_text(), "run `make pages`"


def test_a_part_is_made_anew_and_the_rest_stays() -> None:
    page = "a\n<!-- made: x 1 -->\nold\n<!-- end -->\nb\n<!-- made: y -->\n<!-- end -->\n"

    assert rewritten(page, str.upper) == (
        "a\n<!-- made: x 1 -->\n\nX 1\n\n<!-- end -->\nb\n<!-- made: y -->\n\nY\n\n<!-- end -->\n"
    )


def test_a_part_that_nobody_makes_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing makes 'nonsense of it'; there are: keys PATH"):
        made("<!-- made: nonsense of it -->\n<!-- end -->\n")


def test_the_page_of_troubles_leads_to_every_check_of_the_doctor() -> None:
    page = (ROOT / "docs/operations.md").read_text()

    assert [it.name for it in CHECKS if f"(doctor.md#{it.name})" not in page] == [
        "pods-refused"
    ]  # has a section


# Keys


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    assert {it.path for it in keys()} == MEANINGS.keys(), "pages/meanings.py says what a key means"


def test_the_page_of_the_config_has_the_table_of_every_mapping() -> None:
    page = (ROOT / "docs/config.md").read_text()

    assert {it for it in regions(page) if it.startswith("keys ")} == {
        f"keys {it.parent or 'top'}" for it in keys()
    }


# Metrics


def test_every_metric_says_what_it_means() -> None:
    nameless = [
        it.name for it in described(metrics(VIEW).body) if not it.help or "since the agent" in it.help
    ]

    assert nameless == []


async def test_the_page_of_the_metrics_has_what_an_agent_shows_and_nothing_else() -> None:
    told = {it.name: it for it in described(metrics(VIEW).body)}
    async with a_day_with_troubles() as socket:
        shown = {it.name: it for it in described(await _shown(socket, told.keys()))}

    assert shown.keys() == told.keys(), "agent/http/metric_texts.py and pages/metrics.py have one of each"
    assert {name: it.type for name, it in shown.items()} == {name: it.type for name, it in told.items()}
    assert {name: set(it.labels) for name, it in shown.items() if it.labels}.items() <= (
        {name: set(it.labels) for name, it in told.items()}.items()
    )


@pytest.mark.parametrize(
    "file",
    [*PAGES, *(ROOT / "deploy/prometheus").glob("*.yaml"), ROOT / "deploy/grafana/xpu-agent.json"],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_a_metric_that_is_named_is_there(file: Path) -> None:
    series = {name for it in described(metrics(VIEW).body) for name in _series(it)}

    assert set(re.findall(r"xpu_agent_[a-z_]+[a-z]", file.read_text())) <= series


def _series(metric: Described) -> tuple[str, ...]:
    parts = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ()
    return (metric.name, *(metric.name + part for part in parts))


@asynccontextmanager
async def a_day_with_troubles() -> AsyncIterator[Path]:
    """The admin socket of an agent that lost its checkpoint, hears no PodResources, and tells Events."""
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        root = Path(name)
        (root / "s").mkdir(0o700)
        (root / "s/checkpoint.json").write_text("no checkpoint")
        async with SimKubelet(root / "k") as kubelet, SimApiServer() as api:
            api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
            (root / "config.yaml").write_text(CONFIG.format(root=root, kubelet=kubelet.plugin_dir))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agent.demo.agent_process", str(root / "config.yaml")),
                env={
                    **os.environ,
                    "NODE_NAME": "n",
                    "XPU_AGENT_KUBECONFIG": str(api.kubeconfig(root / "kubeconfig")),
                },
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                with anyio.fail_after(PATIENCE):
                    await kubelet.wait(lambda it: "example.com/xpu" in it.counts())
                    await kubelet.admit(Pod("p", (Container({"example.com/xpu": 1}),)))
                yield root / "s/agent.sock"
            finally:
                assert process.returncode is None, "the agent ended by itself"
                process.kill()
                await process.wait()


async def _shown(socket: Path, wanted: Set[str]) -> bytes:
    """The page, once it has all that is wanted; else as it is when patience ends."""
    page = b""
    with anyio.move_on_after(PATIENCE):
        while not {it.name for it in described(page)} >= wanted:
            with suppress(AgentError):  # it serves its views a moment later than the kubelet
                page = await asyncio.to_thread(fetch, socket, "/metrics")
            await anyio.sleep(0.01)
    return page
