"""What else the agent claims: facts of the host, allocations, and the pods of GPU processes."""
