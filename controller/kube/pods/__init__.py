"""The pods of the cluster: read, watched, evicted, told by Events."""
