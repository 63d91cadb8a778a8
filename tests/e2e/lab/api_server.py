"""kube-apiserver: on loopback by itself, or at the node's address with Services that reach it."""

from collections.abc import Sequence
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.api import Api
from tests.e2e.lab.identities import MASTERS, Identities
from tests.e2e.lab.kubeconfig import caller, written
from tests.e2e.lab.program import Program, Site

_PORT = 6443


class ApiServer(Program):
    """`extra` arguments come last and so win."""

    def __init__(
        self,
        site: Site,
        plan: AddressPlan,
        identities: Identities,
        etcd: str,
        *,
        has_node: bool,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(site, "kube-apiserver", usual_port=_PORT)
        self._plan = plan
        self._pki = identities.pki
        self._identities = identities
        self._certified_by = identities
        self._etcd = etcd
        self._layout = _beside_node(site.place.address) if has_node else _ALONE
        self._serving = identities.serving(self.name, site.place.address, plan)
        self._webhooks = self._webhook_configuration()
        self._to_kubelets = self._pki.issue("to-kubelets", "apiserver-client", groups=[MASTERS])
        self.extra = extra

    @property
    def url(self) -> str:
        """Where it serves, once started."""
        return f"https://{self.site.place.address}:{self.port}"

    def arguments(self) -> Sequence[str]:
        accounts = self._pki.service_accounts
        return (
            str(self.site.programs[self.name]),
            f"--bind-address={self.site.place.address}",
            f"--secure-port={self.port}",
            f"--etcd-servers={self._etcd}",
            f"--service-cluster-ip-range={self._plan.services}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self._pki.ca}",
            f"--kubelet-certificate-authority={self._pki.ca}",
            f"--kubelet-client-certificate={self._to_kubelets.certificate}",
            f"--kubelet-client-key={self._to_kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--admission-control-config-file={self._webhooks}",
            "--shutdown-delay-duration=0s",
            "--shutdown-watch-termination-grace-period=2s",  # else it waits for who watches
            *self._layout,
            *self.extra,
        )

    def is_ready(self) -> bool:
        return self.api().answers("/readyz")

    def _webhook_configuration(self) -> Path:
        """With it the API server shows webhooks a client certificate of the lab's CA."""
        to_webhooks = self._pki.issue("to-webhooks", "kube-apiserver")
        users = written(self.data / "webhook-callers.json", caller(to_webhooks))
        group = "apiserver.config.k8s.io/v1"
        own = {"apiVersion": group, "kind": "WebhookAdmissionConfiguration"}
        plugins = [
            {"name": name, "configuration": {**own, "kubeConfigFile": str(users)}}
            for name in ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
        ]
        document = {"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": plugins}
        return written(self.data / "admission.json", document)

    def api(self) -> Api:
        """As the administrator, who trusts whoever certified the server."""
        return Api(self.url, self._certified_by.pki.ca, self._identities.admin)

    def restart_certified_by(self, authority: Identities) -> None:
        """Serve with a new certificate of this authority; clients stay the lab's own."""
        self.stop()
        self._serving = authority.serving(self.name, self.site.place.address, self._plan)
        self._certified_by = authority
        self.resume_service()


_ALONE = ("--endpoint-reconciler-type=none",)


def _beside_node(address: str) -> tuple[str, ...]:
    return (f"--advertise-address={address}", "--enable-aggregator-routing=true")
