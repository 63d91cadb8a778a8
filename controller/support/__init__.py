"""What a controller tells for a bug report: listed field by field, nothing that others wrote."""
