"""docs/metax.md names what there is: modes, settings, values, annotations, faults, our own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support.vendor_inputs import INPUTS

from agent.config import parse
from agent.daemon.vendor_config import check_config
from agent.vendors.metax.agent import names, nodedevices, offering, options
from agent.vendors.metax.child import faults
from agent.vendors.metax.shared import qos_policy, slice_request
from pages.sources import ROOT

PAGE = (ROOT / "docs/metax.md").read_text()
EXAMPLES = ROOT / "deploy/examples"
VALUES = yaml.safe_load((ROOT / "deploy/chart/xpu-agent/values.yaml").read_text())
#: Of MetaX's, of Koordinator's and of HAMi's own, which the agent does not read or write.
THEIRS = {
    "metax-tech.com/vcore",
    "metax-tech.com/vmemory",
    "metax-tech.com/vfio-gpu",
    "metax-tech.com/gpu.installed",
    "metax-tech.com/gpu.product",
    "metax-tech.com/use-gpuuuid",
    "metax-tech.com/predicate-time",
    "metax-tech.com/gpu-devices-allocated",
}
#: How what Koordinator's scheduler says begins.
SCHEDULERS = "gpu core resource"
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))


def test_its_configs_are_good(tmp_path: Path) -> None:
    blocks = [yaml.safe_load(it) for it in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    [device_config] = [it for it in blocks if it.get("kind") == "ConfigMap"]
    for key, text in device_config["data"].items():
        (tmp_path / key).write_text(text)
    configs = [it for it in blocks if it.get("version") == "v1"]

    assert len(configs) == 2
    for it in configs:
        said = yaml.safe_dump(it).replace("/etc/xpu-agent-metax", str(tmp_path))
        check_config(parse(said, "metax.md", "node-1", inputs=INPUTS))


def test_every_mode_has_its_row_with_its_resource() -> None:
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| `(metax-tech\.com/\w+)` \|", PAGE, re.MULTILINE))

    assert set(rows) == set(get_args(options.Mode))
    assert rows == {mode: names.SGPU if mode == "sgpu" else names.GPU for mode in rows}


def test_every_assumption_s_setting_is_one() -> None:
    table = PAGE[PAGE.index("## What MetaX has not published") : PAGE.index("## When something")]
    last = [row.rsplit(" | ", 1)[1] for row in table.splitlines() if row.startswith("| ")][1:]
    settings = {it for cell in last for it in re.findall(r"^`(?:vendors\.metax\.)?(\w+)`", cell)}

    assert {"sliceNodes", "controlNodes", "visibleDevices", "shareNums", "unclaimed"} <= settings
    assert settings <= options.SETTINGS.keys()


def test_every_policy_and_every_way_without_a_claim_is_named() -> None:
    for it in (
        *map(str, qos_policy.Qos),
        *get_args(slice_request.Unclaimed),
        qos_policy.ANNOTATION,
        nodedevices.ANNOTATION,
    ):
        assert it in PAGE


def test_every_name_of_metax_s_is_one_that_the_agent_knows() -> None:
    ours = {names.GPU, names.SGPU, qos_policy.ANNOTATION, nodedevices.ANNOTATION}
    named = {it for it in CODE if re.fullmatch(r"metax-tech\.com/[\w.-]+", it)}

    assert named <= ours | THEIRS


def test_every_value_of_the_chart_is_one_that_there_is() -> None:
    named = {it for it in CODE if re.fullmatch(r"vendors\.metax\.(?!library|settings)\w+", it)}

    assert {it.rpartition(".")[2] for it in named} >= {"writableSys", "configMap", "libraries"}
    assert {it.rpartition(".")[2] for it in named} <= VALUES["vendors"]["metax"].keys()


def test_every_example_for_metax_is_on_the_page() -> None:
    there = {it.name for it in EXAMPLES.iterdir() if "metax" in it.name}

    assert set(re.findall(r"deploy/examples/([a-z-]+)/values\.yaml", PAGE)) == there


@pytest.mark.parametrize("reason", [faults.sliced("native", 1), faults.unsummed(1, 1, 1)])
def test_the_reasons_of_the_table_are_those_of_faults(reason: Any) -> None:
    assert f"reason `{reason.reason}`" in PAGE


def words() -> list[str]:
    """What the table of troubles quotes of the agent."""
    table = PAGE[PAGE.index("## When something does not work") :]
    seen = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| ")]
    quoted = [text for cell in seen for text in re.findall(r"`([^`]+)`", cell)]
    others = ("mx-smi", SCHEDULERS)
    return [it for it in quoted if " " in it and not it.startswith(others)]


def test_what_the_table_of_troubles_quotes_is_what_the_agent_says() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "agent").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", text).replace("{ANNOTATION}", qos_policy.ANNOTATION)
    said = said.replace("{it.uuid} ", "").replace("{LIMIT}", slice_request.LIMIT)

    assert offering.__doc__
    assert len(words()) > 7
    for it in words():
        assert all(piece.strip() in said for piece in it.split("...")), it
