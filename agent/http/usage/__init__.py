"""The use of cards for people and monitoring: the series of /metrics and the document of /inspect/usage."""
