"""Acme's cards."""
