"""How a controller is asked: our own SVID, the controller that we expect, errors and exit codes."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from gpuwarden.cli.connection.client import expected_controller, is_reader, own_svid
from gpuwarden.cli.connection.options import Connection
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.ca import SpiffeCa, plain_key
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli


def test_a_socket_that_nobody_serves(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    path.touch()
    ran = cli("nodes", "--server", f"unix:{path}")
    assert ran.code == 5


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal(ReasonCode.ROLE_DENIED, "role agent"), 4),
        (Refusal(ReasonCode.CHAIN_INVALID, "x"), 4),
        (Refusal(ReasonCode.CONTROLLER_NOT_READY, "x"), 5),
        (Refusal(ReasonCode.REQ_INVALID, "bad\x1b"), 2),
    ],
)
def test_a_refusal_has_its_exit_code_and_text(
    ask: Cli, fleet: FakeFleetServer, refusal: Refusal, code: int
) -> None:
    fleet.refusal = refusal
    ran = ask("gpus")
    detail = refusal.detail.replace("\x1b", "\\x1b")
    assert (ran.code, ran.err) == (code, f"gpuwarden: {refusal.code}: {detail}\n")


def test_no_answer_in_time(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.hangs = True
    ran = ask("nodes", "--timeout", "0.2")
    assert (ran.code, ran.err) == (124, "gpuwarden: no answer in time; see --timeout\n")


@pytest.mark.parametrize(
    "command", [("nodes",), ("nodes", "-w"), ("gpus", "-o", "json")], ids=" ".join
)
def test_a_notice_of_the_controller_is_printed_once(
    ask: Cli, fleet: FakeFleetServer, command: tuple[str, ...]
) -> None:
    fleet.notice = "EVALUATION: nothing is proven"
    fleet.changes = [pb.WatchNodesResponse(node=pb.Node(name=name)) for name in ("a", "b")]
    ran = ask(*command)
    assert ran.err.startswith("*** EVALUATION: nothing is proven ***\n")
    assert ran.err.count("***") == 2
    assert "***" not in ran.out


READER = "spiffe://example.org/gpuwarden/inspector/alice"


def write(folder: Path, ca: SpiffeCa, spiffe_id: str, lifetime: timedelta) -> Connection:
    key, chain = ca.issue(spiffe_id, lifetime)
    files = Connection(
        svid=folder / "svid.pem", key=folder / "key.pem", bundle=folder / "bundle.pem"
    )
    assert files.svid
    assert files.key
    assert files.bundle
    files.svid.write_bytes(b"".join(x.public_bytes(Encoding.PEM) for x in chain))
    files.key.touch(0o600)
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files.bundle.write_bytes(b"".join(x.public_bytes(Encoding.PEM) for x in ca.roots))
    return files


@pytest.fixture
def files(tmp_path: Path) -> Connection:
    return write(tmp_path, SpiffeCa(intermediate=True), READER, timedelta(hours=1))


def refusal(files: Connection) -> tuple[ExitCode, str]:
    with pytest.raises(CliError) as caught:
        own_svid(files)
    return caught.value.code, str(caught.value)


def test_an_svid_is_read_from_files(files: Connection) -> None:
    svid = own_svid(files)
    assert str(svid.spiffe_id) == READER
    assert len(svid.chain) == 2


def test_a_key_that_others_can_read_is_refused(files: Connection) -> None:
    assert files.key
    files.key.chmod(0o604)
    code, text = refusal(files)
    assert code is ExitCode.USAGE
    assert text.endswith("is open to others; chmod o= it")


def test_another_key_is_refused(files: Connection) -> None:
    assert files.key
    pem = plain_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files.key.write_bytes(pem)
    code, text = refusal(files)
    assert code is ExitCode.NOT_AUTHORISED
    assert "private key does not belong to the leaf" in text


def test_another_bundle_is_refused(files: Connection) -> None:
    assert files.bundle
    files.bundle.write_bytes(SpiffeCa().roots[0].public_bytes(Encoding.PEM))
    assert refusal(files)[0] is ExitCode.NOT_AUTHORISED


def test_an_expired_svid_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path, SpiffeCa(), READER, timedelta(seconds=-1))
    code, text = refusal(files)
    assert code is ExitCode.NOT_AUTHORISED
    assert "own SVID cannot be used" in text


def test_an_encrypted_key_is_refused_without_showing_it(files: Connection) -> None:
    assert files.key
    pem = plain_key().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    files.key.write_bytes(pem)
    assert refusal(files) == (
        ExitCode.USAGE,
        f"--key: {files.key} is not an unencrypted PEM key",
    )


@pytest.mark.parametrize("option", ["svid", "key", "bundle"])
def test_files_that_hold_something_else(files: Connection, option: str) -> None:
    path: Path = getattr(files, option)
    path.write_text("not PEM")
    code, text = refusal(files)
    assert code is ExitCode.USAGE
    assert text.startswith(f"--{option}: {path} ")
    path.write_bytes(b"x" * (1024 * 1024 + 1))
    assert "is larger than 1048576 bytes" in refusal(files)[1]
    path.unlink()
    assert "No such file or directory" in refusal(files)[1]


def test_a_certificate_without_spiffe_id_is_refused(tmp_path: Path) -> None:
    ca = SpiffeCa()
    files = write(tmp_path, ca, READER, timedelta(hours=1))
    assert files.svid
    files.svid.write_bytes(ca.roots[0].public_bytes(Encoding.PEM))
    code, text = refusal(files)
    assert code in {ExitCode.USAGE, ExitCode.NOT_AUTHORISED}
    assert str(ca.roots[0].serial_number) not in text


@pytest.mark.parametrize(
    ("own", "controller"),
    [
        (READER, "spiffe://example.org/gpuwarden/controller"),
        ("spiffe://a.b/x/y/operator/bob", "spiffe://a.b/x/y/controller"),
        ("spiffe://a.b/inspector/bob", "spiffe://a.b/controller"),
    ],
)
def test_the_expected_controller_id_is_derived_from_our_own(own: str, controller: str) -> None:
    assert str(expected_controller(Connection(), parse_spiffe_id(own))) == controller


def test_the_controller_can_be_named() -> None:
    named = replace(Connection(), controller_id="spiffe://other.org/c")
    own = parse_spiffe_id(READER)
    assert str(expected_controller(named, own)) == "spiffe://other.org/c"
    with pytest.raises(CliError, match="--controller-id: SPIFFE ID must start"):
        expected_controller(replace(named, controller_id="https://x"), own)


@pytest.mark.parametrize("own", ["spiffe://a.b/ns/x/sa/y", "spiffe://a.b/x", "spiffe://a.b"])
def test_an_identity_of_another_scheme_does_not_tell_the_controller(own: str) -> None:
    with pytest.raises(CliError, match="give --controller-id"):
        expected_controller(Connection(), parse_spiffe_id(own))


@pytest.mark.parametrize(
    ("own", "reads"),
    [
        (READER, True),
        ("spiffe://a.b/operator/bob", True),
        ("spiffe://a.b/gpuwarden/agent/inspector", False),
        ("spiffe://a.b/gpuwarden/controller", False),
        ("spiffe://a.b/inspector", False),
    ],
)
def test_who_may_read_the_fleet(own: str, reads: bool) -> None:
    assert is_reader(parse_spiffe_id(own)) == reads
