"""Sentences of the pages and READMEs that once were not so, held to what they speak of."""

from __future__ import annotations

import re

import pytest
from support.vendor_inputs import INPUTS

from agent.config import parse
from agent.core.errors import ConfigError
from agent.core.model import DeviceStatus, Health
from agent.core.reconciling.cards_of_answers import AnswerReader
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer
from agent.core.reconciling.recovered_allocations import recover_from_answers
from agent.daemon.vendor_plugins import load
from agent.vendor_api.agent import ContainerEdits, Device, RequestRefused, State
from agent.vendors.enflame.agent.offering import default_rule
from agent.vendors.enflame.agent.options import Options
from agent.vendors.metax.shared.qos_policy import Qos, policy
from pages.sources import ROOT

VENDORS = ("enflame", "metax", "nvidia")
PAGES = {it: " ".join((ROOT / f"docs/{it}.md").read_text().split()) for it in ("config", "metax", *VENDORS)}


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_readme_says_that_no_real_card_was_met_and_names_no_part_as_the_only_one(vendor: str) -> None:
    text = " ".join((ROOT / f"agent/vendors/{vendor}/README.md").read_text().split())

    assert "No real card yet" in text
    assert "Not yet on hardware:" not in text


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_page_of_the_config_names_every_socket_of_another_plugin(vendor: str) -> None:
    plugin = next(it for it in load({}, [vendor]) if it.name == vendor)
    told = PAGES["config"][PAGES["config"].index("Where a vendor's other plugins are known") :]

    assert plugin.vendor is not None
    named_there = re.findall(r"`([a-z*-]+\.sock)`", told[: told.index("Once it has been gone")])
    globs = {it.replace("*.sock", "").removesuffix(".sock") for it in plugin.vendor.replaces.sockets}
    assert all(any(it.startswith(glob) for it in named_there) for glob in globs), named_there


def test_the_resources_of_enflame_whose_replicas_lie_on_one_card_are_those_that_are_named() -> None:
    brand = Options().brand
    names = (brand.whole, brand.shared, brand.drs)
    its = [it for it in names if (rule := default_rule(Options(), it)) and not rule.sharing.span_cards]

    assert f"Always so are {', '.join(f'`{it}`' for it in its)} and units of memory" in PAGES["config"]


def test_span_cards_stands_in_sharing_and_beside_it_is_refused_with_that() -> None:
    text = "vendors: {simulated: {resources: [{name: a.b/c, spanCards: false}]}}"

    with pytest.raises(ConfigError, match="write it in 'sharing'"):
        parse(text, "my.yaml", "a-node", inputs=INPUTS)


def test_another_policy_of_metax_is_refused_with_the_three_and_who_says_none_has_no_limit() -> None:
    with pytest.raises(RequestRefused) as refused:
        policy("fixed")

    assert all(str(it) in str(refused.value) for it in Qos)
    assert policy("") is Qos.BEST_EFFORT
    assert (
        "Another value is refused with the three, in mode `sgpu` and where the agent sees the"
        in PAGES["metax"]
    )


def test_an_answer_that_names_no_card_here_holds_none_and_is_named() -> None:
    answer = ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "GPU-gone"})
    it = CheckpointAnswer(f"{FOREIGN}1", "uid", "main", "nvidia.com/gpu", ("GPU-gone",), edits=answer)
    vendors = {one.name: one.vendor for one in load({}, ["nvidia"]) if one.vendor is not None}
    here = DeviceStatus("nvidia", Device("GPU-here", 0), Health(State.HEALTHY), told_healthy=True)

    read = recover_from_answers([it], {}, 0.0, AnswerReader([here], vendors))

    assert (read.allocations, read.answers_without_cards) == ([], {it.allocation: ("nvidia", it)})


def test_the_page_of_security_names_the_files_of_a_process_that_the_agent_reads() -> None:
    reader = (ROOT / "agent/host/node_processes.py").read_text()
    read = re.findall(r'_content\(pid, "(\w+)"', reader)
    [told] = re.findall(
        r"the agent reads (.*) of processes that use a card", (ROOT / "docs/security.md").read_text()
    )

    assert re.findall(r"`(\w+)`", told) == read == ["cgroup", "stat"]


def comparison(page: str) -> dict[str, list[str]]:
    """The rows of the comparison with other plugins, without the places that its links name."""
    text = re.sub(r"\]\([^)]*\)", "]", (ROOT / page).read_text())
    table = text[text.index("| | xpu-agent |") :].partition("\n\n")[0]
    return {line.split(" | ")[0]: line.split(" | ")[1:] for line in table.splitlines()}


def test_the_readme_has_rows_of_the_whole_comparison_and_says_how_many_there_are_more() -> None:
    some, whole = comparison("README.md"), comparison("docs/coming-from.md")
    numbers = {9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}

    assert some.items() <= whole.items()
    assert f"has {numbers[len(whole) - len(some)]} more rows" in (ROOT / "README.md").read_text()
    assert "use by container" in " ".join(some)
    assert "not yet" not in whole["| metrics"][0]
