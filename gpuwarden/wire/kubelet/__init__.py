"""Generated from proto/gpuwarden/wire/kubelet: the part of kubelet's APIs that the agent calls."""
