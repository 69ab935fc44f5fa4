"""docs/vendors.md has a place for each fact: a check that there is, a test, or why it cannot happen."""

from __future__ import annotations

import re

import pytest

from agent.testing.conformance import CHECKS
from pages.sources import ROOT

PAGE = (ROOT / "docs/vendors.md").read_text()
ROWS = dict(re.findall(r"^\| (D\d+): (.*) \|$", PAGE, re.MULTILINE))
WORDS = {str(it.__doc__).strip().rstrip(".").replace("`", "") for it in CHECKS}


def test_every_fact_has_a_row() -> None:
    assert list(ROWS) == [f"D{number}" for number in range(1, 29)]


@pytest.mark.parametrize("fact", ROWS)
def test_every_fact_has_its_place(fact: str) -> None:
    _, here, held = ROWS[fact].split(" | ")
    tests = re.findall(r"`[a-z0-9]+(?:_[a-z0-9]+){2,}`", held)
    left = re.sub(r"`[a-z0-9]+(?:_[a-z0-9]+){2,}`", "", held).replace("`", "")
    checks = {it for it in WORDS if it in left}

    assert tests or checks or here.startswith("Cannot happen: ")
    for it in checks:
        left = left.replace(it, "")
    assert not left.strip(" ,;"), f"no check of the kit says: {left}"
