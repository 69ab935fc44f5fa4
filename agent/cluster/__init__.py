"""Everything spoken with the API server; the one door to kubernetes-asyncio."""
