"""Refusals of a service before it serves: exposure without access control, certificates, ports that are taken."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from api.components import open_for_writing
from api.server import (
    bound_socket,
    check_exposure,
    check_settings_and_create_log_directory,
    check_tls,
    listen,
    plaintext_port_warnings,
)
from api.service import running_service
from api.settings.settings import Settings
from storage.errors import Misconfigured, ObjectExists, Unavailable, WrongStore
from storage.objects.local import LocalStore
from storage.store_identity import StoreIdentity


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_access_control(host: str) -> None:
    check_exposure(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "192.168.0.1", "", "no-such-host.invalid"])
def test_everything_else_does(host: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        check_exposure(Settings(host=host))
    assert "access control is off" in refused.value.message
    assert "auth.token-secret-key" in refused.value.remedy
    assert "127.0.0.1" in refused.value.remedy
    check_exposure(Settings(host=host, auth_token_secret_key="file:///k"))
    with pytest.raises(Misconfigured):
        check_exposure(Settings(host=host, auth_token_secret_key="file:///k", auth_enabled=False))


def test_superusers_without_a_key_are_a_mistake() -> None:
    """An operator who names superusers believes that access control is on."""
    with pytest.raises(Misconfigured, match="no key"):
        check_exposure(Settings(auth_superuser_roles=("ops",)))
    check_exposure(Settings(auth_superuser_roles=("ops",), auth_enabled=False))


def test_access_control_without_a_key_is_a_mistake() -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(Misconfigured, match="no key to check tokens with") as refused:
            check_exposure(Settings(host=host, auth_enabled=True))
        assert "auth.jwks-file" in refused.value.remedy
    check_exposure(Settings(auth_enabled=True, auth_jwks_file="/k"))


def test_parts_that_cannot_work_are_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for settings, says in (
        (Settings(data=str(tmp_path), spark_master="foo"), "'foo' is not a Spark master"),
        (Settings(data=str(tmp_path), advertised_url="http://"), "names no host"),
        (Settings(data=str(tmp_path), advertised_url="http://x:99999"), "names no host"),
        (Settings(data=str(tmp_path), advertised_url="ftp://x"), "names no host"),
        (Settings(data=str(tmp_path), log=str(tmp_path / "file")), "log directory .*file cannot be written"),
        (Settings(data=str(tmp_path), log=str(tmp_path / "file" / "log")), "log directory .* cannot be written"),
        (Settings(data=str(tmp_path / "file")), "data directory"),
    ):
        with pytest.raises(Misconfigured, match=says) as refused:
            check_settings_and_create_log_directory(settings)
        assert refused.value.remedy
    for advertised in ("", "localhost", "lb.example:81", "https://lb.example", "[::1]", "::1"):
        check_settings_and_create_log_directory(
            Settings(data=str(tmp_path), spark_master="in-process", advertised_url=advertised)
        )
    check_settings_and_create_log_directory(Settings(data=str(tmp_path), spark_master="spark://not-started:7077"))


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    check_tls(Settings())
    empty = tmp_path / "empty.pem"
    empty.touch()
    for certificate, key, says in (
        (str(empty), "", "missing"),
        ("", str(empty), "missing"),
        (str(empty), str(empty), "no certificate"),
        (str(empty), "/nowhere.pem", "/nowhere.pem does not exist"),
    ):
        with pytest.raises(Misconfigured, match=says):
            check_tls(Settings(tls_certificate=certificate, tls_key=key))
    for authority, says in ((str(empty), "no certificate"), ("/nowhere.pem", "/nowhere.pem does not exist")):
        with pytest.raises(Misconfigured, match=says):
            check_tls(Settings(tls_ca=authority))


def test_a_port_without_tls_beside_a_certificate_is_a_warning() -> None:
    assert plaintext_port_warnings(Settings()) == []
    encrypted = Settings(tls_certificate="/c", tls_key="/k")
    for settings, port in ((encrypted, 6650), (replace(encrypted, broker_service_port=16650), 16650)):
        (warning,) = plaintext_port_warnings(settings)
        assert f"({port}) takes connections without TLS" in warning
        assert "broker-service-tls-only" in warning
    (_,) = plaintext_port_warnings(replace(encrypted, broker_service_port_tls=6651))
    assert plaintext_port_warnings(replace(encrypted, broker_service_port_tls=6651, broker_service_tls_only=True)) == []


def test_port_0_is_any_that_is_free_and_one_that_is_taken_is_told() -> None:
    with bound_socket("127.0.0.1", 0, "port") as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert port
        with pytest.raises(Unavailable, match=f"{port} cannot be bound"), bound_socket("127.0.0.1", port, "port"):
            pass
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_of_two_that_bind_a_port_at_once_the_second_names_it() -> None:
    with bound_socket("127.0.0.1", 0, "port") as first:
        port = first.getsockname()[1]
        with bound_socket("127.0.0.1", port, "broker-service-port") as second:
            listen(first, "port")
            with pytest.raises(Unavailable, match=f"127.0.0.1:{port} cannot be bound") as refused:
                listen(second, "broker-service-port")
    assert "another --broker-service-port" in refused.value.remedy


def test_a_host_that_is_none() -> None:
    with pytest.raises(Misconfigured, match="no address"), bound_socket("no-such-host.invalid", 0, "port"):
        pass


def test_a_service_does_not_start_with_another_store(tmp_path: Path) -> None:
    """It would seal what others acknowledged there. Costs the parts of a service, not started."""
    settings = Settings(data=str(tmp_path / "data"), spark_master="in-process")
    with open_for_writing(settings):
        pass
    mistyped = tmp_path / "objetcs"
    with pytest.raises(WrongStore), running_service(settings.with_flags(store=mistyped.as_uri())):
        pytest.fail("it has started")
    assert not mistyped.exists()


def test_a_service_does_not_start_with_a_store_that_lets_two_writers_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs the parts of a service, not started."""

    def overwrite(store: LocalStore, name: str, data: bytes) -> None:
        while True:
            store.delete(name)
            with suppress(ObjectExists):
                return put(store, name, data)

    put = LocalStore.put
    settings = Settings(data=str(tmp_path / "data"), spark_master="in-process")
    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "put", overwrite)
        with pytest.raises(Misconfigured, match="fails its check: conditional put"), running_service(settings):
            pytest.fail("it has started")
    with running_service(settings):
        pass
    monkeypatch.setattr(
        LocalStore, "check_capabilities", lambda _: pytest.fail("the second start does not check it again")
    )
    with running_service(settings):
        pass


def test_a_service_starts_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends need no store; the sealer asks again then."""
    settings = Settings(data=str(tmp_path / "data"))
    monkeypatch.setattr(LocalStore, "get", lambda *_: (_ for _ in ()).throw(Unavailable("the store is away", "wait")))
    with open_for_writing(settings) as environment, pytest.raises(Unavailable):
        StoreIdentity(environment.metadata, environment.store).check_or_bind()
