"""Modules that both halves of the vendor import; standard library alone, because `child` loads them."""
