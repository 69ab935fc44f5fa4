"""What Koordinator is told, and what its scheduler says."""
