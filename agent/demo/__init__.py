"""A day of the agent on an embedded node: what newcomers run, and what the smoke test runs."""
