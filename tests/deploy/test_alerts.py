"""Alert rules and dashboard: they ask for metrics that there are, and the rules do what they say."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.core.publishing.agent_status import AgentStatus, Counters
from agent.http.metrics import metrics

from .chart import ROOT

RULES, DASHBOARD = ROOT / "deploy/prometheus/rules.yaml", ROOT / "deploy/grafana/xpu-agent.json"
#: Counters that the line keeps, and the histogram's labels; a view has them as it is handed them.
COUNTERS = ("vendor_restarts", "evidence_unreadable", "reconcile_actions", "checkpoint_set_aside")


def there() -> set[str]:
    """Every metric of ours, as a scrape has it."""
    counted: Counters = {(name, (("x", "y"),)): 1.0 for name in COUNTERS}
    seconds = {("nvidia.com/gpu", "ok"): (1.0, 0.1, *([1.0] * 11))}
    view = replace(AgentStatus("node-1", "1"), counters=counted, allocate_seconds=seconds)
    families = text_string_to_metric_families(metrics(view).body.decode())
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {f"{it.name}{end}" for it in families for end in ends.get(it.type, ("",))}


def asked(text: str) -> set[str]:
    return set(re.findall(r"\bxpu_agent_\w+", text))


@pytest.mark.parametrize("page", [RULES, DASHBOARD], ids=lambda it: it.name)
def test_every_metric_that_is_asked_for_is_there(page: Path) -> None:
    names = asked(page.read_text())

    assert names
    assert names <= there()


def test_the_counters_that_rules_may_ask_for_are_those_that_the_agent_keeps() -> None:
    status = (ROOT / "agent/daemon/running_status.py").read_text()

    for name in COUNTERS:
        assert f'"{name}"' in status


def test_every_rule_says_what_is_wrong_where_and_what_to_look_at() -> None:
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        # A pod may leave its card idle on purpose: the Event of that is Normal and off by default.
        severities = {"info"} if rule["alert"] == "XpuContainerIdle" else {"warning", "critical"}
        assert rule["labels"]["severity"] in severities
        assert "$labels.node" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_every_rule_is_tried_and_told_of_in_the_docs() -> None:
    tried = (ROOT / "deploy/prometheus/rules_test.yaml").read_text()
    page = (ROOT / "docs/install.md").read_text()

    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        assert f"alertname: {rule['alert']}\n" in tried
        assert f"`{rule['alert']}`" in page


def test_the_rules_come_when_they_should_and_only_then(promtool: Path) -> None:
    told = subprocess.run(
        [promtool, "test", "rules", "rules_test.yaml"],
        cwd=ROOT / "deploy/prometheus",
        capture_output=True,
        text=True,
        timeout=150,
    )

    assert told.returncode == 0, told.stdout + told.stderr


def test_the_panels_of_the_dashboard_do_not_lie_on_each_other() -> None:
    panels = [it["gridPos"] for it in json.loads(DASHBOARD.read_text())["panels"]]

    covered = [
        (x, y)
        for it in panels
        for x in range(it["x"], it["x"] + it["w"])
        for y in range(it["y"], it["y"] + it["h"])
    ]
    assert len(covered) == len(set(covered))
    assert max(x for x, _ in covered) < 24
