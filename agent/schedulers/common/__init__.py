"""What several schedulers have in common: how pods ask for parts of cards, and how these are counted."""
