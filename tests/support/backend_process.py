"""A vendor's backend in a process of its own, for tests in which the process dies in the middle of a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Backend

_RUN = """
import importlib, json, sys
from pathlib import Path
from agent.vendor_api.agent import Request
module, name, settings, directory, call, arguments = json.loads(sys.argv[1])
backend = getattr(importlib.import_module(module), name)(settings)
backend.directory = Path(directory)
backend.open()
backend.discover()
if call == "prepare":
    request, uuids = arguments
    backend.prepare(Request(**request), uuids)
else:
    getattr(backend, call)(*arguments)
"""


def ended(
    backend: type[Backend],
    settings: Mapping[str, Any],
    directory: Path,
    environment: Mapping[str, str],
    call: str,
    arguments: Sequence[Any],
) -> int:
    """Open the backend, let it discover its cards and make the call; returns how the process ended."""
    said = json.dumps([backend.__module__, backend.__name__, settings, str(directory), call, arguments])
    done = subprocess.run(
        [sys.executable, "-c", _RUN, said],
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    return done.returncode
