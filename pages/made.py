"""The pages with their made parts."""

from __future__ import annotations

from pages import koordinator
from pages.findings import findings
from pages.keys import flag_table, key_table
from pages.metrics import metric_table
from pages.regions import rewritten
from pages.sources import ROOT, source
from pages.top_example import top_example
from pages.unserved import unserved_table
from pages.use_metrics import use_metric_table
from pages.verbs import verbs

PAGES = sorted((ROOT / "docs").rglob("*.md"))


def made(page: str) -> str:
    """The page as it has to be."""
    return rewritten(page, _part)


def _part(what: str) -> str:
    kind, _, of = what.partition(" ")
    match kind:
        case "keys":
            return "\n".join(key_table(of))
        case "flags":
            return "\n".join(flag_table())
        case "metrics":
            return "\n".join(metric_table())
        case "top":
            return "\n".join(top_example())
        case "use":
            return "\n".join(use_metric_table(of))
        case "findings":
            return "\n".join(findings())
        case "unserved":
            return "\n".join(unserved_table())
        case "verbs":
            return "\n".join(verbs())
        case "file":
            return source(of)
        case "koordinator":
            return koordinator.part(of)
    raise ValueError(
        f"nothing makes {what!r}; there are: keys PATH, flags, metrics, use [EXPORTER], top, findings, "
        "unserved, verbs, file PATH, koordinator PART"
    )
