"""Text for people and programs: terminals, tables, JSON, help."""
