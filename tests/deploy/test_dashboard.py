"""Every panel has data in a real Prometheus that has scraped an agent with use for more than an hour."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from msgspec import structs
from support.used_views import CARD, INFER, NOTEBOOK, WORKED, listed, with_exporters

from agent.core.model import Health, ProcessStatus, SessionStatus
from agent.core.publishing.agent_status import BUCKETS, AgentStatus
from agent.core.usage.usage_report import CardUse, SamplingStatus
from agent.http.metrics import metrics
from agent.http.usage.series import usage_page
from agent.vendor_api.agent import State, Usage
from pages.use_metrics import use_metric_table

from .test_alerts import DASHBOARD, RULES

PATIENCE = 60.0
#: Seconds between two scrapes, and how many there are.
STEP, SCRAPES = 60, 75
#: Bytes of each card, and of the one slice; the slice is in use, and with the slice its card.
MEMORY, USED = 85520809984, 10 << 30
#: The queries of NVIDIA's board 12239, with its variables `instance` and `gpu`.
BOARD_OF_DCGM = {
    "temperature": 'DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"}',
    "average temperature": 'avg(DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"})',
    "power": 'DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"}',
    "total power": 'sum(DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"})',
    "SM clocks": 'DCGM_FI_DEV_SM_CLOCK{instance=~".*", gpu=~".*"} * 1000000',
    "utilization": 'DCGM_FI_DEV_GPU_UTIL{instance=~".*", gpu=~".*"}',
    "framebuffer": 'DCGM_FI_DEV_FB_USED{instance=~".*", gpu=~".*"}',
    "tensor cores": 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".*", gpu=~".*"}',
}


def panels() -> Iterator[tuple[str, str]]:
    """The title of each panel, and a query of it."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def queries() -> Mapping[str, str]:
    """The variables of a dashboard as Grafana fills them in for All."""
    found = {}
    for number, (title, query) in enumerate(panels()):
        found[f"{title} {number}"] = re.sub(r"\$\w+", ".*", query)
    return found | BOARD_OF_DCGM


def at(number: int, now: float) -> AgentStatus:
    """A node on which something of everything happens. `number`: the scrapes before."""
    sick = replace(WORKED.snapshot.devices[0], health=Health(State.UNHEALTHY, "xid-79"), told_healthy=False)
    seconds = (float(number), number / 100, *([number / len(BUCKETS)] * len(BUCKETS)))
    counted = replace(CARD.usage, driver_errors={"31": number}, ecc_errors={"corrected": number})
    cut = CardUse(
        "nvidia", Usage("GPU-b", memory_total=MEMORY, memory_used=USED, utilization=0.25), in_slices=USED
    )
    of_slice = Usage("MIG-1", memory_total=USED, memory_used=USED, utilization=1.0)
    over = structs.replace(INFER, memory=INFER.memory_limit + (4 << 30), active_at=now - 1)  # type: ignore[operator]
    assert WORKED.usage is not None
    return structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(sick, listed("GPU-b", 1))),
        processes={"nvidia": ProcessStatus(1, 1 << 20, number, "open", None)},
        sessions={name: SessionStatus("registered", "", number) for name in WORKED.resources},
        counters={
            ("vendor_restarts", (("vendor", "nvidia"),)): number,
            ("reconcile_actions", (("action", "released"),)): number,
        },
        allocate_seconds={("nvidia.com/gpu.shared", "ok"): seconds},
        usage=structs.replace(
            WORKED.usage,
            now=now,
            sampling=(SamplingStatus("nvidia", at=now - 2),),
            cards=(structs.replace(CARD, usage=counted), cut, CardUse("nvidia", of_slice, "GPU-b")),
            containers=(over, structs.replace(NOTEBOOK, active_at=now - 3600)),
        ),
    )


def scraped(number: int, now: float) -> Iterator[str]:
    """One scrape as lines of OpenMetrics: with the labels that Prometheus adds, and the time."""
    status = at(number, now)
    page = metrics(structs.replace(status, usage=None)).body + usage_page(with_exporters(status, "dcgm"))
    for line in page.decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.rstrip("}").partition("{")
            of_target = 'instance="10.0.0.1:9808"' + ("" if "node=" in labels else ',node="n1"')
            yield f"{name}{{{','.join(filter(None, (labels, of_target)))}}} {value} {now:.0f}\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def moment() -> float:
    return float(int(time.time()) // STEP * STEP)


@pytest.fixture(scope="module")
def server(
    prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory, moment: float
) -> Iterator[str]:
    """A Prometheus with the scrapes of more than an hour; its address."""
    root = tmp_path_factory.mktemp("prometheus")
    first = moment - (SCRAPES - 1) * STEP
    with (root / "scrapes.txt").open("w") as file:
        for number in range(SCRAPES):
            file.writelines(scraped(number, first + number * STEP))
        file.write("# EOF\n")
    blocks: list[str | Path] = [promtool, "tsdb", "create-blocks-from", "openmetrics", "scrapes.txt", "data"]
    made = subprocess.run(blocks, cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert made.returncode == 0, made.stdout + made.stderr
    (root / "prometheus.yml").write_text("{}\n")
    address = f"127.0.0.1:{free_port()}"
    flags = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            [prometheus, *(f"--{name}={value}" for name, value in flags.items())], cwd=root, stderr=log
        )
        try:
            await_ready(address, process, root / "log")
            yield address
        finally:
            process.kill()
            process.wait()


def await_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=PATIENCE):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    pytest.fail(f"Prometheus is not ready: {log.read_text()}")


def ask(server: str, query: str, moment: float) -> list[Any]:
    """The rows of the answer to an instant query."""
    url = f"http://{server}/api/v1/query?{urlencode({'query': query, 'time': moment})}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as refusal:
        pytest.fail(f"{query}: {refusal.read().decode()}")
    return list(found)


@pytest.mark.parametrize("panel", queries())
def test_a_panel_has_data(server: str, panel: str, moment: float) -> None:
    assert ask(server, queries()[panel], moment), queries()[panel]


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Memory of cards in use", (22548578304 + USED) / (2 * MEMORY)),
        ("Memory in use, by node", 22548578304 + USED),
        ("Mean utilization", 0.4),
        ("Utilization, by node", 0.4),
    ],
)
def test_a_sum_counts_no_slice_beside_its_card(
    server: str, title: str, expected: float, moment: float
) -> None:
    [query] = [query for panel, query in queries().items() if re.fullmatch(rf"{title} \d+", panel)]
    [row] = ask(server, query, moment)

    assert float(row["value"][1]) == pytest.approx(expected)


def test_a_node_that_is_not_chosen_has_none(server: str, moment: float) -> None:
    of_another = [
        (title, re.sub(r"\$namespace", ".*", query).replace("$node", "n2")) for title, query in panels()
    ]

    shown = {
        title for title, query in of_another for it in ask(server, query, moment) if it["value"][1] != "0"
    }
    assert shown == set()


@pytest.mark.parametrize("label", ["node", "namespace"])
def test_a_variable_has_its_values(server: str, label: str) -> None:
    [variable] = [it for it in json.loads(DASHBOARD.read_text())["templating"]["list"] if it["name"] == label]
    found = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["query"]["query"])
    assert found is not None
    assert found[2] == label
    url = f"http://{server}/api/v1/label/{label}/values?{urlencode({'match[]': found[1]})}"
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        values = json.load(answer)["data"]

    assert values == {"node": ["n1"], "namespace": ["a", "b"]}[label]


def test_the_rules_ask_for_metrics_of_use_that_there_are() -> None:
    there = set(re.findall(r"`(xpu_\w+)`", "\n".join(use_metric_table())))
    expressions = [rule["expr"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
    asked = {it for query in (*expressions, *(query for _, query in panels())) for it in names(query)}

    assert asked
    assert asked <= there


def names(query: str) -> set[str]:
    """The metrics of use in a query; one that asks by a pattern of names has its own test above."""
    without = re.sub(r'__name__=~"[^"]*"', "", query)
    return set(re.findall(r"\bxpu_(?!agent_)\w+", without))
