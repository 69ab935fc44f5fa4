"""The labels of the Node that GPU feature discovery writes: names and values of v0.20.0, internal/lm.

GFD writes no label where one card is lost or a version has another form. Here the other labels are written.
The labels of the machine and of the time are not made here: they do not follow from the cards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.vendor_api.agent import Device, ResourceRule
from agent.vendor_api.label_values import LABEL_LIMIT, label_value
from agent.vendors.nvidia.shared import constants

from .names import DOMAIN, GPU
from .options import Options

Labels = dict[str, str]

_DRIVER = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_TWO_NUMBERS = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)
_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
#: The class of a card on the PCI bus (3D controller, VGA controller) to the mode.
_MODES = {"0x030200": "compute", "0x030000": "graphics"}
#: Attributes of a MIG device that become labels: `slices-gi` is `slices.gi`.
_MIG_ATTRIBUTES = (constants.MULTIPROCESSORS, constants.SLICES_GI, constants.SLICES_CI, *constants.ENGINES)
#: Characters of a MIG profile; the longest label with a profile is mig-PROFILE.engines.decoder.
_PROFILE_LIMIT = 40


@dataclass(frozen=True, slots=True)
class Shares:
    """How a resource is shared: replicas of each device, and whether the replicas have their own name."""

    replicas: int
    renamed: bool


def labels(options: Options, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Labels:
    """The labels that follow from all GPUs and MIG devices of the node, in the order of their indices.

    `rules` are the resources of the config; without any, NVIDIA's `timeSlicing` says which are shared.

    Of cards of several models GFD shows one model at random. Here it is the model of most cards, and among
    equals the first; models with MIG off go before those with MIG on, as in GFD. The properties of a model
    are those of its last card that can be read. A sick card counts, as NVML counts it.
    """
    cards = [it for it in devices if it.parent is None]
    if not cards:
        return _vgpu(cards)
    shares = _shares(options, rules)
    return {
        **_driver(cards),
        **_cuda(cards),
        **_capabilities(cards),
        **_whole(shares, cards),
        **_split(options.mig_strategy, shares, cards, [it for it in devices if it.parent is not None]),
        **_fabric(cards),
        **_vgpu(cards),
    }


def family(major: int, minor: int) -> str:
    """The architecture of a compute capability, in GFD's words."""
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


def _driver(cards: Sequence[Device]) -> Labels:
    version = _DRIVER.fullmatch(constants.of_node(cards, constants.DRIVER_VERSION))
    if version is None:
        return {}
    major, minor, revision = version[1], version[2], version[3] or ""
    return {
        f"{DOMAIN}cuda.driver.major": major,
        f"{DOMAIN}cuda.driver.minor": minor,
        f"{DOMAIN}cuda.driver.rev": revision,
        f"{DOMAIN}cuda.driver-version.major": major,
        f"{DOMAIN}cuda.driver-version.minor": minor,
        f"{DOMAIN}cuda.driver-version.revision": revision,
        f"{DOMAIN}cuda.driver-version.full": version[0],
    }


def _cuda(cards: Sequence[Device]) -> Labels:
    """The newest CUDA version that the driver serves, which GFD calls the runtime."""
    version = _two_numbers(constants.of_node(cards, constants.CUDA_VERSION))
    if version is None:
        return {}
    major, minor = version
    return {
        f"{DOMAIN}cuda.runtime.major": str(major),
        f"{DOMAIN}cuda.runtime.minor": str(minor),
        f"{DOMAIN}cuda.runtime-version.major": str(major),
        f"{DOMAIN}cuda.runtime-version.minor": str(minor),
        f"{DOMAIN}cuda.runtime-version.full": f"{major}.{minor}",
    }


def _capabilities(cards: Sequence[Device]) -> Labels:
    """The capabilities of the node. MPS is not served here, so no node is capable of MPS."""
    classes = {it.attributes.get(constants.PCI_CLASS, "") for it in cards}
    capable = any(it.attributes.get(constants.MIG_CAPABLE) == constants.YES for it in cards)
    return {
        f"{DOMAIN}gpu.mode": _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown",
        f"{DOMAIN}mig.capable": "true" if capable else "false",
        f"{DOMAIN}mps.capable": "false",
    }


def _whole(shares: Mapping[str, Shares], cards: Sequence[Device]) -> Labels:
    """The labels of `nvidia.com/gpu` for whole cards. Only cards with MIG off have replicas."""
    whole = [it for it in cards if not constants.in_mig_mode(it)]
    counts = Counter(it.model for it in cards)
    card = _shown(whole or cards, counts)
    memory = card.memory >> 20
    return {
        **_resource(GPU, counts[card.model], shares.get(GPU) if whole else None, card.model),
        **({} if whole else {f"{GPU}.replicas": "0"}),
        **({f"{GPU}.memory": str(memory)} if memory else {}),
        **_architecture(card),
    }


def _shown(cards: Sequence[Device], counts: Mapping[str, int]) -> Device:
    """The card that the labels describe."""
    named = [it for it in cards if label_value(it.model)] or cards
    model = max((it.model for it in named), key=lambda model: counts[model])  # of equals the first
    alike = [it for it in named if it.model == model]
    return ([it for it in alike if it.fault is None] or alike)[-1]


def _architecture(card: Device) -> Labels:
    capability = _two_numbers(card.attributes.get(constants.COMPUTE_CAPABILITY, ""))
    if capability is None or not capability[0]:
        return {}
    major, minor = capability
    return {
        f"{GPU}.family": family(major, minor),
        f"{GPU}.compute.major": str(major),
        f"{GPU}.compute.minor": str(minor),
    }


def _split(
    strategy: str, shares: Mapping[str, Shares], cards: Sequence[Device], slices: Sequence[Device]
) -> Labels:
    """The labels of the MIG strategy; with `single` they replace those of the cards."""
    if strategy == "none":
        return {}
    found: Labels = {f"{DOMAIN}mig.strategy": strategy}
    profiles: dict[str, list[Device]] = {}
    for device in slices:
        profiles.setdefault(_profile(device), []).append(device)
    profiles.pop("", None)  # devices that cannot be read
    if strategy == "single":
        return found | _single(shares, cards, slices, profiles)
    for profile, alike in profiles.items():
        found |= _mig(shares, f"{DOMAIN}mig-{profile}", profile, alike)
    return found


def _single(
    shares: Mapping[str, Shares],
    cards: Sequence[Device],
    slices: Sequence[Device],
    profiles: Mapping[str, Sequence[Device]],
) -> Labels:
    split = [it for it in cards if constants.in_mig_mode(it)]
    if not split:
        return {}
    parents = {it.parent for it in slices}
    if len(profiles) != 1 or not all(it.uuid in parents for it in cards):
        return _invalid(split[0])
    ((profile, alike),) = profiles.items()
    return _mig(shares, GPU, profile, alike)


def _mig(shares: Mapping[str, Shares], name: str, profile: str, alike: Sequence[Device]) -> Labels:
    """The labels of MIG devices of one profile; properties are those of the first that can be read."""
    shown = next((it for it in alike if it.fault is None), alike[0])
    attributes = {key: shown.attributes[key] for key in _MIG_ATTRIBUTES if key in shown.attributes}
    return {
        **_resource(name, len(alike), shares.get(name), shown.model, "MIG", profile),
        f"{name}.memory": str(shown.memory >> 20),
        **{f"{name}.{key.replace('-', '.')}": label_value(text) for key, text in attributes.items()},
    }


def _invalid(card: Device) -> Labels:
    """The labels that GFD writes where the strategy `single` does not fit the node."""
    return {
        f"{GPU}.product": _product(card.model, "MIG", "INVALID"),
        f"{GPU}.count": "0",
        f"{GPU}.replicas": "0",
        f"{GPU}.sharing-strategy": "",
        f"{GPU}.memory": "0",
    }


def _resource(name: str, count: int, shared: Shares | None, *product: str) -> Labels:
    """The labels of every resource. The product has SHARED in its name unless the resource was renamed."""
    marks = ("SHARED",) if shared and not shared.renamed else ()
    return {
        f"{name}.product": _product(*product, *marks),
        f"{name}.count": str(count),
        f"{name}.replicas": str(shared.replicas if shared else 1),
        f"{name}.sharing-strategy": "time-slicing" if shared else "none",
    }


def _product(model: str, *rest: str) -> str:
    """The parts as one value. Where they are too long the model is cut: the rest tells nodes apart."""
    following = "-".join(rest)
    room = LABEL_LIMIT - len(following) - bool(rest)
    return "-".join(filter(None, (label_value(model, room), following)))


def _shares(options: Options, rules: Sequence[ResourceRule]) -> Mapping[str, Shares]:
    """How each resource is shared. GFD takes the first entry of a resource, whatever its `devices` are.

    GFD does not look at `rename` either (api/config/v1/config.go, DisableResourceNamingInConfig).
    """
    found: dict[str, Shares] = {}
    if not rules:
        renamed = options.time_slicing.rename_by_default
        for replicated in options.time_slicing.entries:
            found.setdefault(replicated.resource, Shares(replicated.replicas, renamed))
    for rule in rules:
        if rule.sharing.kind == "replicas":
            # A name that is no MIG resource is another name of whole cards.
            name = rule.name if rule.name.startswith(f"{DOMAIN}mig-") else GPU
            found.setdefault(name, Shares(rule.sharing.replicas, rule.name != name))
    return found


def _profile(device: Device) -> str:
    """The MIG profile as resources have it: 1g.10gb+me is 1g.10gb.me."""
    return label_value(device.attributes.get(constants.MIG_PROFILE, "").replace("+", "."), _PROFILE_LIMIT)


def _fabric(cards: Sequence[Device]) -> Labels:
    """The NVLink domain and clique, where all cards with one have the same."""
    cliques = {it.attributes[constants.FABRIC] for it in cards if it.attributes.get(constants.FABRIC)}
    return {f"{DOMAIN}gpu.clique": label_value(cliques.pop())} if len(cliques) == 1 else {}


def _vgpu(cards: Sequence[Device]) -> Labels:
    """Whether the cards are vGPUs of a host, and the version of the host's driver."""
    host = next((it.attributes for it in cards if constants.VGPU_DRIVER_VERSION in it.attributes), None)
    if host is None:
        return {f"{DOMAIN}vgpu.present": "false"}
    return {
        f"{DOMAIN}vgpu.present": "true",
        f"{DOMAIN}vgpu.host-driver-version": label_value(host[constants.VGPU_DRIVER_VERSION]),
        f"{DOMAIN}vgpu.host-driver-branch": label_value(host.get(constants.VGPU_DRIVER_BRANCH, "")),
    }


def _two_numbers(text: str) -> tuple[int, int] | None:
    found = _TWO_NUMBERS.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None
