"""Nodes as the most careless vendors tell of them, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.core.model import Cordon, DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.vendor_api.agent import Device, Link, State

#: Anything that a Python string can hold, lone surrogates too.
_TEXTS = st.text(st.characters(), max_size=12)
_UUIDS = [f"GPU-{index}" for index in range(5)]
_LINKS = st.builds(Link, peer=st.sampled_from(_UUIDS), lanes=st.integers(-1, 4))
_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["pcie-root", "driver-version", "architecture", "compute-capability"]), _TEXTS
)


def _device(uuid: str) -> st.SearchStrategy[Device]:
    return st.builds(
        Device,
        uuid=st.just(uuid),
        index=st.integers(-1, 80),
        minor=st.none() | st.integers(-1, 80),
        pci=st.none() | st.just("0000:3b:00.0"),
        numa=st.none() | st.integers(0, 3),
        memory=st.sampled_from([0, 1, 80 << 30, (1 << 60) - 1]),
        model=_TEXTS,
        links=st.lists(_LINKS, max_size=4).map(tuple),
        attributes=_ATTRIBUTES,
        parent=st.none() | st.sampled_from(_UUIDS),
        nameless=st.booleans(),
    )


def _status(uuid: str) -> st.SearchStrategy[DeviceStatus]:
    health = st.builds(Health, st.sampled_from(list(State)), _TEXTS, _TEXTS)
    cordon = st.none() | st.builds(Cordon, author=_TEXTS, reason=_TEXTS)
    vendor = st.sampled_from(["metax", "nvidia"])
    return st.builds(DeviceStatus, vendor, _device(uuid), health, st.booleans(), cordon=cordon)


@st.composite
def snapshots(draw: st.DrawFn) -> NodeSnapshot:
    uuids = draw(st.lists(st.sampled_from(_UUIDS), unique=True))
    devices = tuple(draw(_status(uuid)) for uuid in uuids)
    states = st.sampled_from([VendorState.OPEN, VendorState.FAILED, VendorState.UNAVAILABLE])
    vendors = tuple(VendorStatus(name, draw(states), draw(_TEXTS)) for name in ("metax", "nvidia"))
    return NodeSnapshot(vendors, devices)
