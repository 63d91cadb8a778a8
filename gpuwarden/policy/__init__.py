"""The policy as people write it: its schema, its faults, and the selectors in it. Pure."""
