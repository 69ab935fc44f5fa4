"""The simulated vendor: devices and faults from a file, for tests, demos and newcomers."""
