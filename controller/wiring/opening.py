"""Chooses how the Kubernetes API is reached. The only way in to the client library.

Imported by whoever found that the API is wanted, and then only: the library costs 20 MiB.
"""

from collections.abc import Mapping

from controller.kube.transport import AccessSource, InCluster, Kubeconfig, Transport
from controller.settings import KubernetesSettings
from gpuwarden.clock import Clock


def open_transport(
    settings: KubernetesSettings, environ: Mapping[str, str], clock: Clock
) -> Transport:
    """A connection that is made at the first call."""
    source: AccessSource = (
        InCluster(environ)
        if settings.kubeconfig is None
        else Kubeconfig(settings.kubeconfig, settings.context)
    )
    return Transport(source, clock)
