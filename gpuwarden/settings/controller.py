"""Settings of the controller. Pure; `loader` fills them."""

# ruff: noqa: RUF009 -- the defaults are frozen values

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from gpuwarden.settings import keys
from gpuwarden.settings.export import ExportSettings
from gpuwarden.settings.keys import Spec
from gpuwarden.settings.shared import LogSettings, TelemetrySettings
from gpuwarden.settings.values import Address, Duration, PriorityBucket

KIND = "ControllerConfig"


class Enrollment(StrEnum):
    """What makes a node's hardware known."""

    FIRST_USE = "firstUse"
    REQUIRED = "required"


class Enforcement(StrEnum):
    """What the webhooks do with what they decide."""

    NAMESPACES = "namespaces"
    REPORT = "report"


class Protection(StrEnum):
    """What keeps pods that gpuwarden does not admit off GPU nodes."""

    NAMESPACES = "namespaces"
    CLUSTER = "cluster"


class Scheduling(StrEnum):
    """How a scheduler learns where managed pods may go."""

    EXTENDER = "extender"
    AFFINITY = "affinity"


class PolicyOrigin(StrEnum):
    """Where the policy comes from."""

    FILE = "file"
    CLUSTER = "cluster"


class StoreKind(StrEnum):
    """Where enrolments live."""

    AUTO = "auto"
    KUBERNETES = "kubernetes"
    SQLITE = "sqlite"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationSettings:
    """Section `attestation`: 2 x interval + challengeTtl <= lease <= 90s."""

    interval: Annotated[
        Duration, Spec(keys.duration("100ms", "45s"), "time between challenges, +/- 10 %")
    ] = Duration.parse("25s")
    lease: Annotated[
        Duration,
        Spec(
            keys.duration("300ms", "90s"),
            "trust after the issue of an answered challenge",
            aliases=("BGS_MAX_AGE",),
        ),
    ] = Duration.parse("90s")
    challenge_ttl: Annotated[
        Duration, Spec(keys.duration("100ms", "60s"), "time to answer a challenge")
    ] = Duration.parse("15s")
    enrollment: Annotated[
        Enrollment,
        Spec(
            keys.one_of(Enrollment),
            "`firstUse` enrolls the hardware first seen; `required` wants it listed in the policy",
        ),
    ] = Enrollment.FIRST_USE


@dataclass(frozen=True, slots=True, kw_only=True)
class SpireSettings:
    """Section `spire`."""

    server: Annotated[
        Address | None,
        Spec(
            keys.SERVER_OR_OFF,
            "SPIRE server that confirms nodes (level L1); without one every level ends at L0",
        ),
    ] = None
    poll: Annotated[
        Duration,
        Spec(keys.duration("100ms", "60s"), "time between two looks at all SPIRE agents"),
    ] = Duration.parse("10s")
    grace: Annotated[
        Duration,
        Spec(
            keys.duration("0s", "1h"),
            "time for which the last look counts while the SPIRE server is down; at least"
            " 1.5 x `spire.poll`, so `0s` is strict",
        ),
    ] = Duration.parse("300s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Section `policy`."""

    source: Annotated[
        PolicyOrigin,
        Spec(
            keys.one_of(PolicyOrigin),
            "`cluster`: the AttestationPolicy `cluster` and the AttestationClasses of the"
            " Kubernetes API in the place of a file",
        ),
    ] = PolicyOrigin.FILE
    file: Annotated[
        Path | None, Spec(keys.PATH, "policy file; without one nothing is demanded")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderTlsSettings:
    """Section `extender.tls`: `cert`, `key` and `clientCa`, or none of them."""

    cert: Annotated[Path | None, Spec(keys.PATH, "PEM file of the certificate and its chain")] = (
        None
    )
    key: Annotated[Path | None, Spec(keys.PATH, "PEM file of the private key")] = None
    client_ca: Annotated[
        Path | None, Spec(keys.PATH, "PEM file of the CAs whose clients may call")
    ] = None
    previous: Annotated[
        Path | None,
        Spec(
            keys.PATH,
            "folder with `tls.crt`, `tls.key` and `ca.crt` of the time before"
            " `certificates.selfManaged.enabled`, for schedulers that do not know gpuwarden's"
            " authority: all that ask for another TLS server name than `gpuwarden-extender`",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings:
    """Section `extender`."""

    tls: ExtenderTlsSettings = field(default_factory=ExtenderTlsSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTlsSettings:
    """Section `admission.tls`: without `cert` and `key` there are no webhooks."""

    cert: Annotated[Path | None, Spec(keys.PATH, "PEM file of the certificate and its chain")] = (
        None
    )
    key: Annotated[Path | None, Spec(keys.PATH, "PEM file of the private key")] = None
    client_ca: Annotated[
        Path | None,
        Spec(
            keys.PATH,
            "PEM file of the CA that signs the API servers' client certificates, and nobody"
            " else's; without it only the network keeps others from calling",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Section `admission`."""

    tls: AdmissionTlsSettings = field(default_factory=AdmissionTlsSettings)
    id_keys: Annotated[
        Path | None,
        Spec(
            keys.PATH,
            "file with the HMAC keys of reservation ids, the same for all replicas; without it"
            " nothing is reserved on `env` nodes and nothing settled on `plugin` nodes",
        ),
    ] = None
    runtime_classes: Annotated[
        tuple[str, ...],
        Spec(
            keys.list_of(keys.NODE_NAME),
            "runtime classes that give no GPUs past gpuwarden (BYPASS_RUNTIME_CLASS)",
        ),
    ] = ("nvidia",)
    host_paths: Annotated[
        tuple[str, ...],
        Spec(
            keys.HOST_PATHS,
            "host paths that pods may mount, each as it is written and nothing below it"
            " (BYPASS_HOSTPATH)",
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTlsSettings:
    """Section `api.tls`: both or none; without them there is no HTTP API."""

    cert: Annotated[Path | None, Spec(keys.PATH, "PEM file of the certificate and its chain")] = (
        None
    )
    key: Annotated[Path | None, Spec(keys.PATH, "PEM file of the private key")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Section `api`."""

    tls: ApiTlsSettings = field(default_factory=ApiTlsSettings)
    audience: Annotated[
        str,
        Spec(keys.IDENTIFIER, "audience of the tokens that callers of the HTTP API show"),
    ] = "gpuwarden"
    readers: Annotated[
        tuple[str, ...],
        Spec(
            keys.SERVICE_ACCOUNTS,
            "service accounts whose tokens may read devices, nodes and reservations",
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Section `console`: pages for people on `listen.api` (docs/console.md)."""

    enabled: Annotated[
        bool,
        Spec(keys.BOOLEAN, "whether the HTTP API's port serves the web console; needs `api.tls`"),
    ] = False
    proxies: Annotated[
        tuple[str, ...],
        Spec(
            keys.SPIFFE_IDS,
            "SPIFFE IDs of authenticating proxies, which name their user in `X-Remote-User` and"
            " the groups in `X-Remote-Group`",
        ),
    ] = ()
    loopback: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "whether anybody who connects from the controller's own machine, as `kubectl"
            " port-forward` does, may read everything without a login",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTlsSettings:
    """Section `access.tls`: without `cert` and `key` nobody comes with a kubeconfig."""

    cert: Annotated[Path | None, Spec(keys.PATH, "PEM file of the certificate and its chain")] = (
        None
    )
    key: Annotated[Path | None, Spec(keys.PATH, "PEM file of the private key")] = None
    ca: Annotated[
        Path | None,
        Spec(
            keys.PATH,
            "PEM file of the authorities by which people verify the controller; published in the"
            " ConfigMap `gpuwarden-access`, which somebody else keeps where this is not set",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Section `access`: people with a kubeconfig (docs/workstation.md)."""

    tls: AccessTlsSettings = field(default_factory=AccessTlsSettings)
    review_again: Annotated[
        Duration,
        Spec(
            keys.duration("30s", "1h"),
            "time after which the API server is asked again whether somebody may go on with a call"
            " that stays open, such as `nodes --watch`",
        ),
    ] = Duration.parse("5m")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfManagedSettings:
    """Section `certificates.selfManaged`: authority at least 2 x (leaf + renewBefore)."""

    enabled: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "whether gpuwarden makes and renews the certificates of its listeners and of the"
            " scheduler itself; `extender.tls`, `admission.tls`, `api.tls` and `access.tls` then"
            " name files in `folder`",
        ),
    ] = False
    folder: Annotated[
        Path,
        Spec(
            keys.ABSOLUTE_PATH,
            "folder in memory for the files of each listener: `admission`, `extender`, `api` and"
            " `access`, each with `tls.crt`, `tls.key` and `ca.crt`",
        ),
    ] = Path("/run/gpuwarden/certificates")
    authority_lifetime: Annotated[
        Duration,
        Spec(
            keys.duration("5h", "7300d"),
            "time for which an authority issues; the next one is trusted as long before",
        ),
    ] = Duration.parse("1825d")
    leaf_lifetime: Annotated[
        Duration, Spec(keys.duration("1h", "398d"), "lifetime of the other certificates")
    ] = Duration.parse("90d")
    renew_before: Annotated[
        Duration,
        Spec(
            keys.duration("1m", "397d"), "time before the end of such a certificate for its renewal"
        ),
    ] = Duration.parse("30d")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """Section `certificates`."""

    self_managed: SelfManagedSettings = field(default_factory=SelfManagedSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """Section `scheduling`."""

    mode: Annotated[
        Scheduling,
        Spec(
            keys.one_of(Scheduling),
            "`affinity`: no scheduler can be given the extender; managed pods are pinned to nodes"
            " by a label that follows evidence and free GPUs, and requirements count in enforced"
            " namespaces only",
        ),
    ] = Scheduling.EXTENDER
    scheduler_names: Annotated[
        tuple[str, ...],
        Spec(
            keys.list_of(keys.NODE_NAME),
            "schedulers that ask the extender: managed pods that name none are sent to the first,"
            " those that name one of them keep it",
            aliases=("SCHEDULER_NAME",),
            alias_adds=True,
        ),
    ] = ("gpuwarden", "gpu-scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class HintSettings:
    """Section `hints` (docs/hints.md): without `schedulerUrl` there are none."""

    scheduler_url: Annotated[
        str | None,
        Spec(
            keys.URL,
            "the scorer: `POST /v1/score` below it is asked about pods and Jobs of namespaces that"
            " opted in",
            aliases=("SCHEDULER_URL",),
        ),
    ] = None
    ca: Annotated[
        Path | None,
        Spec(
            keys.PATH,
            "PEM file of the authorities that prove a scorer with `https://`, in place of the"
            " system's",
        ),
    ] = None
    auth_token: Annotated[
        str | None, Spec(keys.SECRET, "bearer token for the scorer", secret=True)
    ] = None
    observe: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "whether the scorer is told of runs that ended (`POST /v1/observe`), so that it learns",
        ),
    ] = True
    timeout: Annotated[
        Duration,
        Spec(
            keys.duration("50ms", "4s"),
            "time for the scorer's answer; without one the pod is admitted as it is",
        ),
    ] = Duration.parse("1s")
    priority_buckets: Annotated[
        tuple[PriorityBucket, ...],
        Spec(
            keys.PRIORITY_BUCKETS,
            "from which score on pods get which priority class; the highest that is reached counts",
        ),
    ] = tuple(
        map(
            PriorityBucket.parse,
            ("90=gpu-ultra", "70=gpu-high", "50=gpu-medium", "0=gpu-default"),
        )
    )
    class_labels: Annotated[
        tuple[str, ...],
        Spec(
            keys.list_of(keys.ANNOTATION_KEY),
            "node labels by which pods are led to a GPU type; the first whose values agree with the"
            " evidence is used",
        ),
    ] = ("gpu.nvidia.com/class", "nvidia.com/gpu.product")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSettings:
    """Section `reservation`."""

    max_pending: Annotated[
        Duration,
        Spec(
            keys.duration("2m", "24h"),
            "time for which a pending pod keeps what was reserved at its admission",
        ),
    ] = Duration.parse("10m")
    node_gone_grace: Annotated[
        Duration,
        Spec(
            keys.duration("90s", "24h"),
            "time without evidence after which a node that was deleted has let go of its GPUs",
        ),
    ] = Duration.parse("5m")
    quota_per_namespace: Annotated[
        int | None,
        Spec(
            keys.COUNT_OR_OFF,
            "GPUs on `env` nodes that one namespace may hold at most (QUOTA_EXCEEDED); each"
            " replica counts what it knows, so a few more are possible for a moment",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSettings:
    """Section `clock`: difference between the wall clocks of a node and the controller."""

    warn: Annotated[Duration, Spec(keys.duration("100ms", "1h"), "difference that is reported")] = (
        Duration.parse("30s")
    )
    refuse: Annotated[
        Duration, Spec(keys.duration("1s", "1h"), "difference that is refused (CLOCK_SKEW)")
    ] = Duration.parse("300s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Section `limits`."""

    streams: Annotated[
        int, Spec(keys.whole_number(1, 1_000_000), "attestation streams in all (LIMIT_STREAMS)")
    ] = 20_000
    streams_per_peer: Annotated[
        int, Spec(keys.whole_number(2, 64), "attestation streams of one identity (LIMIT_STREAMS)")
    ] = 4
    rate: Annotated[
        int,
        Spec(
            keys.whole_number(1, 100_000),
            "new attestation streams of one identity per minute (LIMIT_RATE)",
        ),
    ] = 60
    message_bytes: Annotated[
        int,
        Spec(keys.whole_number(16 << 10, 16 << 20), "one message of an agent (MSG_TOO_LARGE)"),
    ] = 256 << 10
    filter_bytes: Annotated[
        int, Spec(keys.whole_number(64 << 10, 1 << 30), "body of an extender request")
    ] = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerListenSettings:
    """Section `listen` of the controller; port 0 means any free one, which is logged."""

    agents: Annotated[
        Address, Spec(keys.ADDRESS, "gRPC with mTLS: agents, inspectors, operators")
    ] = Address("", 9443)
    extender: Annotated[
        Address,
        Spec(
            keys.ADDRESS,
            "scheduler extender; anything but loopback needs `extender.tls`",
            aliases=("BGS_LISTEN_ADDR",),
        ),
    ] = Address("127.0.0.1", 8000)
    admission: Annotated[
        Address, Spec(keys.ADDRESS, "webhooks, for the API server; open with `admission.tls` only")
    ] = Address("", 10250)
    api: Annotated[
        Address, Spec(keys.ADDRESS, "HTTP API, for pods and tools; open with `api.tls` only")
    ] = Address("", 8080)
    access_tokens: Annotated[
        Address,
        Spec(
            keys.ADDRESS,
            "gRPC with TLS for people with a token, by port-forward; open with `access.tls` only",
        ),
    ] = Address("127.0.0.1", 9444)
    access_certificates: Annotated[
        Address,
        Spec(keys.ADDRESS, "the same for people with a client certificate of the cluster"),
    ] = Address("127.0.0.1", 9445)
    ops: Annotated[Address, Spec(keys.ADDRESS, "`/healthz`, `/readyz` and `/metrics`")] = Address(
        "", 9090
    )
    local: Annotated[
        Path,
        Spec(
            keys.ABSOLUTE_PATH,
            "unix socket of the Fleet, Placement, Operator and Support APIs (mode 0600)",
        ),
    ] = Path("/run/gpuwarden/fleet.sock")


class KubernetesUse(StrEnum):
    """Whether the Kubernetes API is used, and how it is reached."""

    AUTO = "auto"
    OFF = "off"
    IN_CLUSTER = "inCluster"
    KUBECONFIG = "kubeconfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Section `kubernetes`."""

    api: Annotated[
        KubernetesUse,
        Spec(
            keys.one_of(KubernetesUse),
            "how the Kubernetes API is reached; `auto` is `inCluster` in a pod with a service"
            " account and `off` elsewhere",
        ),
    ] = KubernetesUse.AUTO
    kubeconfig: Annotated[
        Path | None, Spec(keys.ABSOLUTE_PATH, "kubeconfig file, for `kubernetes.api: kubeconfig`")
    ] = None
    context: Annotated[
        str | None,
        Spec(keys.CONTEXT, "context of the kubeconfig; without it the current one"),
    ] = None
    namespace: Annotated[
        str,
        Spec(
            keys.NAMESPACE,
            "namespace of gpuwarden's own objects, such as the Lease",
            default_from="POD_NAMESPACE",
        ),
    ] = "gpuwarden-system"
    stale_after: Annotated[
        Duration,
        Spec(
            keys.duration("45s", "10m"),
            "silence of the API server after which nothing is accepted by what it last said"
            " (DIRECTORY_STALE, ENROLLMENT_STALE)",
        ),
    ] = Duration.parse("90s")
    events: Annotated[
        bool, Spec(keys.BOOLEAN, "whether changes of trust become Events on nodes and pods")
    ] = True
    inventory_labels: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "whether eligible nodes get labels with chassis, serial numbers, class and level"
            " (`gpuid.github.com/…`, `inventory.gpuwarden.dev/…`); nothing trusts them",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Section `store`."""

    kind: Annotated[
        StoreKind,
        Spec(
            keys.one_of(StoreKind),
            "where enrollments, quarantine entries and instance ids live; `auto` is `kubernetes`"
            " where the Kubernetes API is used (no other is accepted there), else `sqlite`;"
            " `memory` forgets them and is for tests",
        ),
    ] = StoreKind.AUTO
    path: Annotated[
        Path,
        Spec(
            keys.ABSOLUTE_PATH,
            "SQLite file (mode 0600, local disk); controllers on one machine may share it",
        ),
    ] = Path("/var/lib/gpuwarden/ledger.db")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Section `audit`."""

    dir: Annotated[Path, Spec(keys.ABSOLUTE_PATH, "folder of the audit log")] = Path(
        "/var/lib/gpuwarden/audit"
    )
    key: Annotated[
        Path | None,
        Spec(
            keys.ABSOLUTE_PATH,
            "PEM file with the Ed25519 key that signs checkpoints, former keys behind it;"
            " without it the key `log-key.pem` in `audit.dir`, made when there is none",
        ),
    ] = None
    reserve: Annotated[
        int,
        Spec(keys.whole_number(0, 1 << 34), "disk space kept free for grants"),
    ] = 64 << 20
    rotate_bytes: Annotated[
        int, Spec(keys.whole_number(64 << 10, 1 << 34), "size at which a new file is begun")
    ] = 64 << 20
    retention: Annotated[
        Duration,
        Spec(
            keys.duration("1d", "3650d"),
            "age at which a finished file is deleted; time in which the log is open counts",
        ),
    ] = Duration.parse("90d")
    evidence_retention: Annotated[
        Duration,
        Spec(
            keys.duration("1d", "3650d"),
            "age at which evidence kept beside the log is deleted, counted in the same way",
        ),
    ] = Duration.parse("90d")
    evidence_bytes: Annotated[
        int,
        Spec(
            keys.whole_number(0, 1 << 40),
            "space for evidence beside the log, half of it for unchanged evidence that grants rest"
            " on; the oldest goes first; 0 keeps none",
        ),
    ] = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Trying gpuwarden without GPUs."""

    enabled: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "INSECURE: agents with made-up GPUs are accepted, and every node, whatever confirms it,"
            " has level `none`. Without it such agents are refused (`INVENTORY_MADE_UP`)",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Section `metrics`."""

    fleet: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "whether `/metrics/fleet` of the ops listener shows nodes, GPUs (UUID, serial) and"
            " namespaces, to whoever reaches that listener",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerTelemetrySettings(TelemetrySettings):
    """Section `telemetry` of a controller."""

    logs: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "send audit records and changes of nodes to `telemetry.otlp` as log records; they name"
            " nodes, GPUs, pods and people",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Everything that can be set about a controller."""

    trust_domain: Annotated[str, Spec(keys.TRUST_DOMAIN, "SPIFFE trust domain")]
    cluster: Annotated[str, Spec(keys.IDENTIFIER, "name of the cluster", aliases=("CLUSTER_NAME",))]
    workload_api: Annotated[
        str,
        Spec(
            keys.WORKLOAD_API,
            "SPIFFE Workload API socket",
            default_from="SPIFFE_ENDPOINT_SOCKET",
        ),
    ]
    replica: Annotated[
        str,
        Spec(
            keys.IDENTIFIER,
            "name of this replica; with the cluster it is the origin of the audit log",
            default_from="POD_NAME",
        ),
    ] = "controller-0"
    path_prefix: Annotated[
        str, Spec(keys.PATH_PREFIX, "first part of the path of gpuwarden's SPIFFE IDs")
    ] = "/gpuwarden"
    attestation: AttestationSettings = field(default_factory=AttestationSettings)
    spire: SpireSettings = field(default_factory=SpireSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    extender: ExtenderSettings = field(default_factory=ExtenderSettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    certificates: CertificateSettings = field(default_factory=CertificateSettings)
    reservation: ReservationSettings = field(default_factory=ReservationSettings)
    enforcement: Annotated[
        Enforcement,
        Spec(
            keys.one_of(Enforcement),
            "`report`: webhooks and extender decide and say what would be denied; nothing is"
            " patched, refused, reserved or kept from a node",
        ),
    ] = Enforcement.NAMESPACES
    protection: Annotated[
        Protection,
        Spec(
            keys.one_of(Protection),
            "`cluster`: the policy of deploy/policy/protection is installed, so that what is not"
            " admitted by gpuwarden runs on no node with the taint"
            " `gpuwarden.dev/managed:NoExecute`;"
            " only such nodes promise pods more than `node`",
        ),
    ] = Protection.NAMESPACES
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    hints: HintSettings = field(default_factory=HintSettings)
    managed_resources: Annotated[
        tuple[str, ...],
        Spec(keys.list_of(keys.ANNOTATION_KEY), "resources whose amount is a number of GPUs"),
    ] = ("nvidia.com/gpu",)
    required_hash_keys: Annotated[
        tuple[str, ...],
        Spec(
            keys.list_of(keys.ANNOTATION_KEY),
            "annotations that name required attestation hashes",
            aliases=("BGS_REQUIRED_ANNOTATION",),
            alias_adds=True,
        ),
    ] = ("gpuwarden.dev/required-hash", "attestation-hash.my-company.com/required-hash")
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    insecure_static_hashes: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "INSECURE: accept `staticHashes` for nodes without evidence, at level `none`",
        ),
    ] = False
    static_hashes: Annotated[
        Mapping[str, str],
        Spec(
            keys.NODE_MAP,
            "opaque hash per node; refused unless `insecureStaticHashes` is true",
            aliases=("BGS_NODE_HASH_MAP",),
        ),
    ] = field(default_factory=dict)
    clock: ClockSettings = field(default_factory=ClockSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    listen: ControllerListenSettings = field(default_factory=ControllerListenSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    telemetry: ControllerTelemetrySettings = field(default_factory=ControllerTelemetrySettings)
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def origin(self) -> str:
        """Origin of this replica's audit log."""
        return f"{self.cluster}/{self.replica}"
