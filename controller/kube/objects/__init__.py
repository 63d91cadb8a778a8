"""Objects that the controller writes: its custom resources, Secrets and caBundles."""
