"""What lies on a card, as the agent's half reads it."""

from __future__ import annotations

from agent.vendors.metax.layouts import Found, Layout, attributes
from agent.vendors.metax.values import Quota, Sgpu


def found(number: int, memory: int, compute: int, allocation: str | None) -> Found:
    sgpu = Sgpu(card=0, id=number, uuid=f"s{number}", minor=number, vram=memory, compute=compute)
    return Found("GPU-0", sgpu, allocation)


def test_ours_and_others_are_counted_apart() -> None:
    its = (found(0, 1024, 10, "a"), found(1, 2048, 20, None), found(2, 4096, 5, "b"))
    said = attributes(Layout(its, Quota(total_vram=65536, free_vram=58368, free_compute=65)))
    assert said["own-slices"] == "a:10:1024,b:5:4096"
    assert [said[f"foreign-{it}"] for it in ("slices", "compute", "memory")] == ["1", "20", "2048"]


def test_of_what_there_is_nothing_is_said_nothing() -> None:
    said = attributes(Layout((), Quota(total_vram=65536, free_vram=65536, free_compute=100)))
    assert not [it for it in said if it.startswith(("own-", "foreign-"))]
