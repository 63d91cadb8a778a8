"""Reads a kubeconfig: which API server, how to verify it, and who the caller is there.

Several files are merged as kubectl merges them. What would be less safe than it looks is an error:
a server that is not verified, an identity that is borrowed. No error holds a secret or quotes the
file. Must not talk to anybody.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.terminal import shown
from gpuwarden.cluster.access import Access
from gpuwarden.regular_file import open_to_read
from gpuwarden.strict_yaml import YamlError, parse_plain

VARIABLE: Final = "KUBECONFIG"
MAX_BYTES: Final = 4 << 20
_MOST_FILES: Final = 64
_IMPERSONATION: Final = ("as", "as-uid", "as-groups", "as-user-extra")
_API: Final = "client.authentication.k8s.io/"
_VERSIONS: Final = (f"{_API}v1", f"{_API}v1beta1")


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that gives credentials (client.authentication.k8s.io ExecConfig)."""

    command: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    api_version: str
    install_hint: str
    wants_cluster: bool
    is_interactive: bool


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who the caller is: a token, or a certificate with its key; PEM."""

    token: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """One context of a kubeconfig."""

    context: str
    server: str
    ca: bytes | None
    """PEM; None for the CAs of this machine."""
    server_name: str
    """What the certificate of the API server has to name; empty for the host of `server`."""
    proxy: str
    """URL; empty for what the environment says."""
    credentials: Credentials | None
    """None where the plugin gives them."""
    plugin: ExecPlugin | None


def kubeconfig_files(given: Path | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files that count, the first first."""
    if given is not None:
        return (given,)
    named = [Path(x) for x in environ.get(VARIABLE, "").split(os.pathsep) if x]
    return tuple(named[:_MOST_FILES]) or (Path("~/.kube/config").expanduser(),)


def has_kubeconfig(environ: Mapping[str, str]) -> bool:
    """Whether there is one without asking for it."""
    return any(path.is_file() for path in kubeconfig_files(None, environ))


def read_login(files: tuple[Path, ...], context: str | None) -> Login:
    """The context of this name, or the current one; raises CliError."""
    merged = _Merged()
    for path in files:
        if path.is_file() or len(files) == 1:  # as kubectl: of several, some may be missing
            merged.add(path)
    name = context or merged.current
    if not name:
        raise _wrong("no current-context", "one, or --context")
    found, _ = merged.entry("contexts", name)
    cluster, its_folder = merged.entry("clusters", _text(found, "cluster"))
    user, users_folder = merged.entry("users", _text(found, "user"))
    server = _text(cluster, "server")
    if urlsplit(server).scheme != "https":
        raise _wrong(f"cluster of context {name}: server", "an https:// URL")
    if cluster.get("insecure-skip-tls-verify"):
        raise _wrong(
            f"cluster of context {name}: insecure-skip-tls-verify", "certificate-authority"
        )
    borrowed = [key for key in _IMPERSONATION if user.get(key)]
    if borrowed:
        text = f"user of context {name}: {', '.join(borrowed)}"
        raise _wrong(text, "your own identity: gpuwarden does not act as somebody else")
    credentials, plugin = _identity(user, users_folder, name)
    return Login(
        context=name,
        server=server.rstrip("/"),
        ca=_bytes(cluster, "certificate-authority", its_folder),
        server_name=_text(cluster, "tls-server-name", needed=False),
        proxy=_text(cluster, "proxy-url", needed=False),
        credentials=credentials,
        plugin=plugin,
    )


def access_by(login: Login, credentials: Credentials) -> Access:
    """What a connection needs; raises CliError."""
    by_certificate = bool(credentials.certificate)
    token = credentials.token
    if not by_certificate and not (token.isascii() and token.isprintable()):
        raise CliError(ExitCode.USAGE, "kubeconfig: the token is not printable ASCII")
    return Access(
        login.server,
        None if login.ca is None else login.ca.decode("ascii", "replace"),
        None if by_certificate or not token else f"Bearer {token}",
        credentials.certificate or None,
        credentials.key or None,
        login.server_name or None,
        _proxy(login),
    )


def _proxy(login: Login) -> str | None:
    """Of the kubeconfig, else of the environment; raises CliError."""
    host = urlsplit(login.server).hostname or ""
    found = login.proxy
    if not found and not proxy_bypass(host):
        found = getproxies().get("https", "")
    if found and urlsplit(found).scheme not in {"http", "https"}:
        raise CliError(ExitCode.USAGE, "kubeconfig: proxy-url; expected http:// or https://")
    return found or None


def _identity(
    user: Mapping[str, Any], folder: Path, context: str
) -> tuple[Credentials | None, ExecPlugin | None]:
    where = f"user of context {context}"
    certificate = _bytes(user, "client-certificate", folder) or b""
    key = _bytes(user, "client-key", folder) or b""
    if bool(certificate) != bool(key):
        raise _wrong(f"{where}: only one of client-certificate and client-key", "both")
    token_file = _text(user, "tokenFile", needed=False)
    token = _text(user, "token", needed=False)
    if token_file:
        token = _read(folder / token_file).decode("ascii", "replace").strip()
    if certificate or token:
        return Credentials(token, certificate, key), None
    if user.get("exec"):
        return None, _plugin(_map(user["exec"], where), folder, where)
    if user.get("auth-provider"):
        raise _wrong(f"{where}: auth-provider, which kubectl has removed", "an exec plugin")
    raise _wrong(f"{where}: no credentials", "token, client-certificate or exec")


def _plugin(found: Mapping[str, Any], folder: Path, where: str) -> ExecPlugin:
    version = _text(found, "apiVersion")
    if version not in _VERSIONS:
        raise _wrong(f"{where}: apiVersion of exec", " or ".join(_VERSIONS))
    command = _text(found, "command")
    if os.sep in command:
        command = str(folder / command)
    variables = {}
    for one in _list(found.get("env"), where):
        variable = _map(one, where)
        variables[_text(variable, "name")] = _text(variable, "value", needed=False)
    return ExecPlugin(
        command=command,
        arguments=tuple(str(x) for x in _list(found.get("args"), where)),
        variables=variables,
        api_version=version,
        install_hint=_text(found, "installHint", needed=False),
        wants_cluster=found.get("provideClusterInfo") is True,
        is_interactive=found.get("interactiveMode") != "Never",
    )


# --- files


class _Merged:
    """What several files say; of two entries of one name the first counts."""

    def __init__(self) -> None:
        self.current = ""
        self._entries: dict[tuple[str, str], tuple[Mapping[str, Any], Path]] = {}

    def add(self, path: Path) -> None:
        try:
            found = parse_plain(_read(path), max_bytes=MAX_BYTES)
        except YamlError as error:
            line = "" if error.line is None else f", line {error.line}"
            raise _wrong(f"{path}{line}", "plain YAML") from None
        if found is None:
            return
        document = _map(found, str(path))
        self.current = self.current or _text(document, "current-context", needed=False)
        for kind in ("clusters", "users", "contexts"):
            for one in _list(document.get(kind), str(path)):
                entry = _map(one, str(path))
                content = _map(entry.get(kind[:-1]) or {}, str(path))
                self._entries.setdefault((kind, _text(entry, "name")), (content, path.parent))

    def entry(self, kind: str, name: str) -> tuple[Mapping[str, Any], Path]:
        """Content and folder of an entry; raises CliError."""
        found = self._entries.get((kind, name))
        if found is None:
            raise _wrong(f"no {kind[:-1]} {name}", "one of that name")
        return found


def _read(path: Path) -> bytes:
    try:
        with open_to_read(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(f"{path}: {error.strerror}", "a file that can be read") from None
    if len(content) > MAX_BYTES:
        raise _wrong(str(path), f"at most {MAX_BYTES} bytes")
    return content


def _bytes(found: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    """Of `KEY-data`, else of the file that `KEY` names."""
    data = _text(found, f"{key}-data", needed=False)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise _wrong(f"{key}-data", "base64") from None
    name = _text(found, key, needed=False)
    return _read(folder / name) if name else None


def _text(found: Mapping[str, Any], key: str, *, needed: bool = True) -> str:
    value = found.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value):
        raise _wrong(f"{key} is missing or no text", "a text")
    return value


def _map(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object")
    return value


def _list(value: object, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(where, "a list")
    return value


def _wrong(what: str, expected: str) -> CliError:
    return CliError(ExitCode.USAGE, f"kubeconfig: {shown(what)}; expected {expected}")
