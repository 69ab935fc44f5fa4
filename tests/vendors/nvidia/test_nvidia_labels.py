"""The labels are those of GPU feature discovery, and never one that Kubernetes refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml_stub import NvmlStub
from support.vendor_inputs import INPUTS

from agent.config import Config, parse
from agent.core.publishing.label_rules import NodeStamp
from agent.daemon.labels_once import ask
from agent.daemon.publishing.wanted_labels import machine
from agent.daemon.vendor_plugins import VendorPlugin
from agent.vendor_api.agent import Device, Fault, ResourceRule, Sharing
from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendors.nvidia.agent.labels import family, labels
from agent.vendors.nvidia.agent.options import Options
from agent.vendors.nvidia.plugin import register_backend

pytest_plugins = ["nvml_fixtures"]

RECORDED = json.loads((Path(__file__).parent / "recorded_labels.json").read_text())
#: What does not follow from the cards is not the vendor's.
NOT_OURS = {"nvidia.com/gpu.machine"}

H100 = "NVIDIA H100 80GB HBM3"
GIB = 1 << 30
MIB = 1 << 20
NODE = {
    "driver-version": "580.65.06",
    "cuda-version": "13.0",
    "compute-capability": "9.0",
    "mig-capable": "true",
    "mig-mode": "disabled",
}
#: What NVML's attributes say of a 1g.10gb instance, as the double of the recording has it.
ONE_SEVENTH = {
    "mig-profile": "1g.10gb",
    "multiprocessors": "16",
    "slices-gi": "1",
    "slices-ci": "1",
    "engines-copy": "1",
    "engines-decoder": "0",
    "engines-encoder": "0",
    "engines-jpeg": "0",
    "engines-ofa": "0",
}
LOST = Fault("lost")


def card(index: int = 0, model: str = H100, memory: int = 85520809984, **said: str) -> Device:
    attributes = {**NODE, **{key.replace("_", "-"): value for key, value in said.items()}}
    return Device(uuid=f"GPU-{index}", index=index, memory=memory, model=model, attributes=attributes)


def split(index: int = 0, *profiles: str) -> list[Device]:
    """A card in MIG mode and its MIG devices."""
    whole = card(index, mig_mode="enabled")
    return [whole, *(mig(whole, number, profile) for number, profile in enumerate(profiles))]


def mig(whole: Device, number: int, profile: str = "1g.10gb") -> Device:
    return replace(
        whole,
        uuid=f"MIG-{whole.index}-{number}",
        parent=whole.uuid,
        slice=number,
        memory=9984 * MIB,
        attributes={**whole.attributes, **ONE_SEVENTH, "mig-profile": profile},
    )


def options(**settings: Any) -> Options:
    return Options.read(settings)


def shared(name: str = "nvidia.com/gpu", **more: Any) -> Options:
    return options(timeSlicing={"resources": [{"name": name, "replicas": 4, **more}]})


def gpu(devices: Sequence[Device], said: Options | None = None) -> dict[str, str]:
    """The labels of nvidia.com/gpu, without that prefix."""
    start = "nvidia.com/gpu."
    found = labels(said or Options(), (), devices)
    return {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}


def hardware(recorded: Mapping[str, str]) -> list[Device]:
    migs = int(recorded.get("FAKE_NVML_MIGS", 0))
    count = int(recorded.get("FAKE_NVML_GPUS", 8))
    if migs:
        return [it for index in range(count) for it in split(index, *["1g.10gb"] * migs)]
    return [card(index) for index in range(count)]


def recorded_settings(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """What NVIDIA's file says, as settings of ours."""
    return parse(case["config"], "recorded", "a-node", inputs=INPUTS).vendor("nvidia").settings


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["case"])
def test_the_labels_equal_the_recorded_ones(case: Mapping[str, Any]) -> None:
    recorded = {key: value for key, value in case["labels"].items() if key not in NOT_OURS}

    assert labels(Options.read(recorded_settings(case)), (), hardware(case["hardware"])) == recorded


def play(stub: NvmlStub, recorded: Mapping[str, str], procfs: Path) -> None:
    """Make the stub the hardware of the recording."""
    count = int(recorded.get("FAKE_NVML_GPUS", 8))
    stub.cards(count)
    if "FAKE_NVML_MIGS" in recorded:
        stub.write_minors(procfs)
        for index in range(count):
            stub.mig(index)


@pytest.fixture
def product_name(tmp_path: Path) -> Path:
    file = tmp_path / "product_name"
    file.write_text(RECORDED["machineType"] + "\n")
    return file


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["case"])
async def test_what_is_read_from_nvml_gives_the_recorded_labels(
    case: Mapping[str, Any],
    stub: NvmlStub,
    settings: Mapping[str, Any],
    tmp_path: Path,
    product_name: Path,
) -> None:
    play(stub, case["hardware"], tmp_path / "proc")
    vendor = register_backend({**settings, **recorded_settings(case)})

    stamp = NodeStamp(machine(str(product_name)))
    said = await ask(Config(), [VendorPlugin(vendor.name, "", "", vendor)], stamp)

    assert said.reasons == {}
    assert said.labels == case["labels"]


def verb(tmp_path: Path, settings: Mapping[str, Any], *flags: str | Path) -> str:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"version": "v1", "vendors": {"nvidia": {"settings": settings}}}))
    command = [sys.executable, "-m", "agent", "labels", "--config", str(config), *map(str, flags)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.usefixtures("stub")
def test_the_verb_writes_them_for_node_feature_discovery(
    settings: Mapping[str, Any], tmp_path: Path, product_name: Path
) -> None:
    file = tmp_path / "gfd"

    told = verb(tmp_path, settings, "--machine-type-file", product_name, "--output-file", file)

    lines = file.read_text().splitlines()
    found = dict(line.split("=") for line in lines)
    assert int(found.pop("nvidia.com/gfd.timestamp")) > 1_700_000_000
    assert (found, told) == (RECORDED["cases"][0]["labels"], "")
    assert lines == sorted(lines)


@pytest.mark.usefixtures("stub")
def test_the_verb_prints_them_without_the_time_as_json(
    settings: Mapping[str, Any], tmp_path: Path, product_name: Path
) -> None:
    told = verb(tmp_path, settings, "--machine-type-file", product_name, "--no-timestamp", "--json")

    assert json.loads(told) == RECORDED["cases"][0]["labels"]


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((1, 3), "tesla"),
        ((2, 0), "fermi"),
        ((3, 7), "kepler"),
        ((4, 0), "undefined"),
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 2), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((11, 0), "undefined"),
        ((12, 1), "blackwell"),
        ((13, 0), "rubin"),
        ((14, 0), "undefined"),
    ],
)
def test_the_family_follows_from_the_compute_capability(capability: tuple[int, int], name: str) -> None:
    assert family(*capability) == name


@pytest.mark.parametrize("capability", ["", "0.0", "new"])
def test_without_a_compute_capability_there_is_no_family(capability: str) -> None:
    assert {"family", "compute.major", "compute.minor"}.isdisjoint(gpu([card(compute_capability=capability)]))


@pytest.mark.parametrize(
    ("memory", "said"),
    [(85520809984, "81559"), (80 * GIB, "81920"), (MIB - 1, None), (0, None)],
)
def test_memory_is_told_in_whole_mebibytes_where_it_is_known(memory: int, said: str | None) -> None:
    assert gpu([card(memory=memory)]).get("memory") == said


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("580.65.06", ("580", "65", "06", "580.65.06")),
        ("535.104", ("535", "104", "", "535.104")),
        ("535", None),
        ("580.65.06.1", None),
        ("580.65-beta", None),
        ("５80.65.06", None),
        ("", None),
    ],
)
def test_the_driver_s_version_is_told_in_parts(version: str, said: tuple[str, ...] | None) -> None:
    found = labels(Options(), (), [card(driver_version=version)])

    new = [found.get(f"nvidia.com/cuda.driver-version.{it}") for it in ("major", "minor", "revision", "full")]
    old = [found.get(f"nvidia.com/cuda.driver.{it}") for it in ("major", "minor", "rev")]
    assert new == list(said or [None] * 4)
    assert old == new[:3]


def test_the_versions_are_told_by_any_card_that_can_be_read() -> None:
    silent = Device(uuid="GPU-0", index=0, model=H100, fault=LOST)

    found = labels(Options(), (), [silent, card(1)])

    assert found["nvidia.com/cuda.driver-version.full"] == "580.65.06"
    assert found["nvidia.com/cuda.runtime-version.full"] == "13.0"


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        (["0x030200", "0x030200"], "compute"),
        (["0x030000", "0x030000"], "graphics"),
        (["0x030200", "0x030000"], "unknown"),
        (["0x030200", ""], "unknown"),
        (["", ""], "unknown"),
        (["0x040000", "0x040000"], "unknown"),
    ],
)
def test_the_mode_is_known_where_all_cards_are_of_one_class(classes: Sequence[str], mode: str) -> None:
    cards = [card(index, pci_class=it) for index, it in enumerate(classes)]

    assert gpu(cards)["mode"] == mode


@pytest.mark.parametrize(
    ("said", "clique"),
    [
        (["u-1.7", "u-1.7"], "u-1.7"),
        (["u-1.7", ""], "u-1.7"),
        (["u-1.7", "u-1.8"], None),
        (["u-1.7", "u-2.7"], None),
        (["", ""], None),
    ],
)
def test_the_clique_is_told_where_all_attached_cards_agree(said: Sequence[str], clique: str | None) -> None:
    cards = [card(index, fabric=it) for index, it in enumerate(said)]

    assert gpu(cards).get("clique") == clique


def test_one_card_that_can_be_split_makes_the_node_capable_of_mig() -> None:
    capable = "nvidia.com/mig.capable"

    assert labels(Options(), (), [card(0, mig_capable="false"), card(1)])[capable] == "true"
    assert labels(Options(), (), [card(0, mig_capable="false")])[capable] == "false"


def test_a_vgpu_tells_of_its_host_s_driver() -> None:
    found = labels(Options(), (), [card(vgpu_driver_version="460.16", vgpu_driver_branch="r460_00")])

    assert {key: value for key, value in found.items() if "vgpu" in key} == {
        "nvidia.com/vgpu.present": "true",
        "nvidia.com/vgpu.host-driver-version": "460.16",
        "nvidia.com/vgpu.host-driver-branch": "r460_00",
    }


def test_a_vgpu_whose_host_says_nothing_is_one() -> None:
    found = labels(Options(), (), [card(0), card(1, vgpu_driver_version="")])

    assert (found["nvidia.com/vgpu.present"], found["nvidia.com/vgpu.host-driver-branch"]) == ("true", "")


def test_mig_devices_whose_card_is_not_listed_make_no_labels() -> None:
    found = labels(options(migStrategy="mixed"), (), [mig(card(), 0)])

    assert found == {"nvidia.com/vgpu.present": "false"}


def test_sharing_of_another_resource_does_not_show() -> None:
    assert gpu([card()], shared("nvidia.com/other")) == gpu([card()])


def test_a_sick_card_counts_and_does_not_speak_for_the_node() -> None:
    sick = replace(card(1), memory=0, fault=LOST)

    found = gpu([card(0), sick])

    assert (found["count"], found["memory"]) == ("2", "81559")


def test_a_sick_card_without_a_name_hides_no_other() -> None:
    cards = [Device(uuid="GPU-0", index=0, fault=LOST), Device(uuid="GPU-1", index=1, fault=LOST), card(2)]

    assert gpu(cards)["product"] == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("models", "shown"),
    [
        (["A", "B", "B"], {"product": "B", "count": "2"}),
        (["A", "B", "A"], {"product": "A", "count": "2"}),
        (["B", "A"], {"product": "B", "count": "1"}),
        (["A", "B", "B", "A"], {"product": "A", "count": "2"}),
    ],
)
def test_of_several_models_the_one_of_most_cards_shows_else_the_first(
    models: Sequence[str], shown: Mapping[str, str]
) -> None:
    found = gpu([card(index, model) for index, model in enumerate(models)])

    assert {key: found[key] for key in shown} == shown


def test_one_model_alone_is_told_never_parts_of_two() -> None:
    cards = [
        card(0, "A", memory=0, compute_capability=""),
        card(1, "A", 0),
        card(2, "B", compute_capability="8.0"),
    ]

    found = gpu(cards)

    assert (found["product"], found.get("memory"), found["family"]) == ("A", None, "hopper")


def test_cards_with_mig_off_speak_for_the_node_before_those_with_mig_on() -> None:
    found = gpu([*split(0, "1g.10gb"), *split(1, "1g.10gb"), card(2, "A")])

    assert (found["product"], found["count"], found["replicas"]) == ("A", "1", "1")


def test_cards_of_one_model_count_together_whether_mig_is_on_or_off() -> None:
    found = gpu([*split(0, "1g.10gb"), card(1)], shared())

    assert (found["product"], found["count"]) == ("NVIDIA-H100-80GB-HBM3-SHARED", "2")
    assert (found["replicas"], found["sharing-strategy"]) == ("4", "time-slicing")


@pytest.mark.parametrize("rename", ["", "nvidia.com/gpu.shared", "nvidia.com/slice"])
@pytest.mark.parametrize("by_default", [False, True])
def test_a_product_is_called_shared_unless_replicas_are_renamed_by_default(
    rename: str, by_default: bool
) -> None:
    """GFD drops each `rename` before it looks, and puts its own name where `renameByDefault` is set."""
    entry = {"name": "nvidia.com/gpu", "replicas": 4, "rename": rename}

    found = gpu([card(0)], options(timeSlicing={"resources": [entry], "renameByDefault": by_default}))

    assert found["product"].endswith("-SHARED") is not by_default
    assert (found["replicas"], found["sharing-strategy"]) == ("4", "time-slicing")


def test_replicas_do_not_apply_to_cards_with_mig_on() -> None:
    found = gpu(split(0, "1g.10gb"), shared())

    assert (found["product"], found["replicas"]) == ("NVIDIA-H100-80GB-HBM3", "0")
    assert found["sharing-strategy"] == "none"


INVALID = {
    "product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID",
    "count": "0",
    "replicas": "0",
    "sharing-strategy": "",
    "memory": "0",
}


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(split(0), id="enabled and empty"),
        pytest.param([*split(0, "1g.10gb"), *split(1)], id="one of two empty"),
        pytest.param([*split(0, "1g.10gb"), card(1)], id="one of two disabled"),
        pytest.param(split(0, "1g.10gb", "2g.20gb"), id="two profiles"),
        pytest.param([*split(0, "1g.10gb"), *split(1, "2g.20gb")], id="two profiles on two cards"),
    ],
)
def test_the_strategy_single_calls_what_is_not_uniform_invalid(devices: list[Device]) -> None:
    single = options(migStrategy="single")

    found = gpu(devices, single)

    assert {key: found[key] for key in INVALID} == INVALID
    assert "multiprocessors" not in found
    assert labels(single, (), devices)["nvidia.com/mig.strategy"] == "single"


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_a_strategy_without_mig_shows_whole_cards(strategy: str) -> None:
    chosen = options(migStrategy=strategy)

    assert gpu([card()], chosen) == gpu([card()])
    assert labels(chosen, (), [card()])["nvidia.com/mig.strategy"] == strategy


def test_the_strategy_mixed_names_each_profile_and_counts_its_devices() -> None:
    devices = [*split(0, "1g.10gb+me", "2g.20gb", "2g.20gb"), *split(1, "2g.20gb"), *split(2)]

    found = labels(options(migStrategy="mixed"), (), devices)

    assert {
        key: value for key, value in found.items() if key.endswith(("gb.count", "me.count", "me.product"))
    } == {
        "nvidia.com/mig-1g.10gb.me.count": "1",
        "nvidia.com/mig-1g.10gb.me.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me",
        "nvidia.com/mig-2g.20gb.count": "3",
    }
    assert found["nvidia.com/gpu.count"] == "3"


def test_replicas_of_mig_devices_show_in_the_strategy_single() -> None:
    single = options(migStrategy="single", timeSlicing={"resources": [{"name": "gpu", "replicas": 4}]})

    found = gpu(split(0, "1g.10gb", "1g.10gb"), single)

    assert found["product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED"
    assert (found["count"], found["replicas"], found["sharing-strategy"]) == ("2", "4", "time-slicing")


def test_a_mig_device_that_tells_no_attributes_is_labelled_without_them() -> None:
    whole, device = split(0, "1g.10gb")
    silent = replace(device, attributes={"mig-profile": "1g.10gb"})

    found = gpu([whole, silent], options(migStrategy="single"))

    assert found["count"] == "1"
    assert "multiprocessors" not in found


def test_a_sick_mig_device_counts_and_does_not_speak_for_its_profile() -> None:
    whole, first, second, third = split(0, "1g.10gb", "1g.10gb", "1g.10gb")
    sick = [replace(it, memory=0, fault=LOST) for it in (first, third)]

    found = gpu([whole, sick[0], second, sick[1]], options(migStrategy="single"))

    assert (found["count"], found["memory"]) == ("3", "9984")


def test_a_sick_mig_device_that_is_the_only_one_speaks_all_the_same() -> None:
    whole, first = split(0, "1g.10gb")

    assert gpu([whole, replace(first, fault=LOST)], options(migStrategy="single"))["count"] == "1"


def test_a_profile_too_long_for_a_label_is_cut() -> None:
    found = labels(options(migStrategy="mixed"), (), split(0, "7" * 60))

    assert found[f"nvidia.com/mig-{'7' * 40}.engines.decoder"] == "0"


def test_a_product_too_long_for_a_label_keeps_what_follows_the_model() -> None:
    found = gpu([card(model="N" * 80)], shared())["product"]

    assert found == "N" * 56 + "-SHARED"


HOSTILE = st.text(max_size=256)


@given(
    model=HOSTILE,
    said=st.dictionaries(st.sampled_from([*NODE, "pci-class", "fabric", "vgpu-driver-version"]), HOSTILE),
    sliced=st.dictionaries(st.sampled_from([*ONE_SEVENTH]), HOSTILE),
    memory=st.integers(0, (1 << 63) - 1),
    strategy=st.sampled_from(["none", "single", "mixed"]),
    mode=st.sampled_from(["enabled", "disabled"]),
    rename=st.sampled_from(["", "nvidia.com/other"]),
)
def test_no_text_of_a_driver_makes_a_wrong_label(
    model: str,
    said: Mapping[str, str],
    sliced: Mapping[str, str],
    memory: int,
    strategy: str,
    mode: str,
    rename: str,
) -> None:
    resource = {"name": "gpu", "replicas": 2, "rename": rename}
    chosen = options(migStrategy=strategy, timeSlicing={"resources": [resource]})
    whole = card(0, model, memory, **{"mig-mode": mode, **said})
    sliver = mig(whole, 0, "7g.80gb+me.all")

    found = labels(chosen, (), [whole, replace(sliver, attributes={**sliver.attributes, **sliced})])

    assert [wrong_label(*it) for it in found.items() if wrong_label(*it)] == []


SHARED_BY_FOUR = Sharing("replicas", 4)


@pytest.mark.parametrize(
    ("rules", "product", "replicas", "strategy"),
    [
        ((ResourceRule("nvidia.com/gpu"),), "NVIDIA-H100-80GB-HBM3", "1", "none"),
        (
            (ResourceRule("nvidia.com/gpu", sharing=SHARED_BY_FOUR),),
            "NVIDIA-H100-80GB-HBM3-SHARED",
            "4",
            "time-slicing",
        ),
        (
            (
                ResourceRule("nvidia.com/gpu", (0,)),
                ResourceRule("nvidia.com/gpu.shared", (1,), SHARED_BY_FOUR),
            ),
            "NVIDIA-H100-80GB-HBM3",
            "4",
            "time-slicing",
        ),
    ],
)
def test_the_users_own_rules_are_told_as_nvidias_are(
    rules: tuple[ResourceRule, ...], product: str, replicas: str, strategy: str
) -> None:
    found = labels(Options(), rules, [card(0), card(1)])

    assert found["nvidia.com/gpu.product"] == product
    assert found["nvidia.com/gpu.replicas"] == replicas
    assert found["nvidia.com/gpu.sharing-strategy"] == strategy


def test_the_users_own_rules_for_mig_devices_are_told_of_these() -> None:
    rules = (ResourceRule("nvidia.com/mig-1g.10gb", sharing=SHARED_BY_FOUR),)

    found = labels(options(migStrategy="mixed"), rules, split(0, "1g.10gb"))

    assert found["nvidia.com/mig-1g.10gb.replicas"] == "4"
    assert found["nvidia.com/gpu.replicas"] == "0"
