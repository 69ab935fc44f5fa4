"""What goes to and fro between schedulers and who serves the kubelet: what they chose, and waiting for it."""
