from pathlib import Path
from typing import Any

import pytest

from gpuwarden.finding import Finding

# ruff: noqa: E501 -- one row per mistake and its message
from gpuwarden.settings.controller import ControllerSettings, Enrollment, SpireSettings
from gpuwarden.settings.loader import AGENT, CONTROLLER, Inputs, Loaded, SettingsError, load
from gpuwarden.settings.report import render
from gpuwarden.settings.shared import LogLevel
from gpuwarden.settings.values import Address, Duration

HEAD = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: ControllerConfig\n"
REQUIRED = "trustDomain: example.org\ncluster: lab\nworkloadApi: unix:///run/spire.sock\n"


def controller(
    text: str = "",
    *,
    flags: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    secrets: dict[str, str] | None = None,
) -> Loaded[ControllerSettings]:
    def read(path: str) -> str:
        if secrets is None or path not in secrets:
            raise FileNotFoundError(2, "No such file or directory")
        return secrets[path]

    return load(
        CONTROLLER,
        Inputs(
            [(key, value, f"--{key}") for key, value in (flags or {}).items()],
            environment or {},
            ("c.yaml", (HEAD + REQUIRED + text).encode()),
            read,
        ),
    )


def findings(text: str = "", **inputs: Any) -> tuple[Finding, ...]:
    with pytest.raises(SettingsError) as caught:
        controller(text, **inputs)
    return caught.value.findings


def the_finding(text: str = "", **inputs: Any) -> str:
    (finding,) = findings(text, **inputs)
    return str(finding)


def test_flag_beats_environment_beats_file_beats_default() -> None:
    key, variable = "attestation.interval", "GPUWARDEN_ATTESTATION_INTERVAL"
    text = "attestation: {interval: 10s}\n"

    every = controller(text, flags={key: "5s"}, environment={variable: "7s"})
    no_flag = controller(text, environment={variable: "7s"})
    file_only, nothing = controller(text), controller()

    seen = [loaded.settings.attestation.interval for loaded in (every, no_flag, file_only, nothing)]
    assert seen == [Duration.parse(text) for text in ("5s", "7s", "10s", "25s")]
    assert [loaded.sources[key] for loaded in (every, no_flag, file_only, nothing)] == [
        "flag --attestation.interval",
        f"environment {variable}",
        "file c.yaml, line 6",
        "default",
    ]


def test_last_flag_wins() -> None:
    flags = [("log.level", "warn", "--log.level"), ("log.level", "debug", "--set log.level")]

    loaded = load(CONTROLLER, Inputs(flags, {}, ("c.yaml", (HEAD + REQUIRED).encode())))

    assert loaded.settings.log.level is LogLevel.DEBUG


def test_file_sets_values_of_every_shape() -> None:
    settings = controller(
        """
attestation: {enrollment: required}
spire: {server: off}
policy: {file: policy.yaml}
managedResources: [nvidia.com/gpu, example.org/gpu]
insecureStaticHashes: true
staticHashes: {node-a: "abc"}
limits: {streams: 7, messageBytes: 1Mi}
listen: {ops: ":0", agents: "[::1]:9"}
telemetry: {otlp: "http://collector:4318", logs: true}
log:
"""
    ).settings

    assert settings.attestation.enrollment is Enrollment.REQUIRED
    assert settings.policy.file == Path("policy.yaml")
    assert settings.telemetry.otlp == "http://collector:4318"
    assert settings.telemetry.logs is True
    assert settings.managed_resources == ("nvidia.com/gpu", "example.org/gpu")
    assert settings.static_hashes == {"node-a": "abc"}
    assert settings.spire == SpireSettings()
    on = controller("spire: {server: spire-server:8081, poll: 5s, grace: 0s}\n").settings.spire
    assert on == SpireSettings(
        server=Address("spire-server", 8081),
        poll=Duration.parse("5s"),
        grace=Duration.parse("0s"),
    )
    assert (settings.limits.streams, settings.limits.message_bytes) == (7, 1 << 20)
    assert (settings.listen.ops, settings.listen.agents) == (Address("", 0), Address("::1", 9))


def test_null_means_not_given() -> None:
    settings = controller("policy: {file: null}\naudit: {reserve: ~}\n").settings

    assert settings.policy.file is None
    assert settings.audit.reserve == 64 << 20


def test_origin_of_the_log_names_cluster_and_replica() -> None:
    loaded = controller(environment={"POD_NAME": "gpuwarden-controller-1"})

    assert loaded.settings.origin == "lab/gpuwarden-controller-1"
    assert loaded.sources["replica"] == "default from $POD_NAME"


def test_file_beats_a_default_from_the_environment() -> None:
    assert controller("replica: a\n", environment={"POD_NAME": "b"}).settings.replica == "a"


def test_every_finding_comes_at_once() -> None:
    found = findings(
        "attestation: {interval: soon, leese: 90s}\nlog: {level: loud}\n",
        flags={"audit.reserve": "lots", "listen.opps": ":1"},
        environment={"GPUWARDEN_CLOCK_WARN": "1", "GPUWARDEN_CLOCK_WARM": "1s"},
    )

    assert [(finding.key, finding.value) for finding in found] == [
        ("--listen.opps", ""),
        ("GPUWARDEN_CLOCK_WARM", ""),
        ("attestation.leese", ""),
        ("attestation.interval", "'soon'"),
        ("GPUWARDEN_CLOCK_WARN", "'1'"),
        ("--audit.reserve", "'lots'"),
        ("log.level", "'loud'"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "attestation:\n  interval: soon\n",
            "attestation.interval (file c.yaml, line 7): got 'soon'; expected a duration from 100ms to 45s, such as 25s, 1m30s or 90d",
        ),
        ("attestaton: {interval: 5s}\n", "attestaton (file c.yaml, line 6): unknown key; did you mean attestation?"),
        ("zzz: 1\n", "zzz (file c.yaml, line 6): unknown key"),
        ("attestation.interval: 5s\n", "attestation.interval (file c.yaml, line 6): unknown key; expected sections nested, not joined by dots"),
        ("attestation: 5s\n", "attestation (file c.yaml, line 6): got '5s'; expected a section"),
        ("attestation: [5s]\n", "got a list; expected a section"),
        ("attestation: {interval: 5}\n", "got '5'; expected a duration"),
        ("replica: on\n", "got 'on'; expected a name of letters, digits, '.', '_' and '-', at most 253 long, in quotes: YAML does not read this as text"),
        ("replica: [a]\n", "got a list; expected a name"),
        ("replica: {a: b}\n", "got a mapping; expected a name"),
        ("insecureStaticHashes: yes\n", "got 'yes'; expected true or false"),
        ("insecureStaticHashes: 'true'\n", "got 'true'; expected true or false"),
        ("managedResources: nvidia.com/gpu\n", "expected a YAML list of 1 to 64 values"),
        ("managedResources: [on]\n", "got a list; expected a YAML list"),
        ("managedResources: ['a,b']\n", "got a list; expected a YAML list"),
        ("managedResources: []\n", "got ''; expected 1 to 64 values"),
        ("managedResources: ['a b']\n", "each a Kubernetes annotation or resource name"),
        ("staticHashes: {n: 1}\n", "expected a map from node name"),
        ("staticHashes: {N_: a}\n", "expected a map from node name"),
        ("staticHashes: [a]\n", "got a list; expected a map"),
        ("limits: {streams: 0}\n", "expected a whole number from 1 to 1000000"),
        ("limits: {streams: 0x10}\n", "got '0x10'; expected a whole number"),
        ("spire: {server: 'unix:/x'}\n", "got 'unix:/x'; expected host:port of a server, such as"),
        ("spire: {server: ':8081'}\n", "got ':8081'; expected host:port of a server, such as"),
        ("spire: {server: 'spire:0'}\n", "got 'spire:0'; expected host:port of a server, such as"),
        ("spire: {poll: 61s}\n", "got '61s'; expected a duration from 100ms to 60s"),
        ("spire: {grace: 2h}\n", "got '2h'; expected a duration from 0s to 1h"),
        ("scheduling: {mode: affinity}\n", "admission.tls: got no admission.tls.cert, admission.tls.key; expected cert and key with scheduling.mode: affinity"),
        ("protection: nodes\n", "protection (file c.yaml, line 6): got 'nodes'; expected namespaces or cluster"),
        ("reservation: {maxPending: 1m}\n", "got '1m'; expected a duration from 2m to 24h"),
        ("reservation: {quotaPerNamespace: 0}\n", "got '0'; expected a whole number from 1 to"),
        ("store: {kind: etcd}\n", "got 'etcd'; expected auto or kubernetes or sqlite or memory"),
        ("store: {path: ledger.db}\n", "store.path (file c.yaml, line 6): got 'ledger.db'; expected"),
        ("audit: {dir: audit}\n", "expected an absolute path"),
        ("telemetry: {logs: true}\n", "telemetry.otlp: got nothing; expected an endpoint with telemetry.logs: true"),
        ("policy: {file: ''}\n", "expected a path"),
        ("telemetry: {otlp: 'http://user:pass@h'}\n", "expected an http:// or https:// URL without"),
        ("pathPrefix: gpuwarden\n", "expected a SPIFFE path prefix such as /gpuwarden"),
        ("attestation: {lease: 89s, interval: 40s, challengeTtl: 20s}\n", "attestation.lease (file c.yaml, line 6): got 1m29s; expected at least 2 x attestation.interval + attestation.challengeTtl = 1m40s"),
        ("certificates: {selfManaged: {leafLifetime: 30d}}\n", "certificates.selfManaged.renewBefore: got 30d; expected less than certificates.selfManaged.leafLifetime = 30d"),
        ("certificates: {selfManaged: {authorityLifetime: 239d}}\n", "certificates.selfManaged.authorityLifetime (file c.yaml, line 6): got 239d; expected at least 2 x (leafLifetime + renewBefore) = 240d"),
        ("certificates: {selfManaged: {enabled: true}}\nkubernetes: {api: 'off'}\n", "certificates.selfManaged.enabled (file c.yaml, line 6): got true; expected false with kubernetes.api: off, because they are kept in Secrets"),
        ("certificates: {selfManaged: {enabled: true}}\nadmission: {tls: {cert: c, key: k, clientCa: /run/gpuwarden/certificates/admission/ca.crt}}\n", "admission.tls.clientCa (file c.yaml, line 7): got /run/gpuwarden/certificates/admission/ca.crt; expected a CA of your own, or none: no managed certificate is made for API servers"),
        ("certificates: {selfManaged: {folder: run}}\n", "expected an absolute path"),
        ("clock: {warn: 10m}\n", "clock.warn (file c.yaml, line 6): got 10m; expected at most clock.refuse = 5m"),
        ("listen: {extender: ':8000'}\n", "expected a loopback address, or client certificates"),
        ("extender: {tls: {cert: c, key: k}}\n", "extender.tls: got no extender.tls.clientCa; expected all of them, or none"),
        ("extender: {tls: {cert: c, key: k, clientCa: a, previous: p}}\n", "extender.tls.previous (file c.yaml, line 6): got p; expected nothing without extender.tls and certificates.selfManaged.enabled: true"),
        ("certificates: {selfManaged: {enabled: true}}\nextender: {tls: {previous: p}}\n", "extender.tls.previous (file c.yaml, line 7): got p; expected nothing without extender.tls and certificates.selfManaged.enabled: true"),
        ("api: {tls: {cert: c}}\n", "api.tls: got no api.tls.key; expected cert and key, or none of them"),
        ("api: {tls: {cert: c, key: k}}\nlisten: {api: ':9090'}\n", "got :9090; expected another port than listen.ops"),
        ("access: {tls: {cert: c}}\n", "access.tls: got no access.tls.key; expected cert and key, with or without ca, or none of them"),
        ("access: {tls: {ca: c}}\n", "access.tls: got no access.tls.cert, access.tls.key; expected cert and key, with or without ca"),
        ("access: {tls: {cert: c, key: k}}\nkubernetes: {api: 'off'}\n", "access.tls: got c; expected nothing with kubernetes.api: off"),
        ("access: {tls: {cert: c, key: k}}\nlisten: {accessTokens: ':9090'}\n", "got :9090; expected another port than listen.ops"),
        ("access: {tls: {cert: c, key: k}}\nlisten: {accessCertificates: '127.0.0.1:9444'}\n", "got 127.0.0.1:9444; expected another port than listen.accessTokens"),
        ("api: {readers: [jane]}\n", "expected 0 to 64 service accounts separated by commas, each namespace/name"),
        ("api: {readers: ['a/b/c']}\n", "each namespace/name"),
        ("admission: {hostPaths: [data]}\n", "each absolute and plain, and not /"),
        ("admission: {hostPaths: [/]}\n", "admission.hostPaths"),
        ("admission: {hostPaths: [//data]}\n", "admission.hostPaths"),
        ("admission: {hostPaths: [/data/]}\n", "admission.hostPaths"),
        ("admission: {hostPaths: [/data/../etc]}\n", "admission.hostPaths"),
        ("staticHashes: {n: a}\n", "staticHashes (file c.yaml, line 6): got 1 node; expected --insecure-static-hashes"),
        ("listen: {ops: ':9443'}\n", "listen.ops (file c.yaml, line 6): got :9443; expected another port than listen.agents"),
        ("listen: {extender: '127.0.0.1:9090'}\n", "got :9090; expected another port than listen.extender"),
    ],
)  # fmt: skip
def test_bad_file_names_key_place_value_and_expectation(text: str, says: str) -> None:
    assert says in the_finding(text)


@pytest.mark.parametrize(
    ("head", "keys"),
    [
        ("kind: ControllerConfig\n", ["apiVersion"]),
        ("apiVersion: config.gpuwarden.dev/v1\nkind: AgentConfig\n", ["apiVersion", "kind"]),
        ("apiVersion: {}\nkind: ControllerConfig\n", ["apiVersion"]),
    ],
)
def test_file_of_another_version_or_kind_is_refused(head: str, keys: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(CONTROLLER, Inputs(file=("c.yaml", (head + REQUIRED).encode())))

    assert [finding.key for finding in caught.value.findings] == keys


TLS = "admission: {tls: {cert: c, key: k}}\n"


def test_without_a_scorer_there_are_no_hints_and_the_seeds_variable_names_one() -> None:
    assert controller().settings.hints.scheduler_url is None
    hints = controller(TLS + "hints: {schedulerUrl: 'http://a:8080'}\n").settings.hints
    assert (hints.scheduler_url, hints.timeout.seconds) == ("http://a:8080", 1.0)
    shown = [str(x) for x in hints.priority_buckets]
    assert shown == ["90=gpu-ultra", "70=gpu-high", "50=gpu-medium", "0=gpu-default"]
    named = controller(TLS, environment={"SCHEDULER_URL": "http://b"}).settings.hints
    assert named.scheduler_url == "http://b"


def test_buckets_are_none_or_some_with_each_score_once() -> None:
    none = controller("hints: {priorityBuckets: []}\n").settings.hints
    assert none.priority_buckets == ()
    text = the_finding("hints: {priorityBuckets: ['90=a', '90=b']}\n")
    assert "each score once" in text
    assert "got '90=a,90=b'" in text
    many = ",".join(f"{x}=a" for x in range(65))
    assert "0 to 64 of SCORE=CLASS" in the_finding(f"hints: {{priorityBuckets: [{many}]}}\n")


def test_hints_need_webhooks_and_a_cluster() -> None:
    url = "hints: {schedulerUrl: 'http://a'}\n"
    expected = "got http://a; expected admission.tls.cert and key with it"
    assert expected in the_finding(url)
    off = the_finding(f"{url}{TLS}kubernetes: {{api: off}}\n")
    assert "got http://a; expected nothing with kubernetes.api: off" in off


@pytest.mark.parametrize("url", ["", "schedulerUrl: 'http://a', "])
def test_authorities_of_a_scorer_need_tls(url: str) -> None:
    found = the_finding(f"{TLS}hints: {{{url}ca: /ca.pem}}\n")
    assert found.startswith("hints.ca")
    assert "got /ca.pem; expected hints.schedulerUrl: https://… with it" in found


def test_authorities_and_token_of_a_scorer() -> None:
    text = f"{TLS}hints: {{schedulerUrl: 'https://a', ca: /ca.pem}}\n"
    token = {"GPUWARDEN_HINTS_AUTH_TOKEN": "secret"}
    loaded = controller(text, environment=token)
    assert (loaded.settings.hints.ca, loaded.settings.hints.auth_token) == (
        Path("/ca.pem"),
        "secret",
    )
    assert "secret" not in render(loaded)


def test_host_paths_are_none_or_some() -> None:
    assert controller("").settings.admission.host_paths == ()
    text = "admission: {hostPaths: [/data, /mnt/scratch, /data]}\n"
    assert controller(text).settings.admission.host_paths == ("/data", "/mnt/scratch")


def test_without_certificates_the_ports_of_people_are_free() -> None:
    listen = controller("listen: {accessTokens: ':9090'}\n").settings.listen
    assert str(listen.access_tokens) == ":9090"
    assert listen.access_certificates.is_loopback


def test_readers_of_the_api_are_none_or_some_and_without_certificates_its_port_is_free() -> None:
    text = "api: {readers: []}\nlisten: {api: ':9090'}\n"
    assert controller(text).settings.api.readers == ()
    named = controller("api: {readers: [a/b, a/b, c/d.e]}\n").settings.api.readers
    assert named == ("a/b", "c/d.e")


def test_unreadable_file_is_reported_beside_bad_flags() -> None:
    with pytest.raises(SettingsError) as caught:
        load(CONTROLLER, Inputs([("x", "1", "--x")], {}, ("c.yaml", b"a: [")))

    assert [finding.key for finding in caught.value.findings] == ["c.yaml", "--x"]


def test_missing_keys_say_where_they_can_be_set() -> None:
    with pytest.raises(SettingsError) as caught:
        load(AGENT, Inputs())

    assert [finding.key for finding in caught.value.findings] == [
        "trustDomain",
        "cluster",
        "workloadApi",
        "agent.nodeName",
    ]
    assert str(caught.value.findings[3]) == (
        "agent.nodeName: is required; expected a node name (RFC 1123 subdomain); set it in the"
        " file, as --agent.nodeName, as GPUWARDEN_AGENT_NODE_NAME, or $NODE_NAME"
    )


def test_seeds_variables_are_accepted() -> None:
    loaded = controller(
        flags={"insecureStaticHashes": "true"},
        environment={
            "BGS_LISTEN_ADDR": "127.0.0.1:8001",
            "BGS_REQUIRED_ANNOTATION": "my.org/hash",
            "BGS_NODE_HASH_MAP": '{"node-a":"h"}',
            "BGS_LOG_LEVEL": "debug",
            "BGS_MAX_AGE": "70s",
        },
    )
    settings = loaded.settings

    assert settings.listen.extender == Address("127.0.0.1", 8001)
    assert settings.static_hashes == {"node-a": "h"}
    assert settings.log.level is LogLevel.DEBUG
    assert settings.attestation.lease == Duration.parse("70s")
    assert loaded.sources["listen.extender"] == "environment BGS_LISTEN_ADDR"


def test_seeds_annotation_is_added_so_that_no_pod_gets_out_of_sight() -> None:
    keys = controller(environment={"BGS_REQUIRED_ANNOTATION": "my.org/hash"}).settings
    alone = controller(environment={"GPUWARDEN_REQUIRED_HASH_KEYS": "my.org/hash"}).settings

    assert keys.required_hash_keys[0] == "gpuwarden.dev/required-hash"
    assert keys.required_hash_keys[-1] == "my.org/hash"
    assert alone.required_hash_keys == ("my.org/hash",)


def test_the_seeds_scheduler_name_is_added_and_pods_without_one_still_go_to_the_first() -> None:
    default = controller().settings.scheduling.scheduler_names
    added = controller(environment={"SCHEDULER_NAME": "my-scheduler"}).settings.scheduling
    alone = controller("scheduling: {schedulerNames: [a, b]}\n").settings.scheduling

    assert default == ("gpuwarden", "gpu-scheduler")
    assert added.scheduler_names == ("gpuwarden", "gpu-scheduler", "my-scheduler")
    assert alone.scheduler_names == ("a", "b")


@pytest.mark.parametrize("text", ["trace", "INFO", ""])
def test_an_unknown_level_in_the_seeds_variable_means_info_with_a_warning(text: str) -> None:
    loaded = controller("log: {level: error}\n", environment={"BGS_LOG_LEVEL": text})

    assert loaded.settings.log.level is LogLevel.INFO
    assert loaded.sources["log.level"] == "default"
    (warning,) = loaded.warnings
    assert str(warning) == (
        f"BGS_LOG_LEVEL (environment, sets log.level): got {text!r};"
        " expected debug or info or warn or error"
    )


def test_a_known_level_in_the_seeds_variable_warns_of_nothing() -> None:
    assert controller(environment={"BGS_LOG_LEVEL": "error"}).warnings == ()


def test_only_the_level_of_the_seeds_is_forgiven() -> None:
    own = the_finding(environment={"GPUWARDEN_LOG_LEVEL": "trace"})
    assert own.startswith("GPUWARDEN_LOG_LEVEL (environment, sets log.level): got 'trace'")
    other = the_finding(environment={"BGS_MAX_AGE": "soon"})
    assert other.startswith("BGS_MAX_AGE (environment, sets attestation.lease): got 'soon'")


def test_own_variable_beats_the_seeds() -> None:
    environment = {"GPUWARDEN_LOG_LEVEL": "warn", "BGS_LOG_LEVEL": "debug"}

    assert controller(environment=environment).settings.log.level is LogLevel.WARN


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"n": 1}', '{"n": "a", "n": "b"}', '{"n": ""}', '{"n": "a b"}', "[" * 9000]
)
def test_bad_hash_map_is_refused_by_name(text: str) -> None:
    finding = the_finding(environment={"BGS_NODE_HASH_MAP": text})

    assert finding.startswith("BGS_NODE_HASH_MAP (environment, sets staticHashes): got ")


def test_seeds_public_listener_needs_client_certificates() -> None:
    assert "client certificates" in the_finding(environment={"BGS_LISTEN_ADDR": ":8000"})
    tls = "extender: {tls: {cert: c, key: k, clientCa: ca}}\n"
    assert (
        controller(tls, environment={"BGS_LISTEN_ADDR": ":8000"}).settings.listen.extender.port
        == 8000
    )


def test_variables_of_services_and_of_the_other_process_are_left_alone() -> None:
    controller(
        environment={
            "GPUWARDEN_CONTROLLER_SERVICE_HOST": "10.0.0.1",
            "GPUWARDEN_CONTROLLER_SERVICE_PORT_GRPC": "9443",
            "GPUWARDEN_CONTROLLER_PORT": "tcp://10.0.0.1:9443",
            "GPUWARDEN_CONTROLLER_PORT_9443_TCP_ADDR": "10.0.0.1",
            "GPUWARDEN_AGENT_NODE_NAME": "n1",
            "GPUWARDEN_CONFIG": "c.yaml",
        }
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("GPUWARDEN_EXTENDER_ID_KEYS", "unknown variable"),
        ("GPUWARDEN_AUDIT_DIRR", "did you mean GPUWARDEN_AUDIT_DIR?"),
    ],
)
def test_unknown_variable_is_refused(name: str, says: str) -> None:
    assert says in the_finding(environment={name: "x"})


def test_password_in_a_url_is_not_shown() -> None:
    text = the_finding(environment={"GPUWARDEN_TELEMETRY_OTLP": "https://me:hunter2@host"})

    assert "got 'https://<redacted>@host'" in text


def test_workload_api_over_tcp_needs_a_port() -> None:
    assert "tcp://address:port" in the_finding(flags={"workloadApi": "tcp://127.0.0.1"})


def test_long_unknown_name_is_cut() -> None:
    assert len(the_finding(environment={f"GPUWARDEN_{'X' * 5000}": "x"})) < 300


class TestSecrets:
    KEY = "telemetry.otlpHeaders"
    VARIABLE = "GPUWARDEN_TELEMETRY_OTLP_HEADERS"

    def test_secret_comes_from_a_file_that_the_environment_names(self) -> None:
        loaded = controller(
            environment={f"{self.VARIABLE}_FILE": "/s"}, secrets={"/s": "authorization=Bearer x\n"}
        )

        assert loaded.settings.telemetry.otlp_headers == {"authorization": "Bearer x"}
        assert loaded.sources[self.KEY] == f"environment {self.VARIABLE}_FILE"

    def test_secret_comes_from_a_file_that_the_file_names(self) -> None:
        loaded = controller("telemetry: {otlpHeadersFile: /s}\n", secrets={"/s": "a=b"})

        assert loaded.settings.telemetry.otlp_headers == {"a": "b"}

    def test_both_ways_at_once_are_refused(self) -> None:
        environment = {self.VARIABLE: "a=b", f"{self.VARIABLE}_FILE": "/s"}

        assert "got both" in the_finding(environment=environment, secrets={"/s": "a=b"})

    def test_missing_file_is_reported(self) -> None:
        text = the_finding(environment={f"{self.VARIABLE}_FILE": "/s"})

        assert "a readable file (No such file or directory)" in text

    def test_file_that_cannot_hold_a_name_is_reported(self) -> None:
        assert "in quotes" in the_finding("telemetry: {otlpHeadersFile: 5}\n")

    def test_without_a_reader_a_secret_file_is_an_error(self) -> None:
        with pytest.raises(SettingsError, match="is not read here"):
            load(AGENT, Inputs(environment={f"{self.VARIABLE}_FILE": "/s"}))

    def test_other_process_secret_file_is_left_alone(self) -> None:
        controller(environment={"GPUWARDEN_TELEMETRY_OTLP_HEADERS": "a=b"})

    @pytest.mark.parametrize("value", ["hunter2", "=hunter2", "a b=hunter2"])
    def test_bad_secret_is_not_shown(self, value: str) -> None:
        text = the_finding(environment={self.VARIABLE: value})

        assert "hunter2" not in text
        assert "<redacted>" in text


class TestAgent:
    def load(self, **flags: str) -> Any:
        environment = {
            "NODE_NAME": "gpu-1",
            "SPIFFE_ENDPOINT_SOCKET": "unix:///run/spire.sock",
            "GPUWARDEN_TRUST_DOMAIN": "example.org",
            "GPUWARDEN_CLUSTER": "lab",
        }
        given = [(key.replace("_", "."), value, f"--{key}") for key, value in flags.items()]
        return load(AGENT, Inputs(given, environment)).settings

    def test_defaults_come_from_the_pod(self) -> None:
        settings = self.load()

        assert settings.agent.node_name == "gpu-1"
        assert settings.workload_api == "unix:///run/spire.sock"
        assert settings.controller_id == "spiffe://example.org/gpuwarden/controller"
        assert settings.agent.controllers == (Address("gpuwarden-controller", 9443),)

    def test_controller_identity_can_be_set_within_the_trust_domain(self) -> None:
        settings = self.load(agent_controllerId="spiffe://example.org/x")

        assert settings.controller_id == "spiffe://example.org/x"
        with pytest.raises(SettingsError, match=r"trust domain example\.org"):
            self.load(agent_controllerId="spiffe://other.org/x")

    @pytest.mark.parametrize("address", ["a:0", ":9443"])
    def test_controllers_need_host_and_port(self, address: str) -> None:
        with pytest.raises(SettingsError, match=r"agent\.controllers"):
            self.load(agent_controllers=address)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("trustDomain", "Example.org"),
            ("agent_controllerId", "https://example.org"),
            ("agent_nodeName", "Node_1"),
            ("workloadApi", "/run/spire.sock"),
            ("workloadApi", "unix:relative"),
            ("workloadApi", "tcp://1.2.3.4"),
            ("workloadApi", "tcp:1.2.3.4:80"),
            ("agent_nvmlTimeout", "2m"),
            ("agent_stateDir", "/a\0b"),
            ("agent_kubeletSocket", "kubelet.sock"),
            ("agent_kubeletSocket", "none"),
            ("agent_gpuResources", "nvidia.com/*,*"),
            ("agent_gpuResources", "nvidia.com/g*u"),
            ("agent_controllers", ",".join(["a:1"] * 65)),
        ],
    )
    def test_bad_value_is_refused(self, key: str, value: str) -> None:
        with pytest.raises(SettingsError, match="expected"):
            self.load(**{key: value})

    def test_kubelet_may_be_left_alone(self) -> None:
        assert self.load(agent_kubeletSocket="off").agent.kubelet_socket is None
        assert self.load(agent_kubeletSocket="/k.sock").agent.kubelet_socket == Path("/k.sock")

    def test_resources_may_end_in_a_star(self) -> None:
        found = self.load(agent_gpuResources="nvidia.com/mig-*,gpu.nvidia.com").agent
        assert found.gpu_resources == ("nvidia.com/mig-*", "gpu.nvidia.com")

    def test_workload_api_over_tcp(self) -> None:
        assert self.load(workloadApi="tcp://127.0.0.1:8000").workload_api == "tcp://127.0.0.1:8000"
