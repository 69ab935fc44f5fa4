"""Real counterparts of the agent, built from Kubernetes' own modules, and their Python drivers."""
