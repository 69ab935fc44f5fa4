"""Holds tests to directories of their own: what the agent uses by default on a machine is refused to them."""
