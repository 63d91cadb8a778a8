"""Which listeners use certificates that gpuwarden manages itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from controller.settings import (
    CertificateSettings,
    ControllerSettings,
    SelfManagedSettings,
)
from controller.web.tls import TlsFiles, TlsFilesError
from controller.wiring.certificates import managed_certificates, managed_listener, tls_files
from tests.fakes.recording_audit import RecordingAudit

FOLDER = Path("/run/gpuwarden/certificates")
GIVEN = ControllerSettings(trust_domain="example.org", cluster="c", workload_api="unix:///s")
MANAGED = replace(
    GIVEN, certificates=CertificateSettings(self_managed=SelfManagedSettings(enabled=True))
)


def test_files_below_the_folder_are_managed_and_may_come_later() -> None:
    certificate, key = FOLDER / "api" / "tls.crt", FOLDER / "api" / "tls.key"
    assert managed_listener(MANAGED, certificate) == "api"
    assert tls_files(MANAGED, certificate, key, None) == TlsFiles(
        certificate, key, None, may_come_later=True
    )
    assert managed_listener(GIVEN, certificate) is None
    assert not tls_files(GIVEN, certificate, key, None).may_come_later


def test_files_elsewhere_are_given_by_others() -> None:
    for path in (Path("/etc/gpuwarden/api/tls.crt"), FOLDER / "tls.crt", FOLDER / "a/b/tls.crt"):
        assert managed_listener(MANAGED, path) is None
    assert managed_listener(MANAGED, None) is None


def test_without_the_kubernetes_api_there_is_nowhere_to_keep_them() -> None:
    assert managed_certificates(GIVEN, None, RecordingAudit()) is None
    with pytest.raises(TlsFilesError, match=r"^certificates\.selfManaged\.enabled: true, expected"):
        managed_certificates(MANAGED, None, RecordingAudit())
