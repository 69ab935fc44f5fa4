"""Vendors, one folder each; they know `agent.core`, and nothing of each other or of Kubernetes."""
