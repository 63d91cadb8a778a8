"""The agent's streams: one conversation, its renewal, and one link to every controller replica."""
