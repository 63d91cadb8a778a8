"""An Attester with a signer, and readings for it."""

from cryptography import x509

from agent.attester import Attester, SigningTime
from agent.gpu.reading import EventKind, GpuEvent, InventoryReading, NvmlState
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import FailedRead
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.challenges import CLUSTER, CONTROLLER
from tests.builders.inventory import gpu, inventory

NODE = "node-1"
AGENT = f"spiffe://{TRUST_DOMAIN}/gpuwarden/agent/{NODE}"
AT = SigningTime(wall_ms=1_800_000_000_000, boottime_ms=5_000)


class SvidSigner:
    """Signs with an SVID, as the signer of a tunnel does."""

    def __init__(self, svid: Svid) -> None:
        self._svid = svid

    @property
    def leaf(self) -> x509.Certificate:
        return self._svid.leaf

    def sign(self, payload_type: str, payload: bytes) -> bytes:
        return sign(self._svid.private_key, payload_type, payload)


def attester() -> Attester:
    return Attester(
        node_name=NODE,
        trust_domain=TRUST_DOMAIN,
        cluster=CLUSTER,
        controller=parse_spiffe_id(CONTROLLER),
        instance_id="ab" * 16,
        boot_id="00000000-0000-4000-8000-000000000001",
        agent_version="0.1.0",
    )


def reading(
    gpus: int = 1,
    failed: tuple[FailedRead, ...] = (),
    state: NvmlState = NvmlState.READY,
    detail: str = "",
) -> InventoryReading:
    cards = tuple(gpu(number) for number in range(gpus))
    return InventoryReading(
        inventory=inventory(*cards),
        failed_reads=failed,
        processes=None,
        state=state,
        detail=detail,
    )


def xid(number: int = 79) -> GpuEvent:
    return GpuEvent(EventKind.XID, gpu=gpu(0).uuid, xid=number, detail=f"XID {number}")
