"""Each format's way into the next, on documents as JSON has them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from agent.state.file_formats import FORMAT, MIGRATIONS, migrated

OLD = json.loads((Path(__file__).parent / "data" / "format-1.json").read_bytes())["data"]


def test_every_older_format_has_a_way_into_the_next() -> None:
    assert sorted(MIGRATIONS) == list(range(1, FORMAT))


def test_format_2_has_what_format_1_had_but_for_what_it_proves_in_another_way() -> None:
    expected = copy.deepcopy(OLD)
    for it in expected["allocations"]:
        del it["seen_alive"]

    assert MIGRATIONS[1](OLD) == expected


def test_a_document_without_allocations_is_one_with_none() -> None:
    assert MIGRATIONS[1]({"boot_id": "3f0c"}) == {"boot_id": "3f0c", "allocations": []}


def test_todays_document_stays_as_it_is() -> None:
    assert migrated(OLD, FORMAT) is OLD
