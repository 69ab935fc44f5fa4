"""`xpu-agent doctor`: what keeps this node, or this cluster, from giving out its cards; read-only."""

from __future__ import annotations
