"""What lies on a card, as the agent's half reads it."""

from __future__ import annotations

import msgspec

from agent.isolation import vendor_answers
from agent.vendor_api.agent import Device
from agent.vendors.metax.child.layouts import Layout, SgpuSlice, attributes
from agent.vendors.metax.child.values import Sgpu, SgpuQuota


def found(number: int, memory: int, compute: int, allocation: str | None) -> SgpuSlice:
    sgpu = Sgpu(card=0, id=number, uuid=f"s{number}", minor=number, vram=memory, compute=compute)
    return SgpuSlice("GPU-0", sgpu, allocation)


def test_ours_and_others_are_counted_apart() -> None:
    its = (found(0, 1024, 10, "a"), found(1, 2048, 20, None), found(2, 4096, 5, "b"))
    said = attributes(Layout(its, SgpuQuota(total_vram=65536, free_vram=58368, free_compute=65)))
    assert [said.get(f"own-slice-{it}") for it in range(3)] == ["a:10:1024", "b:5:4096", None]
    assert [said[f"foreign-{it}"] for it in ("slices", "compute", "memory")] == ["1", "20", "2048"]


def test_of_what_there_is_nothing_is_said_nothing() -> None:
    said = attributes(Layout((), SgpuQuota(total_vram=65536, free_vram=65536, free_compute=100)))
    assert not [it for it in said if it.startswith(("own-", "foreign-"))]


def test_a_card_that_is_full_of_slices_is_an_answer_that_is_taken() -> None:
    its = tuple(found(number, 65536, 100, f"{number:016x}") for number in range(16))
    said = attributes(Layout(its, SgpuQuota(total_vram=65536, free_vram=0, free_compute=0)))
    card = Device("GPU-0", 0, None, "0000:00:00.0", 0, 64 << 30, "MXC500", attributes=said)

    (taken,) = vendor_answers.devices(msgspec.json.encode([card]))

    assert [taken.attributes[f"own-slice-{it}"].split(":")[0] for it in range(16)] == [
        f"{number:016x}" for number in range(16)
    ]
