"""Wire version 1; see proto/gpuwarden/wire/v1."""
