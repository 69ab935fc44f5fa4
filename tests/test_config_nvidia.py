"""NVIDIA's v1 file, as its users have it."""

from __future__ import annotations

import pytest

from agent.config import Config, VendorSettings, parse
from agent.core.errors import ConfigError
from agent.core.vendor import ResourceRule, Sharing


def read(text: str) -> Config:
    return parse(text, "nvidia.yaml", "node-1")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def slicing(resource: str, more: str = "") -> str:
    return f"version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {{{resource}}}\n{more}"


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "gpu"])
def test_time_slicing_becomes_replicas(name: str) -> None:
    assert read(slicing(f"name: {name}, replicas: 10")) == Config(
        vendors={
            "nvidia": VendorSettings(
                resources=(ResourceRule("nvidia.com/gpu", sharing=Sharing("replicas", 10)),)
            )
        }
    )


def test_fail_requests_greater_than_one_is_honoured() -> None:
    config = read(slicing("name: gpu, replicas: 2", "    failRequestsGreaterThanOne: true"))

    assert config.vendors["nvidia"].resources[0].sharing == Sharing("replicas", 2, True)


@pytest.mark.parametrize(
    "text",
    [
        "sharing: {}",
        "sharing: {timeSlicing: null}",
        "flags: {}",
        "flags: {plugin: {}, gfd:}",
        "imex:",
        "resources: {gpus: []}",
    ],
)
def test_a_file_that_asks_for_nothing_means_the_defaults(text: str) -> None:
    assert read(f"version: v1\n{text}") == Config(vendors={"nvidia": VendorSettings()})


def test_what_is_the_same_as_served_is_taken() -> None:
    text = slicing("name: gpu, replicas: 2, devices: all", "    renameByDefault: false")

    assert read(text).vendors["nvidia"].resources[0].devices == "all"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            slicing("name: gpu, replicas: 1"),
            "nvidia.yaml:5: sharing.timeSlicing.resources[0].replicas: number of replicas must be >= 2",
        ),
        (slicing("name: gpu, replicas: -4"), "number of replicas must be >= 2"),
        (slicing("name: gpu"), "nvidia.yaml:5: sharing.timeSlicing.resources[0]: no replicas specified"),
        (slicing("replicas: 2"), "sharing.timeSlicing.resources[0]: no resource name specified"),
        ("sharing: {timeSlicing: {}}", "nvidia.yaml:1: sharing.timeSlicing: no resources specified"),
        (
            "sharing:\n  timeSlicing:\n    resources: []",
            "nvidia.yaml:3: sharing.timeSlicing: no resources specified",
        ),
        ("version: v2\nsharing: {}", "nvidia.yaml:1: version: unknown version: v2"),
        (slicing("name: $bad, replicas: 2"), "incorrect format for resource name 'nvidia.com/$bad': ["),
        (
            slicing("name: example.com/gpu, replicas: 2"),
            "incorrect format for resource name 'nvidia.com/example.com/gpu': [",
        ),
        (
            slicing(f"name: {'a' * 60}, replicas: 2"),
            f"fully-qualified resource name must be 63 characters or less: nvidia.com/{'a' * 60}",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: some"),
            "devices set as 'some' but the only valid string input is 'all'",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: 0"),
            "devices set as '0' but a count of devices must be > 0",
        ),
        (
            slicing("name: gpu, replicas: 2, devices: [x]"),
            "unsupported type for device in devices list: x, string",
        ),
        (slicing("name: gpu, replicas: 2, devices: {}"), "unrecognized type for devices spec: "),
    ],
)
def test_what_nvidia_refuses_is_refused_in_its_words_with_the_place(text: str, error: str) -> None:
    assert error in refusal(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("flags: {migStrategy: none}", "nvidia.yaml:1: flags.migStrategy: "),
        ("flags:\n  plugin:\n    passDeviceSpecs: false", "nvidia.yaml:3: flags.plugin.passDeviceSpecs: "),
        ("flags: {gfd: {oneshot: true}}", "flags.gfd.oneshot: "),
        ("resources: {gpus: [{pattern: '*', name: gpu}]}", "resources.gpus: "),
        ("imex: {channelIDs: [0]}", "imex.channelIDs: "),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "sharing.mps: "),
        (
            slicing("name: gpu, replicas: 2", "    renameByDefault: true"),
            "sharing.timeSlicing.renameByDefault: ",
        ),
        (slicing("name: gpu, replicas: 2, rename: gpu.shared"), "sharing.timeSlicing.resources[0].rename: "),
        (slicing("name: gpu, replicas: 2, devices: 3"), "sharing.timeSlicing.resources[0].devices: "),
        (
            slicing("name: gpu, replicas: 2, devices: [0, GPU-11111111-2222-3333-4444-555555555555]"),
            "resources[0].devices: ",
        ),
        (slicing("name: nvidia.com/mig-1g.5gb, replicas: 2"), "resources[0].name: 'nvidia.com/mig-1g.5gb' "),
    ],
)
def test_what_is_not_served_is_refused_by_name_and_never_ignored(text: str, named: str) -> None:
    error = refusal(text)

    assert named in error
    assert "not served by this release" in error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sharing: {timeSlicin: {}}", "sharing.timeSlicin: unknown key; did you mean 'timeSlicing'?"),
        ("sharing: {}\nflag: {}", "flag: unknown key; did you mean 'flags'?"),
        (slicing("name: gpu, replica: 2"), "resources[0].replica: unknown key; did you mean 'replicas'?"),
        (
            slicing("name: gpu, replicas: '2'"),
            "resources[0].replicas: expected a whole number, found the text '2'",
        ),
        (slicing("name: 5, replicas: 2"), "resources[0].name: expected a text, found the number 5"),
        (slicing("name: gpu, replicas: 200000"), "resources[0].replicas: must be 131072 or fewer"),
        (
            slicing("name: gpu, replicas: 2", "    - {name: gpu, replicas: 3}"),
            "'nvidia.com/gpu' is named twice",
        ),
        ("sharing: []", "sharing: expected a mapping of keys, found a list"),
    ],
)
def test_what_nvidia_would_ignore_silently_is_refused(text: str, error: str) -> None:
    assert error in refusal(text)


def test_both_styles_in_one_file_are_refused() -> None:
    error = refusal("agent: {}\nsharing: {}")

    assert (
        error == "nvidia.yaml:2: 'sharing' is a key of NVIDIA's file, 'agent' is one of ours; use one of both"
    )
