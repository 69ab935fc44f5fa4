"""`python -m pages`: writes the made parts of docs/ and of the chart anew, and says which files changed."""

from __future__ import annotations

from pages.chart_presets import VALUES, with_presets
from pages.made import PAGES, made
from pages.sources import ROOT

for page, make in (*((page, made) for page in PAGES), (VALUES, with_presets)):
    before = page.read_text()
    if (after := make(before)) != before:
        page.write_text(after)
        print(page.relative_to(ROOT))
