"""Where the API server is said to be, and how a kubeconfig that cannot be used is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.cluster.credentials import MAX_BYTES, ApiAccess, NamedKubeconfig, find, named
from agent.core.errors import ConfigError

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
SECRET = "a-secret"


def service_account(directory: Path, *left_out: str) -> Path:
    for name, content in {"token": SECRET, "ca.crt": "PEM", "namespace": "gpu\n"}.items():
        if name not in left_out:
            (directory / name).write_text(content)
    return directory


def config(user: Any = None, **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://h:6443/", **cluster}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": SECRET}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "gpu"}}],
        "current-context": "x",
    }


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_pod_finds_what_its_service_account_gives(tmp_path: Path) -> None:
    found = find(None, IN_CLUSTER, service_account(tmp_path))

    assert found == ApiAccess("https://10.0.0.1:443", "gpu", tmp_path / "ca.crt", tmp_path / "token")


def test_an_address_of_six_is_put_in_brackets(tmp_path: Path) -> None:
    found = find(None, {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}, service_account(tmp_path))

    assert found is not None
    assert found.server == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    "environ", [{}, {"KUBERNETES_SERVICE_HOST": "h"}, {**IN_CLUSTER, "KUBERNETES_SERVICE_PORT": ""}]
)
def test_outside_of_a_pod_there_is_none(tmp_path: Path, environ: dict[str, str]) -> None:
    assert find(None, environ, service_account(tmp_path)) is None


def test_a_pod_without_a_token_has_none(tmp_path: Path) -> None:
    assert find(None, IN_CLUSTER, service_account(tmp_path, "token")) is None


def test_a_token_without_a_ca_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.crt: not there"):
        find(None, IN_CLUSTER, service_account(tmp_path, "ca.crt"))


def test_a_pod_s_namespace_is_default_where_it_is_not_said(tmp_path: Path) -> None:
    found = find(None, IN_CLUSTER, service_account(tmp_path, "namespace"))

    assert found is not None
    assert found.namespace == "default"


def test_a_kubeconfig_that_is_named_wins(tmp_path: Path) -> None:
    path = written(tmp_path / "k", config())

    assert find(path, IN_CLUSTER, service_account(tmp_path)) == ApiAccess(
        "https://h:6443", "gpu", kubeconfig=path
    )


def test_a_token_file_is_looked_for_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(SECRET)
    found = find(written(tmp_path / "k", config({"tokenFile": "t"})), {})

    assert found is not None
    assert found.token_file == tmp_path / "t"


def test_no_secret_is_shown(tmp_path: Path) -> None:
    found = find(written(tmp_path / "k", config()), {})

    assert SECRET not in repr(found) + str(found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is no mapping"),
        ("- a", "the file is no mapping"),
        ("a: b\nb: [token: a-secret", "k:2: not YAML"),
        ("\0", "not YAML"),
        ("a: " + "x" * MAX_BYTES, "longer than 1048576 bytes"),
        ("[" * 5000, "not YAML"),
        ({}, "current-context is missing; set it to a name in contexts"),
        ({**config(), "current-context": 5}, "current-context is no text"),
        ({**config(), "current-context": "y"}, "current-context names context 'y', there is 'x'"),
        ({**config(), "contexts": None}, "current-context names context 'x', there is none"),
        ({**config(), "contexts": [{"name": "x"}]}, "context 'x' is no mapping"),
        ({**config(), "contexts": [{"name": "x", "context": {}}]}, "cluster of .* context is missing"),
        ({**config(), "clusters": []}, "the current context names cluster 'c', there is none"),
        ({**config(), "users": [{"name": "v"}, 5]}, "the current context names user 'u', there is 'v'"),
        (config(server=None), "the cluster's server is missing; give a URL"),
        (config(server="h:6443"), "the cluster's server is 'h:6443'; give a URL"),
        (config(server="https://u:a-secret@h"), "the cluster's server holds a password"),
        (config(**{"certificate-authority": "ca"}), "certificate-authority names .*/ca, there is no such"),
        (config({"client-key": "key"}), "client-key names .*/key, there is no such file"),
        (config({"tokenFile": "t"}), "tokenFile names .*/t, there is no such file"),
    ],
)  # fmt: skip
def test_a_kubeconfig_that_can_not_be_used_says_where_and_why(
    tmp_path: Path, content: Any, said: str
) -> None:
    path = written(tmp_path / "k", content)

    with pytest.raises(ConfigError, match=said) as refused:
        find(path, {})

    assert str(refused.value).startswith(str(path))
    assert SECRET not in str(refused.value)


def test_a_kubeconfig_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"k: No such file or directory; name a kubeconfig that can be read"
    ):
        find(tmp_path / "k", {})


def test_what_names_a_kubeconfig_stands_before_why_it_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^XPU_AGENT_KUBECONFIG: .*/k: No such file"):
        find(tmp_path / "k", {}, by="XPU_AGENT_KUBECONFIG")


@pytest.mark.parametrize(
    ("flag", "environ", "found"),
    [
        (None, {}, NamedKubeconfig()),
        (
            "/f",
            {"XPU_AGENT_KUBECONFIG": "/x", "KUBECONFIG": "/k"},
            NamedKubeconfig(Path("/f"), "--kubeconfig"),
        ),
        (
            None,
            {"XPU_AGENT_KUBECONFIG": "/x", "KUBECONFIG": "/k"},
            NamedKubeconfig(Path("/x"), "XPU_AGENT_KUBECONFIG"),
        ),
        ("", {"XPU_AGENT_KUBECONFIG": "", "KUBECONFIG": ""}, NamedKubeconfig()),
        (None, {"KUBECONFIG": "{there}"}, NamedKubeconfig(Path("{there}"), "KUBECONFIG")),
        (None, {"KUBECONFIG": "/missing:{there}:"}, NamedKubeconfig(Path("{there}"), "KUBECONFIG")),
        (
            None,
            {"KUBECONFIG": "/missing:/other"},
            NamedKubeconfig(missing=(Path("/missing"), Path("/other"))),
        ),
    ],
)
def test_our_own_words_go_before_a_variable_that_is_kubectl_s_of_which_what_is_missing_is_passed_over(
    tmp_path: Path, flag: str | None, environ: dict[str, str], found: NamedKubeconfig
) -> None:
    there = written(tmp_path / "k", config())
    environ = {key: value.replace("{there}", str(there)) for key, value in environ.items()}
    if found.path == Path("{there}"):
        found = replace(found, path=there)

    assert named(flag, environ) == found


def test_of_several_kubeconfigs_none_is_guessed(tmp_path: Path) -> None:
    one, two = (written(tmp_path / name, config()) for name in "ab")

    with pytest.raises(ConfigError, match=r"KUBECONFIG: names .*/a, .*/b; give one with --kubeconfig"):
        named(None, {"KUBECONFIG": f"{one}:{two}"})


def test_a_kubeconfig_of_kubectl_s_that_is_missing_is_told_and_the_pod_s_own_way_is_taken(
    tmp_path: Path,
) -> None:
    environ = {**IN_CLUSTER, "KUBECONFIG": "/missing"}
    it = named(None, environ)

    assert it.warning == "KUBECONFIG names /missing: no such file; the variable is ignored"
    assert find(it.path, environ, service_account(tmp_path)) is not None
