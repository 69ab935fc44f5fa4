"""The doctor's patient, for the checks of Koordinator."""

from __future__ import annotations

from doctor.conftest import patient

__all__ = ["patient"]
