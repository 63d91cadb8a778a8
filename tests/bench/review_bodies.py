"""AdmissionReviews as an API server sends them for the pods of a Deployment, about 6 KB each."""

import json
from typing import Any, Final

_MANAGED: Final = {
    "f:metadata": {
        "f:annotations": {".": {}, "f:gpuwarden.dev/gpu-count": {}},
        "f:generateName": {},
        "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}, "f:team": {}},
        "f:ownerReferences": {".": {}, 'k:{"uid":"2f9f8b8e-51a7-4a7b-9f0e-5a6f5d1c0b11"}': {}},
    },
    "f:spec": {
        "f:containers": {
            'k:{"name":"main"}': {
                ".": {},
                "f:args": {},
                "f:env": {".": {}, 'k:{"name":"MODEL"}': {".": {}, "f:name": {}, "f:value": {}}},
                "f:image": {},
                "f:imagePullPolicy": {},
                "f:livenessProbe": {".": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}}},
                "f:name": {},
                "f:ports": {".": {}, 'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}}},
                "f:readinessProbe": {".": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}}},
                "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:memory": {}}},
                "f:volumeMounts": {".": {}, 'k:{"mountPath":"/data"}': {".": {}, "f:name": {}}},
            }
        },
        "f:dnsPolicy": {},
        "f:restartPolicy": {},
        "f:schedulerName": {},
        "f:terminationGracePeriodSeconds": {},
        "f:volumes": {".": {}, 'k:{"name":"data"}': {".": {}, "f:name": {}}},
    },
}


def pod() -> dict[str, Any]:
    """A new pod that requires a GPU of ours, before any webhook has seen it."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "inference-7d9f8b6c5d-",
            "namespace": "team-a",
            "labels": {"app": "inference", "pod-template-hash": "7d9f8b6c5d", "team": "a"},
            "annotations": {
                "gpuwarden.dev/gpu-count": "2",
                "prometheus.io/scrape": "true",
                "example.org/commit": "8e51a74a7b9f0e5a6f5d1c0b112f9f8b8e51a74a",
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "inference-7d9f8b6c5d",
                    "uid": "2f9f8b8e-51a7-4a7b-9f0e-5a6f5d1c0b11",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-03-04T12:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": _MANAGED,
                }
            ],
        },
        "spec": {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "models"}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}},
                {"name": "settings", "configMap": {"name": "inference", "defaultMode": 420}},
                _token_volume(),
            ],
            "initContainers": [_container("fetch", ["fetch", "--model", "large"])],
            "containers": [_container("main", ["serve"]), _container("proxy", ["proxy"])],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "nodeSelector": {"pool": "gpu"},
            "serviceAccountName": "inference",
            "serviceAccount": "inference",
            "securityContext": {"fsGroup": 2000, "runAsNonRoot": True},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                *(
                    {
                        "key": f"node.kubernetes.io/{key}",
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": 300,
                    }
                    for key in ("not-ready", "unreachable")
                ),
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def review(made: dict[str, Any]) -> bytes:
    """A review of its creation."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return json.dumps(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
                "namespace": "team-a",
                "operation": "CREATE",
                "userInfo": {
                    "username": "system:serviceaccount:kube-system:replicaset-controller",
                    "uid": "0b1f5d6c-51a7-4a7b-9f0e-2f9f8b8e51a7",
                    "groups": [
                        "system:serviceaccounts",
                        "system:serviceaccounts:kube-system",
                        "system:authenticated",
                    ],
                    "extra": {"authentication.kubernetes.io/credential-id": ["JTI=5a6f5d1c0b11"]},
                },
                "object": made,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        },
        separators=(",", ":"),
    ).encode()


def _container(name: str, arguments: list[str]) -> dict[str, Any]:
    limits = {"cpu": "8", "memory": "64Gi"}
    probe = {
        "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    return {
        "name": name,
        "image": "registry.example/team-a/inference:1.4.2",
        "args": arguments,
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": "MODEL", "value": "large"},
            {"name": "LOG_LEVEL", "value": "info"},
            {
                "name": "POD_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
            },
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "inference", "key": "token"}}},
        ],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "settings", "mountPath": "/etc/inference"},
            {
                "name": "kube-api-access-x7k2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _token_volume() -> dict[str, Any]:
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "name": "kube-api-access-x7k2p",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {
                    "configMap": {
                        "name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    }
                },
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
            ],
            "defaultMode": 420,
        },
    }
