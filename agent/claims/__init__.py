"""What else the agent claims: facts of the host, and the pods of GPU processes."""
