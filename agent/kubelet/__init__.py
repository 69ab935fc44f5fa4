"""Everything spoken with, or read from, the kubelet."""
