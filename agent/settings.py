"""The agent's settings, where the agent's own code looks for them."""

from gpuwarden.settings.agent import AgentListenSettings, AgentSection, AgentSettings

__all__ = ["AgentListenSettings", "AgentSection", "AgentSettings"]
