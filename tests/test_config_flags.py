"""Flags and environment variables, and the address they may hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import FLAGS, Address, Config, from_environ, parse, parse_address, with_flags
from agent.core.errors import ConfigError

FILE = "agent: {kubeletDir: /file, http: 127.0.0.1:1, log: {level: error, format: console}}"


def test_a_flag_wins_over_the_file_and_the_rest_stays() -> None:
    config = with_flags(parse(FILE, "f", ""), {"kubelet-dir": Path("/flag"), "log_level": "debug"})

    assert config.agent.kubelet_dir == Path("/flag")
    assert (config.agent.log.level, config.agent.log.format) == ("debug", "console")
    assert config.agent.http == "127.0.0.1:1"


def test_every_flag_is_taken() -> None:
    config = with_flags(
        Config(),
        {
            "--kubelet-dir": "/k",
            "--pod-resources-socket": "/p",
            "--state-dir": "/s",
            "--http": "",
            "--log-format": "json",
            "--log-level": "error",
        },
    )

    assert (str(config.agent.kubelet_dir), str(config.agent.pod_resources_socket)) == ("/k", "/p")
    assert (str(config.agent.state_dir), config.agent.http) == ("/s", "")
    assert (config.agent.log.format, config.agent.log.level) == ("json", "error")


def test_a_flag_that_is_not_set_changes_nothing() -> None:
    assert with_flags(Config(), dict.fromkeys(FLAGS)) == Config()


def test_each_flag_has_an_environment_variable() -> None:
    environ = {f"XPU_AGENT_{flag.upper().replace('-', '_')}": flag for flag in FLAGS}

    assert from_environ(environ | {"XPU_AGENT_ELSE": "x", "HOME": "/"}) == {flag: flag for flag in FLAGS}


@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("state-dir", "x", "--state-dir: must be an absolute path, found 'x'"),
        ("http", "9808", "--http: the address '9808' has no port"),
        ("log-level", "loud", "--log-level: must be one of debug, info, warning, error, found 'loud'"),
        ("nothing", "x", "--nothing: is no setting of the agent"),
    ],
)
def test_an_error_names_the_flag(flag: str, value: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_flags(Config(), {flag: value})

    assert str(caught.value).startswith(error)


# Addresses


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:9808", Address("127.0.0.1", 9808), True),
        ("127.1.2.3:1", Address("127.1.2.3", 1), True),
        ("localhost:0", Address("localhost", 0), True),
        ("[::1]:9808", Address("::1", 9808), True),
        ("0.0.0.0:80", Address("0.0.0.0", 80), False),
        ("[::]:80", Address("::", 80), False),
        ("10.0.0.1:65535", Address("10.0.0.1", 65535), False),
    ],
)
def test_an_address_is_read(text: str, address: Address, loopback: bool) -> None:
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
        ("::1:9808", "an IPv6 address stands in brackets"),
        ("[127.0.0.1]:1", "an IPv4 address does not"),
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
        "with_flags(load(None, 'n'), {'http': '127.0.0.1:1'}); effective(Config()); "
        "ConfigWatch(None, 'n'); print({'yaml', 'msgspec', 'difflib', 'rich'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
