"""The section `vendors` of the chart's values, made of the preset in each vendor's folder."""

from __future__ import annotations

import re

from pages.sources import ROOT

#: The chart's own values, with a section that these functions write.
VALUES = ROOT / "deploy/chart/xpu-agent/values.yaml"
#: The name of a preset in a vendor's folder: values of the chart, with the section `vendors` alone.
PRESET = "chart_values.yaml"
_HEAD = "vendors:\n"
_SECTION = re.compile(rf"^{_HEAD}(?P<vendors>(?:  .*\n)+)", re.MULTILINE)
_NAME = re.compile(r"^  (?P<name>[a-z0-9-]+):", re.MULTILINE)


def with_presets(values: str) -> str:
    """The values with a new section `vendors`. The vendors keep their order; new vendors come last."""
    return _SECTION.sub(lambda section: _HEAD + _vendors(section["vendors"]), values)


def _vendors(before: str) -> str:
    folders = sorted(it.parent.name for it in (ROOT / "agent/vendors").glob(f"*/{PRESET}"))
    present = [it for it in _NAME.findall(before) if it in folders]
    return "".join(map(_preset, dict.fromkeys((*present, *folders))))


def _preset(vendor: str) -> str:
    """The vendor's preset, without the line that begins the section."""
    return (ROOT / "agent/vendors" / vendor / PRESET).read_text().removeprefix(_HEAD)
