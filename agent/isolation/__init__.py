"""A vendor's process: `child` runs in it, `vendor_supervisor` in the agent.

Empty, because the child imports this package.
"""
