"""The half of Acme in the agent: pure functions."""
