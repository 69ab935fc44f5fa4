"""Ring 3: Kubernetes, containerd, our image and our chart on a real node. `make cluster-test` runs the scenarios."""
