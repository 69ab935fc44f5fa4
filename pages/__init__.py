"""What docs/ says of the code, made from the code: `python -m pages` writes it anew."""
