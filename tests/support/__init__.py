"""What tests of all rooms share."""
