"""Every metric, log event and span name of the product, each once; docs are made from here.

Metrics that `gpuwarden-score` alone has are in `score_names`; the list of all is in `every_metric`.

Metric names follow Prometheus' naming practice: prefix, base units, `_total` for
counters. Labels have few values: never a pod, a hash or a serial number. What is about one node or
one GPU is on a page of its own, which is made at each scrape. Pure.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

PREFIX = "gpuwarden_"

FAST_BUCKETS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Seconds, for work in memory and local disks."""
PAGE = "/metrics"
FLEET_PAGE = "/metrics/fleet"
"""Has series for each node and GPU of accepted evidence, so only who wants them scrapes it."""
SLOW_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
"""Seconds, for work that crosses the network or asks a driver."""


class MetricType(Enum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Process(Enum):
    """Who exports a metric."""

    AGENT = "agent"
    CONTROLLER = "controller"
    BOTH = "both"
    """Agent and controller."""
    SCORE = "score"
    """The scoring service, which also has `every_metric.OF_SCORE_TOO`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` is what Prometheus shows."""

    name: str
    type: MetricType
    process: Process
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    page: str = PAGE


def _counter(name: str, process: Process, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricType.COUNTER, process, text, labels)


def _gauge(name: str, process: Process, text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, MetricType.GAUGE, process, text, labels)


def _histogram(
    name: str, process: Process, text: str, *labels: str, buckets: tuple[float, ...]
) -> Metric:
    return Metric(f"{PREFIX}{name}_seconds", MetricType.HISTOGRAM, process, text, labels, buckets)


def _of_fleet(name: str, text: str, *labels: str) -> Metric:
    return Metric(
        PREFIX + name, MetricType.GAUGE, Process.CONTROLLER, text, labels, page=FLEET_PAGE
    )


_A, _C, _BOTH = Process.AGENT, Process.CONTROLLER, Process.BOTH

BUILD_INFO = _gauge("build_info", _BOTH, "Always 1; what is running.", "version", "python")
SVID_EXPIRY = _gauge(
    "svid_expires_seconds", _BOTH, "Seconds until the own SVID expires; 0 while there is none."
)
SVID_UPDATES = _counter(
    "svid_updates", _BOTH, "SVIDs from the Workload API, by result (taken, failed).", "result"
)
SVID_SOURCE_RESTARTS = _counter(
    "svid_source_restarts", _BOTH, "Times the watchdog rebuilt the Workload API source."
)
TLS_MATERIAL_REFUSED = _counter(
    "tls_material_refused",
    _C,
    "Times a server certificate could not be used, by listener (agents, extender, admission, api,"
    " access).",
    "listener",
)
SERVING_CERTIFICATE_EXPIRY = _gauge(
    "serving_certificate_expires_seconds",
    _C,
    "Seconds until the first certificate of the chain that a listener serves ends (extender,"
    " admission, api, access); below 0 after it.",
    "listener",
)
CLIENT_CERTIFICATE_EXPIRY = _gauge(
    "client_certificate_expires_seconds",
    _C,
    "Seconds until the first certificate ends that clients of a listener have shown within a day"
    " (extender: schedulers, admission: API servers); NaN before one has, below 0 after the end.",
    "listener",
)
MANAGED_CERTIFICATE_EXPIRY = _gauge(
    "managed_certificate_expires_seconds",
    _C,
    "Seconds until a certificate ends that gpuwarden manages itself (authority, admission,"
    " extender, api, access; scheduler on the leader alone); NaN where it is not known, below 0"
    " after the end.",
    "certificate",
)
CERTIFICATE_WRITES = _counter(
    "certificate_writes",
    _C,
    "Objects written for managed certificates, by result (written; conflict: somebody else had"
    " changed the object; failed).",
    "result",
)
HANDSHAKES_COMPLETED = _counter(
    "tls_handshakes_completed",
    _C,
    "TLS handshakes that ended well, by listener (extender, admission, api).",
    "listener",
)
HANDSHAKE_FAILURES = _counter(
    "tls_handshake_failures",
    _C,
    "TLS handshakes that failed, by listener (agents, extender, admission, api, access) and cause"
    " (docs/troubleshooting.md lists them). Of agents, connections without a call: gRPC tells no"
    " more; the agents count why (gpuwarden_agent_dial_failures_total).",
    "listener",
    "cause",
)
CONNECTIONS = _gauge(
    "connections",
    _BOTH,
    "Open connections, by listener (ops, extender, admission, api).",
    "listener",
)
CONNECTIONS_CUT = _counter(
    "connections_cut",
    _BOTH,
    "Connections that this side ended, by listener and cause (no-request: no whole request in time;"
    " gave-way: there was no room for a newer one; idle, slow; full: all others were being"
    " answered).",
    "listener",
    "cause",
)
REQUESTS_MALFORMED = _counter(
    "requests_malformed",
    _C,
    "HTTP requests whose framing could not be read, by listener (ops, extender, admission, api).",
    "listener",
)
LOG_LINES_WITHHELD = _counter(
    "log_lines_withheld",
    _BOTH,
    "Log lines about other processes' behaviour that were left out, because there were too many;"
    " the next line of the kind has their number as `withheld`.",
    "event",
)

AGENT_GPUS = _gauge("agent_gpus", _A, "Physical GPUs in the last inventory.")
AGENT_GPUS_LOST = _gauge("agent_gpus_lost", _A, "GPUs that the driver reports as lost.")
AGENT_READS = _counter(
    "agent_inventory_reads", _A, "Inventory reads, by result (complete, failed).", "result"
)
AGENT_CHALLENGES_MISSED = _counter(
    "agent_challenges_missed", _A, "Challenges that passed before the GPUs had been read."
)
AGENT_READ_SECONDS = _histogram(
    "agent_inventory_read", _A, "Time to read the whole inventory.", buckets=SLOW_BUCKETS
)
AGENT_NVML_FAILURES = _counter(
    "agent_nvml_failures", _A, "NVML calls that failed or did not return in time.", "call", "error"
)
AGENT_NVML_AVAILABLE = _gauge(
    "agent_nvml_available", _A, "1 while library and driver answer, else 0 (NVML_UNAVAILABLE)."
)
AGENT_KUBELET_READS = _counter(
    "agent_kubelet_reads",
    _A,
    "Times kubelet was asked for its allocations, by result (complete, or the error).",
    "result",
)
AGENT_ALLOCATIONS = _gauge(
    "agent_allocations", _A, "GPU devices that kubelet has given to containers, as last read."
)
AGENT_GPU_EVENTS = _counter(
    "agent_gpu_events",
    _A,
    "Failure notices from the driver, by kind (xid, gpu-lost, driver-reload, nvml-unavailable).",
    "kind",
)
AGENT_STREAMS = _gauge(
    "agent_streams", _A, "Streams to controllers, by state (connecting, open, accepted).", "state"
)
AGENT_STREAMS_OPENED = _counter(
    "agent_streams_opened",
    _A,
    "Streams on which a first challenge came, reconnects included.",
)
AGENT_DIAL_FAILURES = _counter(
    "agent_dial_failures",
    _A,
    "Connections to a controller that did not come about, by cause (unreachable, untrusted,"
    " wrong-identity, refused, local).",
    "cause",
)
AGENT_STREAM_ENDS = _counter(
    "agent_stream_ends",
    _A,
    "Streams that ended, by cause (peer, refused, superseded, unproven, silent, protocol, local,"
    " stopped).",
    "cause",
)
AGENT_VERDICTS = _counter(
    "agent_verdicts", _A, "Verdicts received, by reason code (ACCEPTED included).", "code"
)
AGENT_ACCEPTED = _gauge(
    "agent_accepted_controllers", _A, "Controllers that hold this node as accepted now."
)
AGENT_LOG_ALARMS = _gauge(
    "agent_log_alarms",
    _A,
    "Alarms about controllers' audit logs that this agent remembers, by code"
    " (CHECKPOINT_INCONSISTENT, LOG_RESET).",
    "code",
)

STREAMS = _gauge("streams", _C, "Open attestation streams.")
STREAMS_OPENED = _counter("streams_opened", _C, "Attestation streams that were admitted.")
STREAM_ENDS = _counter(
    "stream_ends",
    _C,
    "Attestation streams that ended, by cause: a reason code, or peer, age, silent, unread,"
    " no-svid, drained.",
    "cause",
)
HANDSHAKES = _counter(
    "tls_handshakes",
    _C,
    "TLS handshakes on the agents' port that began, by what was presented (svid, no-svid).",
    "material",
)
EVIDENCE = _counter(
    "evidence",
    _C,
    "Messages and streams judged, by reason code (ACCEPTED included).",
    "code",
)
EVIDENCE_SECONDS = _histogram(
    "evidence_verification",
    _C,
    "Time to verify one message, audit excluded.",
    buckets=FAST_BUCKETS,
)
CHALLENGES = _counter(
    "challenges",
    _C,
    "Challenges issued, by cause (first, interval, failure-notice, release).",
    "cause",
)
NODES = _gauge(
    "nodes",
    _C,
    "Nodes that an agent has spoken for, by state (unknown, refused, eligible, stale, revoked,"
    " quarantined); not those that were deleted from the cluster.",
    "state",
)
GPUS = _gauge("gpus", _C, "GPUs of accepted evidence by state (usable, lost, unhealthy).", "state")
CLASSES = _gauge("classes", _C, "Different attestation hashes in the fleet.")
CLOCK_SUSPECT = _gauge(
    "clock_suspect", _C, "1 while the wall clock disagrees with time since boot."
)
POLICY_RELOADS = _counter(
    "policy_reloads", _C, "Reads of a changed policy, by result (taken, refused).", "result"
)
READY = _gauge("ready", _BOTH, "1 when /readyz answers 200.")
EVALUATION = _gauge(
    "evaluation", _C, "1 in an evaluation, where GPUs may be made up and nothing is proven, else 0."
)

EXTENDER_REQUESTS = _counter(
    "extender_requests",
    _C,
    "Extender requests, by verb and result (passed, rejected, reported, untouched, not_ready, bad,"
    " too_large, busy, slow).",
    "verb",
    "result",
)
EXTENDER_SECONDS = _histogram(
    "extender_request", _C, "Time to answer an extender request.", "verb", buckets=FAST_BUCKETS
)
EXTENDER_NODES = _counter(
    "extender_nodes",
    _C,
    "Nodes judged for managed pods, by reason code (ACCEPTED included).",
    "code",
)
ADMISSION_REQUESTS = _counter(
    "admission_requests",
    _C,
    "Requests to the webhooks, by path and result (untouched, patched, admitted, refused, reported,"
    " failed, bad, too_large, busy, slow).",
    "path",
    "result",
)
ADMISSION_SECONDS = _histogram(
    "admission_request", _C, "Time to answer a webhook's request.", "path", buckets=FAST_BUCKETS
)
HINTS = _counter(
    "hints",
    _C,
    "Pods and Jobs of namespaces with hints, by what became of them (hinted, or why not:"
    " docs/hints.md).",
    "result",
)
HINTS_LEFT_OUT = _counter(
    "hints_left_out",
    _C,
    "Hints that a hinted pod or Job did not get, by reason (priority_kept,"
    " priority_class_missing, preference_kept, no_label).",
    "reason",
)
HINT_RUNS = _counter(
    "hint_runs",
    _C,
    "Runs of jobs that ended, by what became of them (reported, refused, lost, or why the scorer"
    " is not told: docs/hints.md), and tries to report one that failed (connection, timeout,"
    " status; unsaved: the scorer learned from it and could not save that).",
    "result",
)
HINT_RUNS_UNSAVED = _gauge(
    "hint_runs_unsaved",
    _C,
    "Runs that the scorer has not saved yet; it is told again until it has.",
)
HINT_SCORER = _gauge(
    "hint_scorer_available",
    _C,
    "0 after five failures of the scorer in a row, until it answers again, else 1; by path"
    " (`/v1/score`, `/v1/observe`). No series without a scorer.",
    "path",
)
ADMISSION_REFUSALS = _counter(
    "admission_refusals",
    _C,
    "Reasons against pods, by code and by what became of the pod (refused, reported).",
    "code",
    "decision",
)
EARLY_RESERVATIONS = _counter(
    "early_reservations",
    _C,
    "Reservations asked for at pods' creation, by reason code (ACCEPTED where made).",
    "code",
)
API_REQUESTS = _counter(
    "api_requests",
    _C,
    "Requests to the HTTP API, by operation (docs/api.md) and HTTP status.",
    "operation",
    "status",
)
API_SECONDS = _histogram(
    "api_request",
    _C,
    "Time to answer a request to the HTTP API.",
    "operation",
    buckets=FAST_BUCKETS,
)
TOKEN_REVIEWS = _counter(
    "token_reviews",
    _C,
    "Tokens shown to the HTTP API, by what became of the question (accepted, refused, busy, failed;"
    " kept: answered from memory).",
    "result",
)
ACCESS_REVIEWS = _counter(
    "access_reviews",
    _C,
    "Questions to the API server about people with a kubeconfig: whose token it is (token), what"
    " they may do (right); results as of gpuwarden_token_reviews_total.",
    "question",
    "result",
)
BIND_DECISIONS = _counter(
    "bind_decisions",
    _C,
    "Answers about Bindings of managed pods, by reason code (ACCEPTED where allowed) and decision"
    " (allowed, refused, reported).",
    "code",
    "decision",
)
RESERVATIONS = _gauge(
    "reservations",
    _C,
    "GPUs that the ledger holds, by state (Proposed, Confirmed, Releasing); equal on all replicas.",
    "state",
)
RESERVATION_CHANGES = _counter(
    "reservation_changes",
    _C,
    "Reservations that this replica moved, by state (Proposed, Confirmed, Releasing, Released,"
    " Expired, Revoked, Allocated), or wrote after the ledger had lost them (Restored, Kept).",
    "state",
)
BINDINGS_NEVER_STORED = _gauge(
    "bindings_never_stored",
    _C,
    "Waiting pods whose Bindings the binding webhook has let through, and that were not bound in"
    " 90 s: something after it refuses them. Each replica counts those that it has seen.",
)
RELEASE_SECONDS = _histogram(
    "reservation_release",
    _C,
    "Seconds from a pod's end, as this replica knew of it, until its node's reports freed the pod's"
    " GPU. Only on `env` nodes: kubelet gives out the GPUs of the others by its own count.",
    buckets=(0.5, 1.0, 2.0, 3.0, 5.0, 15.0, 60.0, 300.0),
)
RELEASING_OLDEST = _gauge(
    "reservation_releasing_oldest_seconds",
    _C,
    "How long the reservation that is Releasing the longest has been so, from the first scrape of"
    " this replica that found it so; 0 where none is.",
)
RESERVATION_WRITES = _counter(
    "reservation_writes",
    _C,
    "Writes to the ledger that move reservations, by result (written, overtaken, failed).",
    "result",
)
RESERVATION_DRIFT = _gauge(
    "reservation_drift",
    _C,
    "Disagreements between ledger and cluster at the last reconcile, by kind (docs/ledger.md).",
    "kind",
)
USE_FAULTS = _gauge(
    "gpu_use_faults",
    _C,
    "Disagreements between what nodes show of their GPUs and the ledger that exist now, by kind"
    " (docs/binding-webhook.md).",
    "kind",
)
IDLE_GPUS = _gauge(
    "idle_gpus",
    _C,
    "GPUs and MIG devices that bound pods hold and have not used for 15 minutes or longer; one that"
    " several pods hold counts for each.",
)
EVICTIONS = _counter(
    "evictions",
    _C,
    "Evictions of pods with another GPU than the promised one, by result (evicted, failed).",
    "result",
)
LEDGER_AVAILABLE = _gauge(
    "ledger_available",
    _C,
    "1 while the ledger can be read, else 0 (LEDGER_UNAVAILABLE); NaN without the webhooks, where"
    " nothing is reserved.",
)
LEDGER_REPAIRS = _counter(
    "ledger_repairs",
    _C,
    "GPUReservation objects that this replica repaired, by what it wrote: object (it had been"
    " removed by force), finalizer (it had been taken off).",
    "what",
)
LEDGER_ROLLBACKS = _counter(
    "ledger_rollbacks",
    _C,
    "Times that the ledger was found to be older than it was (ledger.rollback).",
)
RPC_CALLS = _counter(
    "rpc_calls",
    _C,
    "gRPC calls by method and by outcome of authorization: `OK` or the reason code.",
    "method",
    "code",
)
RPC_HANG_UPS = _counter(
    "rpc_hang_ups", _C, "gRPC calls whose caller was gone before the answer, by method.", "method"
)

SPIRE_AVAILABLE = _gauge(
    "spire_available", _C, "1 while the SPIRE server answers, else 0; 0 where none is configured."
)
SPIRE_AGE = _gauge(
    "spire_snapshot_age_seconds", _C, "Age of what the SPIRE server last said; 0 before its first."
)
SPIRE_POLLS = _counter(
    "spire_polls",
    _C,
    "Polls of all SPIRE agents, by result (taken, no-svid, unreachable, denied, slow, unusable).",
    "result",
)
SPIRE_POLL_SECONDS = _histogram(
    "spire_poll", _C, "Time of a whole poll of the SPIRE server.", buckets=SLOW_BUCKETS
)
SPIRE_AGENTS = _gauge(
    "spire_agents", _C, "SPIRE agents in the last poll, by state (attested, banned).", "state"
)

STORE_AVAILABLE = _gauge(
    "store_available", _C, "1 while enrollments can be read from the store, else 0."
)
OPERATOR_ACTS = _counter(
    "operator_acts",
    _C,
    "Acts of operators (accept, quarantine, release; release-gpu) by result: `OK` or the reason"
    " code.",
    "act",
    "code",
)
QUARANTINE_ENTRIES = _counter(
    "quarantine_entries",
    _C,
    "Changes of quarantine entries in the store, seen by this replica, by fate (exists, lifted;"
    " lost: gone without an operator's act, and written again).",
    "fate",
)
NODES_QUARANTINED = _gauge("nodes_quarantined", _C, "Nodes that are quarantined in the store.")

AUDIT_RECORDS = _counter("audit_records", _C, "Audit records made durable.", "kind")
AUDIT_LOST = _counter(
    "audit_records_lost", _C, "Audit records that could not be kept; a log.gap record counts them."
)
AUDIT_COPIES_LOST = _counter(
    "audit_copies_lost", _C, "Audit records whose copy on standard output was lost."
)
OTLP_LOG_RECORDS_LOST = _counter(
    "otlp_log_records_lost",
    _C,
    "Log records that the OTLP collector did not take, or that came faster than it takes them.",
)
AUDIT_GRANTS = _counter("audit_grants", _C, "Grants whose record was durable first.")
AUDIT_GRANTS_REFUSED = _counter(
    "audit_grants_refused", _C, "Grants refused because the log could not keep them."
)
AUDIT_COMMIT_SECONDS = _histogram(
    "audit_commit", _C, "Time to make one group of audit records durable.", buckets=FAST_BUCKETS
)
AUDIT_QUEUE = _gauge("audit_queue_records", _C, "Audit records that wait to be written.")
AUDIT_AVAILABLE = _gauge("audit_available", _C, "1 while the audit log takes grants, else 0.")
AUDIT_SEQUENCE = _gauge("audit_sequence", _C, "Number of the last durable audit record.")
AUDIT_CHECKPOINT = _gauge(
    "audit_checkpoint_records", _C, "Audit records that the last signed checkpoint covers."
)
AUDIT_EVIDENCE_KEPT = _counter("audit_evidence_kept", _C, "Evidence kept beside the log.")
AUDIT_EVIDENCE_LOST = _counter(
    "audit_evidence_lost", _C, "Evidence that could not be kept beside the log; its record was."
)
AUDIT_WITNESS_ALARMS = _gauge(
    "audit_witness_alarms",
    _C,
    "Nodes whose agents accuse an audit log, by code (CHECKPOINT_INCONSISTENT, LOG_RESET).",
    "code",
)
AUDIT_WITNESS_ALARMS_RAISED = _counter(
    "audit_witness_alarms_raised",
    _C,
    "Alarms about audit logs that agents have newly raised, by code; any node can raise them.",
    "code",
)

KUBE_REQUESTS = _counter(
    "kube_requests",
    _C,
    "Requests to the Kubernetes API, by verb and HTTP status (none: no answer).",
    "verb",
    "status",
)
KUBE_LISTS = _counter("kube_lists", _C, "Whole lists taken from the Kubernetes API.", "resource")
KUBE_WATCH_ENDS = _counter(
    "kube_watch_ends",
    _C,
    "Lists and watches that ended, by cause (over, gone, refused, broken).",
    "resource",
    "cause",
)

KUBE_OBJECTS = _gauge(
    "kube_objects", _C, "Objects in the copies of the Kubernetes API's collections.", "resource"
)
KUBE_AGE = _gauge(
    "kube_age_seconds",
    _C,
    "Seconds since a copy was last known to be what the API server has.",
    "resource",
)
EXPORT_SUCCESS = Metric(
    "gpuid_export_success_total",
    MetricType.COUNTER,
    _C,
    "Attempts to export a batch of records that succeeded, by exporter (stdout, http, postgres,"
    " s3); the name is gpuid's.",
    ("exporter",),
)
EXPORT_FAILURE = Metric(
    "gpuid_export_failure_total",
    MetricType.COUNTER,
    _C,
    "Attempts to export a batch of records that failed, by exporter; the name is gpuid's.",
    ("exporter",),
)
EXPORT_RECORDS = _counter(
    "export_records",
    _C,
    "Records of GPUs, by exporter and result (delivered; dead-letter: kept in the file after the"
    " last attempt; dropped: overtaken by newer ones of the same GPU while there was no room).",
    "exporter",
    "result",
)
EXPORT_WAITING = _gauge(
    "export_waiting_records",
    _C,
    "Records that wait to be delivered, by exporter; on replicas that do not lead those that they"
    " have not seen delivered.",
    "exporter",
)
EXPORT_DEAD_LETTERS = _gauge(
    "export_dead_letter_records", _C, "Records in the dead-letter file, by exporter.", "exporter"
)
EXPORT_HEALTHY = _gauge(
    "export_healthy", _C, "1 while an exporter reaches its destination, else 0.", "exporter"
)
LEADER = _gauge("leader", _C, "1 while this replica does what only one replica may do.")
KUBE_EVENTS = _counter(
    "kube_events",
    _C,
    "Kubernetes Events, by what became of them (queued, merged, dropped, written, failed).",
    "result",
)
KUBE_REQUEUES = _counter(
    "kube_requeues",
    _C,
    "Waiting pods annotated so that the scheduler tries them again (requeued, failed).",
    "result",
)

KUBE_HINTS = _counter(
    "kube_hints",
    _C,
    "Nodes whose hint labels were changed, with `scheduling.mode: affinity` (changed, failed).",
    "result",
)
KUBE_LABELS = _counter(
    "kube_inventory_labels",
    _C,
    "Changes of nodes' inventory labels, by result (changed, failed).",
    "result",
)
KUBE_UNLABELLED_NODES = _gauge(
    "kube_unlabelled_nodes",
    _C,
    "Nodes whose labels the API server did not take (hint, inventory); each is tried again after"
    " a pause of 2 s to 5 min.",
    "labels",
)
KUBE_HINTED_REQUIREMENTS = _gauge(
    "kube_hinted_requirements",
    _C,
    "Requirements that nodes are labelled for, with `scheduling.mode: affinity`; at most 64.",
)

NODE_INFO = _of_fleet(
    "node_info",
    "Always 1; what the last accepted evidence of a node proved.",
    "node",
    "level",
    "mode",
    "attestation_hash",
    "driver",
    "agent_version",
)
NODE_STATE = _of_fleet(
    "node_state",
    "1 for the state of a node, 0 for its other states; states of gpuwarden_nodes. A node that no"
    " agent has spoken for is unknown.",
    "node",
    "state",
)
NODE_EVIDENCE_TIME = _of_fleet(
    "node_evidence_timestamp_seconds",
    "When the last evidence of a node was accepted, seconds since the epoch.",
    "node",
)
GPU_INFO = _of_fleet(
    "gpu_info",
    "Always 1; a GPU of accepted evidence. `UUID` is spelt as by NVIDIA's DCGM exporter, to join"
    " on.",
    "UUID",
    "serial",
    "node",
    "index",
    "pci_bus_id",
    "product",
    "vbios",
)
GPU_STATE = _of_fleet(
    "gpu_state",
    "1 for the state of a GPU (usable, lost, unhealthy, stale, revoked, quarantined; the last three"
    " are its node's), 0 for its other states.",
    "UUID",
    "state",
)
GPU_USE = _of_fleet(
    "gpu_use",
    "1 for the use of a GPU (free; idle: reserved and not used; used: reserved and used;"
    " unreserved: used without a reservation), 0 for the others; of a GPU with MIG devices what"
    " any of them has. What kubelet gave to a managed pod of a `plugin` node counts as reserved"
    " before it has its record. Absent where nothing is reserved, as in report mode, and while the"
    " ledger cannot be read.",
    "UUID",
    "use",
)

NAMESPACE_RESERVED = Metric(
    f"{PREFIX}namespace_reserved_gpu_seconds_total",
    MetricType.COUNTER,
    Process.CONTROLLER,
    "GPU time that bound pods of a namespace have held, as far as nodes reported and the audit log"
    " remembers; a MIG device counts as a GPU. The time of a GPU that several pods hold is divided"
    " equally between them.",
    ("namespace",),
    page=FLEET_PAGE,
)
NAMESPACE_IDLE = Metric(
    f"{PREFIX}namespace_idle_gpu_seconds_total",
    MetricType.COUNTER,
    Process.CONTROLLER,
    "GPU time of them in which no process of the pod that held it, or of its share group, ran on"
    " it.",
    ("namespace",),
    page=FLEET_PAGE,
)
NAMESPACE_IDLE_GPUS = _of_fleet(
    "namespace_idle_gpus", "What gpuwarden_idle_gpus counts, by namespace.", "namespace"
)


class Event(StrEnum):
    """Every log event: what the `event` field holds, and what it means."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Keep the meaning beside the string."""
        event = str.__new__(cls, value)
        event._value_ = value
        event.meaning = meaning
        return event

    PROCESS_STARTED = "process.started", "all listeners are up"
    PROCESS_START_FAILED = (
        "process.start.failed",
        "the process cannot start with these settings on this machine; `detail` is why",
    )
    AGENT_LISTENING = (
        "agent.listening",
        "the agent's addresses, on standard output, for who started it with port 0",
    )
    SCORE_LISTENING = (
        "score.listening",
        "the scoring service's address, on standard output, for who started it with port 0",
    )
    PROCESS_STOPPING = "process.stopping", "a signal or a fault ends the process; `detail` is which"
    PROCESS_STOPPED = "process.stopped", "everything is closed"
    PROCESS_FAULT = "process.fault", "a part of the process failed unexpectedly"
    CONFIG_EFFECTIVE = "config.effective", "settings at start, secrets left out"
    CONFIG_ALIAS = "config.alias", "a setting came from another program's environment variable"
    CONFIG_IGNORED = (
        "config.ignored",
        "another program's environment variable has no usable value, the default counts",
    )
    CONFIG_INSECURE = "config.insecure", "an Insecure… stand-in is on"
    LISTENER_OPEN = "listener.open", "a port or socket accepts connections; `address` is which"

    LIBRARY_MESSAGE = (
        "library.message",
        "a library or Python itself logged `message`; `component` is its logger",
    )

    SVID_UPDATED = "svid.updated", "a new SVID is in use"
    SVID_SOURCE_FAILED = "svid.source.failed", "the Workload API gives no usable SVID"
    SVID_WATCH_FAULT = "svid.watch.fault", "the watcher of the SVID met a fault; `message` is which"
    TUNNEL_FAILED = "tunnel.failed", "no TLS connection to a controller; `message` is why"
    TLS_MATERIAL_REFUSED = "tls.material.refused", "a new server certificate was not taken, and why"
    CERTIFICATES_WRITTEN = (
        "certificates.written",
        "a managed certificate or trust bundle was written to the Kubernetes API; `change` is what",
    )
    CERTIFICATES_FAULT = (
        "certificates.fault",
        "a managed certificate cannot be read, written or renewed, and why",
    )
    TLS_HANDSHAKE_FAILED = (
        "tls.handshake.failed",
        "a TLS handshake on a listener failed; address, cause and reason as far as TLS tells them",
    )
    CONNECTIONS_CUT = (
        "connections.cut",
        "a listener ended a connection that brought no whole request, or one too many",
    )
    REQUEST_MALFORMED = "request.malformed", "the framing of an HTTP request could not be read"

    NVML_UNAVAILABLE = "nvml.unavailable", "library or driver is missing or does not answer"
    NVML_AVAILABLE = "nvml.available", "library and driver answer again"
    NVML_CALL_FAILED = "nvml.call.failed", "one NVML call failed"
    NVML_STUCK = "nvml.stuck", "an NVML call never returned; the process ends itself"
    NVML_UNREADABLE = "nvml.unreadable", "nothing could be read for long; the process ends itself"
    GPU_EVENT = "gpu.event", "failure notices about a GPU (XID, lost, driver reload)"
    INVENTORY_READ = "inventory.read", "the inventory was read; counts and failures"
    ALLOCATIONS_READ = "allocations.read", "kubelet reported its allocations again"
    ALLOCATIONS_UNREAD = "allocations.unread", "kubelet did not tell its allocations, or not all"
    STATE_LOST = "state.lost", "the state file was missing or damaged; the agent starts without"

    STREAM_OPENED = (
        "stream.opened",
        "an attestation stream is up: a challenge came",
    )
    STREAM_CLOSED = "stream.closed", "an attestation stream ended, or none came about, and why"
    CONTROLLER_UNRESOLVED = "controller.unresolved", "a controller's name has no address now"
    CHALLENGE_MISSED = "challenge.missed", "a challenge passed before the GPUs had been read"
    CHALLENGE_REFUSED = "challenge.refused", "a challenge did not verify; the stream is closed"
    VERDICT_ACCEPTED = "verdict.accepted", "a controller accepted the agent's evidence"
    VERDICT_REFUSED = "verdict.refused", "a controller refused the evidence, and why"

    EVIDENCE_ACCEPTED = "evidence.accepted", "first, changed or regained acceptance of a node"
    EVIDENCE_REFUSED = "evidence.refused", "evidence or its stream was refused; code and step"
    NODE_STATE = "node.state", "a node changed its state"
    POLICY_LOADED = "policy.loaded", "a policy is in force; its digest"
    POLICY_REFUSED = "policy.refused", "a changed policy is wrong; the old one stays"
    CLOCK_SUSPECT = "clock.suspect", "the wall clock disagrees with time since boot"
    FILTER_DECIDED = (
        "filter.decided",
        "`/filter` decided about a managed pod: nodes that passed, and rejected ones per code",
    )
    EXTENDER_ANSWERED = "extender.answered", "the extender answered a request"
    EXTENDER_BAD_REQUEST = "extender.request.bad", "an extender request could not be read"
    ADMISSION_DECIDED = "admission.decided", "a webhook judged a pod; what is against it"
    ADMISSION_BAD_REQUEST = "admission.request.bad", "a webhook's request could not be read"
    ADMISSION_FAILED = (
        "admission.failed",
        "a webhook came to no decision in time, or failed; the request was refused",
    )
    HINTS_GIVEN = "hints.given", "a pod or Job got hints (`Mutated pod`): score, GPU type"
    HINTS_UNAVAILABLE = (
        "hints.unavailable",
        "the scorer gave no answer that counts (`Scheduler unavailable`); the pod stays as it is",
    )
    HINTS_UNTOUCHED = "hints.untouched", "a pod or Job of a namespace with hints got none, and why"
    HINTS_RUN = "hints.run", "a run of a job ended: the scorer was told of it, or why it is not"
    HINTS_UNREPORTED = (
        "hints.unreported",
        "the scorer did not take the report of a run, or not save it; told again unless refused",
    )
    API_FINALIZED = (
        "api.finalized",
        "a pod or operator said that a pod is bound; what is against it",
    )
    API_FAILED = "api.failed", "an operation of the HTTP API failed; the caller gets no details"
    BIND_DECIDED = (
        "bind.decided",
        "the binding webhook answered about a managed pod; what is against it",
    )
    RESERVATION_CHANGED = "reservation.changed", "this replica moved a reservation; state and cause"
    LEDGER_UNAVAILABLE = "ledger.unavailable", "the ledger cannot be read; nothing is reserved"
    LEDGER_AVAILABLE = "ledger.available", "the ledger can be read"
    LEDGER_DRIFT = "ledger.drift", "the ledger and the world disagree; counts per kind"
    LEDGER_WENT_BACK = (
        "ledger.rollback",
        "records are older than they were; nothing is granted until all was read again",
    )
    LEDGER_KEPT = (
        "ledger.kept",
        "GPUs of the audit log that the ledger had lost are kept until their node shows no use",
    )
    AUDIT_REPLAY_FAILED = (
        "audit.replay.failed",
        "the audit log from before this start cannot be read; nothing is granted until it was",
    )
    USE_FAULT_BEGAN = (
        "use.fault",
        "a node shows a GPU that is given or used otherwise than the ledger has it; kind and pod",
    )
    USE_FAULT_ENDED = "use.agrees", "such a disagreement is over"
    GPU_IDLE = "use.idle", "a reserved GPU has not been used for 15 minutes"
    GPU_IDLE_ENDED = "use.idle.ended", "such a GPU is used, or given back"
    POD_EVICTED = "pod.evicted", "a pod was evicted because of its GPU, or could not be"
    RPC_DENIED = "rpc.denied", "a caller lacks the role for a method"
    RPC_FAILED = "rpc.failed", "the handler of a call failed; the caller gets no details"

    SUPPORT_PART_FAILED = "support.part.failed", "a part of a support bundle could not be made"
    SPIRE_AVAILABLE = (
        "spire.available",
        "the SPIRE server answers; its agents and gpuwarden's entries",
    )
    SPIRE_UNAVAILABLE = (
        "spire.unavailable",
        "the SPIRE server does not answer or refuses; its last answer counts for spire.grace",
    )
    SPIRE_AGENTS_CHANGED = (
        "spire.agents.changed",
        "SPIRE agents were attested, banned, unbanned, evicted or attested otherwise",
    )

    RESERVATION_OPERATOR = (
        "reservation.operator",
        "an operator released a GPU of a silent node, or was refused",
    )
    NODE_OPERATOR = "node.operator", "an operator accepted, quarantined or released a node, or not"
    STORE_OPENED = "store.opened", "the store of enrollments is open; reports a new one"
    STORE_UNAVAILABLE = (
        "store.unavailable",
        "enrollments cannot be read; soon nothing new is accepted",
    )
    STORE_QUARANTINE_LOST = (
        "store.quarantine.lost",
        "the store had lost a quarantine entry that nobody ended; it is written again",
    )
    STORE_AVAILABLE = "store.available", "enrollments can be read again"

    KUBE_CACHE_TROUBLE = (
        "kube.cache.trouble",
        "a collection of the Kubernetes API cannot be followed now, and why",
    )
    KUBE_CACHE_FRESH = "kube.cache.fresh", "a collection is followed again"
    KUBE_ENROLLMENT_MISSING = (
        "kube.enrollment.missing",
        "somebody deleted a NodeEnrollment; it is written again",
    )

    KUBE_EVENT_FAILED = "kube.event.failed", "the API server did not take an Event"
    KUBE_STATUS_FAILED = (
        "kube.status.failed",
        "the API server did not take what became of a policy's object",
    )
    KUBE_REQUEUE_FAILED = (
        "kube.requeue.failed",
        "the API server did not take a note on a node; waiting pods are tried later",
    )
    KUBE_HINT_FAILED = (
        "kube.hint.failed",
        "the API server did not take a node's hint labels; once per node until it does",
    )
    KUBE_LABEL_FAILED = (
        "kube.label.failed",
        "the API server did not take a node's inventory labels; once per node until it does",
    )
    LEADER_ELECTED = "leader.elected", "this replica does what only one may do"
    LEADER_LOST = "leader.lost", "another replica may do it, or none can be sure"

    SCORE_STORE_FAILED = (
        "score.store.failed",
        "what was learned is in memory alone, and why; once per outage",
    )
    SCORE_STORE_AVAILABLE = "score.store.available", "everything that was learned is durable again"
    SCORE_STORE_READ = (
        "score.store.read",
        "all that was learned was read, at the start or because the database is not what it was",
    )
    SCORE_DECIDED = "score.decided", "a job was scored: the chosen type, its score, and how"
    SCORE_OBSERVED = "score.observed", "a run was reported to the scoring service"
    SCORE_REPEATED = "score.repeated", "a run was reported once more, and not learned again"
    SCORE_REFUSED = "score.request.bad", "a request to the scoring service could not be meant"
    SCORE_FAILED = (
        "score.failed",
        "the scoring service failed to answer; the caller gets no details",
    )

    EXPORT_FAILED = "export.failed", "records do not reach their destination; once per outage"
    EXPORT_AVAILABLE = "export.available", "records reach their destination again"
    EXPORT_BURIED = (
        "export.buried",
        "records went into the dead-letter file: attempts are used up, or they were refused",
    )
    EXPORT_REPLAY = "export.replay", "somebody wants the dead-letter file to be delivered again"
    EXPORT_FLUSHED = "export.flushed", "what waits at the end of the process was tried once more"

    TRACING_OFF = (
        "telemetry.tracing.off",
        "OpenTelemetry cannot begin, so no spans are sent; which OTEL_* variables are set",
    )
    LOG_EXPORT_OFF = (
        "telemetry.logs.off",
        "OpenTelemetry cannot begin, so no log records are sent; which OTEL_* variables are set",
    )
    LOG_RECORDS_LOST = (
        "telemetry.logs.lost",
        "log records that the OTLP collector had not taken at the end of the process: `count`",
    )
    AUDIT_OPENED = "audit.opened", "the audit log is open; last number and digest"
    AUDIT_HEALED = "audit.healed", "a torn last line of the audit log was cut off"
    AUDIT_UNSIGNED = (
        "audit.unsigned",
        "no checkpoint covers the last records of the log: a crash, or somebody appended them",
    )
    AUDIT_APPENDED = (
        "audit.appended",
        "the log had records behind the end of a closed log: somebody appended them",
    )
    AUDIT_UNAVAILABLE = "audit.unavailable", "the audit log cannot be written; grants are refused"
    AUDIT_AVAILABLE = "audit.available", "the audit log can be written again"
    LOG_ALARM = (
        "audit.witness.alarm",
        "an agent saw a changed audit log; reported by agent and controller",
    )
    AUDIT_LOW_SPACE = "audit.space.low", "only the reserve is left; ordinary records are dropped"


class Span(StrEnum):
    """Every span: what a trace shows as its name, and what it covers."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Keep the meaning beside the string."""
        span = str.__new__(cls, value)
        span._value_ = value
        span.meaning = meaning
        return span

    ATTESTATION = "agent.attestation", "from a verified challenge to its verdict, seen by the agent"
    INVENTORY = (
        "agent.inventory",
        "waiting for a reading of all GPUs that began after the challenge",
    )
    EVIDENCE = "agent.evidence", "signing evidence or failure notices and handing it to the stream"
    STREAM = "controller.stream", "admitting a stream: its peer, limits and Hello"
    CONTROLLER_ATTESTATION = (
        "controller.attestation",
        "from a challenge to its verdict, or until the next one; first span of its trace",
    )
    MESSAGE = "controller.message", "one message of an agent, from its receipt to its verdict"
    VERIFY = "controller.verify", "appraising one message; again after each wait"
    AUDIT_GRANT = "controller.audit.grant", "waiting until a grant is durable"
    SWAP = "controller.swap", "changing the node's record in the fleet"
    FILTER = "controller.filter", "answering /filter"
    PRIORITIZE = "controller.prioritize", "answering /prioritize"
    PREEMPT = "controller.preempt", "answering /preempt"
    ADMISSION = "controller.admission", "answering a webhook's request"
    API = "controller.api", "answering a request to the HTTP API"
    RPC = "controller.rpc", "answering a gRPC call of people and tools"
