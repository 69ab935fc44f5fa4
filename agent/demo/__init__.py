"""A scripted day of the agent on an embedded node, for newcomers and as the smoke test."""
