"""Settings: which origin wins, what each kind takes, files of Pulsar and Kafka, and what is said of what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from api.cli.local.config_command import settings_with_origins
from api.settings.settings import SETTINGS, Settings
from api.settings.sources import unknown_variable_notes
from storage.errors import Misconfigured

ROOT = Path(__file__).resolve().parents[4]


def written(tmp_path: Path, name: str, text: str) -> str:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default(tmp_path: Path) -> None:
    file = written(tmp_path, "c.toml", 'port = 1\nhost = "file"\ngc.interval = "2h"\n')
    environment = {"COMPACTOR_PORT": "2", "COMPACTOR_HOST": "environment", "COMPACTOR_CONFIG": file}
    loaded = Settings.load(environment, port=3)
    assert (loaded.port, loaded.host, loaded.gc_interval_ms, loaded.gc_grace_ms) == (
        3,
        "environment",
        7_200_000,
        3_600_000,
    )
    assert loaded.origin("port") == "flag"
    assert loaded.origin("host") == "environment COMPACTOR_HOST"
    assert loaded.origin("gc.interval") == f"file {file}"
    assert loaded.origin("gc.grace") == ""
    assert Settings.load({"COMPACTOR_CONFIG": "/nowhere"}, config=file).port == 1, "--config goes before its variable"
    assert loaded.with_flags(port=None, host="flag").host == "flag"


def test_an_empty_variable_is_not_given() -> None:
    assert Settings.load({"COMPACTOR_PORT": "", "COMPACTOR_AUTH_ENABLED": ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("compaction.monitor-interval", "90s", 90_000),
        ("compaction.monitor-interval", "500ms", 500),
        ("shutdown.grace", "0", 0),
        ("limits.body-bytes", "3M", 3 << 20),
        ("limits.requests-per-second", "0.5", 0.5),
        ("compaction.automatic", "False", False),
        ("auth.enabled", "none", None),
        ("auth.superuser-roles", "a, b,,a", ("a", "b")),
        ("logging.level", "debug", "DEBUG"),
    ],
)
def test_values_from_texts(name: str, text: str, value: object) -> None:
    setting = SETTINGS[name]
    assert getattr(Settings.load({setting.environment_variable: text}), setting.attribute) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("port", "http"),
        ("compaction.monitor-interval", "60"),  # of which unit?
        ("compaction.monitor-interval", "0s"),
        ("compaction.max-runs", "0"),
        ("compaction.max-runs", "1.5"),
        ("limits.requests-per-second", "nan"),
        ("limits.requests-per-second", "inf"),
        ("compaction.automatic", "yes"),
        ("logging.level", "LOUD"),
        ("host", "a\nb"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name_and_with_what_can(name: str, text: str) -> None:
    setting = SETTINGS[name]
    with pytest.raises(Misconfigured) as refused:
        Settings.load({setting.environment_variable: text})
    assert setting.environment_variable in refused.value.message
    assert name in refused.value.message
    assert setting.kind.allowed in refused.value.remedy


def test_a_secret_that_cannot_be_taken_is_not_repeated() -> None:
    with pytest.raises(Misconfigured) as refused:
        Settings.load({"COMPACTOR_AUTH_TOKEN_SECRET_KEY": "data:;base64,hunter2\n"})
    assert "hunter2" not in str(refused.value)


def test_toml_has_types_tables_and_policies(tmp_path: Path) -> None:
    text = """
        port = 9
        [auth]
        superuser-roles = ["x", "y"]
        [compaction]
        automatic = false
        threshold.bytes = "1M"
        [retention]
        ms = "7d"
    """
    loaded = Settings.load({}, written(tmp_path, "c.toml", text))
    assert (loaded.port, loaded.auth_superuser_roles, loaded.compaction_automatic) == (9, ("x", "y"), False)
    assert loaded.policies == {"compaction.threshold.bytes": 1 << 20, "retention.ms": 7 * 86_400_000}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "prot"),
        ("compaction.monitor-intervall = '1s'", "did you mean compaction.monitor-interval"),
        ("port = '", "not TOML"),
        ("port = true", "port"),
        ("port = 1.0", "port"),
        ("compaction.automatic = 1", "compaction.automatic"),
        ("compaction.threshold.bytes = -1", "compaction.threshold.bytes"),
        ("min.compaction.lag.ms = '2d'\nmax.compaction.lag.ms = '1d'", "is above"),
        ("port = 1\nwebServicePort = 2", "different values"),
    ],
)
def test_toml_that_cannot_be_meant(text: str, says: str, tmp_path: Path) -> None:
    file = written(tmp_path, "c.toml", text)
    with pytest.raises(Misconfigured) as refused:
        Settings.load({}, file)
    assert says in str(refused.value)
    assert file in str(refused.value)


def test_a_bad_value_names_its_setting_once(tmp_path: Path) -> None:
    file = written(tmp_path, "c.toml", "compaction.monitor-interval = '2 parsecs'")
    with pytest.raises(Misconfigured) as refused:
        Settings.load({}, file)
    assert refused.value.message == f"{file}: '2 parsecs' is not a value of compaction.monitor-interval"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read"):
        Settings.load({}, str(tmp_path / "none.toml"))


def test_a_brokers_own_file(tmp_path: Path) -> None:
    """Pulsar's names, its units, its empty values; unknown ones in one note."""
    text = """
# Port to use to server HTTP request
webServicePort=8081
advertisedAddress=
bindAddress=0.0.0.0
clusterName=east
superUserRoles = admin, proxy
authenticationEnabled: true
tokenSecretKey=file:///my/secret.key
brokerServiceCompactionMonitorIntervalInSeconds=30
brokerServiceCompactionThresholdInBytes=1000
topicCompactionRetainNullKey true
brokerShutdownTimeoutMs=60000
zookeeperServers=
numIOThreads=4
managedLedgerDefaultEnsembleSize=2
"""
    loaded = Settings.load({}, written(tmp_path, "broker.conf", text))
    assert (loaded.port, loaded.host, loaded.advertised_url) == (8081, "0.0.0.0", "")
    assert loaded.auth_superuser_roles == ("admin", "proxy")
    assert (loaded.auth_enabled, loaded.auth_token_secret_key) == (True, "file:///my/secret.key")
    assert (loaded.compaction_monitor_interval_ms, loaded.shutdown_grace_ms) == (30_000, 60_000)
    assert loaded.policies == {"compaction.threshold.bytes": 1000, "compaction.retain-null-key": True}
    assert len(loaded.notes) == 1
    assert "numIOThreads" in loaded.notes[0]
    assert "zookeeperServers" not in loaded.notes[0], "what is empty says nothing"


def test_kafkas_own_file(tmp_path: Path) -> None:
    text = r"""
log.cleaner.threads=2
log.cleaner.backoff.ms=15000
log.cleaner.io.max.bytes.per.second=2000000.0
log.cleaner.min.cleanable.ratio=0.25
log.cleaner.delete.retention.ms=86400000
log.retention.check.interval.ms=300000
log.retention.hours=168
log.cleanup.policy=compact,\
   delete
log.dirs=/tmp/kafka\u002dlogs
"""
    loaded = Settings.load({}, written(tmp_path, "server.properties", text))
    assert (loaded.compaction_max_runs, loaded.compaction_monitor_interval_ms) == (2, 15_000)
    assert (loaded.compaction_max_read_rate, loaded.compaction_max_write_rate) == (1_000_000, 1_000_000)
    assert loaded.policies == {
        "min.cleanable.dirty.ratio": 0.25,
        "delete.retention.ms": 86_400_000,
        "retention.hours": 168,
        "cleanup.policy": frozenset({"compact", "delete"}),
    }
    assert "log.dirs" in loaded.notes[0]
    no_limit = written(tmp_path, "s.properties", "log.cleaner.io.max.bytes.per.second=1.7976931348623157E308")
    assert Settings.load({}, no_limit).compaction_max_read_rate == 0


def test_a_value_of_such_a_file_that_cannot_be_taken_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="brokerServiceCompactionMonitorIntervalInSeconds"):
        Settings.load({}, written(tmp_path, "b.conf", "brokerServiceCompactionMonitorIntervalInSeconds=soon"))


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    loaded = Settings.load(
        {
            "COMPACTOR_DATABASE": "postgresql://me:planted1@db/c?password=planted2",
            "COMPACTOR_AUTH_TOKEN_SECRET_KEY": "data:;base64,cGxhbnRlZDM=",
            "COMPACTOR_S3_ENDPOINT": "http://key:planted4@s3/",
        }
    )
    for text in (repr(loaded), json.dumps(settings_with_origins(loaded))):
        assert "planted" not in text
        assert "cGxhbnRlZDM" not in text
        assert "postgresql://me:***@db/c" in text
    by_file = Settings(auth_token_secret_key="file:///etc/secret.key")
    assert settings_with_origins(by_file)["auth.token-secret-key"]["value"] == "file:///etc/secret.key", (
        "a file's name is no secret"
    )


def test_where_a_service_is_reached() -> None:
    assert Settings(port=1).url == "http://127.0.0.1:1"
    assert Settings(host="::1", port=1, tls_certificate="c").url == "https://[::1]:1"
    assert Settings(port=1, advertised_url="broker.example").url == "http://broker.example:1"
    assert Settings(port=1, advertised_url="broker.example:2").url == "http://broker.example:2"
    assert Settings(port=1, advertised_url="[::1]").url == "http://[::1]:1"
    assert Settings(port=1, advertised_url="[::1]:2").url == "http://[::1]:2"
    assert Settings(port=1, advertised_url="https://lb.example/").url == "https://lb.example"


def test_access_control_is_on_when_there_is_a_key_unless_said_otherwise() -> None:
    assert not Settings().has_access_control
    assert Settings(auth_jwks_file="j").has_access_control
    assert Settings(auth_enabled=True).has_access_control
    assert not Settings(auth_token_public_key="k", auth_enabled=False).has_access_control


def test_variables_that_are_no_settings_are_found() -> None:
    environment = {
        "COMPACTOR_PORTS": "1",
        "COMPACTOR_PORT": "1",
        "COMPACTOR_CONFIG": "",
        "COMPACTOR_ADMIN_URL": "x",
        "COMPACTOR_TOKEN": "x",
        "PATH": "",
    }
    [note] = unknown_variable_notes(environment)
    assert note.startswith("COMPACTOR_PORTS is not a setting")
    assert note.endswith("did you mean COMPACTOR_PORT?")
    assert "docs/settings.md" in unknown_variable_notes({"COMPACTOR_XYZZY": ""})[0]


def test_every_setting_is_read_by_something() -> None:
    """No setting is in the table that no code reads."""
    table = ROOT / "api" / "settings" / "settings.py"
    sources = [file for package in ("api", "compactor", "storage") for file in (ROOT / package).rglob("*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in sources if file != table)
    own = table.read_text(encoding="utf-8")
    unread = [
        setting.name
        for setting in SETTINGS.values()
        if not re.search(rf"\.{setting.attribute}\b", text) and not re.search(rf"self\.{setting.attribute}\b", own)
    ]
    assert unread == []


@pytest.mark.parametrize("name", ["database", "store", "s3-endpoint", "advertised-url"])
def test_no_password_of_a_url_is_shown_whatever_it_holds(name: str) -> None:
    displayed = SETTINGS[name].displayed("scheme://me:1234/pa ss'w\"rd@host:1/x?password=other&sslmode=require")
    assert displayed == "scheme://me:***@host:1/x?password=***&sslmode=require"


def test_errors_name_flags_as_the_program_does() -> None:
    from typer.main import get_command

    from api.cli.main import app

    program = get_command(app)
    serve = program.commands["serve"]  # type: ignore[attr-defined]
    attributes = {setting.attribute: setting for setting in SETTINGS.values()}
    options = [option for option in (*program.params, *serve.params) if option.name in attributes]
    assert len(options) >= 12
    assert {option.name: option.opts[0] for option in options} == {
        option.name: attributes[str(option.name)].flag for option in options
    }
