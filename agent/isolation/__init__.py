"""A vendor's process: `child` runs in it, `supervisor` in the agent. Empty, because the child imports it."""
