"""Rules of the chart's section `vendors`, which is made of the presets in the vendors' folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pages.chart_presets import PRESET, VALUES, with_presets
from pages.sources import ROOT

PRESETS = sorted((ROOT / "agent/vendors").glob(f"*/{PRESET}"))
ACME = ROOT / "docs/examples/vendor/acme_xpu" / PRESET


def test_the_chart_has_the_presets_of_the_vendors() -> None:
    assert with_presets(VALUES.read_text()) == VALUES.read_text(), "run `make pages`"


def test_a_changed_preset_reaches_the_chart_in_the_place_of_the_old_one() -> None:
    text = VALUES.read_text()

    assert with_presets(text.replace("libraries: [/opt/mxdriver]", "libraries: []")) == text


@pytest.mark.parametrize("preset", [*PRESETS, ACME], ids=lambda preset: preset.parent.name)
def test_a_preset_holds_values_of_its_own_vendor_alone(preset: Path) -> None:
    values = yaml.safe_load(preset.read_text())

    assert list(values) == ["vendors"]
    assert list(values["vendors"]) == [preset.parent.name.removesuffix("_xpu")]
