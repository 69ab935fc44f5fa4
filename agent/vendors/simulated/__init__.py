"""The simulated vendor: devices and faults come from a file. For tests, demos and newcomers."""
