"""Acme's scheduler, for xpu-agent."""
