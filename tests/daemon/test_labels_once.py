"""The node's labels: what is made of a vendor's answer, and the verb that prints them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.labels_of_acme import NOTHING, NOW, acme, snapshot

from agent.config import Config
from agent.core.errors import VendorError
from agent.core.publishing.label_rules import NodeStamp, as_lines, from_lines, vendor_labels
from agent.daemon.labels_once import ask
from agent.daemon.publishing.wanted_labels import machine
from agent.daemon.vendor_plugins import VendorPlugin
from agent.vendor_api.agent import Labels, Vendor

# What is made of a vendor's answer


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (lambda *_: 1 / 0, "acme: its plugin fails to make labels: ZeroDivisionError: division by zero"),
        (lambda *_: {"acme.com/x": "1\nkubernetes.io/role=master"}, r"has the value '1\nkub"),
        (lambda *_: {"acme.com/x y": "1"}, "the label 'acme.com/x y'"),
        (lambda *_: {"acme.com/x": 7}, "TypeError"),
        (lambda *_: None, "TypeError"),
    ],
)
def test_a_plugin_that_makes_no_labels_is_named_and_none_of_it_is_taken(labels: Labels, says: str) -> None:
    with pytest.raises(VendorError) as raised:
        vendor_labels(acme(labels), (), (), NOTHING)

    assert says in str(raised.value)


def test_a_vendor_without_labels_has_none() -> None:
    assert vendor_labels(acme(None), (), (), NOTHING) == {}


CARDS = snapshot(2).present("acme")


WITH_MACHINE = replace(acme(), publishes=replace(acme().publishes, machine_label="acme.com/machine"))


def test_a_node_with_cards_has_its_machine_and_the_time() -> None:
    assert vendor_labels(WITH_MACHINE, (), CARDS, NodeStamp("Board-X", NOW)) == {
        "acme.com/card.count": "2",
        "acme.com/machine": "Board-X",
        "acme.com/timestamp": "1700000000",
    }


def test_a_node_without_cards_has_no_machine() -> None:
    assert "acme.com/machine" not in vendor_labels(WITH_MACHINE, (), (), NodeStamp("Board-X", NOW))


def test_a_node_without_labels_has_no_time() -> None:
    assert vendor_labels(acme(lambda *_: {}), (), (), NodeStamp("", NOW)) == {}


def test_the_time_is_told_only_where_it_is_wanted() -> None:
    assert "acme.com/timestamp" not in vendor_labels(acme(), (), CARDS, NodeStamp("Board-X"))


def test_a_vendor_that_names_no_label_for_them_has_neither_machine_nor_time() -> None:
    plain = replace(acme(), publishes=replace(acme().publishes, time_label=""))

    assert vendor_labels(plain, (), CARDS, NodeStamp("Board-X", NOW)) == {"acme.com/card.count": "2"}


def test_the_machine_is_named_as_a_label_can_name_it(tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    product.write_text("Board-X 1 (rev. 2)\n")

    assert machine(str(product)) == "Board-X-1-rev.-2"


@pytest.mark.parametrize("file", ["", "/nowhere/product_name", "/", "\0"])
def test_a_machine_that_can_not_be_read_is_unknown(file: str) -> None:
    assert machine(file) == "unknown"


def test_lines_are_read_as_they_are_written_and_what_is_no_label_is_left_out() -> None:
    labels = {"b.com/y": "", "a.com/x": "1"}

    assert as_lines(labels) == "a.com/x=1\nb.com/y=\n"
    assert from_lines(as_lines(labels) + "# a comment\n\nno label=1\na.com/z=not one\n") == labels


# The verb


def plugin(vendor: Vendor | None, name: str = "acme", reason: str = "") -> VendorPlugin:
    return VendorPlugin(name, "here", "1", vendor, reason)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the vendors' processes find the faulty backends."""
    from agent.daemon import labels_once as labels
    from agent.isolation.vendor_supervisor import VendorSupervisor

    def start(vendor: Vendor, sink: Any) -> VendorSupervisor:
        return VendorSupervisor(vendor, sink, python_path=[str(Path(__file__).parents[1])])

    monkeypatch.setattr(labels, "VendorSupervisor", start)


@pytest.mark.usefixtures("faulty")
async def test_vendors_are_asked_for_their_devices_in_processes_that_end() -> None:
    said = await ask(Config(), [plugin(acme())], NOTHING)

    assert (said.labels, said.asked, said.reasons) == ({"acme.com/card.count": "2"}, 1, {})


@pytest.mark.usefixtures("faulty")
async def test_a_vendor_that_fails_says_why_and_costs_the_others_nothing() -> None:
    crash = acme(does={"discover": "exit"})

    said = await ask(
        Config(), [plugin(acme()), plugin(crash, "crash"), plugin(None, "gone", "is left out")], NOTHING
    )

    assert (said.labels, said.asked) == ({"acme.com/card.count": "2"}, 1)
    assert said.reasons["gone"] == "is left out"
    assert "exited with status" in said.reasons["crash"]


@pytest.mark.usefixtures("faulty")
async def test_a_vendor_that_is_silent_is_waited_for_so_long_and_no_longer() -> None:
    said = await ask(Config(), [plugin(acme(does={"open": "hang"}))], NOTHING, patience=0.5)

    assert said.reasons == {"acme": "did not list its devices within 0.5 s"}


@pytest.mark.usefixtures("faulty")
async def test_a_plugin_that_fails_is_a_reason() -> None:
    said = await ask(Config(), [plugin(acme(lambda *_: {"acme.com/x": "\n"}))], NOTHING)

    assert said.reasons["acme"].startswith("its plugin fails to make labels")


async def test_a_vendor_without_labels_counts_as_asked_and_is_not_started() -> None:
    said = await ask(Config(), [plugin(acme(None, backend="no.such:Backend"))], NOTHING)

    assert (said.labels, said.asked, said.reasons) == ({}, 1, {})


def verb(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", "labels", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    config = tmp_path / "config.yaml"
    vendors = {
        "simulated": {"settings": {"devices": 2}},
        "nvidia": {"settings": {"library": "/nowhere"}},
        "metax": {"enabled": False},
        "enflame": {"enabled": False},
    }
    config.write_text(json.dumps({"version": "v1", "vendors": vendors}))
    return config


def test_the_verb_prints_nothing_where_no_vendor_has_labels(simulated: Path) -> None:
    done = verb("--config", simulated)

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("xpu-agent: nvidia: library-not-found")
    assert done.stderr.count("library-not-found") == 1


def test_the_verb_is_refused_where_no_vendor_can_be_asked(simulated: Path) -> None:
    simulated.write_text(json.dumps({"vendors": {"nvidia": {"settings": {"library": "/nowhere"}}}}))

    done = verb("--config", simulated, "--json")

    assert (done.returncode, done.stdout) == (1, "")
    assert "nvidia: library-not-found" in done.stderr


def test_the_verb_prints_an_empty_object_as_json(simulated: Path) -> None:
    assert json.loads(verb("--config", simulated, "--json").stdout) == {}


def test_the_verb_s_file_needs_a_directory(simulated: Path, tmp_path: Path) -> None:
    done = verb("--config", simulated, "--output-file", tmp_path / "features.d" / "gfd")

    assert done.returncode == 2
    assert f"there is no directory {tmp_path}/features.d" in done.stderr


def test_the_verb_refuses_a_config_that_can_not_be_used(simulated: Path) -> None:
    vendors = {"simulated": {"settings": {"devices": 2}}, "nvidia": {"settings": {"colour": 1}}}
    simulated.write_text(json.dumps({"vendors": vendors}))

    done = verb("--config", simulated)

    assert done.returncode == 2
    assert "vendors.nvidia.settings.colour: unknown key" in done.stderr
