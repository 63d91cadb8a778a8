"""What each reason code means to the person who meets it: where, why, and what to do.

Text for people only; docs/reference/reasons.md, the CLI and the UI show it. Whether
a code revokes trust stands in `reasons`, and nothing may be decided from here.
"""

from dataclasses import dataclass
from typing import Final

from gpuwarden.reasons import ReasonCode, Stage


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence each: what has happened, and what an operator does about it."""

    stage: Stage
    cause: str
    remedy: str


EXPLANATIONS: Final[dict[ReasonCode, Explanation]] = {
    ReasonCode.LIMIT_STREAMS: Explanation(
        Stage.STREAM,
        "More attestation streams are open than this replica allows, for this peer or in all.",
        "Look for agents that reconnect in a loop; raise limits.streams only if the fleet "
        "really has that many nodes.",
    ),
    ReasonCode.LIMIT_RATE: Explanation(
        Stage.STREAM,
        "This peer opens streams or sends messages faster than allowed.",
        "Read the agent's log for the reason why it reconnects; it backs off by itself.",
    ),
    ReasonCode.TLS_NO_CLIENT_CERT: Explanation(
        Stage.STREAM,
        "The caller showed no client certificate.",
        "Give the agent access to the Workload API (SPIFFE_ENDPOINT_SOCKET) and check that no "
        "proxy ends TLS in between.",
    ),
    ReasonCode.TLS_RESUMED: Explanation(
        Stage.STREAM,
        "The TLS session was resumed, so the certificate was not checked in this handshake.",
        "Use the shipped agent; other clients must switch session resumption off.",
    ),
    ReasonCode.PEER_ID_INVALID: Explanation(
        Stage.STREAM,
        "The client certificate does not hold exactly one URI name that is a valid SPIFFE ID.",
        "Have the certificate issued by SPIRE as an X509-SVID.",
    ),
    ReasonCode.PEER_FOREIGN_DOMAIN: Explanation(
        Stage.STREAM,
        "The peer's SPIFFE ID belongs to another trust domain.",
        "Point the agent at the controller of its own trust domain, or correct trustDomain in "
        "the configuration.",
    ),
    ReasonCode.CHAIN_INVALID: Explanation(
        Stage.STREAM,
        "The peer's certificate chain does not lead to the present trust bundle.",
        "Check that agent and controller talk to the same SPIRE server and that the bundle "
        "has not been rotated past the agent.",
    ),
    ReasonCode.SVID_EXPIRED: Explanation(
        Stage.STREAM,
        "The peer's SVID has expired by the controller's clock.",
        "Look for a SPIRE agent that stopped renewing, then compare the clocks of node and "
        "controller.",
    ),
    ReasonCode.SVID_NOT_YET_VALID: Explanation(
        Stage.STREAM,
        "The peer's SVID begins in the future by the controller's clock.",
        "Compare the clocks of SPIRE server and controller; it passes by itself once they agree.",
    ),
    ReasonCode.PEER_ROLE_UNKNOWN: Explanation(
        Stage.STREAM,
        "The path of the SPIFFE ID names no role that may attest.",
        "Register the agent as PREFIX/agent/NODE, and check pathPrefix on both sides.",
    ),
    ReasonCode.NODE_NAME_INVALID: Explanation(
        Stage.STREAM,
        "The node name in the SPIFFE ID is not an RFC 1123 subdomain.",
        "Correct the registration entry or the ClusterSPIFFEID template that makes the ID.",
    ),
    ReasonCode.ENROLLMENT_STALE: Explanation(
        Stage.STREAM,
        "The store of pins and denials cannot be read or is not current.",
        "Check the API server (or the SQLite file) that holds the enrolments; nothing new is "
        "accepted until it answers.",
    ),
    ReasonCode.DIRECTORY_STALE: Explanation(
        Stage.STREAM,
        "The controller's list of Nodes is not current.",
        "Check the controller's connection to the API server and its right to watch Nodes.",
    ),
    ReasonCode.NODE_UNKNOWN: Explanation(
        Stage.STREAM,
        "No Node of this name exists.",
        "Let the node join the cluster first, or add it to the static list where there is no "
        "cluster.",
    ),
    ReasonCode.NODE_DENIED: Explanation(
        Stage.STREAM,
        "An operator or an earlier quarantine has shut this node out.",
        "Read gpuwarden explain node for the reason and let an operator accept or release the "
        "node.",
    ),
    ReasonCode.SPIRE_ENTRY_NOT_FOUND: Explanation(
        Stage.STREAM,
        "The SPIRE server has no registration entry for the peer's SPIFFE ID.",
        "Create the entry (ClusterSPIFFEID) for the agent, or find out who issued the SVID.",
    ),
    ReasonCode.SPIRE_ENTRY_AMBIGUOUS: Explanation(
        Stage.STREAM,
        "Registration entries of this SPIFFE ID have different parents.",
        "Delete the entries that do not belong to this node's SPIRE agent.",
    ),
    ReasonCode.SPIRE_ENTRY_WEAK: Explanation(
        Stage.STREAM,
        "The registration entry lacks a selector that policy demands.",
        "Add the required selectors (service account, image digest) to the entry's template.",
    ),
    ReasonCode.SPIRE_ENTRY_PRIVILEGED: Explanation(
        Stage.STREAM,
        "The registration entry is marked admin or downstream.",
        "Register the agent without these flags.",
    ),
    ReasonCode.SPIRE_PARENT_INVALID: Explanation(
        Stage.STREAM,
        "The entry's parent is an alias or not a SPIRE agent.",
        "Give the entry the parent ID of the SPIRE agent on that node.",
    ),
    ReasonCode.SPIRE_AGENT_NOT_FOUND: Explanation(
        Stage.STREAM,
        "The SPIRE server does not know the node's SPIRE agent any more; it was evicted or "
        "has never attested.",
        "Let the SPIRE agent attest again; if somebody evicted it on purpose, leave the node out.",
    ),
    ReasonCode.SPIRE_AGENT_BANNED: Explanation(
        Stage.STREAM,
        "The node's SPIRE agent is banned on the SPIRE server.",
        "Find out who banned it and why; evict it on the SPIRE server to let it attest again.",
    ),
    ReasonCode.SPIRE_AGENT_EXPIRED: Explanation(
        Stage.STREAM,
        "The SVID of the node's SPIRE agent has expired on the SPIRE server.",
        "Restart the SPIRE agent and read its log for why it could not renew.",
    ),
    ReasonCode.SPIRE_ATTESTOR_DENIED: Explanation(
        Stage.STREAM,
        "The SPIRE agent attested in a way that policy does not allow, for example by join token.",
        "Use an allowed node attestor, or add this one to the policy.",
    ),
    ReasonCode.SPIRE_NODE_MISMATCH: Explanation(
        Stage.STREAM,
        "The SPIRE agent's selectors name another node or another node UID.",
        "Check that the agent runs on the node it names; after a rebuilt node, let the SPIRE "
        "agent attest again.",
    ),
    ReasonCode.AGENT_IMAGE_DENIED: Explanation(
        Stage.STREAM,
        "The agent's image digest is not on the policy's list.",
        "Roll out a listed image, or add the new digest to the policy before the upgrade.",
    ),
    ReasonCode.SPIRE_UNAVAILABLE: Explanation(
        Stage.STREAM,
        "The SPIRE server does not answer and there is no earlier snapshot to rely on.",
        "Restore the SPIRE server or the network to it; check the read rule for the "
        "controller if it answers with permission denied.",
    ),
    ReasonCode.SPIRE_STATUS_STALE: Explanation(
        Stage.STREAM,
        "The last answer of the SPIRE server is older than spire.grace.",
        "Restore the SPIRE server; nodes come back by themselves.",
    ),
    ReasonCode.PROTOCOL_UNSUPPORTED: Explanation(
        Stage.STREAM,
        "The agent speaks a protocol version that this controller does not.",
        "Upgrade the older of the two; both sides support the version before their own.",
    ),
    ReasonCode.STREAM_SUPERSEDED: Explanation(
        Stage.STREAM,
        "A newer instance of this node's agent has taken over.",
        "Nothing to do after a restart or a rotation; if it repeats, look for a second agent "
        "on the node.",
    ),
    ReasonCode.DUPLICATE_AGENT: Explanation(
        Stage.STREAM,
        "Two processes with the identity of this node answer challenges.",
        "Find the second process, for its SVID or socket may be stolen; then let an operator "
        "release the node (gpuwarden node release) and restart its agent.",
    ),
    ReasonCode.MSG_TOO_LARGE: Explanation(
        Stage.MESSAGE,
        "The message is larger than limits.messageBytes.",
        "Check the agent's version; an honest inventory is far below the limit.",
    ),
    ReasonCode.MSG_MALFORMED: Explanation(
        Stage.MESSAGE,
        "The message or the document in it cannot be decoded.",
        "Check that agent and controller have compatible versions; the detail names the field.",
    ),
    ReasonCode.TYPE_UNEXPECTED: Explanation(
        Stage.MESSAGE,
        "The envelope's payload type is not one that belongs here.",
        "Check that agent and controller have compatible versions.",
    ),
    ReasonCode.CHALLENGE_UNKNOWN: Explanation(
        Stage.MESSAGE,
        "The evidence answers a challenge that this replica did not give or has forgotten in "
        "a restart.",
        "Nothing to do after a restart, the agent reconnects; if it repeats, look for a replay.",
    ),
    ReasonCode.CHALLENGE_EXPIRED: Explanation(
        Stage.MESSAGE,
        "The answer came later than attestation.challengeTtl.",
        "Look for a slow NVML, an overloaded node or a slow network.",
    ),
    ReasonCode.NONCE_REUSED: Explanation(
        Stage.MESSAGE,
        "A nonce came a second time.",
        "Treat it as a replay: compare the evidence digests in the audit log and look at who "
        "can read the agent's traffic.",
    ),
    ReasonCode.NONCE_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The nonce does not belong to the challenge that the message names.",
        "Treat it as tampering or a broken agent; compare the agent's image digest with the "
        "released one.",
    ),
    ReasonCode.STREAM_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The challenge was given on another stream.",
        "Treat it as a relayed answer; look for a second process with this node's identity.",
    ),
    ReasonCode.SIGNER_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The evidence is not signed with the key of this TLS session.",
        "Update the agent; if it is current, treat it as evidence relayed from elsewhere.",
    ),
    ReasonCode.SIG_ALG_DENIED: Explanation(
        Stage.MESSAGE,
        "The signer's key is not ECDSA P-256, ECDSA P-384 or RSA of 2048 to 8192 bits.",
        "Set the SPIRE server's key type for workload SVIDs to an allowed one.",
    ),
    ReasonCode.SIG_INVALID: Explanation(
        Stage.MESSAGE,
        "The signature does not verify over the received bytes.",
        "Treat it as tampering; if only one agent version shows it, report a bug.",
    ),
    ReasonCode.AUDIENCE_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The evidence was made for another controller, trust domain or protocol.",
        "Correct agent.controllerId and trustDomain in the agent's configuration.",
    ),
    ReasonCode.NODE_NAME_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The node name in the evidence is not the one in the peer's SPIFFE ID.",
        "Correct agent.nodeName ($NODE_NAME); an agent can speak only for its own node.",
    ),
    ReasonCode.INNER_NONCE_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The signed nonce is not the one that came beside it.",
        "Treat it as tampering between agent and controller.",
    ),
    ReasonCode.CHALLENGE_DIGEST_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The agent signed the digest of another challenge than the controller sent.",
        "Look for something between agent and controller that changes messages.",
    ),
    ReasonCode.SEQ_REPLAY: Explanation(
        Stage.MESSAGE,
        "The sequence number was used before on this stream.",
        "Treat it as a replay and look at who can read the agent's traffic.",
    ),
    ReasonCode.SEQ_GAP: Explanation(
        Stage.MESSAGE,
        "A sequence number was left out on this stream.",
        "Look for lost messages in the agent's log; the agent starts a new stream by itself.",
    ),
    ReasonCode.PREV_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The evidence does not follow on the previous one of this stream.",
        "Look for a second process with this node's identity, then for lost messages in the "
        "agent's log.",
    ),
    ReasonCode.BOOT_CHANGED: Explanation(
        Stage.MESSAGE,
        "The boot id changed within one stream.",
        "Nothing to do after a reboot or a resumed VM; the agent opens a new stream.",
    ),
    ReasonCode.CLOCK_BACKWARDS: Explanation(
        Stage.MESSAGE,
        "The node's boot-time clock ran backwards within one boot.",
        "Look for a VM that was restored from a snapshot or cloned.",
    ),
    ReasonCode.CLOCK_SKEW: Explanation(
        Stage.MESSAGE,
        "The node's wall clock differs from the controller's by more than clock.refuse.",
        "Repair time synchronisation on the node, or on the controller if many nodes show it.",
    ),
    ReasonCode.INVENTORY_INVALID: Explanation(
        Stage.MESSAGE,
        "The inventory breaks a rule: a malformed value, a duplicate or too many entries.",
        "Read the findings in gpuwarden explain node; check driver and agent version.",
    ),
    ReasonCode.INVENTORY_INCOMPLETE: Explanation(
        Stage.MESSAGE,
        "A read that the class or the identity needs has failed.",
        "Look for the failed NVML call in the detail, then at the driver's log (dmesg, XID) "
        "on the node.",
    ),
    ReasonCode.INVENTORY_EMPTY: Explanation(
        Stage.MESSAGE,
        "The node shows no GPU that answers.",
        "Check nvidia-smi on the node; do not run the agent on nodes without GPUs.",
    ),
    ReasonCode.GPU_DENIED: Explanation(
        Stage.MESSAGE,
        "A GPU of the node is on the policy's list of denied keys.",
        "Remove the card, or take its UUID, serial or key off the list.",
    ),
    ReasonCode.GPU_CLAIMED_TWICE: Explanation(
        Stage.MESSAGE,
        "The node claims a GPU UUID that belongs to another node.",
        "Compare the serials of both nodes; if the card was moved, let an operator accept the "
        "new place.",
    ),
    ReasonCode.NODE_UID_CHANGED: Explanation(
        Stage.MESSAGE,
        "The Node object was made anew under the same name.",
        "If the node was rebuilt on purpose, let an operator accept it (gpuwarden node accept) "
        "after looking at the difference.",
    ),
    ReasonCode.INVENTORY_NOT_ENROLLED: Explanation(
        Stage.MESSAGE,
        "Policy demands enrolment and a GPU of the node is not enrolled.",
        "Add the UUID or serial to the node pool's list, or let an operator accept the node "
        "(gpuwarden node accept) after looking at what it shows.",
    ),
    ReasonCode.INVENTORY_CHANGED: Explanation(
        Stage.MESSAGE,
        "A GPU was added or swapped, or a serial or identity key changed, against what was pinned.",
        "If the card was replaced on purpose, let an operator accept the node "
        "(gpuwarden node accept) after looking at the difference.",
    ),
    ReasonCode.HW_MISSING: Explanation(
        Stage.MESSAGE,
        "Policy demands a hardware report and a GPU gave none.",
        "Switch confidential computing on, or lower the level that policy demands.",
    ),
    ReasonCode.HW_STALE: Explanation(
        Stage.MESSAGE,
        "The last hardware report is older than allowed.",
        "Wait for the next report; if it does not come, read the agent's log.",
    ),
    ReasonCode.HW_CHAIN_INVALID: Explanation(
        Stage.MESSAGE,
        "The hardware report's certificate chain does not lead to the pinned vendor root.",
        "Check that the GPU is a genuine product part with a released VBIOS.",
    ),
    ReasonCode.HW_REVOKED: Explanation(
        Stage.MESSAGE,
        "A certificate of the GPU is on the operator's revocation list.",
        "Take the card out of service.",
    ),
    ReasonCode.HW_NONCE_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The hardware report answers another nonce.",
        "Treat it as a replayed report.",
    ),
    ReasonCode.HW_SIG_INVALID: Explanation(
        Stage.MESSAGE,
        "The signature of the hardware report does not verify.",
        "Treat it as a forged report, then check the driver version.",
    ),
    ReasonCode.HW_FWID_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The firmware identity in the report is not the one in the GPU's certificate.",
        "Reset the GPU and attest again; if it stays, take the card out of service.",
    ),
    ReasonCode.HW_VERSION_MISMATCH: Explanation(
        Stage.MESSAGE,
        "The driver or VBIOS version in the report is not the one that NVML gave.",
        "Reload the driver; if it stays, treat the node's driver as manipulated.",
    ),
    ReasonCode.HW_IDENTITY_CHANGED: Explanation(
        Stage.MESSAGE,
        "The GPU's device identity key is not the pinned one.",
        "If the card was replaced on purpose, let an operator accept the node.",
    ),
    ReasonCode.HW_DEVTOOLS: Explanation(
        Stage.MESSAGE,
        "The GPU runs in devtools mode, in which its memory is open to debugging.",
        "Set the confidential-computing mode to on and reset the GPU.",
    ),
    ReasonCode.HW_MEASUREMENT_DENIED: Explanation(
        Stage.MESSAGE,
        "The report's measurements are not among the accepted reference values.",
        "Compare VBIOS and driver with the accepted ones, or add the new reference value.",
    ),
    ReasonCode.POLICY_DENIED: Explanation(
        Stage.MESSAGE,
        "Policy does not allow this driver, VBIOS, attestor or setting.",
        "Change the node to an allowed version, or change the policy.",
    ),
    ReasonCode.LEVEL_TOO_LOW: Explanation(
        Stage.MESSAGE,
        "The evidence level is below what policy or the pod demands.",
        "Connect the controller to the SPIRE server (L1) or enable hardware reports (L2), or "
        "lower the demand.",
    ),
    ReasonCode.CLASS_NOT_ALLOWED: Explanation(
        Stage.MESSAGE,
        "The cluster's policy does not accept this attestation hash or class.",
        "Compare the documents with gpuwarden class diff and add the hash to the policy if it "
        "is wanted.",
    ),
    ReasonCode.AUDIT_UNAVAILABLE: Explanation(
        Stage.MESSAGE,
        "The audit log cannot be written, so nothing new may be granted.",
        "Free space on the audit volume or restore it; grants go on by themselves.",
    ),
    ReasonCode.ACCEPTED: Explanation(
        Stage.MESSAGE,
        "The evidence counts; the node is eligible until its lease ends.",
        "Nothing to do.",
    ),
    ReasonCode.REQ_INVALID: Explanation(
        Stage.PLACEMENT,
        "The pod's wish cannot be understood.",
        "Correct the annotation or label that the text names.",
    ),
    ReasonCode.CONTROLLER_NOT_READY: Explanation(
        Stage.PLACEMENT,
        "The controller has not heard from every agent since its start, or has not yet compared "
        "the ledger with pods, nodes' reports and its audit log.",
        "Wait one challenge round (at most a minute); if it stays, read the controller's "
        "readiness, warnings included.",
    ),
    ReasonCode.NODE_NO_EVIDENCE: Explanation(
        Stage.PLACEMENT,
        "No evidence of this node has ever been accepted.",
        "Check that the agent runs on the node and read gpuwarden explain node.",
    ),
    ReasonCode.NODE_STALE: Explanation(
        Stage.PLACEMENT,
        "The node's lease has run out without new evidence.",
        "Check the agent and its connection to the controller.",
    ),
    ReasonCode.NODE_REFUSED: Explanation(
        Stage.PLACEMENT,
        "The node's last evidence was refused.",
        "Read the code of the refusal in gpuwarden explain node.",
    ),
    ReasonCode.NODE_QUARANTINED: Explanation(
        Stage.PLACEMENT,
        "The node is quarantined until an operator acts.",
        "Read gpuwarden explain node, clear up the cause and let an operator accept the node.",
    ),
    ReasonCode.HASH_MISMATCH: Explanation(
        Stage.PLACEMENT,
        "The node has another attestation hash than the pod requires.",
        "Compare the two documents with gpuwarden class diff.",
    ),
    ReasonCode.CLASS_UNKNOWN: Explanation(
        Stage.PLACEMENT,
        "The pod names an attestation class that policy does not know.",
        "Correct the name, or add the class to the policy.",
    ),
    ReasonCode.NODE_MODE: Explanation(
        Stage.PLACEMENT,
        "The node hands out GPUs in another way than the pod asks for them, or gives none yet.",
        "Ask for the GPU as the node's mode demands, or use a node of another mode; nodes of the "
        "modes per-gpu and dra give no GPUs yet, whatever is asked.",
    ),
    ReasonCode.EXACT_UNAVAILABLE: Explanation(
        Stage.PLACEMENT,
        "The pod wants certain GPUs, or GPUs at its creation, but kubelet chooses them.",
        "Ask for GPUs without requesting them from kubelet, on a node with mode env, or accept "
        "less with the annotation gpuwarden.dev/guarantee.",
    ),
    ReasonCode.MAP_ELSEWHERE: Explanation(
        Stage.PLACEMENT,
        "The scheduling map sends this pod to another node.",
        "Nothing to do, unless no node is named for the pod's ordinal.",
    ),
    ReasonCode.GPU_NO_MATCH: Explanation(
        Stage.PLACEMENT,
        "No GPU of the node satisfies the selector, label, UUID or map entry.",
        "Compare the wish with gpuwarden gpus; remember that an 80 GB card reports about 79.6Gi.",
    ),
    ReasonCode.GPU_LOST: Explanation(
        Stage.PLACEMENT,
        "A GPU that the pod needs has stopped answering.",
        "Look at dmesg and XIDs on the node, then reset or replace the card.",
    ),
    ReasonCode.GPU_BUSY: Explanation(
        Stage.PLACEMENT,
        "Too few matching GPUs of the node are free.",
        "Wait for a release, or see with gpuwarden reservations who holds them; what pods have"
        " without a reservation stands in the node's events (GpuOffBook).",
    ),
    ReasonCode.GATE_DENIED_RECENTLY: Explanation(
        Stage.PLACEMENT,
        "The binding gate has just refused this pod on this node.",
        "Wait some seconds; the gate's own reason stands in the pod's events.",
    ),
    ReasonCode.POD_UNKNOWN: Explanation(
        Stage.GATE,
        "No such pod exists, or it is not the one that the binding or request means.",
        "Let the scheduler retry; check for pods that are deleted and made again quickly.",
    ),
    ReasonCode.BINDING_STALE: Explanation(
        Stage.GATE,
        "The pod changed between the scheduling decision and the binding.",
        "Let the scheduler retry.",
    ),
    ReasonCode.BINDING_FORGED: Explanation(
        Stage.GATE,
        "The Binding carries keys of ours that only the gate may write.",
        "Find the client that wrote it; remove the keys from its template.",
    ),
    ReasonCode.LEDGER_UNAVAILABLE: Explanation(
        Stage.GATE,
        "The store of reservations does not answer.",
        "Restore the API server (or the SQLite file); pods wait until then.",
    ),
    ReasonCode.LEDGER_CONFLICT: Explanation(
        Stage.GATE,
        "Another pod got the GPU first.",
        "Let the scheduler retry; another GPU or node is chosen.",
    ),
    ReasonCode.QUOTA_EXCEEDED: Explanation(
        Stage.GATE,
        "The namespace holds as many GPUs as it may.",
        "Delete pods of the namespace that hold GPUs, or raise reservation.quotaPerNamespace.",
    ),
    ReasonCode.DOOR_ENV: Explanation(
        Stage.DOOR,
        "A container sets a variable that chooses GPUs by itself, for example "
        "NVIDIA_VISIBLE_DEVICES.",
        "Remove the variable; ask with an annotation instead.",
    ),
    ReasonCode.DOOR_ENV_FROM: Explanation(
        Stage.DOOR,
        "envFrom could bring in a variable that chooses GPUs.",
        "Give the source a prefix, or list the variables one by one.",
    ),
    ReasonCode.DOOR_CDI: Explanation(
        Stage.DOOR,
        "The pod names CDI devices by annotation.",
        "Remove the CDI annotation.",
    ),
    ReasonCode.DOOR_NRI: Explanation(
        Stage.DOOR,
        "The pod names devices for an NRI plugin by annotation.",
        "Remove the NRI annotation.",
    ),
    ReasonCode.DOOR_HOSTPATH: Explanation(
        Stage.DOOR,
        "A volume is a path of the node that the installation does not list: device files, "
        "sockets and links to them can be behind any.",
        "Use another kind of volume; an operator lists harmless paths in admission.hostPaths.",
    ),
    ReasonCode.DOOR_DEVICE_LIST: Explanation(
        Stage.DOOR,
        "A container mounts something below /var/run/nvidia-container-devices, by which the "
        "container toolkit is told devices.",
        "Remove the volume mount; ask with an annotation instead.",
    ),
    ReasonCode.DOOR_PRIVILEGED: Explanation(
        Stage.DOOR,
        "A privileged container, or one with a capability that is as good, sees every GPU of "
        "the node.",
        "Drop privileged; name the capabilities that are needed.",
    ),
    ReasonCode.DOOR_HOST_PID: Explanation(
        Stage.DOOR,
        "With hostPID a container reaches other containers' processes, and through them their "
        "GPUs.",
        "Drop hostPID.",
    ),
    ReasonCode.DOOR_SCHEDULER: Explanation(
        Stage.DOOR,
        "The pod names a scheduler that does not ask gpuwarden, or has a wish in a namespace whose "
        "scheduler does not.",
        "Leave schedulerName out; have the namespace enforced.",
    ),
    ReasonCode.DOOR_NODE_NAME: Explanation(
        Stage.DOOR,
        "The pod sets spec.nodeName, and nothing was or can be reserved for it there.",
        "Leave nodeName out and let the scheduler choose; a pod may name an env node where it "
        "asks gpuwarden for GPUs and requests none from kubelet.",
    ),
    ReasonCode.DOOR_TOLERATION: Explanation(
        Stage.DOOR,
        "The pod tolerates the taint of managed nodes outside enforced namespaces, by name or "
        "for all taints.",
        "Remove the toleration; for a pod of the infrastructure, list its namespace in "
        "deploy/policy/protection.",
    ),
    ReasonCode.DOOR_RUNTIME_CLASS: Explanation(
        Stage.DOOR,
        "The runtime class is not among those that are known to give no GPUs past the gate.",
        "Use an allowed runtime class; an operator lists further ones in admission.runtimeClasses.",
    ),
    ReasonCode.DOOR_CLAIM: Explanation(
        Stage.DOOR,
        "The pod gets devices by ResourceClaims, about which nothing can be promised yet (mode "
        "dra).",
        "Request a managed resource, or ask with an annotation.",
    ),
    ReasonCode.DOOR_RESOURCE: Explanation(
        Stage.DOOR,
        "The pod requests GPUs under a resource name that is not managed, so nobody would guard "
        "them.",
        "Request a managed resource; an operator adds the name to managedResources.",
    ),
    ReasonCode.DOOR_EPHEMERAL: Explanation(
        Stage.DOOR,
        "An ephemeral container would reach GPUs that were not given to it.",
        "Debug without GPU variables and without privileged.",
    ),
    ReasonCode.DOOR_ANNOTATION: Explanation(
        Stage.DOOR,
        "The pod brings a key that only gpuwarden may write, or a change of it touches one that "
        "stays as it was at creation.",
        "Remove the annotation or label that the text names; to wish for something else, create "
        "the pod anew.",
    ),
    ReasonCode.DOOR_UNINJECTED: Explanation(
        Stage.DOOR,
        "The pod passed no mutating webhook of ours, so nothing keeps GPUs away from it.",
        "Check that the mutating webhook is registered for this namespace, then create the "
        "pod again.",
    ),
    ReasonCode.CONTROLLER_CLOCK_SUSPECT: Explanation(
        Stage.STATE,
        "The controller's wall clock jumped against its boot-time clock.",
        "Repair time synchronisation on the controller's node; certificate dates are not "
        "trusted until then.",
    ),
    ReasonCode.NVML_UNAVAILABLE: Explanation(
        Stage.STATE,
        "The agent cannot load or initialise NVML.",
        "Check that the driver is loaded and its library is visible inside the agent's container.",
    ),
    ReasonCode.CHECKPOINT_INCONSISTENT: Explanation(
        Stage.STATE,
        "The audit log does not contain what an agent saw of it earlier: history was rewritten.",
        "Keep the log and all its copies, and treat the controller's volume as tampered with.",
    ),
    ReasonCode.LOG_RESET: Explanation(
        Stage.STATE,
        "A new audit log began without naming the old one.",
        "Find out who removed the audit volume; keep the agents' last checkpoints as proof.",
    ),
    ReasonCode.ADMISSION_FAILED: Explanation(
        Stage.API,
        "A webhook of the controller did not come to a decision: its time was over, or it failed.",
        "Try again; look into the controller's log for admission.failed.",
    ),
    ReasonCode.ROLE_DENIED: Explanation(
        Stage.API,
        "The caller's role may not use this method.",
        "Use an SVID of the inspector role for reading or the operator role for acting.",
    ),
    ReasonCode.CANDIDATE_UNKNOWN: Explanation(
        Stage.API,
        "The node has shown no hardware that waits for an operator to accept it.",
        "Read gpuwarden node show: a denial without other hardware is ended by gpuwarden node "
        "release; then the node shows its hardware again.",
    ),
    ReasonCode.DENIAL_UNKNOWN: Explanation(
        Stage.API,
        "There is no denial of this node that could be lifted.",
        "Read gpuwarden explain node for what keeps the node out instead.",
    ),
    ReasonCode.ENROLLMENT_CONFLICT: Explanation(
        Stage.API,
        "Pins, denial or hardware of the node have changed since they were shown.",
        "Look at the node again with gpuwarden node show and decide anew.",
    ),
    ReasonCode.RESERVATION_UNKNOWN: Explanation(
        Stage.API,
        "No reservation has this id.",
        "Check the id against the pod's annotations; it may have been released.",
    ),
    ReasonCode.RESERVATION_CONFLICT: Explanation(
        Stage.API,
        "The reservation belongs to another pod, another GPU or another node.",
        "Send the uid, id and UUID that stand in the pod's own annotations; a pod that was "
        "reserved for at its creation goes to its node and no other.",
    ),
    ReasonCode.RESERVATION_EXPIRED: Explanation(
        Stage.API,
        "The reservation was not confirmed in time.",
        "Create the pod again; look for why it took so long to start.",
    ),
    ReasonCode.RESERVATION_PENDING: Explanation(
        Stage.PLACEMENT,
        "GPUs are reserved for an earlier pod of the same owner, or of the same name, whose "
        "creation is not over or was refused after the reservation.",
        "Wait two minutes, as controllers do by themselves; look in the owner's events for what "
        "refuses its pods, such as a ResourceQuota.",
    ),
    ReasonCode.RESERVATION_IN_FORCE: Explanation(
        Stage.API,
        "An operator wanted to release a GPU from a pod that has not ended.",
        "Delete the pod first; an attempt that no pod is bound under expires by itself.",
    ),
    ReasonCode.RESERVATION_IN_USE: Explanation(
        Stage.API,
        "An operator wanted to release a GPU whose node shows that something of the pod is left.",
        "End it on the node; the GPU is then free by itself. A report of before its end counts "
        "until the next one, or for the lease.",
    ),
    ReasonCode.TOKEN_INVALID: Explanation(
        Stage.API,
        "The HTTP API was called without a token or SVID that counts there.",
        "Mount a projected service account token for the audience of api.audience and send it as "
        "Authorization: Bearer, or use an SVID.",
    ),
    ReasonCode.TOKEN_REVIEW_UNAVAILABLE: Explanation(
        Stage.API,
        "The API server did not say whose token it is.",
        "Check the API server and the controller's right to create TokenReviews; ask again.",
    ),
}
