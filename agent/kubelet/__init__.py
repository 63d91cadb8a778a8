"""kubelet's account of who was given which device (PodResources API)."""
