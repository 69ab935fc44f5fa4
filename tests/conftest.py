"""What all tests share: property tests that are quick and say the same on every run."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile("campaign", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
