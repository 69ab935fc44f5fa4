"""Figures as the documents show them: rounded, and finite."""

from __future__ import annotations

import math


def rounded(figure: float | None) -> float | None:
    """Four digits are enough; JSON has no infinity."""
    return round(figure, 4) if figure is not None and math.isfinite(figure) else None


def seconds_since(moment: float | None, now: float) -> float | None:
    """Seconds from a Unix time to another one; None where the first is not known."""
    return None if moment is None else rounded(max(0.0, now - moment))
