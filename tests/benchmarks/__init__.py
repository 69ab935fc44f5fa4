"""Tests of the bench's own parts. The folder is not called bench: that name is the package's."""
