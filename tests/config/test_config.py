"""The configuration file: what it takes, what it refuses, and how the refusal is worded."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import cast

import pytest
import yaml
from support.vendor_inputs import INPUTS, NVIDIA_FLAGS, parse, source_of

from agent.config import (
    Config,
    ConfigSource,
    IdleSettings,
    LimitExceededSettings,
    MetricsSettings,
    ReconcileSettings,
    ReportSettings,
    UsageSettings,
    VendorSettings,
    effective,
    load,
    seen_labels,
    to_yaml,
)
from agent.config.settings import Ratio
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.errors import ConfigError
from agent.daemon.vendor_config import check_config, complete_config
from agent.vendor_api.agent import ResourceRule, Sharing, Unit

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def read(text: str, node: str = "node-1") -> Config:
    return parse(text, "xpu.yaml", node)


def refusal(text: str, node: str = "node-1") -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, node)
    return str(caught.value)


def resource(text: str) -> str:
    """A file with one NVIDIA resource, in one line of flow style."""
    return f"vendors: {{nvidia: {{resources: [{text}]}}}}"


# Defaults


def test_without_a_file_everything_has_its_default() -> None:
    config = load(None, "node-1")

    assert config == Config()
    assert config.agent.kubelet_dir == Path("/var/lib/kubelet/device-plugins")
    assert config.agent.pod_resources_socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert config.agent.state_dir == Path("/var/lib/xpu-agent")
    assert config.agent.http == "127.0.0.1:9808"


@pytest.mark.parametrize("text", ["", "# nothing\n", "version: v1", "---\n", "~", "{}", "\ufeffversion: v1"])
def test_a_file_that_says_nothing_leaves_every_vendor_on_auto(text: str) -> None:
    assert read(text) == Config()
    assert read(text).vendor("nvidia") == VendorSettings(enabled="auto")


def test_a_key_without_a_value_has_its_default() -> None:
    assert read("agent:\nreport: null\nvendors:\n  nvidia:\n") == Config(vendors={"nvidia": VendorSettings()})


def test_the_null_device_is_an_empty_file() -> None:
    assert load(Path("/dev/null"), "node-1") == Config()


# What a file says


def test_every_key_is_taken() -> None:
    config = read("""
version: v1
agent:
  kubeletDir: /k
  podResourcesSocket: /p.sock
  stateDir: /s
  cdiDir: /c
  http: "[::1]:1"
  watchPods: false
  log: {level: debug, format: json, dir: /l, maxBytes: 50MB, keep: 2}
  health: {badPolls: 5, goodPolls: 4, goodFor: 90s, patience: 1m, forgetAfter: 2h}
  reconcile: {interval: 10s, grace: 5m}
vendors:
  nvidia:
    enabled: true
    library: /lib
    settings: {deep: {list: [1, off, null]}}
    resources:
      - name: nvidia.com/gpu
        devices: [0, GPU-1]
        sharing: {kind: replicas, replicas: 4, failRequestsGreaterThanOne: true}
        policy: packed
        placement: local
        ids: short
report: {mode: none, labels: false, featuresFile: /f, timestamp: false, machineFile: "", labelsAs: file,
  namespace: gpu, events: false, vendor: nvidia, deviceInfosDir: /d}
usage: {enabled: true, interval: 10s, procDir: /host/proc, limitExceeded: {by: 0.5, for: 1m},
  idle: {event: true, after: 2h}}
metrics: {compat: [dcgm, gpu-manager]}
""")

    assert config.agent.kubelet_dir == Path("/k")
    assert (config.agent.http, config.agent.log.max_bytes) == ("[::1]:1", 50_000_000)
    assert config.vendors["nvidia"].settings == {"deep": {"list": [1, "off", None]}}
    assert config.vendors["nvidia"].resources == (
        ResourceRule(
            "nvidia.com/gpu", (0, "GPU-1"), Sharing("replicas", 4, True), policy="packed", ids="short"
        ),
    )
    assert config.agent.cdi_dir == Path("/c")
    assert config.agent.watch_pods is False
    assert config.agent.health == HealthThresholds(5, 4, 90.0, 60.0, 7200.0)
    assert config.agent.reconcile == ReconcileSettings(10.0, 300.0)
    assert config.report == ReportSettings(
        "none", False, "/f", False, "", "file", "gpu", False, "nvidia", "/d"
    )
    assert config.usage == UsageSettings(
        True, 10.0, Path("/host/proc"), LimitExceededSettings(Ratio(0.5), 60.0), IdleSettings(True, 7200.0)
    )
    assert config.metrics == MetricsSettings(("dcgm", "gpu-manager"))


@pytest.mark.parametrize(
    ("report", "told_as"),
    [
        ("{}", "node"),
        ("{featuresFile: /f}", "file"),
        ("{featuresFile: /f, labelsAs: node}", "node"),
        ("{featuresFile: /f, labelsAs: nodeFeature}", "nodeFeature"),
        ("{featuresFile: /f, labelsAs: file}", "file"),
        ("{labels: false, featuresFile: /f, labelsAs: node}", None),
    ],
)
def test_labels_are_told_in_one_way(report: str, told_as: str | None) -> None:
    assert read(f"report: {report}").report.published_as == told_as


@pytest.mark.parametrize(
    ("report", "error"),
    [
        (
            "{labelsAs: file}",
            "report.labelsAs: needs the file that the labels go to: set report.featuresFile",
        ),
        ("{labelsAs: label}", "report.labelsAs: expected 'auto', 'node', 'nodeFeature' or 'file'"),
        ("{namespace: a/b}", "report.namespace: 'a/b' is no namespace"),
        (f"{{namespace: {'a' * 64}}}", "report.namespace: 'aaa"),
    ],
)
def test_a_way_of_telling_labels_that_can_not_work_is_refused(report: str, error: str) -> None:
    assert refusal(f"report: {report}").startswith(f"xpu.yaml:1: {error}")


def test_json_is_taken_also_when_tabs_indent_it() -> None:
    document = {
        "agent": {"http": "", "stateDir": "/a\tb"},
        "vendors": {"x": {"settings": {"face": "\U0001f600"}}},
    }

    for text in (
        json.dumps(document),
        json.dumps(document, indent="\t"),
        json.dumps(document, separators=(",", ":")),
    ):
        config = read(text)
        assert config.agent.state_dir == Path("/a\tb")
        assert config.vendors["x"].settings == {"face": "\U0001f600"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("on", "on"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ("<<", "<<"),
        ("0", 0),
        ("-7", -7),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        ("true", True),
        ("False", False),
        ("~", None),
    ],
)
def test_scalars_are_those_of_yaml_1_2_and_010_stays_what_it_is(written: str, meant: object) -> None:
    value = read(f"vendors: {{x: {{settings: {{v: {written}}}}}}}").vendors["x"].settings["v"]

    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(
    ("size", "count"),
    [("50MB", 50_000_000), ("16MiB", 16 << 20), ("100k", 100_000), ("20000", 20_000), ("1 GB", 10**9)],
)
def test_sizes_are_numbers_with_a_unit(size: str, count: int) -> None:
    assert read(f"agent: {{log: {{maxBytes: {size}}}}}").agent.log.max_bytes == count


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10s", 10),
        ("500ms", 0.5),
        ("2m", 120),
        ("1h", 3600),
        ("1.5 m", 90),
        ("45", 45),
        ("0.5", 0.5),
        ("0s", 0),
    ],
)
def test_times_are_numbers_with_a_unit_or_seconds(written: str, seconds: float) -> None:
    assert read(f"agent: {{health: {{goodFor: {written}}}}}").agent.health.good_for == seconds


@pytest.mark.parametrize("http", ['""', "off"])
def test_http_is_switched_off(http: str) -> None:
    assert read(f"agent: {{http: {http}}}").agent.http == ""


# Errors that name the place


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "agent:\n  http: a\n  http: b",
            "xpu.yaml:3: agent.http: the key is here twice; the first is in line 2",
        ),
        ("agent:\n  kubletDir: /x", "xpu.yaml:2: agent.kubletDir: unknown key; did you mean 'kubeletDir'?"),
        ("vendor: {}", "xpu.yaml:1: vendor: unknown key; did you mean 'vendors'?"),
        (
            "zzz: {}",
            "xpu.yaml:1: zzz: unknown key; known here: agent, flags, imex, metrics, nodes, report, ",
        ),
        ("sharin: {}", "xpu.yaml:1: sharin: unknown key; did you mean 'sharing'?"),
        (
            "vendors:\n  nvidia:\n    resources:\n    - name: a/b\n      sharing:\n        replica: 4",
            "xpu.yaml:6: vendors.nvidia.resources[0].sharing.replica: unknown key; did you mean 'replicas'?",
        ),
        ("version: v2", "xpu.yaml:1: version: unknown version: v2; write v1"),
        ("- agent", "xpu.yaml:1: expected a mapping of keys such as 'agent' and 'vendors'"),
        ("a: b: c", "xpu.yaml:1: mapping values are not allowed here"),
        ("? [a]\n: b", "xpu.yaml:1: a key must be a plain word"),
        (
            "agent: {}\n---\nagent: {}",
            "xpu.yaml:2: expected a single document in the stream, but found another",
        ),
    ],
)
def test_an_error_names_the_file_the_line_and_the_key(text: str, error: str) -> None:
    assert refusal(text).startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("agent: 5", "agent: expected a mapping of keys, found the number 5"),
        ("agent: {http: false}", "agent.http: expected a text, found false"),
        ("agent: {stateDir: 5}", "agent.stateDir: expected a path, found the number 5"),
        ("agent: {log: {keep: '5'}}", "agent.log.keep: expected a whole number, found the text '5'"),
        ("agent: {log: {keep: 5.0}}", "agent.log.keep: expected a whole number, found the number 5.0"),
        ("agent: {log: {keep: true}}", "agent.log.keep: expected a whole number, found true"),
        (
            "agent: {health: {patience: 5 days}}",
            "agent.health.patience: expected a time such as 10s or 5m, found the text '5 days'",
        ),
        (
            "agent: {health: {patience: true}}",
            "agent.health.patience: expected a time such as 10s or 5m, found true",
        ),
        ("agent: {health: {badPolls: 3s}}", "agent.health.badPolls: expected a whole number"),
        (
            "agent: {log: {maxBytes: 5XB}}",
            "agent.log.maxBytes: expected a size such as 50MB or 16MiB, found the text '5XB'",
        ),
        (
            "agent: {log: {level: loud}}",
            "agent.log.level: expected 'debug', 'info', 'warning' or 'error', found the text 'loud'",
        ),
        (
            "vendors: {a: {enabled: on}}",
            "vendors.a.enabled: expected 'auto' or true or false, found the text 'on'",
        ),
        ("vendors: {a: {settings: []}}", "vendors.a.settings: expected a mapping, found a list"),
        ("vendors: {a: {resources: {}}}", "vendors.a.resources: expected a list, found a mapping"),
        (resource("{}"), "vendors.nvidia.resources[0]: needs the key 'name'"),
        (
            resource("{name: a/b, devices: [0, true]}"),
            "resources[0].devices[1]: expected a whole number or a text, found true",
        ),
        (
            resource("{name: a/b, devices: some}"),
            "resources[0].devices: expected 'all' or a whole number or a list, found the text 'some'",
        ),
        ("report: {labels: 1}", "report.labels: expected true or false, found the number 1"),
    ],
)
def test_a_wrong_type_is_refused_with_what_was_found(text: str, error: str) -> None:
    assert error in refusal(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: &x [1]\nb: *x", "xpu.yaml:2: the alias *x is not read here; write the value out"),
        ("[" * 5000, "nested more than 40 levels deep"),
        ("[" + "a," * 50_001 + "]", "more than 50000 values"),
        ("a: !!python/object:os.system x", "does not fit 'x'; remove it"),
        ("a: !!set {x}", "is not read here; remove it"),
        ("a: !!int x", "does not fit 'x'"),
        ("vendors: {x: {settings: {v: 99999999999999999999}}}", "does not fit into 64 bits"),
        ("vendors: {x: {settings: {v: " + "9" * 5000 + "}}}", "does not fit into 64 bits"),
        ("vendors: {x: {settings: {v: .inf}}}", "'.inf' is not a finite number"),
        ("vendors: {x: {settings: {v: 1e999}}}", "'1e999' is not a finite number"),
        ('vendors: {x: {settings: {v: "\\ud800"}}}', "holds half a character"),
        ("\x00", "not YAML"),
        ('a: "\\UFFFFFFFF"', "not YAML"),
        ("#" * ((1 << 20) + 1), "larger than 1048576 bytes"),
    ],
)
def test_hostile_documents_are_refused_before_they_cost_anything(text: str, error: str) -> None:
    assert error in refusal(text)


@pytest.mark.parametrize(
    "text", ["a: [/dev/x{minor}]", "a: {b: [/dev/x{minor}]}", "a: {b: x{y}}", "a: [b[0]]"]
)
def test_a_bracket_within_a_text_within_brackets_is_told_to_need_quotes(text: str) -> None:
    assert "a text with { } or [ ] needs quotes here" in refusal(text)


def test_brackets_that_are_not_closed_are_no_matter_of_quotes() -> None:
    assert "quotes" not in refusal("a: {b: [c}")


def test_an_error_shows_a_hostile_key_harmlessly_and_bounded() -> None:
    error = refusal('"\\e[31m' + "x" * 5000 + '": 1')

    assert "\x1b" not in error
    assert len(error) < 400


# Keys of a later release


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (resource("{name: a/b, sharing: {kind: slices}}"), "sharing.kind: 'slices'"),
        (resource("{name: a/b, sharing: {kind: fraction}}"), "sharing.kind: 'fraction'"),
        (resource("{name: a/b, sharing: {profile: 1g}}"), "sharing.profile: is"),
    ],
)
def test_a_key_of_a_later_release_is_refused_by_name(text: str, named: str) -> None:
    error = refusal(text)

    assert named in error
    assert "not served by this release" in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (resource("{name: a/b, modes: dynamic}"), "modes: is not served here; it applies to all resources"),
        (resource("{name: a/b, spanCards: false}"), "spanCards: is not served here; it belongs to how"),
        (resource("{name: a/b, spanCards: false}"), "write it in 'sharing'"),
        ("agent: {kubeconfig: /x}", "agent.kubeconfig: is not served here; give --kubeconfig"),
    ],
)
def test_a_key_that_is_served_elsewhere_is_refused_with_where(text: str, said: str) -> None:
    assert said in refusal(text)


def test_a_refused_value_names_those_that_work() -> None:
    refused = refusal(resource("{name: a/b, sharing: {kind: slices}}"))

    assert refused.endswith("it serves 'exclusive' or 'replicas' or 'memory'")


# Rules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpu", "needs a vendor's domain"),
        ("''", "needs a vendor's domain"),
        ("kubernetes.io/gpu", "the kubelet's own"),
        ("node.kubernetes.io/gpu", "the kubelet's own"),
        ("requests.vendor.com/gpu", "must not begin with 'requests.'"),
        ("Vendor.com/gpu", "is not a domain"),
        ("/gpu", "is not a domain"),
        ("vendor.com/a/b", "no sign at its ends"),
        ("vendor.com/", "no sign at its ends"),
        ("vendor.com/gpu-", "no sign at its ends"),
        ("vendor.com/" + "a" * 64, "63 are allowed"),
        ("a." * 123 + "com/gpu", "is not a domain"),
    ],
)
def test_a_resource_name_is_one_that_the_kubelet_takes(name: str, why: str) -> None:
    error = refusal(resource(f"{{name: {name}}}"))

    assert "resources[0].name: " in error
    assert why in error


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "a/B_c.d", "vendor.com/" + "a" * 63])
def test_a_good_resource_name_is_taken(name: str) -> None:
    assert read(resource(f"{{name: {name}}}")).vendors["nvidia"].resources[0].name == name


@pytest.mark.parametrize(
    ("sharing", "error"),
    [
        ("{kind: replicas}", "sharing.replicas: must be 2 or more, found 1"),
        ("{kind: replicas, replicas: 0}", "sharing.replicas: must be 2 or more, found 0"),
        ("{kind: replicas, replicas: 1000000}", "sharing.replicas: must be 131072 or fewer"),
        ("{replicas: 4}", "sharing.replicas: belongs to kind 'replicas', found with kind 'exclusive'"),
        (
            "{failRequestsGreaterThanOne: true}",
            "sharing.failRequestsGreaterThanOne: belongs to kind 'replicas'",
        ),
        ("{kind: memory}", "'memory' needs the key 'unit': one of 1, 0.1, 0.01, 0.001, auto"),
        ("{kind: memory, unit: 0.5}", "unit: expected '1', '0.1', '0.01', '0.001' or 'auto', found"),
        ("{kind: memory, unit: 1Gi}", "unit: expected '1', '0.1', '0.01', '0.001' or 'auto', found"),
        ("{kind: memory, unit: true}", "unit: expected '1', '0.1', '0.01', '0.001' or 'auto', found"),
        ("{kind: memory, unit: 1, replicas: 4}", "belongs to kind 'replicas', found with kind 'memory'"),
        ("{unit: 1}", "unit: belongs to kind 'memory', found with kind 'exclusive'"),
    ],
)
def test_sharing_makes_sense(sharing: str, error: str) -> None:
    assert error in refusal(resource(f"{{name: a/b, sharing: {sharing}}}"))


@pytest.mark.parametrize(
    ("written", "unit"),
    [("1", "1"), ("1.0", "1"), ("0.1", "0.1"), ("'0.01'", "0.01"), ("0.001", "0.001"), ("auto", "auto")],
)
def test_a_unit_of_memory_is_a_number_or_a_text(written: str, unit: str) -> None:
    config = read(resource(f"{{name: a/b, sharing: {{kind: memory, unit: {written}}}}}"))

    (rule,) = config.vendors["nvidia"].resources
    assert (rule.sharing, rule.form) == (Sharing("memory", unit=cast("Unit", unit)), "short")
    assert parse(to_yaml(config), "again.yaml", "node").vendors == config.vendors


def test_replicas_may_be_kept_on_one_card() -> None:
    config = read(resource("{name: a/b, sharing: {kind: replicas, replicas: 4, spanCards: false}}"))

    (rule,) = config.vendors["nvidia"].resources
    assert rule.sharing == Sharing("replicas", 4, span_cards=False)
    assert parse(to_yaml(config), "again.yaml", "node").vendors == config.vendors
    told = refusal(resource("{name: a/b, sharing: {kind: memory, unit: 1, spanCards: false}}"))
    assert "spanCards: belongs to kind 'replicas', found with kind 'memory'" in told


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ("0", "devices: a count of cards must be 1 or more, found 0"),
        ("[]", "devices: names no card"),
        ("[-1]", "devices[0]: an index must be 0 or more"),
        ("['0']", "devices[0]: write an index as a plain number"),
        ("[1, 1]", "devices[1]: the card 1 is named twice"),
        ("[GPU-1, GPU-1]", "devices[1]: the card GPU-1 is named twice"),
    ],
)
def test_devices_name_cards(devices: str, error: str) -> None:
    assert error in refusal(resource(f"{{name: a/b, devices: {devices}}}"))


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        ("[0, 1]", "[1, 2]", "resources[1].devices[0]: the card 1 belongs to 'a/one' already"),
        ("[GPU-1]", "[0, GPU-1]", "resources[1].devices[1]: the card GPU-1 belongs to 'a/one' already"),
    ],
)
def test_a_card_belongs_to_one_resource(one: str, other: str, error: str) -> None:
    rules = f"{{name: a/one, devices: {one}}}, {{name: a/other, devices: {other}}}"

    with pytest.raises(ConfigError, match=re.escape(error)):
        check_config(read(f"vendors: {{simulated: {{settings: {{devices: 2}}, resources: [{rules}]}}}}"))


def test_with_dynamic_modes_a_card_may_be_named_by_several_resources() -> None:
    rules = "[{name: a/one}, {name: a/two, ids: short}, {name: a/three, ids: minor, devices: [0]}]"

    it = read(f"vendors: {{acme: {{modes: dynamic, resources: {rules}}}}}").vendor("acme")

    assert (it.modes, [rule.name for rule in it.resources]) == ("dynamic", ["a/one", "a/two", "a/three"])


def test_with_dynamic_modes_each_resource_has_ids_of_its_own() -> None:
    rules = "[{name: a/one}, {name: a/two}]"
    config = read(f"vendors: {{simulated: {{settings: {{devices: 2}}, modes: dynamic, resources: {rules}}}}}")

    with pytest.raises(ConfigError) as refused:
        check_config(config)

    assert str(refused.value) == (
        "xpu.yaml:1: vendors.simulated.resources[1].ids: 'a/two' would make the same IDs of a card as "
        "'a/one'; both use ids: 'uuid'; set ids of one of them to another form: uuid, minor or short"
    )


def test_a_vendor_whose_way_it_is_may_name_a_card_in_several_resources_unless_the_config_says_fixed() -> None:
    rules = "[{name: enflame.com/gcu, devices: [0]}, {name: enflame.com/shared-gcu, devices: [0]}]"

    its = complete_config(check_config(read(f"vendors: {{enflame: {{resources: {rules}}}}}"))).vendor(
        "enflame"
    )

    assert (its.modes, [it.form for it in its.resources]) == ("dynamic", ["minor", "minor"])
    with pytest.raises(ConfigError, match=re.escape("the card 0 belongs to 'enflame.com/gcu' already")):
        check_config(read(f"vendors: {{enflame: {{modes: fixed, resources: {rules}}}}}"))


def test_modes_are_said_of_a_vendor_and_not_of_a_resource() -> None:
    text = "vendors: {acme: {resources: [{name: a/one, modes: dynamic}]}}"

    assert "it applies to all resources of a vendor: write it next to 'resources'" in refusal(text)


def test_a_resource_name_stands_once_also_across_vendors() -> None:
    text = "vendors:\n  a: {resources: [{name: x/y}]}\n  b:\n    resources:\n    - name: x/y"

    assert refusal(text) == (
        "xpu.yaml:5: vendors.b.resources[0].name: "
        "the resource 'x/y' is named twice; the first is under vendors.a"
    )


@pytest.mark.parametrize(
    ("room", "key"),
    [
        ("agent", "kubeletDir"),
        ("agent", "podResourcesSocket"),
        ("agent", "stateDir"),
        ("agent", "cdiDir"),
        ("report", "featuresFile"),
        ("report", "machineFile"),
    ],
)
def test_paths_are_absolute(room: str, key: str) -> None:
    assert f"{room}.{key}: must be an absolute path, found 'x'" in refusal(f"{room}: {{{key}: x}}")


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("{dir: logs}", "agent.log.dir: must be an absolute path"),
        ("{maxBytes: 5}", "agent.log.maxBytes: must be at least 10000 bytes"),
        ("{keep: 0}", "agent.log.keep: must be from 1 to 1000 files"),
    ],
)
def test_the_log_file_is_bounded(log: str, error: str) -> None:
    assert error in refusal(f"agent: {{log: {log}}}")


@pytest.mark.parametrize(
    ("health", "error"),
    [
        ("{badPolls: 0}", "agent.health.badPolls: must be from 1 to 1000 polls, found 0"),
        ("{goodPolls: 1001}", "agent.health.goodPolls: must be from 1 to 1000 polls, found 1001"),
        ("{goodFor: -1}", "agent.health.goodFor: must be from 0s to 1h, found -1s"),
        ("{patience: 61m}", "agent.health.patience: must be from 0s to 1h, found 3660s"),
        ("{forgetAfter: 169h}", "agent.health.forgetAfter: must be from 0s to 168h, found 608400s"),
    ],
)
def test_patience_with_devices_is_bounded(health: str, error: str) -> None:
    assert error in refusal(f"agent: {{health: {health}}}")


@pytest.mark.parametrize(
    ("reconcile", "error"),
    [
        ("{interval: 0.5}", "agent.reconcile.interval: must be from 1s to 1h, found 0.5s"),
        ("{interval: 61m}", "agent.reconcile.interval: must be from 1s to 1h, found 3660s"),
        ("{grace: 0s}", "agent.reconcile.grace: must be from 1s to 1h, found 0s"),
        ("{grace: 61m}", "agent.reconcile.grace: must be from 1s to 1h, found 3660s"),
        ("{grace: soon}", "agent.reconcile.grace: expected a time such as 10s or 5m"),
        ("{every: 10s}", "agent.reconcile.every: unknown key"),
    ],
)
def test_the_pace_of_reconciling_is_bounded(reconcile: str, error: str) -> None:
    assert error in refusal(f"agent: {{reconcile: {reconcile}}}")


@pytest.mark.parametrize(
    ("usage", "error"),
    [
        ("{enabled: sometimes}", "usage.enabled: expected true or false"),
        ("{interval: 500ms}", "usage.interval: must be from 1s to 1m, found 0.5s"),
        ("{interval: 61s}", "usage.interval: must be from 1s to 1m, found 61s"),
        ("{limitExceeded: {by: 1.5}}", "usage.limitExceeded.by: must be from 0 to 1, found 1.5"),
        ("{limitExceeded: {by: a lot}}", "usage.limitExceeded.by: expected a number such as 0.05"),
        ("{limitExceeded: {for: 2h}}", "usage.limitExceeded.for: must be from 0s to 1h, found 7200s"),
        ("{idle: {after: 59s}}", "usage.idle.after: must be from 1m to 168h, found 59s"),
        ("{idle: {events: true}}", "usage.idle.events: unknown key"),
        ("{procDir: host/proc}", "usage.procDir: must be an absolute path, found 'host/proc'"),
    ],
)
def test_the_settings_of_use_are_bounded(usage: str, error: str) -> None:
    assert error in refusal(f"usage: {usage}")


def test_a_node_may_have_its_own_settings_of_use() -> None:
    text = "usage: {interval: 9s}\nnodes: [{match: {names: [n]}, set: {usage: {enabled: true}}}]"
    assert parse(text, "x", "n").usage == UsageSettings(True, 9.0)
    assert parse(text, "x", "other").usage == UsageSettings(False, 9.0)


@pytest.mark.parametrize(
    ("written", "size"),
    [("512MiB", 512 << 20), ("2GB", 2_000_000_000), ("67108864", 64 << 20), ("0", 0), ("1TiB", 1 << 40)],
)
def test_the_memory_of_a_vendors_process_is_a_size(written: str, size: int) -> None:
    assert read(f"vendors: {{a: {{memoryLimit: {written}}}}}").vendors["a"].memory_limit == size


@pytest.mark.parametrize("written", ["63MiB", "1", "-1", "2TiB"])
def test_a_memory_limit_with_which_nothing_starts_or_that_is_none_is_refused(written: str) -> None:
    error = "vendors.a.memoryLimit: must be 0 for none, or from 64MiB to 1TiB; found"
    assert error in refusal(f"vendors: {{a: {{memoryLimit: {written}}}}}")


def test_a_vendor_that_does_not_exist_is_refused_where_the_names_are_known() -> None:
    with pytest.raises(ConfigError, match=r"x:2: vendors\.nvidai: no such vendor; did you mean 'nvidia'\?"):
        parse("vendors:\n  nvidai: {}", "x", "n", vendors=["nvidia", "metax"])


# Files


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file or directory"):
        load(tmp_path / "none.yaml", "n")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match="is not a file"):
        load(tmp_path / "pipe", "n")


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"version: v1\n# \xff")

    with pytest.raises(ConfigError, match=r"x\.yaml:2: is not UTF-8"):
        load(path, "n")


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than"):
        load(Path("/dev/zero"), "n")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    for node in ("trainer-1", "another"):
        load(source_of(path), node)


@pytest.mark.parametrize(("named", "replicas"), [("", 10), ("trainer", 4)])
def test_the_example_directory_has_a_default_and_one_for_nodes_that_ask(named: str, replicas: int) -> None:
    source = ConfigSource(EXAMPLES / "node-configs", node_config=named, default_config="any", inputs=INPUTS)

    shared = load(source, "n").vendors["nvidia"].settings["timeSlicing"]["resources"]
    assert [it["replicas"] for it in shared] == [replicas]


def test_the_documentation_s_files_are_good() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (EXAMPLES.parent / "config.md").read_text(), re.DOTALL)

    assert len(blocks) == 4
    for block in blocks:
        assert parse(block, "xpu.yaml", "node-1", labels=seen_labels({})).warnings == ()


def test_the_documentation_names_every_flag_of_nvidia_that_has_no_effect() -> None:
    text = (EXAMPLES.parent / "config.md").read_text()

    for flag in NVIDIA_FLAGS:
        if not flag.sets and flag.name != "device-discovery-strategy":
            assert f"`--{flag.name}`" in text


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} >= {
        "minimal.yaml",
        "memory.yaml",
        "replicas.yaml",
        "nvidia-v1-time-slicing.yaml",
    }


# The effective configuration


def test_the_effective_configuration_has_every_default() -> None:
    assert effective(Config()) == {
        "version": "v1",
        "agent": {
            "kubeletDir": "/var/lib/kubelet/device-plugins",
            "podResourcesSocket": "/var/lib/kubelet/pod-resources/kubelet.sock",
            "stateDir": "/var/lib/xpu-agent",
            "cdiDir": "/var/run/cdi",
            "http": "127.0.0.1:9808",
            "watchPods": True,
            "log": {"level": "info", "format": "auto", "dir": "", "maxBytes": 50_000_000, "keep": 5},
            "health": {
                "badPolls": 3,
                "goodPolls": 2,
                "goodFor": 10.0,
                "patience": 30.0,
                "forgetAfter": 600.0,
            },
            "reconcile": {"interval": 30.0, "grace": 60.0},
        },
        "vendors": {},
        "report": {
            "mode": "auto",
            "labels": True,
            "featuresFile": "",
            "timestamp": True,
            "machineFile": "/sys/class/dmi/id/product_name",
            "labelsAs": "auto",
            "namespace": "",
            "events": True,
            "vendor": "",
            "deviceInfosDir": "/var/run/koordlet/xpu-device-infos",
        },
        "usage": {
            "enabled": False,
            "interval": 5.0,
            "procDir": "/proc",
            "limitExceeded": {"by": 0.05, "for": 30.0},
            "idle": {"event": False, "after": 1800.0},
        },
        "metrics": {"compat": []},
    }


def test_the_effective_configuration_reads_back_the_same() -> None:
    config = read(
        "vendors: {x: {settings: {a: '1e3', b: '0o7', c: 'off', d: '010', e: ~, f: 1e30, g: '~', h: 'a\\b'}}}"
    )

    assert read(to_yaml(config)) == config
    assert yaml.safe_load(to_yaml(config)) == effective(config)


def test_the_documentation_names_every_key() -> None:
    text = (EXAMPLES.parent / "config.md").read_text()
    config = read(resource("{name: a/b, policy: packed}"))  # a policy has no default of its own

    for key in keys_of(effective(config)) - {"nvidia"}:
        assert f"`{key}`" in text, f"docs/config.md does not explain {key}"


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value} | {key for inner in value.values() for key in keys_of(inner)}
    if isinstance(value, list):
        return {key for inner in value for key in keys_of(inner)}
    return set()


@pytest.mark.parametrize("state", ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins/xpu"])
def test_state_in_the_kubelet_s_directory_is_refused(state: str) -> None:
    assert refusal(f"agent:\n  stateDir: {state}").startswith(
        f"xpu.yaml:2: agent.stateDir: the state directory '{state}' lies in the kubelet's directory"
    )


# Koordinator


def test_the_directory_of_koordlet_s_files_is_an_absolute_path() -> None:
    assert "report.deviceInfosDir: must be an absolute path" in refusal("report: {deviceInfosDir: here}")


@pytest.mark.parametrize(
    ("directory", "key"),
    [
        ("/var/lib/kubelet/device-plugins", "kubeletDir"),
        ("/var/lib/kubelet/device-plugins/xpu/", "kubeletDir"),
        ("/var/lib/x/../xpu-agent", "stateDir"),
        ("/var/lib/kubelet", "kubeletDir"),
        ("/var/lib/kubelet/pod-resources", "podResourcesSocket"),
        ("/var/run/cdi", "cdiDir"),
    ],
)
def test_files_of_cards_lie_in_a_directory_of_their_own(directory: str, key: str) -> None:
    error = refusal(f"report:\n  deviceInfosDir: {directory}")

    assert error.startswith("xpu.yaml:2: report.deviceInfosDir: the directory ")
    assert f"(agent.{key})" in error


CLAIMED = resource("{name: nvidia.com/gpu, placement: claim}")


def test_cards_by_claim_alone_are_refused_where_no_pod_is_seen() -> None:
    error = refusal(f"{CLAIMED}\nagent: {{watchPods: false}}")

    assert "vendors.nvidia.resources[0].placement: with agent.watchPods false" in error


@pytest.mark.parametrize(
    "text", [CLAIMED, resource("{name: nvidia.com/gpu}") + "\nagent: {watchPods: false}"]
)
def test_cards_by_claim_are_taken_with_pods_and_others_without(text: str) -> None:
    assert read(text).vendors["nvidia"].resources


# The library, which has a key of ours and is a setting of the vendor


def test_a_library_that_is_said_twice_is_refused_with_both_places() -> None:
    text = "vendors:\n  metax:\n    library: /a\n    settings:\n      library: /b"

    assert refusal(text) == (
        "xpu.yaml:5: vendors.metax.settings.library: is '/b', and vendors.metax.library is '/a'; "
        "both are one setting: remove one"
    )


@pytest.mark.parametrize("text", ["library: /a, settings: {library: ''}", "settings: {library: /b}"])
def test_a_library_that_is_said_once_may_be_said_by_either_key(text: str) -> None:
    read(f"vendors: {{metax: {{{text}}}}}")
