"""Checks of what keeps Koordinator from the cards of a node, and the node from Koordinator's choice."""

from __future__ import annotations
