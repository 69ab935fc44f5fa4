"""MetaX cards through MXSML."""
