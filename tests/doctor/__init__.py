"""A whole node with an API server, which tests break in every way that the doctor knows."""
