"""The half of Acme in the vendor's own process, beside the library."""
