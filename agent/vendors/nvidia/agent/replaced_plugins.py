"""Which cards the answer of another device plugin names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from agent.vendor_api.agent import ContainerEdits
from agent.vendor_api.backend import Device
from agent.vendors.nvidia.shared import constants

from .container_edits import MOUNTED_LIST, VISIBLE_DEVICES

#: Values of the variable that name no card; NVIDIA's runtime takes the first three for none.
NONE = ("", "none", "void", MOUNTED_LIST)
#: The kinds of cards' CDI devices: in the specs that plugins make, and in those of NVIDIA's toolkit.
CDI = (f"{constants.CDI_VENDOR}/{constants.CDI_GPU}", "nvidia.com/gpu")


def cards_of_answer(answer: ContainerEdits, devices: Sequence[Device]) -> tuple[str, ...] | None:
    """The uuids that the variable, the mounted list or CDI names have; None where there is none of these.

    NVIDIA's plugin, HAMi's and gpu-manager all write the variable: uuids, or indices as the runtime counts
    (k8s-device-plugin v0.20, internal/plugin/server.go; gpu-manager v1.1.5, pkg/services/allocator/nvidia).
    Names of cards that are not on this node are left out.
    """
    named = list(_names(answer))
    if not named:
        return None
    known = {name: device.uuid for device in devices for name in (constants.index_of(device), device.uuid)}
    cards = [it.uuid for it in devices if it.parent is None]
    cards_by_name = (
        cards if name == "all" else [known[name]] for name in named if name in known or name == "all"
    )
    return tuple(dict.fromkeys(chain.from_iterable(cards_by_name)))


def _names(answer: ContainerEdits) -> Iterator[str]:
    value = answer.env.get(VISIBLE_DEVICES, "")
    if value not in NONE:
        yield from value.split(",")
    directory = f"{MOUNTED_LIST}/"
    yield from (it.path.removeprefix(directory) for it in answer.mounts if it.path.startswith(directory))
    names = (*answer.cdi_devices, *(name for text in answer.annotations.values() for name in text.split(",")))
    yield from (it.partition("=")[2] for it in names if it.partition("=")[0] in CDI)
