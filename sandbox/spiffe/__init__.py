"""A throwaway SPIFFE trust domain for the laptop and for tests; never in an image."""
