"""What the node, its pods and its schedulers are to be told: config, devices and allocations in."""
