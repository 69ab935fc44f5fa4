"""What keeps Koordinator from knowing the cards of this node, and this node from heeding its choice."""

from __future__ import annotations
