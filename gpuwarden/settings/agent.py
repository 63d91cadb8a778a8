"""Settings of the agent. Pure; `loader` fills them."""

# ruff: noqa: RUF009 -- the defaults are frozen values

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gpuwarden.settings import keys
from gpuwarden.settings.keys import Spec
from gpuwarden.settings.shared import LogSettings, TelemetrySettings
from gpuwarden.settings.values import Address, Duration

KIND = "AgentConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection:
    """Section `agent`."""

    node_name: Annotated[
        str,
        Spec(keys.NODE_NAME, "name of this node in Kubernetes", default_from="NODE_NAME"),
    ]
    controllers: Annotated[
        tuple[Address, ...],
        Spec(
            keys.list_of(keys.ADDRESS),
            "controllers to dial; each name is resolved again and again to all its addresses",
        ),
    ] = (Address("gpuwarden-controller", 9443),)
    controller_id: Annotated[
        str | None,
        Spec(
            keys.SPIFFE_ID,
            "identity that a controller must prove;"
            " none means `spiffe://<trustDomain><pathPrefix>/controller`",
        ),
    ] = None
    state_dir: Annotated[Path, Spec(keys.ABSOLUTE_PATH, "folder for the agent's own state")] = Path(
        "/var/lib/gpuwarden"
    )
    kubelet_socket: Annotated[
        Path | None,
        Spec(
            keys.PATH_OR_OFF,
            "kubelet's PodResources socket; `off`: allocations are not asked for",
        ),
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    gpu_resources: Annotated[
        tuple[str, ...],
        Spec(
            keys.list_of(keys.RESOURCES),
            "extended resources and DRA drivers whose devices are GPUs; `*` ends a beginning",
        ),
    ] = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*", "gpu.nvidia.com")
    nvml_timeout: Annotated[
        Duration,
        Spec(keys.duration("100ms", "60s"), "longest time one NVML call may take"),
    ] = Duration.parse("5s")
    nvml_restart_after: Annotated[
        Duration,
        Spec(
            keys.duration("10s", "1h"),
            "when nothing could be read through NVML for this long, the agent ends (exit code 5)"
            " so that a new container is started; doubled each time in vain, up to 1h",
        ),
    ] = Duration.parse("3m")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentListenSettings:
    """Section `listen` of the agent."""

    ops: Annotated[
        Address, Spec(keys.ADDRESS, "`/healthz`, `/readyz` and `/metrics`; port 0 = any free one")
    ] = Address("", 9090)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Everything that can be set about an agent."""

    trust_domain: Annotated[str, Spec(keys.TRUST_DOMAIN, "SPIFFE trust domain")]
    cluster: Annotated[str, Spec(keys.IDENTIFIER, "name of the cluster")]
    workload_api: Annotated[
        str,
        Spec(
            keys.WORKLOAD_API,
            "SPIFFE Workload API socket",
            default_from="SPIFFE_ENDPOINT_SOCKET",
        ),
    ]
    path_prefix: Annotated[
        str, Spec(keys.PATH_PREFIX, "first part of the path of gpuwarden's SPIFFE IDs")
    ] = "/gpuwarden"
    agent: AgentSection
    listen: AgentListenSettings = field(default_factory=AgentListenSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def controller_id(self) -> str:
        """SPIFFE ID that every controller must prove."""
        return (
            self.agent.controller_id or f"spiffe://{self.trust_domain}{self.path_prefix}/controller"
        )
