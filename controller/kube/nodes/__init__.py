"""The nodes of the cluster, and the labels that gpuwarden writes on them."""
