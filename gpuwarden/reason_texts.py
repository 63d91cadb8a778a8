"""What each reason code means to the person who meets it: where it arises, why, what to do.

Text for people only; docs/reference/reasons.md and the CLI show it. `reasons` defines whether
a code revokes trust. Nothing may be decided from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuwarden.reasons import ReasonCode, Stage


@dataclass(frozen=True, slots=True)
class Explanation:
    """What has happened, and the next step of an operator, with its command."""

    stage: Stage
    cause: str
    remedy: str


class _Text(NamedTuple):
    cause: str
    remedy: str


_PODS: Final = "`kubectl -n gpuwarden-system get pods --field-selector spec.nodeName=NODE`"
_POD: Final = f"{_PODS} names its pod"
_PODS_YAML: Final = _PODS.removesuffix("`") + " -o yaml`"
_AGENT: Final = "`kubectl -n gpuwarden-system describe daemonset gpuwarden-agent`"

_TEXTS: Final[Mapping[Stage, Mapping[ReasonCode, _Text]]] = {
    Stage.STREAM: {
        ReasonCode.LIMIT_STREAMS: _Text(
            "More streams or calls are open than this replica allows, for one caller or for all.",
            "Find agents that reconnect in a loop by "
            "`rate(gpuwarden_agent_streams_opened_total[10m])`; raise limits.streams only "
            "where the fleet has that many nodes.",
        ),
        ReasonCode.LIMIT_RATE: _Text(
            "The caller opens streams or sends messages faster than allowed.",
            f"Read in the agent's log why it reconnects ({_POD}); it slows down by itself.",
        ),
        ReasonCode.TLS_NO_CLIENT_CERT: _Text(
            "The caller sent no client certificate.",
            f"Mount the Workload API socket into the agent ({_AGENT}), and let no proxy end TLS "
            "in between.",
        ),
        ReasonCode.TLS_RESUMED: _Text(
            "The TLS session was resumed, so this handshake did not check the certificate.",
            f"Run the released agent ({_AGENT} shows its image); disable session resumption in "
            "other clients.",
        ),
        ReasonCode.PEER_ID_INVALID: _Text(
            "The client certificate does not hold exactly one valid SPIFFE ID.",
            "Have SPIRE issue the certificate as an X509-SVID; `openssl x509 -noout -text -in "
            "FILE` shows its URI names.",
        ),
        ReasonCode.PEER_FOREIGN_DOMAIN: _Text(
            "The peer's SPIFFE ID belongs to another trust domain.",
            "Compare trustDomain on both sides with `gpuwarden config print`, and correct the "
            "wrong one.",
        ),
        ReasonCode.CHAIN_INVALID: _Text(
            "The peer's certificate chain does not lead to the current trust bundle.",
            "Compare `spire-server bundle show` with `spire-agent api fetch x509` on the node; "
            "restart a SPIRE agent whose SVIDs are of another server or a revoked authority.",
        ),
        ReasonCode.SVID_EXPIRED: _Text(
            "The peer's SVID has expired by the controller's clock.",
            "Check `spire-agent healthcheck` on the node, then compare the clocks of node and "
            "controller with `chronyc tracking`.",
        ),
        ReasonCode.SVID_NOT_YET_VALID: _Text(
            "The peer's SVID is not valid yet by the controller's clock.",
            "Compare the clocks of SPIRE server and controller with `chronyc tracking`; the agent"
            " tries again by itself.",
        ),
        ReasonCode.PEER_ROLE_UNKNOWN: _Text(
            "The path of the SPIFFE ID names no role that gpuwarden knows.",
            "Register the agent as PREFIX/agent/NODE (`spire-server entry show`), and set the "
            "same pathPrefix on both sides.",
        ),
        ReasonCode.NODE_NAME_INVALID: _Text(
            "The node name in the SPIFFE ID is not an RFC 1123 subdomain.",
            "Find the registration entry with `spire-server entry show`, and correct it or its "
            "ClusterSPIFFEID template.",
        ),
        ReasonCode.ENROLLMENT_STALE: _Text(
            "The controller cannot read the enrollments, or its copy of them is not current.",
            "Check the API server with `kubectl get nodeenrollments`, or the file at store.path; "
            "no node is accepted until it answers.",
        ),
        ReasonCode.DIRECTORY_STALE: _Text(
            "The controller's list of Nodes is not current.",
            "Check the right with `kubectl auth can-i watch nodes --as "
            "system:serviceaccount:gpuwarden-system:gpuwarden-controller`, then the connection "
            "to the API server.",
        ),
        ReasonCode.NODE_UNKNOWN: _Text(
            "The cluster has no Node of this name.",
            "Check `kubectl get nodes` and let the node join first; without a cluster, add it to "
            "the static list.",
        ),
        ReasonCode.NODE_DENIED: _Text(
            "The node is quarantined.",
            "Run `gpuwarden node show NODE` for the reason, then `gpuwarden node release NODE`, "
            "or `gpuwarden node accept NODE` for new hardware.",
        ),
        ReasonCode.SPIRE_ENTRY_NOT_FOUND: _Text(
            "The SPIRE server has no registration entry for the peer's SPIFFE ID.",
            "Check `spire-server entry show -spiffeID ID` and create the ClusterSPIFFEID; if it "
            "never existed, find out who issued the SVID.",
        ),
        ReasonCode.SPIRE_ENTRY_AMBIGUOUS: _Text(
            "The registration entries of this SPIFFE ID have different parents.",
            "List them with `spire-server entry show -spiffeID ID`, and delete those whose parent"
            " is not this node's SPIRE agent.",
        ),
        ReasonCode.SPIRE_ENTRY_WEAK: _Text(
            "The registration entry lacks a selector that policy requires.",
            "Add the selector to the ClusterSPIFFEID template, then check it with `spire-server "
            "entry show -spiffeID ID`.",
        ),
        ReasonCode.SPIRE_ENTRY_PRIVILEGED: _Text(
            "The registration entry is marked admin or downstream.",
            "Register the agent without these flags, then check with `spire-server entry show "
            "-spiffeID ID`.",
        ),
        ReasonCode.SPIRE_PARENT_INVALID: _Text(
            "The registration entry's parent is an alias or not a SPIRE agent.",
            "Set the parent ID to the SPIRE agent of the node, which `spire-server agent list` "
            "shows.",
        ),
        ReasonCode.SPIRE_AGENT_NOT_FOUND: _Text(
            "The SPIRE server does not know the node's SPIRE agent: it was evicted or has never "
            "attested.",
            "Check `spire-server agent list`, and restart the SPIRE agent so that it attests "
            "again, unless it was evicted on purpose.",
        ),
        ReasonCode.SPIRE_AGENT_BANNED: _Text(
            "The node's SPIRE agent is banned on the SPIRE server.",
            "Find out who banned it and why; `spire-server agent evict -spiffeID ID` lets it "
            "attest again.",
        ),
        ReasonCode.SPIRE_AGENT_EXPIRED: _Text(
            "The SVID of the node's SPIRE agent has expired on the SPIRE server.",
            "Find the SPIRE agent with `kubectl get pods -A --field-selector "
            "spec.nodeName=NODE`, read in its log why it could not renew, then restart it.",
        ),
        ReasonCode.SPIRE_ATTESTOR_DENIED: _Text(
            "The SPIRE agent used a node attestor that policy does not allow, such as join_token.",
            "See the attestor with `spire-server agent list`; configure an allowed one, or add "
            "this one to the policy.",
        ),
        ReasonCode.SPIRE_NODE_MISMATCH: _Text(
            "The SPIRE agent's selectors name another node or another Node UID.",
            "Compare `spire-server agent show -spiffeID ID` with `kubectl get node NODE -o yaml`;"
            " on a rebuilt node attest again.",
        ),
        ReasonCode.AGENT_IMAGE_DENIED: _Text(
            "The agent's image digest is not in the policy.",
            f"Compare its imageID in {_PODS_YAML} with the policy; roll out a listed one, or add"
            " it.",
        ),
        ReasonCode.SPIRE_UNAVAILABLE: _Text(
            "The SPIRE server does not answer, and the controller has no earlier answer.",
            "Check `spire-server healthcheck` and the network to it; for a permission error "
            "install the rule in deploy/spire.",
        ),
        ReasonCode.SPIRE_STATUS_STALE: _Text(
            "The last answer of the SPIRE server is older than spire.grace.",
            "Check `spire-server healthcheck` and restore the server; the nodes are accepted "
            "again by themselves.",
        ),
        ReasonCode.PROTOCOL_UNSUPPORTED: _Text(
            "The agent speaks a protocol version that this controller does not support.",
            "Compare `gpuwarden version` with the agent, and upgrade the older one; each supports"
            " its own and the previous version.",
        ),
        ReasonCode.STREAM_SUPERSEDED: _Text(
            "A newer instance of this node's agent has connected.",
            "Do nothing after a restart; if it repeats, look for a second agent with `kubectl get"
            " pods -A -o wide`.",
        ),
        ReasonCode.DUPLICATE_AGENT: _Text(
            "Two processes answer challenges with this node's identity.",
            "Find the second process, its SVID may be stolen; then run `gpuwarden node release "
            "NODE` and restart the agent.",
        ),
    },
    Stage.MESSAGE: {
        ReasonCode.MSG_TOO_LARGE: _Text(
            "The message is larger than limits.messageBytes.",
            "Compare the agent's version with `gpuwarden version`; a correct inventory is far "
            "below the limit.",
        ),
        ReasonCode.MSG_MALFORMED: _Text(
            "The message, or the document in it, cannot be decoded.",
            "Compare `gpuwarden version` with the agent, and upgrade the older one; the detail "
            "names the field.",
        ),
        ReasonCode.TYPE_UNEXPECTED: _Text(
            "The payload type of the envelope is not one that is expected here.",
            "Compare `gpuwarden version` with the agent, and upgrade the older one.",
        ),
        ReasonCode.CHALLENGE_UNKNOWN: _Text(
            "The evidence answers a challenge that this replica did not send since its start.",
            "Do nothing after a restart; if it repeats, treat it as a replay: `gpuwarden audit "
            "reverify DIGEST` shows the signer.",
        ),
        ReasonCode.CHALLENGE_EXPIRED: _Text(
            "The evidence came later than attestation.challengeTtl.",
            "Check `nvidia-smi` on the node for a slow driver, then load and network; raise the "
            "time limit for a slow but healthy node.",
        ),
        ReasonCode.NONCE_REUSED: _Text(
            "A nonce was used a second time.",
            "Treat it as a replay: `gpuwarden audit reverify DIGEST` shows the signer; find out "
            "who can read the agent's traffic.",
        ),
        ReasonCode.NONCE_MISMATCH: _Text(
            "The nonce does not belong to the challenge that the message names.",
            f"Treat it as tampering: compare the agent's imageID in {_PODS_YAML} with the "
            "released one.",
        ),
        ReasonCode.STREAM_MISMATCH: _Text(
            "The evidence answers a challenge of another stream.",
            "Treat it as relayed: look for a second process with this node's identity with "
            "`kubectl get pods -A -o wide`.",
        ),
        ReasonCode.SIGNER_MISMATCH: _Text(
            "The evidence is not signed with the key of this TLS session.",
            f"Update the agent ({_AGENT} shows its image); if it is current, treat the evidence "
            "as relayed.",
        ),
        ReasonCode.SIG_ALG_DENIED: _Text(
            "The signer's key is not ECDSA P-256, ECDSA P-384 or RSA of 2048 to 8192 bits.",
            "Set workload_x509_svid_key_type of the SPIRE agent to ec-p256; `openssl x509 -noout "
            "-text -in FILE` shows the key.",
        ),
        ReasonCode.SIG_INVALID: _Text(
            "The signature does not verify over the received bytes.",
            "Treat it as tampering and run `gpuwarden node quarantine NODE`; if one agent version"
            " causes it, report a bug.",
        ),
        ReasonCode.AUDIENCE_MISMATCH: _Text(
            "The evidence was made for another controller, trust domain or protocol.",
            "Correct agent.controllerId and trustDomain; `gpuwarden config print --process agent`"
            " shows where they come from.",
        ),
        ReasonCode.NODE_NAME_MISMATCH: _Text(
            "The node name in the evidence is not the one in the peer's SPIFFE ID.",
            "Correct agent.nodeName ($NODE_NAME); `gpuwarden config print --process agent` shows "
            "where it comes from.",
        ),
        ReasonCode.INNER_NONCE_MISMATCH: _Text(
            "The signed nonce is not the one that was sent beside it.",
            "Treat it as tampering between agent and controller: `gpuwarden audit reverify "
            "DIGEST` shows the signer.",
        ),
        ReasonCode.CHALLENGE_DIGEST_MISMATCH: _Text(
            "The agent signed the digest of another challenge than the controller sent.",
            "Treat it as tampering: let nothing end TLS in between, and read the agent's log "
            f"({_PODS}).",
        ),
        ReasonCode.SEQ_REPLAY: _Text(
            "A sequence number was used a second time on this stream.",
            "Treat it as a replay: `gpuwarden audit reverify DIGEST` shows the signer; find out "
            "who can read the agent's traffic.",
        ),
        ReasonCode.SEQ_GAP: _Text(
            "A sequence number is missing on this stream.",
            f"Look for lost messages in the agent's log ({_PODS}); it opens a new stream by "
            "itself.",
        ),
        ReasonCode.PREV_MISMATCH: _Text(
            "The evidence does not continue the previous one of this stream.",
            f"Look for lost messages in the agent's log ({_PODS}), or for a second process like "
            "it.",
        ),
        ReasonCode.BOOT_CHANGED: _Text(
            "The boot ID changed within one stream.",
            "Do nothing after a reboot or a resumed VM (`last reboot` on the node); the agent "
            "opens a new stream by itself.",
        ),
        ReasonCode.CLOCK_BACKWARDS: _Text(
            "The node's boot-time clock ran backwards within one boot.",
            "Find out whether the VM was cloned or restored from a snapshot; until then run "
            "`gpuwarden node quarantine NODE`.",
        ),
        ReasonCode.CLOCK_SKEW: _Text(
            "The node's wall clock differs from the controller's by more than clock.refuse.",
            "Check `chronyc tracking` on the node, or on the controller if many nodes are "
            "refused, and repair time synchronisation.",
        ),
        ReasonCode.INVENTORY_INVALID: _Text(
            "A value that the class or the identity of a GPU needs is malformed, or occurs twice.",
            "Compare the value that the detail names with `nvidia-smi -q` on the node, then check"
            " the versions of driver and agent.",
        ),
        ReasonCode.INVENTORY_MADE_UP: _Text(
            "The agent is the one for evaluations: its GPUs are made up, and this controller runs"
            " without `evaluation.enabled`.",
            "Set the image `gpuwarden-agent` in `kubectl -n gpuwarden-system edit daemonset"
            " gpuwarden-agent`. Evaluate gpuwarden without GPUs in a cluster of its own.",
        ),
        ReasonCode.INVENTORY_INCOMPLETE: _Text(
            "What the node has cannot be decided: the GPUs cannot be counted or named, or a value "
            "of the host or of every GPU could not be read.",
            "Look for the call that the detail names with `nvidia-smi -q` and `dmesg` (NVRM, Xid)"
            " on the node.",
        ),
        ReasonCode.INVENTORY_EMPTY: _Text(
            "No GPU of the node answers.",
            "Check `nvidia-smi` on the node; do not run the agent on nodes without GPUs.",
        ),
        ReasonCode.GPU_DENIED: _Text(
            "A GPU of the node is on the deniedKeys of the policy, or belongs to a quarantined "
            "node.",
            "Look for a quarantined node with `gpuwarden nodes`; else remove the card, or take "
            "its key off deniedKeys.",
        ),
        ReasonCode.GPU_CLAIMED_TWICE: _Text(
            "The node claims the UUID of a GPU or MIG device that another node has.",
            "Compare the serials with `gpuwarden gpus`; if the card was moved, run `gpuwarden "
            "node accept` for the old node, then for this one.",
        ),
        ReasonCode.NODE_UID_CHANGED: _Text(
            "The Node object was created again under the same name.",
            "Compare the change in `gpuwarden node show NODE` with your records; if the node was "
            "rebuilt, run `gpuwarden node accept NODE`.",
        ),
        ReasonCode.SYSTEM_UUID_CHANGED: _Text(
            "The enrolled GPUs are in another machine, by its system UUID (SMBIOS).",
            "Compare the change in `gpuwarden node show NODE` with your records; if the board was "
            "replaced or the cards were moved, run `gpuwarden node accept NODE`.",
        ),
        ReasonCode.INVENTORY_NOT_ENROLLED: _Text(
            "Policy requires enrollment, and a GPU of the node is not enrolled.",
            "Compare the serials in `gpuwarden node show NODE` with your records, then run "
            "`gpuwarden node accept NODE`.",
        ),
        ReasonCode.INVENTORY_CHANGED: _Text(
            "A GPU was added or swapped, or its serial or identity key changed, since it was "
            "enrolled.",
            "Look at the change with `gpuwarden node show NODE`; if it is wanted, run `gpuwarden "
            "node accept NODE`, else restore the hardware.",
        ),
        ReasonCode.HW_MISSING: _Text(
            "Policy requires a hardware report, and a GPU gave none.",
            "Switch confidential computing on (`nvidia-smi conf-compute -f` shows it), or lower "
            "minLevel in the policy.",
        ),
        ReasonCode.HW_STALE: _Text(
            "The last hardware report is older than allowed.",
            f"Wait for the next report; if it does not come, read the agent's log ({_POD}).",
        ),
        ReasonCode.HW_CHAIN_INVALID: _Text(
            "The hardware report's certificate chain does not lead to the pinned vendor root.",
            "Check with `nvidia-smi -q` that the GPU is a genuine product with a released VBIOS.",
        ),
        ReasonCode.HW_REVOKED: _Text(
            "A certificate of the GPU is on the operator's revocation list.",
            "Take the card out of service; when it is replaced, run `gpuwarden node accept NODE`.",
        ),
        ReasonCode.HW_NONCE_MISMATCH: _Text(
            "The hardware report answers another nonce.",
            "Treat it as a replayed report and run `gpuwarden node quarantine NODE`.",
        ),
        ReasonCode.HW_SIG_INVALID: _Text(
            "The signature of the hardware report does not verify.",
            "Treat it as a forged report and run `gpuwarden node quarantine NODE`; then check the"
            " driver version.",
        ),
        ReasonCode.HW_FWID_MISMATCH: _Text(
            "The firmware identity in the report is not the one in the GPU's certificate.",
            "Reset the GPU with `nvidia-smi --gpu-reset` and attest again; if it stays, take the "
            "card out of service.",
        ),
        ReasonCode.HW_VERSION_MISMATCH: _Text(
            "The driver or VBIOS version in the report is not the one that NVML gave.",
            "Reload the driver and compare with `nvidia-smi -q`; if it stays, treat the driver as"
            " manipulated.",
        ),
        ReasonCode.HW_IDENTITY_CHANGED: _Text(
            "The GPU's device identity key is not the enrolled one.",
            "Look at the change with `gpuwarden node show NODE`; if the card was replaced on "
            "purpose, run `gpuwarden node accept NODE`.",
        ),
        ReasonCode.HW_DEVTOOLS: _Text(
            "The GPU runs in devtools mode, in which its memory is open to debugging.",
            "Set the mode with `nvidia_gpu_tools.py --set-cc-mode=on` and reset the GPU.",
        ),
        ReasonCode.HW_MEASUREMENT_DENIED: _Text(
            "The report's measurements are not among the accepted reference values.",
            "Compare VBIOS and driver in `nvidia-smi -q` with the accepted ones, or add the new "
            "reference value.",
        ),
        ReasonCode.POLICY_DENIED: _Text(
            "Policy does not allow this driver, VBIOS, attestor or setting.",
            "Compare `gpuwarden node show NODE` with the policy; change the node to an allowed "
            "version, or change the policy.",
        ),
        ReasonCode.LEVEL_TOO_LOW: _Text(
            "The assurance level of the evidence is below what policy or the pod requires.",
            "See the level with `gpuwarden nodes`; connect the controller to the SPIRE server for"
            " L1, or lower the required level.",
        ),
        ReasonCode.CLASS_NOT_ALLOWED: _Text(
            "Policy does not allow the node's attestation hash.",
            "See the difference with `gpuwarden class diff HASH HASH`, and add the new hash to "
            "the policy if it is wanted.",
        ),
        ReasonCode.AUDIT_UNAVAILABLE: _Text(
            "The audit log cannot be written, so the controller grants nothing new.",
            "Read the cause with `gpuwarden doctor`, and repair the volume "
            "(docs/troubleshooting.md#the-audit-log-cannot-be-written); grants then continue "
            "by themselves.",
        ),
        ReasonCode.ACCEPTED: _Text(
            "The evidence is accepted; the node is eligible until its lease ends.",
            "Nothing to do.",
        ),
    },
    Stage.PLACEMENT: {
        ReasonCode.REQ_INVALID: _Text(
            "The GPU requirement of the pod, or the request, cannot be read.",
            "Correct the annotation, label or field that the detail names, then check the pod "
            "with `gpuwarden fit -f pod.yaml`.",
        ),
        ReasonCode.CONTROLLER_NOT_READY: _Text(
            "Startup reconciliation is not complete: agents, pods, the ledger or the audit log "
            "are still being read.",
            "Wait one attestation interval; if it stays, `gpuwarden doctor` names what each "
            "replica lacks.",
        ),
        ReasonCode.NODE_NO_EVIDENCE: _Text(
            "This controller has accepted no evidence of the node.",
            f"Check with {_PODS} that an agent runs on the node, then read its log.",
        ),
        ReasonCode.NODE_STALE: _Text(
            "The lease of the node ended without new evidence.",
            f"Check the agent with {_PODS}, and in its log the connection to the controller.",
        ),
        ReasonCode.NODE_REFUSED: _Text(
            "The last evidence of the node was refused.",
            "Run `gpuwarden explain node NODE`, which gives the code of the refusal and what to "
            "do about it.",
        ),
        ReasonCode.NODE_QUARANTINED: _Text(
            "The node is quarantined until an operator acts.",
            "Run `gpuwarden node show NODE` for the reason and remove it, then run `gpuwarden "
            "node release NODE` or `gpuwarden node accept NODE`.",
        ),
        ReasonCode.HASH_MISMATCH: _Text(
            "The node has another attestation hash than the pod requires.",
            "Compare the two classes with `gpuwarden class diff HASH HASH`.",
        ),
        ReasonCode.CLASS_UNKNOWN: _Text(
            "The policy has no attestation class of this name.",
            "Compare the name with `gpuwarden classes`; correct it, or add the class to the "
            "policy.",
        ),
        ReasonCode.NODE_MODE: _Text(
            "The node provides GPUs in another mode than the pod requests them, or in one that is"
            " not available yet.",
            "See the mode with `gpuwarden nodes -o wide`: plugin nodes need a kubelet request, "
            "env nodes none; per-gpu and dra give no GPUs yet.",
        ),
        ReasonCode.EXACT_UNAVAILABLE: _Text(
            "The pod requires certain GPUs, or GPUs at its creation, but kubelet chooses them.",
            "Use a node of mode env (`gpuwarden nodes -o wide`) without a kubelet request, or "
            "lower gpuwarden.dev/guarantee.",
        ),
        ReasonCode.MAP_ELSEWHERE: _Text(
            "The scheduling map sends this pod to another node.",
            "See the other nodes with `gpuwarden fit -f pod.yaml`; correct the map if it names no"
            " node for this pod.",
        ),
        ReasonCode.GPU_NO_MATCH: _Text(
            "No GPU of the node matches the selector, label, UUID or map entry.",
            "Compare the requirement with `gpuwarden gpus`; an 80 GB card reports about 79.6Gi.",
        ),
        ReasonCode.GPU_LOST: _Text(
            "A GPU that the pod needs has stopped answering, or answers with errors.",
            "Check `dmesg` (NVRM, Xid) on the node, then reset the card with `nvidia-smi "
            "--gpu-reset` or replace it.",
        ),
        ReasonCode.GPU_BUSY: _Text(
            "Too few matching GPUs of the node are free.",
            "See who holds them with `gpuwarden reservations`, and unreserved use in the "
            "GpuUnreservedUse events of the node; wait for a release.",
        ),
        ReasonCode.BINDING_DENIED_RECENTLY: _Text(
            "The binding webhook refused this pod on this node a few seconds ago.",
            "Wait some seconds; the webhook's own reason is in the events of `kubectl -n "
            "NAMESPACE describe pod POD`.",
        ),
        ReasonCode.RESERVATION_PENDING: _Text(
            "GPUs are still reserved for an earlier pod of the same owner or name, whose creation"
            " did not end.",
            "Wait two minutes; what refuses the owner's pods, such as a ResourceQuota, is in the "
            "events that `kubectl -n NAMESPACE get events` shows.",
        ),
    },
    Stage.BINDING_WEBHOOK: {
        ReasonCode.POD_UNKNOWN: _Text(
            "No such pod exists, or another pod has its name now.",
            "Let the scheduler try again; check with `kubectl -n NAMESPACE get pod POD "
            "--watch` whether it is deleted and created in a loop.",
        ),
        ReasonCode.BINDING_STALE: _Text(
            "The pod changed between the scheduling decision and the Binding.",
            "Let the scheduler try again; the events in `kubectl -n NAMESPACE describe pod "
            "POD` show the next attempt.",
        ),
        ReasonCode.BINDING_FORGED: _Text(
            "The Binding sets annotations or labels that only the binding webhook may write.",
            "Find the scheduler that wrote it with `kubectl -n NAMESPACE get pod POD -o yaml`, "
            "and remove the keys there.",
        ),
        ReasonCode.LEDGER_UNAVAILABLE: _Text(
            "The ledger of reservations cannot be read or written.",
            "Check the API server with `kubectl get gpureservations`; pods wait until it answers.",
        ),
        ReasonCode.LEDGER_CONFLICT: _Text(
            "Another pod got the GPU first.",
            "Let the scheduler try again, it chooses another GPU or node; `gpuwarden "
            "reservations` shows who has this one.",
        ),
        ReasonCode.QUOTA_EXCEEDED: _Text(
            "The namespace holds as many GPUs as it may.",
            "See its pods with `gpuwarden reservations -n NAMESPACE` and delete some, or raise "
            "reservation.quotaPerNamespace.",
        ),
    },
    Stage.BYPASS: {
        ReasonCode.BYPASS_ENV: _Text(
            "A container sets a variable that selects GPUs itself, for example "
            "NVIDIA_VISIBLE_DEVICES.",
            "Remove the variable and require GPUs with an annotation; `kubectl apply "
            "--dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_ENV_FROM: _Text(
            "A container imports variables with envFrom that could select GPUs.",
            "Set a prefix, or list the variables one by one; `kubectl apply --dry-run=server -f "
            "pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_CDI: _Text(
            "The pod names CDI devices in an annotation.",
            "Remove the CDI annotation; `kubectl apply --dry-run=server -f pod.yaml` checks the "
            "pod.",
        ),
        ReasonCode.BYPASS_NRI: _Text(
            "The pod names devices for an NRI plugin in an annotation.",
            "Remove the NRI annotation; `kubectl apply --dry-run=server -f pod.yaml` checks the "
            "pod.",
        ),
        ReasonCode.BYPASS_HOSTPATH: _Text(
            "A hostPath volume is not on the list of allowed paths; device files, sockets and "
            "links can be behind it.",
            "Use another kind of volume, or have an operator add the path to admission.hostPaths;"
            " `kubectl apply --dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_DEVICE_LIST: _Text(
            "A container mounts something below /var/run/nvidia-container-devices, which selects "
            "GPUs.",
            "Remove the volume mount and require GPUs with an annotation; `kubectl apply "
            "--dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_PRIVILEGED: _Text(
            "A container is privileged, or has an equivalent capability, and so sees every GPU of"
            " the node.",
            "Remove privileged and add only the capabilities that are needed; `kubectl apply "
            "--dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_HOST_PID: _Text(
            "The pod sets hostPID, by which it reaches the GPUs of other processes.",
            "Remove hostPID; `kubectl apply --dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_SCHEDULER: _Text(
            "The scheduler that the pod names, or that its namespace uses, does not ask gpuwarden.",
            "Remove schedulerName, or add a scheduler that asks the extender to "
            "`scheduling.schedulerNames`; `kubectl apply --dry-run=server -f pod.yaml` checks it.",
        ),
        ReasonCode.BYPASS_NODE_NAME: _Text(
            "The pod sets spec.nodeName, and nothing is or can be reserved for it there.",
            "Remove nodeName and let the scheduler choose; only pods for env nodes may name one; "
            "`kubectl apply --dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_TOLERATION: _Text(
            "The pod tolerates the taint of managed nodes outside an enforced namespace.",
            "Remove the toleration, or list the namespace of the infrastructure in "
            "deploy/policy/protection; `kubectl apply --dry-run=server -f pod.yaml` checks the "
            "pod.",
        ),
        ReasonCode.BYPASS_RUNTIME_CLASS: _Text(
            "The runtime class is not on the list of those that give no GPUs past the binding "
            "webhook.",
            "Use an allowed class, or have an operator add it to admission.runtimeClasses; "
            "`kubectl apply --dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_CLAIM: _Text(
            "The pod gets devices by ResourceClaims (mode dra), which gpuwarden does not support "
            "yet.",
            "Request a managed resource, or require GPUs with an annotation; `kubectl apply "
            "--dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_RESOURCE: _Text(
            "The pod requests GPUs under a resource name that gpuwarden does not manage.",
            "Request a managed resource, or have an operator add the name to managedResources; "
            "`kubectl apply --dry-run=server -f pod.yaml` checks the pod.",
        ),
        ReasonCode.BYPASS_EPHEMERAL: _Text(
            "An ephemeral container would reach GPUs that were not given to it.",
            "Run `kubectl debug` without GPU variables and without a privileged profile.",
        ),
        ReasonCode.BYPASS_ANNOTATION: _Text(
            "The pod sets or changes an annotation or label that only gpuwarden may write, or "
            "that is fixed at creation.",
            "Remove the keys that the detail names (a copy of a managed pod has several); "
            "`kubectl apply --dry-run=server -f pod.yaml` checks it.",
        ),
        ReasonCode.BYPASS_UNINJECTED: _Text(
            "The pod did not pass the mutating webhook, so nothing keeps other GPUs away from it.",
            "Check `kubectl get mutatingwebhookconfigurations` and the label of the namespace, "
            "then create the pod again.",
        ),
    },
    Stage.STATE: {
        ReasonCode.CONTROLLER_CLOCK_SUSPECT: _Text(
            "The controller's wall clock jumped against its boot-time clock.",
            "Check `chronyc tracking` on the controller's node and repair time synchronisation; "
            "until then certificates are judged by a clock that may be wrong.",
        ),
        ReasonCode.NVML_UNAVAILABLE: _Text(
            "The agent cannot load or initialise NVML.",
            "Check `nvidia-smi` on the node and that its library is mounted into the agent "
            f"({_AGENT}).",
        ),
        ReasonCode.CHECKPOINT_INCONSISTENT: _Text(
            "The audit log does not contain what an agent saw of it earlier: its history was "
            "rewritten.",
            "Keep the log and all its copies; `gpuwarden audit verify --checkpoint FILE DIR` "
            "compares it with what the agent keeps.",
        ),
        ReasonCode.LOG_RESET: _Text(
            "A new audit log began under the same origin without naming the old one.",
            "Find out who removed the audit volume; keep the agents' checkpoints for `gpuwarden "
            "audit verify --checkpoint FILE DIR`.",
        ),
    },
    Stage.API: {
        ReasonCode.ADMISSION_FAILED: _Text(
            "A webhook of the controller did not decide in time, or failed.",
            "Try again; if it stays, look for admission.failed with `kubectl -n "
            "gpuwarden-system logs -l app.kubernetes.io/component=controller --tail=1000`.",
        ),
        ReasonCode.ROLE_DENIED: _Text(
            "The caller's role may not use this method.",
            "Use an SVID of the role that may (`spire-server entry show`); with a kubeconfig, get "
            "the rule that the message names.",
        ),
        ReasonCode.CANDIDATE_UNKNOWN: _Text(
            "The node shows no hardware that waits to be accepted.",
            "Run `gpuwarden node show NODE`; end a quarantine that is no longer needed with "
            "`gpuwarden node release NODE`.",
        ),
        ReasonCode.QUARANTINE_UNKNOWN: _Text(
            "The node is not quarantined.",
            "Run `gpuwarden explain node NODE`, which shows why it is not eligible.",
        ),
        ReasonCode.ENROLLMENT_CONFLICT: _Text(
            "The enrollment, quarantine or hardware of the node changed after it was shown.",
            "Run `gpuwarden node show NODE` and decide again.",
        ),
        ReasonCode.RESERVATION_UNKNOWN: _Text(
            "No reservation has this ID.",
            "Compare the ID with `gpuwarden reservations -o wide`; it may have been released.",
        ),
        ReasonCode.RESERVATION_CONFLICT: _Text(
            "The reservation belongs to another pod, another GPU or another node.",
            "Send the UID, reservation ID and GPU UUID of the pod's own annotations, which "
            "`kubectl -n NAMESPACE get pod POD -o yaml` shows.",
        ),
        ReasonCode.RESERVATION_EXPIRED: _Text(
            "The reservation was not confirmed in time, or the pod's Bindings were let through and "
            "not stored in time.",
            "Look in `kubectl -n NAMESPACE describe pod POD` for the webhook or policy that "
            "refuses its Bindings, or for what delayed its start, then create the pod again.",
        ),
        ReasonCode.RESERVATION_IN_FORCE: _Text(
            "The GPU cannot be released, because its pod has not ended.",
            "Delete the pod first with `kubectl -n NAMESPACE delete pod POD`; an attempt "
            "without a bound pod expires by itself.",
        ),
        ReasonCode.RESERVATION_IN_USE: _Text(
            "The GPU cannot be released, because its node still shows something of the pod.",
            "End what `gpuwarden node show NODE` still lists, and wait for the next report; the "
            "GPU is then free by itself.",
        ),
        ReasonCode.TOKEN_INVALID: _Text(
            "The request carries no token or SVID that this listener accepts.",
            "Use a kubeconfig with which `kubectl auth whoami` works, an SVID, or for the HTTP API "
            "a token for api.audience (`kubectl create token`).",
        ),
        ReasonCode.TOKEN_REVIEW_UNAVAILABLE: _Text(
            "The API server did not review the token.",
            "Check the right with `kubectl auth can-i create tokenreviews --as "
            "system:serviceaccount:gpuwarden-system:gpuwarden-controller`, then ask again.",
        ),
        ReasonCode.CERTIFICATE_INVALID: _Text(
            "The client certificate of the kubeconfig is not one that the cluster's client CA has "
            "signed for a user, or it has ended.",
            "Compare with `kubectl auth whoami`; where a proxy in front of the API server issued "
            "the certificate, use a kubeconfig with a token.",
        ),
        ReasonCode.ACCESS_REVIEW_UNAVAILABLE: _Text(
            "The API server did not say whether the caller may do this.",
            "Check the right with `kubectl auth can-i create subjectaccessreviews --as "
            "system:serviceaccount:gpuwarden-system:gpuwarden-controller`, then ask again.",
        ),
    },
}
"""Cause and remedy of each code."""

EXPLANATIONS: Final[Mapping[ReasonCode, Explanation]] = {
    code: Explanation(stage, text.cause, text.remedy)
    for stage, texts in _TEXTS.items()
    for code, text in texts.items()
}
