"""Enflame GCU cards through EFML and efsmi."""
