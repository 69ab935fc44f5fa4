"""The command line: what each verb says; how each ends stands in test_cli_exits."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from agent.cli import VERBS, main
from agent.cli.common_arguments import MISUSED, REFUSED, configuration, tell
from agent.daemon import vendor_plugins
from agent.host.version import version
from agent.testing.conformance import Finding

SIMULATED = "version: v1\nvendors: {simulated: {settings: {devices: 2}}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(SIMULATED)
    return path


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"xpu-agent {version()}\n"


def test_the_version_is_printed_beside_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "inspect"]) == 0
    assert capsys.readouterr().out == f"xpu-agent {version()}\n"


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert "usage: xpu-agent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "usage", "named"),
    [
        ("run --cofnig x", "xpu-agent run [option ...]", "--cofnig (did you mean --config?) x"),
        ("run --cofnig=x", "xpu-agent run [option ...]", "--cofnig=x (did you mean --config?)"),
        ("run --mig-stratgy none", "xpu-agent run [option ...]", "(did you mean --mig-strategy?)"),
        ("run --log-level dbug", "xpu-agent run [option ...]", "(did you mean debug?)"),
        ("config check --node-lable a=b", "xpu-agent config check [", "(did you mean --node-label?)"),
        (
            "inspect --jsno",
            "xpu-agent inspect [-h] [--json | --format NAME]",
            "--jsno (did you mean --json?)",
        ),
        ("inspect --zzz", "xpu-agent inspect [-h]", "arguments: --zzz; `xpu-agent inspect --help` lists"),
        ("health crodon a", "xpu-agent health [-h] VERB", "(did you mean cordon?)"),
        ("inspct", "xpu-agent [-h] [--version] VERB", "(did you mean inspect?)"),
        ("--versoin", "xpu-agent [-h] [--version] VERB", "(did you mean --version?)"),
    ],
)
def test_what_a_verb_does_not_know_is_told_with_its_usage_and_what_is_near(
    given: str, usage: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(given.split())

    told = capsys.readouterr().err
    assert told.startswith(f"usage: {usage}")
    assert named in told


def test_the_help_and_the_page_say_what_an_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    assert "2 used wrongly" in " ".join(capsys.readouterr().out.split())
    page = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    rows = re.findall(r"^\| `([a-z ]+)` \|", page, re.MULTILINE)
    inner = {"config": "config check"}
    assert rows == [inner.get(it, it) for it in VERBS]


def test_plugins_names_each_vendor_and_why_one_sits_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found if "kind" not in row}
    assert rows["nvidia"]["resource"] == "nvidia.com/gpu"
    assert rows["simulated"]["reason"].startswith("not in use: it offers nothing with these settings")
    schedulers = {row["name"]: row for row in found if row.get("kind") == "scheduler"}
    assert schedulers["koordinator"]["dialects"] == ["koordinator"]
    assert {row["reason"] for row in schedulers.values()} == {""}


def test_plugins_shows_the_settings_of_a_vendor_with_what_fits_and_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plugins", "--settings", "enflame", "--json"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["dialect"]["fits"] == "none, gcushare-v1, gcushare-v4 or hami"
    assert rows["dialect"]["default"] == "none"
    assert main(["plugins", "--settings", "enflame"]) == 0
    assert "gcushare-v1, gcushare-v4 or hami" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "why"), [("simulated", "not in use"), ("acne", "no vendor of this name is installed")]
)
def test_plugins_says_why_a_vendor_shows_no_settings(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "--settings", name]) == REFUSED
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("verb", "status"),
    [(["plugins", "--json"], 0), (["demo", "--fast", "--json"], REFUSED)],
    ids=lambda it: it[0] if isinstance(it, list) else None,
)
def test_a_reader_that_has_gone_ends_a_verb_without_a_traceback(
    verb: list[str], status: int, buffered: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "agent", *verb]
    environ = {**os.environ, "PYTHONUNBUFFERED": buffered}

    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environ, timeout=120)
    os.close(writer)

    assert (ended.returncode, ended.stderr.decode()) == (status, "")


def test_config_check_prints_the_effective_config(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", str(config)]) == 0
    assert "kubeletDir: /var/lib/kubelet/device-plugins" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("vendors", "line", "nearest"),
    [
        pytest.param("nvidia:\n    resurces: []", 4, "resources", id="key"),
        pytest.param("nvidai: {enabled: true}", 3, "nvidia", id="vendor"),
    ],
)
def test_config_check_refuses_with_the_place_and_the_nearest_name(
    vendors: str, line: int, nearest: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"version: v1\nvendors:\n  {vendors}\n")

    assert main(["config", "check", "--config", str(config)]) == 1

    said = capsys.readouterr().err
    assert f"{config}:{line}" in said
    assert nearest in said


@pytest.mark.parametrize("verb", [("config", "check"), ("conformance", "nvidia")])
def test_what_a_vendor_refuses_is_told_with_its_line(
    verb: tuple[str, ...], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("version: v1\nflags:\n  migStrategy: foo\n")

    main([*verb, "--config", str(config)])

    assert f"{config}:3: flags.migStrategy: unable to validate flags: " in capsys.readouterr().err


def test_config_check_warns_of_what_a_vendor_doubts(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = "    - {name: gpu, replicas: 2}\n" * 2
    config.write_text(f"sharing:\n  timeSlicing:\n    resources:\n{entries}")

    assert main(["config", "check", "--config", str(config)]) == 0

    told = f"xpu-agent: warning: {config}:5: sharing.timeSlicing.resources[1]: an earlier entry takes all"
    assert told in capsys.readouterr().err


def test_config_check_warns_of_a_setting_without_effect(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("version: v1\nmetrics: {compat: [dcgm]}")

    assert main(["config", "check", "--config", str(config)]) == 0

    told = capsys.readouterr().err
    assert f"{config}:2: metrics.compat: has no effect while usage.enabled is false" in told


def test_config_check_refuses_what_the_agent_would_not_be_ready_with(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("vendors:\n  metax:\n    resources:\n    - name: a.b/c\n    - name: a.b/d\n")

    assert main(["config", "check", "--config", str(config)]) == REFUSED

    told = "a.b/d asks for all devices, a.b/c has them already; set 'devices' (the agent serves the rest"
    assert f"{config}:5: vendors.metax.resources[1].devices: {told}" in capsys.readouterr().err


BY_LABEL = """
nodes: [{match: {labels: {pool: train, acme.com/fast: ""}}, set: {agent: {http: "127.0.0.1:2"}}}]
"""


def test_config_check_shows_what_holds_for_a_node_with_these_labels(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(SIMULATED + BY_LABEL)
    labels = ("--node-label", "pool=train", "--node-label", "acme.com/fast=")

    assert main(["config", "check", "--config", str(config), *labels]) == 0
    said = capsys.readouterr()
    assert "http: 127.0.0.1:2" in said.out
    assert said.err == ""


def test_config_check_says_which_labels_it_was_not_given(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(SIMULATED + BY_LABEL)

    assert main(["config", "check", "--config", str(config), "--node-label", "pool=train"]) == 0
    said = capsys.readouterr()
    assert "http: 127.0.0.1:9808" in said.out
    assert "warning: this is for a Node without acme.com/fast; give --node-label KEY=VALUE" in said.err


MEMORY = (
    "version: v1\nvendors: {simulated: {resources: [{name: a.com/b, sharing: {kind: memory, unit: %s}}]}}\n"
)


@pytest.mark.parametrize(
    ("unit", "cards", "told"),
    [
        (
            "0.001",
            "8x16GiB",
            "8 cards, 128000 device IDs in units of 0.001 GiB, 16000 of each card, a list of at",
        ),
        (
            "1",
            "1x16GiB, 2x49140MiB",
            "3 cards, 110 device IDs in units of 1 GiB, 16, 47 of each card, a list",
        ),
        ("auto", "8x48Gi", "8 cards, 38400 device IDs in units of 0.01 GiB, 4800 of each card, a list"),
    ],
)
def test_config_check_says_ahead_how_many_units_cards_have(
    unit: str, cards: str, told: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(MEMORY % unit)

    assert main(["config", "check", "--config", str(config), "--cards", cards]) == 0

    out = capsys.readouterr().out
    assert f"# a.com/b: {told}" in out
    assert yaml.safe_load(out)["vendors"]["simulated"]["resources"][0]["sharing"]["kind"] == "memory"


def test_config_check_refuses_units_that_make_too_long_a_list(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(MEMORY % "0.001")

    assert main(["config", "check", "--config", str(config), "--cards", "8x48GiB"]) == REFUSED

    assert "the kubelet takes 4194304; unit '0.01' is the smallest that fits" in capsys.readouterr().err


def test_config_check_knows_the_resources_that_a_vendor_makes_itself(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('vendors: {enflame: {settings: {dialect: gcushare-v1, memoryUnit: "0.001"}}}')

    assert main(["config", "check", "--config", str(config), "--cards", "8x16GiB"]) == 0
    out = capsys.readouterr().out
    assert "# enflame.com/gcu: 8 cards, 8 device IDs" in out
    assert "# enflame.com/gcu-memory: 8 cards, 128000 device IDs in units of 0.001 GiB" in out
    assert main(["config", "check", "--config", str(config), "--cards", "8x32GiB"]) == REFUSED
    assert "unit '0.01' is the smallest that fits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "cards", ["", "8", "8x", "8x16", "x48GiB", "0x48GiB", "8x48Foo", "9999x1GiB", "8x0", "8x1GiB,"]
)
def test_config_check_refuses_cards_that_are_none(
    cards: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", "--config", str(config), "--cards", cards]) == MISUSED
    assert f"--cards: '{cards}' is no number of cards and their memory" in capsys.readouterr().err


SEVEN_CARDS = Path(__file__).parents[1] / "vendors/data/nvidia-topo-seven-p40.txt"


def test_config_check_shows_the_tree_of_a_vendors_tool_and_which_cards_requests_get(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("vendors: {nvidia: {resources: [{name: nvidia.com/gpu, policy: gpu-manager}]}}")

    assert main(["config", "check", "--config", str(config), "--topology", str(SEVEN_CARDS)]) == 0

    out = capsys.readouterr().out
    assert yaml.safe_load(out)["vendors"]["nvidia"]["resources"][0]["policy"] == "gpu-manager"
    assert [it for it in out.splitlines() if it.startswith("# ")][1:] == [
        "# node: 7",
        "# |-- host bridge: 7",
        "# |   |-- one switch: 3",
        *(f"# |   |   |-- card {card}" for card in (0, 1, 2)),
        "# |   |-- one switch: 4",
        *(f"# |   |   |-- card {card}" for card in (3, 4, 5, 6)),
        "# nvidia.com/gpu, request of 1: cards 0",
        "# nvidia.com/gpu, request of 2: cards 0, 1",
        "# nvidia.com/gpu, request of 3: cards 0, 1, 2",
        "# nvidia.com/gpu, request of 4: cards 3, 4, 5, 6",
        "# nvidia.com/gpu, request of 5: cards 0, 1, 2, 3, 4",
        "# nvidia.com/gpu, request of 6: cards 0, 1, 2, 3, 4, 5",
        "# nvidia.com/gpu, request of 7: cards 0, 1, 2, 3, 4, 5, 6",
    ]


def test_config_check_shows_how_many_shares_of_each_card_a_request_gets(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = "{name: a.com/b, devices: [0, 1], sharing: {kind: replicas, replicas: 2}, policy: gpu-manager}"
    config.write_text(f"vendors: {{nvidia: {{resources: [{rule}]}}}}")

    assert main(["config", "check", "--config", str(config), "--topology", str(SEVEN_CARDS)]) == 0

    out = capsys.readouterr().out
    assert "# a.com/b, request of 1: cards 0\n# a.com/b, request of 2: cards 0 (2 IDs)\n" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1, column 1: no line begins with GPU0"),
        (" GPU0 GPU1\nGPU0 X \x1b]0;bad\x07\n", "line 2, column 8: "),
        ("x" * (1 << 20) + "xx", "is larger than 1048576 bytes"),
    ],
)
def test_config_check_refuses_a_topology_that_is_none(
    text: str, expected: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "topo.txt"
    file.write_text(text)
    config.write_text("vendors: {nvidia: {}}")

    assert main(["config", "check", "--config", str(config), "--topology", str(file)]) == MISUSED

    told = capsys.readouterr().err
    assert f"--topology: {file}" in told
    assert expected in told
    assert "\x1b" not in told


def test_config_check_refuses_a_topology_that_cannot_be_read_or_that_no_vendor_of_the_config_knows(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("vendors: {nvidia: {enabled: false}}")

    for path, why in (
        (tmp_path, "a directory"),
        (tmp_path / "none", "No such file"),
        (SEVEN_CARDS, "no vendor"),
    ):
        assert main(["config", "check", "--config", str(config), "--topology", str(path)]) == MISUSED
        assert why in capsys.readouterr().err


def test_config_check_refuses_a_label_that_is_none(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", str(config), "--node-label", "pool"]) == MISUSED
    assert "--node-label: found 'pool', write KEY=VALUE" in capsys.readouterr().err


def test_config_check_chooses_by_the_label_of_nvidia_s_config_manager(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "default").write_text(SIMULATED)
    (tmp_path / "any").write_text(SIMULATED)
    label = "nvidia.com/device-plugin.config=any"

    assert main(["config", "check", "--config", str(tmp_path), "--node-label", label]) == 0
    assert capsys.readouterr().out.startswith(f"# {tmp_path}/any\n")
    assert main(["config", "check", "--config", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"# {tmp_path}/default\n")


def test_config_check_takes_a_directory_and_the_name_of_the_node_s_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("any", "default"):
        (tmp_path / name).write_text(f"agent: {{stateDir: /{name}}}")

    assert main(["config", "check", "--config", str(tmp_path), "--node-config", "any"]) == 0
    assert "stateDir: /any" in capsys.readouterr().out
    assert main(["config", "check", "--config", str(tmp_path), "--node-config", "other"]) == MISUSED
    assert "specified config other does not exist; there are: any, default" in capsys.readouterr().err


def test_config_check_lays_nvidia_s_flags_and_variables_over_the_file(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("version: v1\nflags: {migStrategy: none}\n")
    monkeypatch.setenv("CONFIG_FILE", str(config))
    monkeypatch.setenv("MIG_STRATEGY", "single")

    assert main(["config", "check", "--pass-device-specs"]) == 0

    printed = capsys.readouterr().out
    assert printed.splitlines()[:3] == [
        f"# {config}",
        "# vendors.nvidia.settings.migStrategy: MIG_STRATEGY",
        "# vendors.nvidia.settings.passDeviceSpecs: --pass-device-specs",
    ]
    assert "migStrategy: single" in printed
    assert "passDeviceSpecs: true" in printed


def test_config_check_warns_on_the_standard_error(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("version: v1\nflags:\n  migStrateg: none\n")

    assert main(["config", "check", "--config", str(config)]) == 0

    told = capsys.readouterr()
    assert f"xpu-agent: warning: {config}:3: flags.migStrateg: unknown key" in told.err
    assert "warning" not in told.out


def test_the_help_of_run_shows_our_flags_before_nvidia_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])

    _, ours, theirs = re.split(r"\noptions:|\nNVIDIA's flags:", capsys.readouterr().out)
    assert "--state-dir" in ours
    assert "--mig-strategy" in theirs
    assert "--mig-strategy" not in ours


def test_run_refuses_a_wrong_variable_by_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASS_DEVICE_SPECS", "perhaps")

    assert main(["run"]) == MISUSED
    assert "PASS_DEVICE_SPECS: expected true or false, found 'perhaps'" in capsys.readouterr().err


def test_run_refuses_a_bad_config_before_it_touches_anything(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("version: v9\n")
    state = tmp_path / "state"

    assert main(["run", "--config", str(config), "--state-dir", str(state)]) == MISUSED

    assert "v9" in capsys.readouterr().err
    assert not state.exists()


def test_inspect_without_an_agent_names_the_socket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--state-dir", str(tmp_path)]) == 1
    assert str(tmp_path / "agent.sock") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        pytest.param(rb'{"node": "a\ud800b"}', r"node a\ud800b", id="half of a surrogate pair"),
        pytest.param(b'{"node": "a\xffb"}', r"node a\udcffb", id="a byte that is no text"),
    ],
)
def test_inspect_shows_text_that_no_output_can_have_as_an_escape(
    body: bytes, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.http.admin_client.fetch", lambda _: body)

    assert main(["inspect"]) == 0

    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["inspect", "health list"])
def test_an_answer_that_is_no_document_names_the_socket(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.http.admin_client.fetch", lambda _: b"<html>")

    assert main([*verb.split(), "--state-dir", str(tmp_path)]) == 1

    answer = capsys.readouterr().err
    assert str(tmp_path / "agent.sock") in answer
    assert "/inspect was answered with something else than a JSON object" in answer


def test_conformance_holds_the_simulated_vendor_to_the_contract(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", "simulated", "--config", str(config)]) == 0
    *checks, last = capsys.readouterr().out.splitlines()
    good, left = (sum(it.startswith(word) for it in checks) for word in ("ok ", "not made "))
    assert last == f"simulated: conforms: {good} ok, {left} not made"
    assert good + left == len(checks)
    assert left


def test_conformance_counts_what_failed_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def check_vendor(_: object) -> AsyncIterator[Finding]:
        for ok in (True, False, None, False):
            yield Finding("it", ok, "")

    monkeypatch.setattr("agent.testing.conformance.check_vendor", check_vendor)
    config = tmp_path / "config.yaml"
    config.write_text("vendors: {simulated: {settings: {devices: 1}}}")

    assert main(["conformance", "simulated", "--config", str(config)]) == 1
    assert capsys.readouterr().out.endswith("\nsimulated: does not conform: 2 failed, 1 ok, 1 not made\n")


@pytest.mark.parametrize(
    ("vendor", "says"),
    [
        pytest.param("acme", "nvidia", id="unknown: those there are"),
        pytest.param("simulated", "name a file with others by --config", id="sits out: its settings"),
    ],
)
def test_conformance_of_a_vendor_that_cannot_be_asked_says_what_is_missing(
    vendor: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", vendor]) == MISUSED
    assert says in capsys.readouterr().err


def test_conformance_without_the_library_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "nvidia"]) == 1

    told = capsys.readouterr()
    assert (told.out + told.err).count("library-not-found") == 1


def test_labels_asks_the_vendors_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = config.with_name("machine")
    machine.write_text("A machine\n")

    assert main(["labels", "--config", str(config), "--json", "--machine-type-file", str(machine)]) == 0

    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_config_check_says_which_file_of_a_directory_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "any").write_text("version: v1")
    (tmp_path / "other").write_text("version: v1")

    assert main(["config", "check", "--config", str(tmp_path), "--default-config", "any"]) == 0

    assert capsys.readouterr().out.splitlines()[0] == f"# {tmp_path}/any"


def test_a_mistyped_key_is_told_with_the_error_that_it_leads_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replica: 10}]}}")

    assert main(["config", "check", "--config", str(file)]) == 1

    told = capsys.readouterr().err
    assert "no replicas specified" in told
    assert "replica: unknown key, ignored as NVIDIA's programs do; did you mean 'replicas'?" in told


def test_a_word_that_is_no_xid_is_told_with_the_variable_that_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DP_DISABLE_HEALTHCHECKS", "79, foo,-1,")

    assert main(["config", "check"]) == 0

    why = "is no XID, and is ignored as NVIDIA's plugin does"
    assert capsys.readouterr().err.splitlines() == [
        f"xpu-agent: warning: DP_DISABLE_HEALTHCHECKS: {word} {why}" for word in ("foo", "-1")
    ]


def test_a_text_of_a_plugin_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tell("first\nsecond \x1b[31m\udc80")

    assert capsys.readouterr().err == "xpu-agent: first\nsecond \\x1b[31m\\udc80\n"


def test_the_help_of_the_configuration_s_flags_asks_no_vendor_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vendor_plugins, "load", lambda *_: pytest.fail("loads the vendors"))
    vendor_plugins.exporters_without_settings.cache_clear()
    parser = argparse.ArgumentParser()
    configuration(parser)

    assert "names of the metrics of use" in " ".join(parser.format_help().split())
