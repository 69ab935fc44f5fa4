"""Views over HTTP: probes, metrics and the whole picture; and an operator's words over the admin socket.

Imported after the first registration.
"""

from __future__ import annotations

from agent.http.http_errors import CannotServe
from agent.http.serve_loop import serve, serving

__all__ = ["CannotServe", "serve", "serving"]
