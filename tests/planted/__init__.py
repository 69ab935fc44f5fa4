"""Planted faults: mistakes in agent/ that a user would feel, and the tests that must not pass with them.

A suite that is made shorter says as much as before if it still catches all of them.
"""
