"""Whatever a file holds, reading it gives a configuration or a ConfigError."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import Config, parse, to_yaml
from agent.core.errors import ConfigError

KEYS = st.sampled_from(
    (
        "version",
        *("agent", "kubeletDir", "stateDir", "http", "log", "level", "dir", "maxBytes", "keep"),
        *("vendors", "nvidia", "enabled", "library", "settings", "resources"),
        *("name", "devices", "sharing", "kind", "replicas", "policy", "placement", "ids"),
        *("report", "mode", "labels", "nodes", "match", "names", "set"),
        *("flags", "imex", "timeSlicing", "mps", "failRequestsGreaterThanOne", "renameByDefault", "rename"),
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
        "::1:1",
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
        assert parse(to_yaml(config), "again", "") == config
    assert told.isprintable()


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
