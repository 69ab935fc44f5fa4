"""A seeded campaign of faults against the agent, with a model of the truth beside it. Not in the wheel."""
