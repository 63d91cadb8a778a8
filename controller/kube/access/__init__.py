"""What the API server says about callers: whose token it is, and what they may do."""
