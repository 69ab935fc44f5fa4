"""`xpu-agent doctor`: finds what keeps this node, or this cluster, from giving out its cards.

It only reads.
"""

from __future__ import annotations
