"""A vendor's process: `child` is its loop, `supervisor` the agent's side. Empty, for the child imports it."""
