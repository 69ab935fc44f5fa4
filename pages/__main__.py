"""`python -m pages`: writes the made parts of docs/ anew, and says which pages changed."""

from __future__ import annotations

from pages.made import PAGES, made
from pages.sources import ROOT

for page in PAGES:
    before = page.read_text()
    if (after := made(before)) != before:
        page.write_text(after)
        print(page.relative_to(ROOT))
