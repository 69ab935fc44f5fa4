"""The bench: measures the agent, or a rival, at the wires of the real peers. Run as `python -m bench`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The peers and the stub of NVML are the tests' own; they are no packages that could be installed.
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "vendors" / "nvidia")]
