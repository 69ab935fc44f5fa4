"""The rules, one file for each module of agent/core."""
