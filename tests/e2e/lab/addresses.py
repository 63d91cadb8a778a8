"""Which addresses a lab uses: a plan per lab number, so that labs beside each other never meet.

Only the link's two addresses and the routes to pods and Services exist outside the node's
network namespace, and they go with the link.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

LABS = 100
"""How many labs one machine can hold; numbers start at 0."""
_LINKS, _PODS, _SERVICES = (IPv4Network(f"10.{octet}.0.0/16") for octet in (201, 202, 203))


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """The addresses and names of lab `number`."""

    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < LABS:
            raise ValueError(f"number is {self.number}, expected 0 to {LABS - 1}")

    @property
    def link(self) -> str:
        """The outer end of the veth pair; the inner one is `eth0`."""
        return f"gwlab{self.number}"

    @property
    def cgroup(self) -> str:
        """The group below which the kubelet keeps its pods."""
        return f"gpuwarden-lab-{self.number}"

    @property
    def link_network(self) -> IPv4Network:
        """The two ends of the link."""
        return IPv4Network((_nth(_LINKS, self.number)[0], 30))

    @property
    def outside(self) -> IPv4Address:
        """This machine, seen from the node."""
        return self.link_network[1]

    @property
    def inside(self) -> IPv4Address:
        """The node, its host-network pods and the API server."""
        return self.link_network[2]

    @property
    def pods(self) -> IPv4Network:
        """Addresses of pods."""
        return _nth(_PODS, self.number)

    @property
    def services(self) -> IPv4Network:
        """Addresses of Services."""
        return _nth(_SERVICES, self.number)

    @property
    def api_service(self) -> IPv4Address:
        """Service `kubernetes`."""
        return self.services[1]

    @property
    def dns_service(self) -> IPv4Address:
        """Service `kube-dns`."""
        return self.services[10]

    def conflicts(self, networks: Iterable[IPv4Network]) -> list[IPv4Network]:
        """Those of this machine's networks that this lab would hide."""
        ours = (self.link_network, self.pods, self.services)
        return [network for network in networks if any(map(network.overlaps, ours))]


def _nth(networks: IPv4Network, number: int) -> IPv4Network:
    return IPv4Network((networks[number << 8], 24))
