"""pluggy's markers of the hooks of both doors. Plugins import `hookimpl` from the hooks of their door."""

from __future__ import annotations

import pluggy

PROJECT = "xpu_agent"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
