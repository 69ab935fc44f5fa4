"""docs/koordinator.md names what there is: configs, labels, annotations, Events, metrics, our own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from schedulers.koordinator.test_upstream_choice import FAULTS

from agent.config import parse
from agent.core.event_notices import ACTIONS
from agent.daemon.vendor_config import check_config
from agent.http.metrics import metrics
from agent.scheduler_api.node_report import WantedMode
from agent.schedulers.hami import pod_annotations
from agent.schedulers.koordinator import reported_cards
from pages.keys import keys
from pages.koordinator import LABELLED, READ, WRITTEN, part
from pages.metrics import VIEW, described
from pages.sources import ROOT

PAGE = (ROOT / "docs/koordinator.md").read_text()
EXAMPLES = ROOT / "deploy/examples"
VALUES = yaml.safe_load((ROOT / "deploy/chart/xpu-agent/values.yaml").read_text())
#: What the page names of Koordinator's own, which the agent neither reads nor writes.
THEIRS = {
    "koordinator.sh/gpu",
    "koordinator.sh/gpu.shared",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    "koordinator.sh/gpu-isolation-provider",
    "scheduling.koordinator.sh/device-allocate-hint",
}
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))


def blocks() -> list[Any]:
    return [yaml.safe_load(it) for it in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def configs() -> list[Any]:
    return [it for it in blocks() if it.get("version") == "v1"]


def of_example(name: str) -> Any:
    values = yaml.safe_load((EXAMPLES / name / "values.yaml").read_text())
    return yaml.safe_load(values["config"]["map"]["default"])


def test_its_configs_are_good() -> None:
    assert configs()
    for it in configs():
        check_config(parse(yaml.safe_dump(it), "koordinator.md", "a-node"))


@pytest.mark.parametrize("name", ["koordinator-device", "koordinator-shares"])
def test_the_configs_of_the_examples_are_the_page_s(name: str) -> None:
    assert of_example(name) in configs()


def test_the_two_ways_differ_in_the_way_alone() -> None:
    one, other = of_example("koordinator-device"), of_example("koordinator-feed")

    assert one["report"] == {"mode": "device"}
    assert other == {**one, "report": {"mode": "feed"}}


def test_every_example_beside_koordinator_is_on_the_page() -> None:
    there = {it.name for it in EXAMPLES.iterdir() if it.name.startswith("koordinator-")}

    assert set(re.findall(r"deploy/examples/([a-z-]+)/values\.yaml", PAGE)) == there


def test_every_way_has_its_row() -> None:
    [table] = re.findall(r"\| on the node \|.*?\n\n", PAGE, re.DOTALL)

    assert set(re.findall(r"\| `(\w+)`", table)) == set(get_args(WantedMode)) - {"none"}


def test_the_labels_of_a_card_are_those_that_the_report_gives() -> None:
    assert LABELLED.keys() == {"model", *reported_cards.LABELLED}


def test_hami_s_annotations_are_read_under_the_names_of_the_page() -> None:
    written = [it.replace("*", "nvidia") for it, *_ in READ if "*" in it]

    matched = tuple(pattern for pattern in pod_annotations.HAMI_KEYS if any(map(pattern.fullmatch, written)))
    assert matched == pod_annotations.HAMI_KEYS
    assert len(written) == len(pod_annotations.HAMI_KEYS)


def test_every_name_of_koordinator_s_is_one_that_the_agent_knows() -> None:
    ours = {name for name, *_ in (*WRITTEN, *READ)}
    named = {
        it for it in CODE if re.fullmatch(r"[a-z.]*(?:koordinator\.sh|hami\.io|metax-tech\.com)/[\w.*-]+", it)
    }

    assert named - {"koordinator.sh/*"} <= ours | THEIRS


def test_every_event_and_every_metric_is_one_that_there_is() -> None:
    events = {
        it for it in CODE if re.fullmatch(r"(?:Report|Cards|Limits|Lock|Share|Swap|Allocate)[A-Z]\w+", it)
    }
    there = {it.name for it in described(metrics(VIEW).body)}
    named = {it for it in CODE if it.startswith("xpu_agent_")}

    assert len(events) > 5
    assert events <= ACTIONS.keys()
    assert len(named) > 4
    assert named <= there


def test_every_reason_of_a_card_is_one_that_the_report_gives() -> None:
    source = Path(reported_cards.__file__).read_text()

    for reason in ("Sliced", "NotOffered", "MemoryUnknown"):
        assert f"`{reason}`" in PAGE
        assert f'"{reason}"' in source
    assert reported_cards.reason("xid-79") == "Xid79"


def test_every_key_and_every_value_is_one_that_there_is() -> None:
    known = {it.path for it in keys()}
    values = [it for it in CODE if re.fullmatch(r"(?:koordinator|crd|labels|pods)\.\w+", it)]

    assert {it for it in CODE if re.fullmatch(r"report\.\w+", it)} <= known
    assert values
    for it in values:
        room, _, key = it.partition(".")
        assert key in VALUES[room]


def words() -> list[str]:
    """What the table of troubles quotes of the agent, and of a pod that it refused."""
    table = PAGE[PAGE.index("## When something does not work") :]
    seen = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| ")]
    quoted = [text.strip(". ") for cell in seen for text in re.findall(r"`([^`]+)`", cell)]
    theirs = (
        "health: false",
        "Insufficient gpu devices",
        "Insufficient GPU Devices",
        "Insufficient Topology Scoped GPU Devices",
        "invalid resource device requests",
        "GPUIsolationProviderHAMICore not found on the node",
        'node "..." has been locked',
    )
    return [it for it in quoted if " " in it and it not in theirs]


def test_what_the_table_of_troubles_quotes_is_what_the_agent_says() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "agent").rglob("*.py"))
    # The texts name a scheduler's object and program by values of its plugin.
    said = re.sub(r'"\s*\n\s*f?"', "", text).replace("{kind}", "Device")
    said = said.replace("{program}", "koordlet")

    assert len(words()) > 7
    for it in words():
        assert all(piece.strip() in said for piece in it.split("...")), it


def test_a_part_that_nobody_makes_is_refused() -> None:
    with pytest.raises(KeyError):
        part("nonsense")


def test_the_device_of_the_page_is_one_that_the_kind_takes() -> None:
    crd = yaml.safe_load((ROOT / "deploy/crd/devices.scheduling.koordinator.sh.yaml").read_text())
    [version] = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    [device] = [it for it in blocks() if it.get("kind") == "Device"]

    for it in device["spec"]["devices"]:
        _fits(it, schema["properties"]["spec"]["properties"]["devices"]["items"])


def _fits(value: Any, schema: Any) -> None:
    assert set(schema.get("required", ())) <= set(value)
    assert set(value) <= set(schema["properties"])


def test_the_page_on_others_bugs_has_each_fault_of_koordinator_s_with_its_tests() -> None:
    page = (ROOT / "docs/peer-bugs.md").read_text()
    rows = {int(number): row for number, row in re.findall(r"^\| K(\d+): (.*)$", page, re.MULTILINE)}

    assert {number: set(re.findall(r"`([a-z0-9_]{20,})`", row)) for number, row in rows.items()} == {
        number: {it.rpartition(".")[2].removeprefix("test_") for it in tests}
        for number, (_, tests) in FAULTS.items()
    }
