"""Everything spoken with the API server. Only this room uses kubernetes-asyncio."""
