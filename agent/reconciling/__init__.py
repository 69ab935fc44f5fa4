"""Keeps what the agent knows of its allocations true: by what others say of them, again and again."""
