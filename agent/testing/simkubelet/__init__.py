"""A kubelet without a node: the device manager's behaviour, quirks included, on unix sockets of its own."""
