"""Flags and environment variables, and the address they may hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.vendor_inputs import given_flags, parse

from agent.config import FLAGS, Config, GivenValue, HttpAddress, parse_address, with_flags
from agent.core.errors import ConfigError

FILE = "agent: {kubeletDir: /file, http: 127.0.0.1:1, log: {level: error, format: console}}"


def said(**flags: str) -> tuple[GivenValue, ...]:
    return given_flags({name.replace("_", "-"): value for name, value in flags.items()}, {})


def test_a_flag_wins_over_the_file_and_the_rest_stays() -> None:
    config = parse(FILE, "f", "", flags=said(kubelet_dir="/flag", log_level="debug"))

    assert config.agent.kubelet_dir == Path("/flag")
    assert (config.agent.log.level, config.agent.log.format) == ("debug", "console")
    assert config.agent.http == "127.0.0.1:1"


def test_every_flag_is_taken() -> None:
    config = with_flags(
        Config(),
        said(
            kubelet_dir="/k",
            pod_resources_socket="/p",
            state_dir="/s",
            http="",
            watch_pods="false",
            log_dir="/l",
            log_format="json",
            log_level="error",
            report_labels="false",
            report_events="false",
            usage_enabled="true",
            metrics_compat="dcgm,gpu-manager",
        ),
    )

    assert (str(config.agent.kubelet_dir), str(config.agent.pod_resources_socket)) == ("/k", "/p")
    assert (str(config.agent.state_dir), config.agent.http) == ("/s", "")
    log = config.agent.log
    assert (log.dir, log.format, log.level) == ("/l", "json", "error")
    assert (config.agent.watch_pods, config.report.labels, config.report.events) == (False, False, False)
    assert (config.usage.enabled, config.metrics.compat) == (True, ("dcgm", "gpu-manager"))


def test_a_flag_that_is_not_set_changes_nothing() -> None:
    assert with_flags(Config(), given_flags(dict.fromkeys(FLAGS), {})) == Config()


def test_each_flag_has_an_environment_variable() -> None:
    environ = {f"XPU_AGENT_{flag.upper().replace('-', '_')}": flag for flag in FLAGS}

    found = given_flags({}, environ | {"XPU_AGENT_ELSE": "x", "HOME": "/"})

    assert {it.flag: it.value for it in found} == {flag: flag for flag in FLAGS}
    assert {it.place.source for it in found} == set(environ)


def test_the_command_line_wins_over_the_environment() -> None:
    found = given_flags({"http": "127.0.0.1:2"}, {"XPU_AGENT_HTTP": "127.0.0.1:1"})

    assert with_flags(Config(), found).agent.http == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("arguments", "environ", "error"),
    [
        ({"state-dir": "x"}, {}, "--state-dir: must be an absolute path, found 'x'"),
        ({}, {"XPU_AGENT_STATE_DIR": "x"}, "XPU_AGENT_STATE_DIR: must be an absolute path, found 'x'"),
        ({"state-dir": ""}, {}, "--state-dir: must be an absolute path, found ''"),
        ({"http": "9808"}, {}, "--http: the address '9808' has no port"),
        ({}, {"XPU_AGENT_HTTP": "9808"}, "XPU_AGENT_HTTP: the address '9808' has no port"),
        ({"log-level": "x"}, {}, "--log-level: must be one of debug, info, warning, error, found 'x'"),
        (
            {},
            {"XPU_AGENT_REPORT_LABELS": ""},
            "XPU_AGENT_REPORT_LABELS: must be one of true, false, found ''",
        ),
        ({}, {"XPU_AGENT_LOG_LEVEL": "x"}, "XPU_AGENT_LOG_LEVEL: must be one of debug, info, warning, error"),
        (
            {"state-dir": "x"},
            {"XPU_AGENT_STATE_DIR": "y"},
            "--state-dir: must be an absolute path, found 'x'",
        ),
    ],
)
def test_an_error_names_the_flag_or_the_variable_that_holds_it(
    arguments: dict[str, str], environ: dict[str, str], error: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        with_flags(Config(), given_flags(arguments, environ))

    assert str(caught.value).startswith(error)


@pytest.mark.parametrize(
    ("arguments", "environ", "place"),
    [
        ({"state-dir": "/file/s"}, {}, "--state-dir"),
        ({}, {"XPU_AGENT_STATE_DIR": "/file"}, "XPU_AGENT_STATE_DIR"),
        ({"kubelet-dir": "/mine"}, {}, "--kubelet-dir"),
        ({}, {"XPU_AGENT_KUBELET_DIR": "/mine"}, "XPU_AGENT_KUBELET_DIR"),
        ({}, {"KUBELET_SOCKET": "/mine/kubelet.sock"}, "KUBELET_SOCKET"),
        ({"kubelet-socket": "/mine/kubelet.sock"}, {}, "--kubelet-socket"),
        ({"kubelet-dir": "/else", "state-dir": "/else/s"}, {"XPU_AGENT_STATE_DIR": "/s"}, "--state-dir"),
    ],
)
def test_what_holds_in_the_end_is_judged_whoever_says_it(
    arguments: dict[str, str], environ: dict[str, str], place: str
) -> None:
    file = "agent: {kubeletDir: /file, stateDir: /mine/state}"

    with pytest.raises(ConfigError) as caught:
        parse(file, "f", "", flags=given_flags(arguments, environ))

    assert str(caught.value).startswith(f"{place}: the state directory '/")
    assert "lies in the kubelet's directory" in str(caught.value)


def test_without_a_file_what_holds_in_the_end_is_judged_too() -> None:
    with pytest.raises(ConfigError, match="--kubelet-dir: the state directory '/var/lib/xpu-agent' lies in"):
        with_flags(Config(), said(kubelet_dir="/var/lib"))


def test_a_value_of_the_file_that_a_flag_replaces_is_not_judged() -> None:
    file = "agent: {kubeletDir: /k, stateDir: /k/state, http: nowhere}"

    config = parse(file, "f", "", flags=said(state_dir="/s", http="127.0.0.1:1"))

    assert (str(config.agent.state_dir), config.agent.http) == ("/s", "127.0.0.1:1")


def test_a_variable_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="XPU_AGENT_STATE_DIR: is not UTF-8 text"):
        given_flags({}, {"XPU_AGENT_STATE_DIR": "/\udcff"})


# Addresses


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:9808", HttpAddress("127.0.0.1", 9808), True),
        ("127.1.2.3:1", HttpAddress("127.1.2.3", 1), True),
        ("localhost:0", HttpAddress("localhost", 0), True),
        ("[::1]:9808", HttpAddress("::1", 9808), True),
        ("0.0.0.0:80", HttpAddress("0.0.0.0", 80), False),
        ("[::]:80", HttpAddress("::", 80), False),
        ("10.0.0.1:65535", HttpAddress("10.0.0.1", 65535), False),
    ],
)
def test_an_address_is_read(text: str, address: HttpAddress, loopback: bool) -> None:
    assert parse_address(text) == address
    assert parse_address(text).loopback is loopback
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no port"),
        ("9808", "has no port"),
        (":9808", "has no address"),
        ("127.0.0.1:", "port '' is not a number"),
        ("127.0.0.1:http", "port 'http' is not a number"),
        ("127.0.0.1:65536", "port '65536' is not a number from 0 to 65535"),
        ("127.0.0.1:-1", "port '-1' is not a number"),
        ("127.0.0.1:٣", "is not a number"),
        ("::1:9808", "an IPv6 address needs brackets"),
        ("[127.0.0.1]:1", "an IPv4 address has none"),
        ("example.com:1", "'example.com' is not an IP address"),
    ],
)
def test_a_wrong_address_says_what_would_work(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)

    assert why in str(caught.value)
    assert "127.0.0.1:9808 or [::1]:9808" in str(caught.value)


@given(st.text(max_size=30) | st.from_regex(r"[0-9a-f:.\[\]]+", fullmatch=True))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ConfigError:
        return
    assert parse_address(str(address)) == address


def test_an_agent_without_a_file_imports_neither_yaml_nor_msgspec() -> None:
    code = (
        "import sys, asyncio; from agent.config import *; "
        "load(None, 'n', flags=given_flags({'http': '127.0.0.1:1'}, {'MIG_STRATEGY': 'none'})); "
        "effective(Config()); "
        "ConfigWatch(None, 'n'); print({'yaml', 'msgspec', 'difflib', 'rich'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
