"""Makes the exporters that the settings name.

Their libraries are imported only here and only for them: a controller without export has none of
them in memory.
"""

import sys
from collections.abc import Callable

from controller.export.dead_letters import DeadLetters
from controller.export.delivery import Delivery, Terms
from controller.export.documents import (
    Document,
    DocumentChangedError,
    Documents,
    DocumentsUnavailableError,
    FolderDocuments,
)
from controller.export.exporter import Exporter
from controller.export.failures import Attempts
from controller.export.inventory import InventoryExport
from controller.fleet.directory import NodeDirectory
from controller.fleet.registry import FleetRegistry
from controller.kube.api.resources import ApiError
from controller.kube.api.text_documents import TextDocuments
from controller.operations.readiness import Conditions
from controller.settings import ControllerSettings
from controller.wiring.cluster import Cluster
from gpuwarden.identity.spiffe_id import agent_id
from gpuwarden.telemetry.metrics import Instruments


def inventory_export(
    settings: ControllerSettings,
    cluster: Cluster | None,
    registry: FleetRegistry,
    conditions: Conditions,
    instruments: Instruments,
) -> InventoryExport | None:
    """Exporters, not yet started; None where the settings name none."""
    export = settings.export
    if not export.exporters:
        return None
    terms = Terms(
        cluster=settings.cluster,
        batch=export.batch_size,
        attempts=Attempts(export.retries + 1),
        waiting=export.waiting,
        timeout_s=export.timeout.seconds,
    )
    deliveries = {
        name: Delivery(
            exporter(name, settings, conditions.clock.wall_ns),
            _documents(settings, cluster),
            DeadLetters(export.dead_letter.dir, name, export.dead_letter.bytes),
            terms=terms,
            leads=_always if cluster is None else cluster.leadership.leads,
            clock=conditions.clock,
            audit=conditions.audit,
            instruments=instruments,
        )
        for name in export.exporters
    }
    return InventoryExport(
        deliveries,
        fleet=registry.snapshot,
        provider_id=_provider_id(conditions.directory),
        source=lambda node: str(agent_id(settings.trust_domain, settings.path_prefix, node)),
    )


def exporter(name: str, settings: ControllerSettings, wall_ns: Callable[[], int]) -> Exporter:
    """The exporter of that name; imports what it needs."""
    match name:
        case "http":
            return _http(settings, wall_ns)
        case "postgres":
            return _postgres(settings)
        case "s3":
            return _s3(settings)
        case _:
            from controller.export.standard_output import StandardOutputExporter  # noqa: PLC0415 - see above

            return StandardOutputExporter(sys.stdout)


def _http(settings: ControllerSettings, wall_ns: Callable[[], int]) -> Exporter:
    from controller.export.http import HttpExporter, HttpTarget  # noqa: PLC0415 - see above

    section = settings.export.http
    target = HttpTarget(section.endpoint or "", section.auth_token, section.timeout.seconds)
    return HttpExporter(target, wall_ns)


def _postgres(settings: ControllerSettings) -> Exporter:
    from controller.export.postgres import PostgresExporter, PostgresTarget  # noqa: PLC0415 - see above

    section = settings.export.postgres
    root = section.ssl_root_cert
    return PostgresExporter(
        PostgresTarget(
            host=section.host or "",
            database=section.database or "",
            user=section.user or "",
            password=section.password or "",
            port=section.port,
            ssl_mode=section.ssl_mode.value,
            ssl_root_cert=None if root is None else str(root),
            table=section.table,
            auto_migrate=section.auto_migrate,
            timeout_s=settings.export.timeout.seconds,
        )
    )


def _s3(settings: ControllerSettings) -> Exporter:
    from controller.export.layout import Format, ObjectLayout  # noqa: PLC0415 - see above
    from controller.export.s3 import S3Exporter, S3Target  # noqa: PLC0415 - see above

    section = settings.export.s3
    return S3Exporter(
        S3Target(
            bucket=section.bucket or "",
            region=section.region,
            endpoint=section.endpoint,
            layout=ObjectLayout(
                section.prefix, section.partition_pattern, Format(section.format.value)
            ),
            timeout_s=settings.export.timeout.seconds,
        )
    )


def _provider_id(directory: NodeDirectory) -> Callable[[str], str | None]:
    def of(node: str) -> str | None:
        known = directory.snapshot().nodes.get(node)
        return None if known is None else known.provider_id

    return of


def _documents(settings: ControllerSettings, cluster: Cluster | None) -> Documents:
    if cluster is None:
        return FolderDocuments(settings.export.dead_letter.dir)
    return ClusterDocuments(cluster.text_documents())


class ClusterDocuments:
    """Documents in the cluster, with the errors that exporters know."""

    def __init__(self, texts: TextDocuments) -> None:
        self._texts = texts

    async def read(self, name: str) -> Document | None:
        """The text, if it is there."""
        try:
            found = await self._texts.read(name)
        except ApiError as error:
            raise DocumentsUnavailableError(f"ConfigMap {name}: {error}") from None
        return None if found is None else Document(*found)

    async def write(self, name: str, text: str, version: str | None) -> str:
        """Write it, unless another replica was first."""
        try:
            return await self._texts.write(name, text, version)
        except ApiError as error:
            if error.is_conflict:
                raise DocumentChangedError(name) from None
            raise DocumentsUnavailableError(f"ConfigMap {name}: {error}") from None


def _always() -> bool:
    """Without a cluster there is one controller."""
    return True
