"""Ring 3: a real node with Kubernetes, containerd, our image and our chart. `make cluster-test` runs it."""
