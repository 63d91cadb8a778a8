"""A trust domain of real SPIRE programs: one server, and one agent for each simulated node.

Nodes attest with a certificate that names them. Who is registered, and by which programs SVIDs
are used, is for others to say.
"""

from contextlib import suppress
from typing import Any

from tests.e2e.lab.program import ProgramError, Site
from tests.e2e.lab.spire_agent import NodeCa, SpireAgent
from tests.e2e.lab.spire_server import SpireServer
from tests.e2e.lab.waiting import until

_ATTESTED_S = 60.0


class SpireDomain:
    """Programs of one site, which ends them."""

    def __init__(self, site: Site, **server: Any) -> None:
        """`server`: how the SPIRE server is to be; it is not started yet."""
        self._site = site
        self._node_ca = NodeCa(site.folder)
        self.server = SpireServer(site, node_ca=self._node_ca.pem, **server)
        self.agents: dict[str, SpireAgent] = {}
        """By node."""
        self.parents: dict[str, str] = {}
        """Node -> SPIFFE ID of its SPIRE agent."""

    def attest(self, node: str, uid: str, *, join_token: bool = False) -> SpireAgent:
        """Start a SPIRE agent for the node; `parents` knows it afterwards."""
        before = set(self.server.agents())
        certificate = None if join_token else self._node_ca.issue(node, uid)
        token = self.server.join_token() if join_token else ""
        agent = SpireAgent(
            self._site, self.server, f"spire-{node}", certificate=certificate, join_token=token
        )
        agent.start()
        (self.parents[node],) = set(self.server.agents()) - before
        self.agents[node] = agent
        return agent

    def readmit(self, node: str) -> None:
        """Lift the ban of the node's SPIRE agent: it attests again, with the same certificate.

        An agent that finds out that it is not known any more drops its SVID and ends; whoever
        supervises it starts it again.
        """
        agent = self.agents[node]
        agent.stop()
        self.server.evict(self.parents[node])

        def is_back() -> bool:
            if not agent.is_running:
                with suppress(ProgramError):
                    agent.resume_service()
            return agent.is_running and self.parents[node] in self.server.agents()

        until(f"the SPIRE agent of {node} has attested again", is_back, timeout_s=_ATTESTED_S)
