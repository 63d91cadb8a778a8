"""A credential plugin: what it is told, what it may say, and that no error repeats it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.connection.exec_plugin import MAX_BYTES, run_plugin
from gpuwarden.cli.connection.kubeconfig import Credentials, ExecPlugin, Login
from gpuwarden.cli.exit_codes import CliError, ExitCode

SECRET = "sekrit-token"  # noqa: S105 -- of a test
SHORT = "t"
VERSION = "client.authentication.k8s.io/v1"


def plugin(code: str, **changes: Any) -> ExecPlugin:
    values: dict[str, Any] = {
        "command": sys.executable,
        "arguments": ("-c", code),
        "variables": {},
        "api_version": VERSION,
        "install_hint": "",
        "wants_cluster": False,
        "is_interactive": False,
    }
    return ExecPlugin(**{**values, **changes})


def login(one: ExecPlugin) -> Login:
    return Login("home", "https://k:6443", b"CA", "kubernetes", "", None, one)


def ran(one: ExecPlugin, seconds: float = 30) -> Credentials:
    return run_plugin(one, login(one), {"PATH": "/usr/bin:/bin"}, seconds=seconds)


def says(version: str = VERSION, **status: Any) -> str:
    document = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(json.dumps(document))})"


def test_a_token_or_a_certificate() -> None:
    assert ran(plugin(says(token=SECRET))) == Credentials(SECRET)
    found = ran(plugin(says(clientCertificateData="c", clientKeyData="k")))
    assert found == Credentials("", b"c", b"k")


def test_what_it_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    told = "os.environ['KUBERNETES_EXEC_INFO'] + os.environ['A']"
    code = f"import os; open({str(log)!r}, 'w').write({told});"
    ran(plugin(code + says(token=SHORT), variables={"A": "b"}, wants_cluster=True))
    text = log.read_text()
    assert text.endswith("}b")
    assert json.loads(text[:-1]) == {
        "apiVersion": VERSION,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://k:6443",
                "certificate-authority-data": "Q0E=",
                "tls-server-name": "kubernetes",
            },
        },
    }
    ran(plugin(code + says(token=SHORT), variables={"A": "b"}))
    assert "cluster" not in json.loads(log.read_text()[:-1])["spec"]


def test_without_a_terminal_nothing_can_be_asked() -> None:
    code = "import sys; assert sys.stdin.read() == '';" + says(token=SHORT)
    assert ran(plugin(code, is_interactive=True)) == Credentials(SHORT)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (plugin(f"print('{SECRET}'); raise SystemExit(3)"), "ended with 3"),
        (plugin(f"print('{SECRET}')"), "wrote no ExecCredential"),
        (plugin("print('[]')"), "wrote no ExecCredential"),
        (plugin(says(token=[SECRET])), "wrote no ExecCredential"),
        (plugin(says("v1", token=SECRET)), "another apiVersion"),
        (plugin(says(clientCertificateData=SECRET)), "neither a token nor a certificate"),
        (plugin(says()), "neither a token nor a certificate"),
        (plugin(f"print('x' * {MAX_BYTES + 1})"), f"more than {MAX_BYTES} bytes"),
        (
            plugin("", command="no-such-plugin", install_hint="get it at example.org"),
            "no-such-plugin is not installed; get it at example.org",
        ),
        (plugin("", command="/"), "Permission denied"),
    ],
)
def test_a_plugin_that_gives_nothing(one: ExecPlugin, text: str) -> None:
    with pytest.raises(CliError) as found:
        ran(one)
    assert found.value.code is ExitCode.NOT_AUTHORISED
    assert text in str(found.value)
    assert SECRET not in str(found.value)


def test_a_plugin_that_does_not_end() -> None:
    with pytest.raises(CliError, match="no answer in time") as found:
        ran(plugin("import time; time.sleep(60)"), seconds=0.5)
    assert found.value.code is ExitCode.TIMEOUT
