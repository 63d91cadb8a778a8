"""The Kubernetes API as the command line reaches it: a way in, and calls."""
