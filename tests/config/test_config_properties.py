"""Whatever a file holds, reading it gives a configuration or a ConfigError."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.vendor_inputs import NVIDIA_FLAGS, configured, given_flags, parse

from agent.config import Config, to_yaml, with_flags
from agent.core.errors import ConfigError
from agent.daemon.vendor_config import check_config
from agent.vendor_api.config_flags import Flag

KEYS = st.sampled_from(
    (
        "version",
        *("agent", "kubeletDir", "stateDir", "http", "log", "level", "dir", "maxBytes", "keep"),
        *("health", "badPolls", "goodPolls", "goodFor", "patience", "forgetAfter"),
        *("reconcile", "interval", "grace"),
        *("vendors", "nvidia", "enabled", "library", "memoryLimit", "settings", "resources"),
        *("name", "devices", "sharing", "kind", "replicas", "policy", "placement", "ids"),
        *("report", "mode", "labels", "nodes", "match", "names", "set"),
        *("flags", "imex", "timeSlicing", "mps", "failRequestsGreaterThanOne", "renameByDefault", "rename"),
        *("gpus", "mig", "pattern"),
        *sorted({step for flag in NVIDIA_FLAGS for step in flag.tree.split(".") if step}),
    )
)
WORDS = st.sampled_from(
    [
        "v1",
        "auto",
        "all",
        "a/b",
        "nvidia.com/gpu",
        "gpu",
        "replicas",
        "exclusive",
        "memory",
        "/x",
        "node-1",
        "50MB",
        "10s",
        "::1:1",
        "0:1",
        "mixed",
        "infinite",
        "nvml",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=10)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=25,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


def survives(text: str) -> None:
    told = ""
    try:
        config = parse(text, "f", "node-1")
    except ConfigError as error:
        told = str(error)
    else:
        assert isinstance(config, Config)
        assert parse(to_yaml(config), "again", "") == replace(config, warnings=())
        told = "".join(config.warnings) + judged(config)
    assert told.isprintable()


def judged(config: Config) -> str:
    """What the vendors say of it."""
    try:
        return "".join(check_config(config).warnings)
    except ConfigError as error:
        return str(error)


@given(st.text())
def test_any_text_gives_a_configuration_or_a_config_error(text: str) -> None:
    survives(text)


@given(st.text(alphabet="&*!|>%@`{}[],:?-#'\"\\ \n\tab01~<=.ueUx\u2028\ufeff", max_size=60))
def test_any_mix_of_yaml_signs_gives_a_configuration_or_a_config_error(text: str) -> None:
    survives(text)


@given(DOCUMENTS)
@settings(max_examples=300)
def test_any_structure_as_yaml_gives_a_configuration_or_a_config_error(document: Any) -> None:
    survives(yaml.safe_dump(document))


@given(DOCUMENTS)
@settings(max_examples=200)
def test_any_structure_as_json_gives_a_configuration_or_a_config_error(document: Any) -> None:
    survives(json.dumps(document))


@st.composite
def good_rules(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {"name": draw(st.from_regex(r"[a-z]{1,5}\.com/[a-z]{1,5}", fullmatch=True))}
    if draw(st.booleans()):
        rule["sharing"] = {"kind": "replicas", "replicas": draw(st.integers(2, 1000))}
    rule["devices"] = draw(
        st.just("all") | st.integers(1, 16) | st.lists(st.integers(0, 16), min_size=1, unique=True)
    )
    return rule


@given(good_rules(), st.dictionaries(st.text(max_size=5), SCALARS, max_size=3))
def test_a_good_configuration_reads_back_the_same(rule: dict[str, Any], more: dict[str, Any]) -> None:
    survives(json.dumps({"vendors": {"x": {"resources": [rule], "settings": more}}}))


# NVIDIA's file and flags


def tree(flag: Flag, value: Any) -> Any:
    for step in reversed(flag.tree.split(".")):
        value = {step: value}
    return value


@given(st.sampled_from([flag for flag in NVIDIA_FLAGS if flag.tree]), VALUES)
def test_any_value_of_a_key_of_nvidia_gives_a_configuration_or_a_config_error(flag: Flag, value: Any) -> None:
    survives(json.dumps(tree(flag, value)))


SHARED = st.fixed_dictionaries(
    {},
    optional={
        "name": WORDS | VALUES,
        "replicas": st.integers(-2, 5) | VALUES,
        "devices": st.lists(st.integers() | WORDS | SCALARS, max_size=3) | VALUES,
        "rename": WORDS | VALUES,
    },
)


@given(st.sampled_from(["timeSlicing", "mps"]), st.lists(SHARED | VALUES, max_size=3), SCALARS, SCALARS)
@settings(max_examples=300)
def test_any_sharing_gives_a_configuration_or_a_config_error(
    kind: str, resources: list[Any], rename: Any, strict: Any
) -> None:
    sharing = {"resources": resources, "renameByDefault": rename, "failRequestsGreaterThanOne": strict}
    survives(json.dumps({"sharing": {kind: sharing}}))


VARIABLES = [name for flag in NVIDIA_FLAGS for name in flag.variables]
TEXTS = WORDS | st.sampled_from(["true", "0,1", "60s", ""]) | st.text(max_size=20)


@given(st.dictionaries(st.sampled_from(VARIABLES), TEXTS, max_size=5))
@settings(max_examples=300)
def test_any_environment_gives_a_configuration_or_a_config_error(environ: dict[str, str]) -> None:
    told = ""
    try:
        config = configured({}, environ, "node-1")
    except ConfigError as error:
        told = str(error)
    else:
        assert parse(to_yaml(config), "again", "") == config
    assert told.isprintable()


@given(st.dictionaries(st.sampled_from([flag.name for flag in NVIDIA_FLAGS]), TEXTS, max_size=5))
def test_a_flag_means_what_its_variable_means(texts: dict[str, str]) -> None:
    environ = {flag.variables[0]: texts[flag.name] for flag in NVIDIA_FLAGS if flag.name in texts}

    assert outcome(texts, {}) == outcome({}, environ)


def outcome(arguments: dict[str, str], environ: dict[str, str]) -> Config | str:
    try:
        return with_flags(Config(), given_flags(arguments, environ))
    except ConfigError as error:
        return str(error).partition(": ")[2]
