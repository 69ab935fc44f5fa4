"""Code of several schedulers: how pods ask for parts of cards, and how these parts are counted."""
