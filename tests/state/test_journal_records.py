"""The format of the journal: what was appended is replayed, and what is torn or damaged is left out."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.core.allocation.ledger_change import LedgerChange
from agent.core.model import Allocation, AllocationState, Owner
from agent.state import journal_records
from agent.state.file_envelope import Unusable, Why
from agent.state.journal_records import JournalEnd, Replay, header_line, lines, replayed

CHECKPOINT, ANOTHER = "sha256:aa", "sha256:bb"
OLD = Allocation("old", "example.com/x", "acme", ("a::0",), ("a",), AllocationState.DONE, 1.0)
NEW = replace(OLD, id="new", ids=("a::1",), since=2.0)
OWNED = replace(NEW, owner=Owner("uid-1", "main", "default", "web-0"), life="1-2")
GONE = replace(OLD, state=AllocationState.RELEASED, since=3.0, reason="its pod is gone")
HISTORY = (
    LedgerChange("new", None, NEW),
    LedgerChange("new", NEW, OWNED),
    LedgerChange("old", OLD, GONE, is_moved=True),
    LedgerChange("new", OWNED, None),
)
#: The allocations after each of these changes.
STATES = ((OLD,), (OLD, NEW), (OLD, OWNED), (OWNED, GONE), (GONE,))


def journal(*changes: LedgerChange, continues: str = CHECKPOINT, folded: str = "") -> bytes:
    payloads = [journal_records.header(continues), *map(journal_records.change, changes)]
    payloads += [journal_records.folded(folded)] if folded else []
    return lines(payloads, JournalEnd())[0]


def replay(content: bytes) -> Replay:
    return replayed(content, CHECKPOINT, [OLD])


def refused(content: bytes) -> tuple[Why, str]:
    with pytest.raises(Unusable) as refusal:
        replay(content)
    return refusal.value.why, str(refusal.value)


def test_the_changes_are_replayed_in_order() -> None:
    for count in range(len(HISTORY) + 1):
        found = replay(journal(*HISTORY[:count]))

        assert (found.allocations, found.changes, found.damage) == (STATES[count], count, "")


def test_a_confirmation_is_short_though_the_allocation_is_long() -> None:
    ids = tuple(f"a::{n}" for n in range(1000))
    long = replace(NEW, ids=ids, devices=("a",) * 1000)

    change = LedgerChange("new", long, replace(long, owner=OWNED.owner))

    assert len(journal_records.change(change)) < 200


@given(st.none() | strategies.allocations, strategies.allocations, st.booleans())
def test_any_change_is_replayed_as_it_was(before: Allocation | None, after: Allocation, moved: bool) -> None:
    before = before and replace(before, id=after.id)
    known = [] if before is None else [before]

    content = journal(LedgerChange(after.id, before, after, moved))

    assert replayed(content, CHECKPOINT, known).allocations == (after,)


def test_a_journal_that_is_cut_at_any_byte_has_all_changes_before_the_cut() -> None:
    content = journal(*HISTORY)

    for length in range(len(content) + 1):
        whole = content[:length].count(b"\n")
        found = replay(content[:length])
        assert found.allocations == STATES[max(whole - 1, 0)]
        assert (found.damage, found.end.size) == ("", len(b"".join(content.splitlines(True)[:whole])))


@given(st.lists(st.sampled_from(HISTORY)), st.floats(0, 1))
def test_any_history_that_is_cut_at_any_byte_has_all_changes_before_the_cut(
    history: list[LedgerChange], share: float
) -> None:
    # The changes need not follow from each other: what is asked is how many count.
    content = journal(*history)
    cut = content[: round(share * len(content))]
    whole = max(cut.count(b"\n") - 1, 0)

    assert replay(cut).allocations == replay(journal(*history[:whole])).allocations


def test_zeros_at_the_end_are_an_incomplete_line() -> None:
    """A power cut can leave them where the size of a file was on disk before its content."""
    found = replay(journal(*HISTORY[:1]) + bytes(512))

    assert (found.allocations, found.damage) == (STATES[1], "")


def test_any_bit_that_is_another_one_costs_its_line_and_those_after_and_no_earlier_one() -> None:
    content = journal(*HISTORY)
    starts = [sum(map(len, content.splitlines(True)[:n])) for n in range(len(HISTORY) + 2)]

    for at in range(starts[1], len(content) - 1):
        spoilt = bytearray(content)
        spoilt[at] ^= 1
        line = sum(start <= at for start in starts) - 1  # the header is line 0
        found = replay(bytes(spoilt))
        assert found.allocations == STATES[line - 1]
        assert found.damage.startswith(f"line {line + 1} was torn or edited (")
        assert found.end.size == starts[line]


@pytest.mark.parametrize("line", range(1, len(HISTORY)))
def test_a_line_that_is_lost_or_doubled_shows(line: int) -> None:
    content = journal(*HISTORY).splitlines(True)

    for spoilt in (
        [*content[:line], *content[line + 1 :]],
        [*content[:line], content[line], *content[line:]],
    ):
        assert replay(b"".join(spoilt)).damage


def test_a_sound_line_that_makes_no_sense_is_damage() -> None:
    header = journal_records.header(CHECKPOINT)
    for payload in (b"{}", b"[]", b'{"what":"changed","id":"x"}', b'{"what":"gone","id":7}'):
        found = replay(lines([header, payload], JournalEnd())[0])

        assert found.allocations == (OLD,)
        assert found.damage.startswith("line 2 was torn or edited (")


def test_what_a_damaged_line_says_is_fit_for_a_log_line() -> None:
    payload = b'{"what":"\\u0003%s"}' % (b"x" * 1000)

    damage = replay(lines([journal_records.header(CHECKPOINT), payload], JournalEnd())[0]).damage

    assert damage.isprintable()
    assert len(damage) < 300


def test_a_journal_of_another_checkpoint_is_not_replayed() -> None:
    content = journal(*HISTORY, continues=ANOTHER)

    assert refused(content) == ("foreign", "it continues another checkpoint")
    assert refused(content[:-9]) == ("foreign", "it continues another checkpoint")


def test_changes_before_the_name_of_this_checkpoint_are_part_of_it() -> None:
    """The agent was killed after the checkpoint was replaced and before the journal was removed."""
    found = replay(journal(*HISTORY, continues=ANOTHER, folded=CHECKPOINT))

    assert (found.allocations, found.changes) == ((OLD,), 0)


def test_changes_after_the_name_of_another_checkpoint_count() -> None:
    """The disk did not take that checkpoint, and the agent went on."""
    content = journal(HISTORY[0], folded=ANOTHER)
    end = replay(content).end
    more, _ = lines([journal_records.change(HISTORY[1])], end)

    assert replay(content + more).allocations == (OLD, OWNED)


def test_a_journal_goes_on_where_it_ended() -> None:
    content = journal(*HISTORY[:2])
    end = replay(content).end

    more, after = lines(map(journal_records.change, HISTORY[2:]), end)

    assert content + more == journal(*HISTORY)
    assert after == replay(content + more).end


def test_a_journal_of_a_later_release_is_named_before_its_changes_are_read() -> None:
    payload = b'{"version":2,"continues":"sha256:aa","more":[1]}'
    content = b"%08x %s\nof a format to come\n" % (zlib.crc32(payload), payload)

    assert refused(content) == ("newer", "format 2, this agent reads up to 1")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bytes(512), "empty"),
        (b"garbage", "foreign"),
        (b"\n", "foreign"),
        (b"garbage\n" * 9, "foreign"),
        (header_line(CHECKPOINT).replace(b"aa", b"ab"), "corrupt"),
        (b"0" * 8 + header_line(CHECKPOINT)[8:], "corrupt"),
        (b'00000000 {"version":1', "foreign"),
        (b'00000000 {"version":1\n', "corrupt"),
        (b'00000000 {"version":\xff}\n', "corrupt"),
    ],
)
def test_what_is_no_journal_is_refused_with_its_reason(content: bytes, why: Why) -> None:
    assert refused(content)[0] == why
