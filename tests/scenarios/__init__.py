"""The agent from the hardware to the kubelet, scenario by scenario, with every kubelet that can show it."""
