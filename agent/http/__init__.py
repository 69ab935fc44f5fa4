"""HTTP: probes, metrics and /inspect for reading, and an operator's commands over the admin socket.

The agent imports this room after the first registration, which does not wait for the import.
"""

from __future__ import annotations

from agent.http.http_errors import CannotServe
from agent.http.serve_loop import serve, serving

__all__ = ["CannotServe", "serve", "serving"]
