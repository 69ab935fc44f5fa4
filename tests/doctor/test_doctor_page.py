"""docs/doctor.md shows the JSON as it is; its tables tests/docs/test_pages.py looks at."""

from __future__ import annotations

import json
import re
from pathlib import Path

from agent.doctor.findings_output import document
from agent.scheduler_api.findings import Finding, Severity

PAGE = Path(__file__).parents[2] / "docs/doctor.md"


def test_the_page_shows_the_shape_of_the_json() -> None:
    shown = json.loads(re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])

    made = document("n", "1", [Finding("kubelet", Severity.STOPS, "x")])

    assert list(shown) == list(made)
    assert list(shown["counts"]) == list(made["counts"])
    assert list(shown["findings"][0]) == list(made["findings"][0])
