"""What a kubeconfig says, which of several files counts, and what is refused."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwarden.cli.connection.kubeconfig import (
    MAX_BYTES,
    Credentials,
    ExecPlugin,
    has_kubeconfig,
    kubeconfig_files,
    read_login,
)
from gpuwarden.cli.exit_codes import CliError, ExitCode

SECRET = "sekrit-token"  # noqa: S105 -- of a test
PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}


def document(user: Any = None, cluster: Any = None, name: str = "home") -> dict[str, Any]:
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": "https://k:6443/", **(cluster or {})}}],
        "users": [{"name": name, "user": {"token": SECRET} if user is None else user}],
    }


def written(folder: Path, content: Any, name: str = "config") -> Path:
    path = folder / name
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    path.write_text(text)
    return path


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def refused(path: Path, context: str | None = None) -> str:
    with pytest.raises(CliError) as found:
        read_login((path,), context)
    assert found.value.code is ExitCode.USAGE
    assert SECRET not in str(found.value)
    return str(found.value)


# --- what it says


def test_a_token_and_the_cluster(tmp_path: Path) -> None:
    cluster = {
        "certificate-authority-data": encoded("CA"),
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
    }
    login = read_login((written(tmp_path, document(cluster=cluster)),), None)
    assert (login.context, login.server) == ("home", "https://k:6443")
    assert (login.ca, login.server_name, login.proxy) == (b"CA", "kubernetes", "http://proxy:3128")
    assert (login.credentials, login.plugin) == (Credentials(token=SECRET), None)
    assert SECRET not in repr(login)


def test_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "token"):
        (tmp_path / name).write_text(f"{name}\n")
    user = {"client-certificate": "cert", "client-key": "key"}
    path = written(tmp_path, document(user, {"certificate-authority": "ca"}))
    login = read_login((path,), None)
    assert (login.ca, login.credentials) == (b"ca\n", Credentials("", b"cert\n", b"key\n"))
    path = written(tmp_path, document({"tokenFile": "token", "token": "older"}))
    assert read_login((path,), None).credentials == Credentials("token")
    inline = {"client-certificate-data": encoded("c"), "client-key-data": encoded("k")}
    path = written(tmp_path, document({**user, **inline}))
    assert read_login((path,), None).credentials == Credentials("", b"c", b"k")


def test_an_exec_plugin(tmp_path: Path) -> None:
    plugin = {
        **PLUGIN,
        "command": "./login",
        "args": ["--for", "me"],
        "env": [{"name": "A", "value": "b"}],
        "installHint": "install it",
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    login = read_login((written(tmp_path, document({"exec": plugin})),), None)
    assert login.credentials is None
    assert login.plugin == ExecPlugin(
        command=str(tmp_path / "login"),
        arguments=("--for", "me"),
        variables={"A": "b"},
        api_version="client.authentication.k8s.io/v1",
        install_hint="install it",
        wants_cluster=True,
        is_interactive=False,
    )
    plain = read_login((written(tmp_path, document({"exec": PLUGIN})),), None).plugin
    assert plain is not None
    assert (plain.command, plain.is_interactive, plain.wants_cluster) == ("login", True, False)


def test_another_context_by_its_name(tmp_path: Path) -> None:
    two = document()
    for kind in ("contexts", "clusters", "users"):
        two[kind] += document({"token": "other"}, name="work")[kind]
    path = written(tmp_path, two)
    login = read_login((path,), "work")
    assert (login.context, login.credentials) == ("work", Credentials("other"))
    assert "no context nowhere" in refused(path, "nowhere")


# --- which files count


def test_of_several_files_the_first_entry_counts(tmp_path: Path) -> None:
    first = {**document(name="home"), "users": [], "current-context": "home"}
    second = document({"token": "of the second"}, {"server": "https://other"})
    files = (
        tmp_path / "missing",
        written(tmp_path, first, "1"),
        written(tmp_path, "", "empty"),
        written(tmp_path, second, "2"),
    )
    login = read_login(files, None)
    assert (login.server, login.credentials) == ("https://k:6443", Credentials("of the second"))


def test_which_files_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kubeconfig_files(Path("x"), {"KUBECONFIG": "y"}) == (Path("x"),)
    assert kubeconfig_files(None, {"KUBECONFIG": "a::b"}) == (Path("a"), Path("b"))
    assert kubeconfig_files(None, {}) == (tmp_path / ".kube" / "config",)
    assert not has_kubeconfig({})
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube", document())
    assert has_kubeconfig({})
    assert not has_kubeconfig({"KUBECONFIG": str(tmp_path / "missing")})


# --- what is refused


@pytest.mark.parametrize(
    ("user", "cluster", "text"),
    [
        ({"token": SECRET, "as": "root"}, {}, "as; expected your own identity"),
        ({"token": SECRET, "as-groups": ["system:masters"]}, {}, "as-groups"),
        ({"token": SECRET, "as-uid": "1"}, {}, "as-uid"),
        ({"token": SECRET, "as-user-extra": {"a": ["b"]}}, {}, "as-user-extra"),
        (None, {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        (None, {"server": "http://k:8080"}, "expected an https:// URL"),
        (None, {"server": "k:6443"}, "expected an https:// URL"),
    ],
)
def test_what_is_less_safe_than_it_looks_is_an_error(
    tmp_path: Path, user: Any, cluster: Any, text: str
) -> None:
    assert text in refused(written(tmp_path, document(user, cluster)))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (document({}), "no credentials"),
        (document({"username": "a", "password": SECRET}), "no credentials"),
        (document({"auth-provider": {"name": "gcp"}}), "auth-provider"),
        (document({"client-certificate-data": encoded("c")}), "expected both"),
        (document({"client-certificate-data": "%%", "client-key-data": "%%"}), "expected base64"),
        (document({"client-certificate": "missing", "client-key": "missing"}), "missing"),
        (document({"exec": {**PLUGIN, "apiVersion": "v1alpha1"}}), "apiVersion of exec"),
        (document({"exec": {**PLUGIN, "command": ""}}), "command is missing"),
        (document({"exec": {**PLUGIN, "args": "x"}}), "expected a list"),
        (document({"exec": "x"}), "expected an object"),
        (document({"token": 7}), "token is missing or no text"),
        ({**document(), "current-context": ""}, "no current-context"),
        ({**document(), "users": []}, "no user home"),
        ({**document(), "clusters": []}, "no cluster home"),
        ({**document(), "contexts": "x"}, "expected a list"),
        ({**document(), "contexts": ["x"]}, "expected an object"),
        ("- a", "expected an object"),
        (f"token: &{SECRET} x", "line 1; expected plain YAML"),
        (f"{SECRET}: [", "expected plain YAML"),
        ("", "no current-context"),
    ],
)
def test_what_cannot_be_used_says_so_without_quoting(
    tmp_path: Path, content: Any, text: str
) -> None:
    assert text in refused(written(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing")
    assert "a folder" in refused(tmp_path)
    large = written(tmp_path, "#" * (MAX_BYTES + 1))
    assert f"expected at most {MAX_BYTES} bytes" in refused(large)
