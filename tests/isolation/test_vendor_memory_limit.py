"""How much memory a vendor's process may have, and what happens beyond."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import VendorError
from agent.isolation import vendor_memory_limit
from agent.isolation.agent_memory_limit import memory_limit
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_memory_limit import MemoryLimit

from .rig import Recorder, serving

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "used", "told"),
    [
        (64 * MIB, 64 * MIB, ""),
        (64 * MIB, 65 * MIB, "used 65 MiB of memory, the key is 64 MiB"),
        (0, 1 << 50, ""),
    ],
)
def test_more_than_the_limit_is_said_with_both_figures(size: int, used: int, told: str) -> None:
    assert MemoryLimit(size, "the key").excess(used) == told


def test_no_limit_is_no_wall_either() -> None:
    assert (MemoryLimit(0).wall, MemoryLimit(1).wall) == (0, 1 + vendor_memory_limit.ADDRESS_ROOM_BYTES)


SIZES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]), st.just(0) | st.integers(64 << 20, 1 << 40), min_size=1
)


@given(sizes=SIZES, of=st.integers(1 << 20, 1 << 40))
def test_what_all_vendors_and_the_agent_may_have_lies_below_the_limit_of_their_container(
    sizes: Mapping[str, int], of: int
) -> None:
    found = vendor_memory_limit.limits(sizes, of)

    assert sum(it.wall for it in found.values()) + min(vendor_memory_limit.AGENT_BYTES, of // 2) <= of
    assert found.keys() == sizes.keys()
    for name, limit in found.items():
        assert 0 < limit.bound < limit.wall
        assert not sizes[name] or limit.bound <= sizes[name]


@given(sizes=SIZES)
def test_without_a_limit_of_their_container_vendors_may_have_what_the_config_says(
    sizes: Mapping[str, int],
) -> None:
    assert {name: it.bound for name, it in vendor_memory_limit.limits(sizes, 0).items()} == sizes


@given(sizes=SIZES)
def test_a_container_with_room_for_all_changes_nothing(sizes: Mapping[str, int]) -> None:
    sizes = {name: size for name, size in sizes.items() if size}
    found = vendor_memory_limit.limits(sizes, 1 << 50)

    alone = vendor_memory_limit.limits(sizes, 0)
    assert {name: (it.bound, it.wall, str(it)) for name, it in found.items()} == {
        name: (it.bound, it.wall, str(it)) for name, it in alone.items()
    }


@given(before=SIZES, sizes=SIZES, of=st.integers(1 << 20, 1 << 40))
def test_a_running_process_keeps_its_limit_unless_all_do_not_fit_and_it_has_more_than_its_part(
    before: Mapping[str, int], sizes: Mapping[str, int], of: int
) -> None:
    sizes = {name: before.get(name, size) for name, size in sizes.items()}
    kept = vendor_memory_limit.limits(before, of)
    new, found = vendor_memory_limit.limits(sizes, of), vendor_memory_limit.limits(sizes, of, kept)

    left = of - min(vendor_memory_limit.AGENT_BYTES, of // 2)
    assert found.keys() == sizes.keys()
    assert sum(it.wall for it in found.values()) <= left
    mixed = {**new, **{name: it for name, it in kept.items() if name in sizes}}
    fits = sum(it.wall for it in mixed.values()) <= left
    for name in kept.keys() & sizes.keys():
        assert (found[name] == kept[name]) is (fits or kept[name].wall <= new[name].wall)
    if sizes.keys() <= before.keys():
        assert found == {name: kept[name] for name in sizes}  # who leaves makes nobody start anew


def test_who_may_have_little_leaves_more_to_the_others() -> None:
    none = vendor_memory_limit.ADDRESS_ROOM_BYTES
    found = vendor_memory_limit.limits({"little": 64 * MIB, "much": 1 << 40, "any": 0}, 10 << 30)

    assert found["little"].wall == 64 * MIB + none
    assert (
        found["much"].wall
        == found["any"].wall
        == ((10 << 30) - vendor_memory_limit.AGENT_BYTES - 64 * MIB - none) // 2
    )


async def test_a_library_that_allocates_without_end_costs_its_process_before_its_container_is_full(
    sink: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text(f"{512 * MIB}\n")
    (tmp_path / "own").write_text("0::/\n")
    limit = vendor_memory_limit.limits({"acme": 0}, memory_limit(tmp_path, tmp_path / "own"))["acme"]
    async with serving(sink, does={"discover": "leak_for_ever"}, memory_limit=limit) as process:
        await sink.until(lambda: sink.losses)

        told = "its part of the container's limit of 512 MiB is 205 MiB (vendors.acme.memoryLimit is none)"
        assert sink.losses[0][1].endswith(told)
        assert process.status.memory_limit == limit.bound
    assert limit.wall + vendor_memory_limit.AGENT_BYTES <= 512 * MIB


def test_what_a_process_has_of_its_own_is_read_and_grows() -> None:
    code = "import sys; input(); x = b'x' * (64 << 20); print(); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = vendor_memory_limit.used(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()

        assert 64 * MIB <= vendor_memory_limit.used(process.pid) - before <= 96 * MIB
        process.kill()
    assert vendor_memory_limit.used(process.pid) == 0


async def test_a_library_that_leaks_is_killed_told_and_replaced(sink: Recorder) -> None:
    async with serving(sink, does={"discover": "leak"}, memory_limit=128 * MIB) as process:
        await sink.until(lambda: sink.losses)
        first = process.status
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)

        reason = sink.losses[0][1]
        assert reason.startswith("used ")
        assert reason.endswith(" MiB of memory, vendors.acme.memoryLimit is 128 MiB")
        assert 128 <= int(reason.split()[1]) < 512  # in whole MiB
        assert first.restarts == 1


async def test_a_library_that_leaks_in_no_call_of_ours_is_noticed_too(sink: Recorder) -> None:
    short = Deadlines(close=0.01)
    async with serving(sink, deadlines=short, does={"open": "leak_and_hang"}, memory_limit=64 * MIB):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1].endswith("vendors.acme.memoryLimit is 64 MiB")


async def test_without_a_limit_a_process_may_have_what_it_wants(sink: Recorder) -> None:
    async with serving(sink, does={"discover": "leak"}) as process:
        await sink.until(lambda: process.status.memory > 128 * MIB)

        assert sink.losses == []


@pytest.mark.parametrize("call", ["open", "discover"])
async def test_a_leap_beyond_the_limit_is_refused_by_the_kernel_and_the_limit_named(
    call: str, sink: Recorder
) -> None:
    async with serving(sink, does={call: "leap"}, memory_limit=1024 * MIB):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1] == f"{call} failed: MemoryError, vendors.acme.memoryLimit is 1024 MiB"


async def test_a_call_that_wants_too_much_memory_costs_its_caller_only_the_answer(sink: Recorder) -> None:
    async with serving(sink, does={"partitions": "leap"}, memory_limit=1024 * MIB) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorError, match="acme: partitions: MemoryError"):
            await process.call("partitions")

        assert await process.call("release", "a") is None


async def test_a_library_that_crashes_for_want_of_memory_is_told_with_what_it_had(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        vendor_memory_limit, "ADDRESS_ROOM_BYTES", 64 * MIB
    )  # as little of the machine as may be
    does = {"discover": "leak_and_segfault"}
    async with serving(sink, does=does, memory_limit=512 * MIB, every=100):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1].endswith(" MiB of memory, vendors.acme.memoryLimit is 512 MiB")


async def test_a_process_within_its_limit_reserves_far_more_addresses_than_it_uses(sink: Recorder) -> None:
    """CUDA does; a limit of addresses (RLIMIT_AS) would keep it from starting."""
    async with serving(sink, does={"open": "reserve"}, memory_limit=64 * MIB):
        await sink.until(lambda: sink.lists)

        assert sink.losses == []


async def test_what_the_agent_has_is_not_held_against_a_process_that_crashes(sink: Recorder) -> None:
    """The peak of a process begins with that of the one that started it (exec(2) keeps it)."""
    kept = b"x" * (256 * MIB)
    async with serving(sink, does={"discover": "segfault"}, memory_limit=64 * MIB):
        await sink.until(lambda: sink.losses)

    assert sink.losses[0][1] == "killed by SIGSEGV"
    assert len(kept) == 256 * MIB
