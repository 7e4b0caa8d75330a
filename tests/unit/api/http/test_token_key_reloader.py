"""Keys that are rotated, and tokens that are revoked, while a service runs."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, cast

import jwt
import pytest

from api.http.access import AuthAction, AuthorizationService
from api.http.router import Routes
from api.http.token_key_reloader import TokenKeyReloader
from api.http.tokens import ES256, BadToken, create_token, load_private_key, new_key_pair
from api.settings.settings import Settings
from storage.errors import Misconfigured
from tests.asgi import TestClient, application
from tests.clocks import ManualClock

OLD, NEW = bytes(32), bytes(range(32))
INTERVAL_MS = Settings().auth_reload_interval_ms


def written(file: Path, content: bytes | str) -> Path:
    """The file, rebuilt under its name, as an editor or a mounted secret does it."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(temporary, file)
    return file


def client_of(settings: Settings, clock: ManualClock) -> TestClient:
    router = Routes(prefix="")

    @router.get("/who", AuthAction.SUPERUSER)
    def who() -> str:
        return "ops"

    return TestClient(application(router, AuthorizationService.from_settings(settings, cast(Any, None), clock)))


def test_a_key_that_was_rotated_and_a_token_that_was_revoked_count_without_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    key, revoked = written(tmp_path / "secret.key", OLD), written(tmp_path / "revoked", "# none yet\n")
    settings = Settings(
        auth_token_secret_key=key.as_uri(), auth_revoked_tokens_file=str(revoked), auth_superuser_roles=("ops",)
    )
    client = client_of(settings, clock)

    def status(secret: bytes, **claims: object) -> int:
        headers = {"Authorization": f"Bearer {create_token(secret, 'ops', claims)}"}
        return client.get("/who", headers=headers).status_code

    assert (status(OLD), status(OLD, jti="a"), status(NEW)) == (200, 200, 401)
    written(key, NEW)
    written(revoked, "b # of a laptop that was lost\n\na\n")
    assert status(NEW) == 401, "not checked yet"
    clock.advance(INTERVAL_MS)
    assert (status(NEW), status(OLD), status(NEW, jti="a"), status(NEW, jti="c")) == (200, 401, 401, 200)
    clock.advance(-INTERVAL_MS * 10)  # the clock was set back: it is checked, too
    written(revoked, "")
    assert status(NEW, jti="a") == 200


def test_tokens_of_the_previous_secret_key_hold_until_it_is_removed(tmp_path: Path) -> None:
    """N16: to rotate the secret key ended all tokens at once."""
    clock = ManualClock()
    key, previous = written(tmp_path / "secret.key", OLD), tmp_path / "previous.key"
    settings = Settings(auth_token_secret_key=key.as_uri(), auth_token_previous_secret_key=previous.as_uri())
    keys = TokenKeyReloader(settings, clock)
    tokens = {secret: create_token(secret, "ops", {}) for secret in (OLD, NEW)}
    expiring = create_token(OLD, "ops", {"exp": clock.now_ms() // 1000 + 3600})

    def accepted() -> list[bytes]:
        clock.advance(INTERVAL_MS)
        if keys.claim_due_check():
            keys.reload_changed_files()
        roles = []
        for secret, token in tokens.items():
            try:
                keys.verifier.verified_role(token)
            except BadToken:
                continue
            roles.append(secret)
        return roles

    assert accepted() == [OLD]
    written(previous, OLD)
    assert accepted() == [OLD]
    written(key, NEW)
    assert accepted() == [OLD, NEW]
    clock.advance(3600 * 1000)
    with pytest.raises(BadToken, match="has expired"):
        keys.verifier.verified_role(expiring)
    written(previous, b"short")
    assert accepted() == [OLD, NEW], "a file that cannot be used changes nothing"
    previous.unlink()
    assert accepted() == [NEW]


def test_a_previous_key_alone_is_no_access_control() -> None:
    assert not Settings(auth_token_previous_secret_key="file:///previous.key").has_access_control


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    def key_set(public: bytes, key_id: str) -> bytes:
        key = load_private_key("key", str(written(tmp_path / "pair.key", public)))
        document = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(cast(Any, key.public_key())))
        return json.dumps({"keys": [{**document, "kid": key_id}]}).encode()

    first, second = (new_key_pair(ES256).private for _ in range(2))
    jwks = written(tmp_path / "jwks.json", key_set(first, "one"))
    keys = TokenKeyReloader(Settings(auth_jwks_file=str(jwks)), clock)
    assert [key.key_id for key in keys.verifier.keys] == ["one"]
    for content in (b"{", b'{"keys": []}', b'{"keys": []}'):
        written(jwks, content)
        clock.advance(INTERVAL_MS)
        assert (keys.claim_due_check(), keys.claim_due_check()) == (True, False)
        keys.reload_changed_files()
    jwks.unlink()
    keys.reload_changed_files()
    assert [key.key_id for key in keys.verifier.keys] == ["one"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    written(jwks, key_set(second, "two"))
    keys.reload_changed_files()
    assert [key.key_id for key in keys.verifier.keys] == ["two"]


def test_a_token_is_revoked_whatever_is_wrong_with_another_file(tmp_path: Path) -> None:
    key, revoked = written(tmp_path / "secret.key", OLD), written(tmp_path / "revoked", "")
    keys = TokenKeyReloader(
        Settings(auth_token_secret_key=key.as_uri(), auth_revoked_tokens_file=str(revoked)), ManualClock()
    )
    token = create_token(OLD, "ops", {"jti": "lost"})
    assert keys.verifier.verified_role(token) == "ops"
    written(key, b"too short")
    written(revoked, "lost")
    keys.reload_changed_files()
    with pytest.raises(BadToken, match="revoked"):
        keys.verifier.verified_role(token)


def test_a_file_that_hangs_holds_one_look_and_no_thread_that_requests_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, begun, let_go = ManualClock(), threading.Semaphore(0), threading.Event()
    key = written(tmp_path / "secret.key", OLD)
    client = client_of(Settings(auth_token_secret_key=key.as_uri(), auth_superuser_roles=("ops",)), clock)
    headers = {"Authorization": f"Bearer {create_token(OLD, 'ops', {})}"}
    check: list[threading.Thread] = []

    def hangs(_: object) -> None:
        check.append(threading.current_thread())
        begun.release()
        let_go.wait(60)

    monkeypatch.setattr("api.http.token_key_reloader.stamp_of", hangs)
    monkeypatch.setattr("api.http.token_key_reloader.WAIT_MS", 1)
    for _ in range(3):
        clock.advance(INTERVAL_MS)
        assert client.get("/who", headers=headers).status_code == 200
    assert begun.acquire(timeout=30)
    let_go.set()
    assert [thread.name for thread in check] == ["token-keys"]
    check[0].join(30)


def test_the_interval_begins_when_a_look_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    keys = TokenKeyReloader(
        Settings(auth_jwks_file="", auth_token_secret_key=written(tmp_path / "k", OLD).as_uri()), clock
    )
    clock.advance(INTERVAL_MS)
    assert keys.claim_due_check()
    clock.advance(INTERVAL_MS)
    assert not keys.claim_due_check(), "one check a time"
    keys.reload_changed_files()
    assert not keys.claim_due_check()
    clock.advance(INTERVAL_MS)
    assert keys.claim_due_check()


UNKNOWN_CURVE = bytes.fromhex("3016300e06072a8648ce3d020106032a0304030400040000")


def test_a_key_of_a_kind_that_is_not_known_here_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    public = written(tmp_path / "public.key", new_key_pair(ES256).public)
    keys = TokenKeyReloader(Settings(auth_token_public_key=public.as_uri()), ManualClock())
    before = keys.verifier.keys
    written(public, UNKNOWN_CURVE)
    for _ in range(2):
        keys.reload_changed_files()
    assert keys.verifier.keys == before
    assert ["holds no public key" in record.message for record in caplog.records] == [True]


def test_a_defect_of_a_reload_changes_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = written(tmp_path / "secret.key", OLD)
    keys = TokenKeyReloader(Settings(auth_token_secret_key=key.as_uri()), ManualClock())

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("api.http.tokens.load_possible_secret_keys", fails)
    written(key, NEW)
    for _ in range(2):
        keys.reload_changed_files()
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.WARNING] == [True]


def test_a_list_that_cannot_be_read_keeps_a_service_from_starting(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="revoked-tokens-file"):
        TokenKeyReloader(
            Settings(auth_token_secret_key=OLD.hex(), auth_revoked_tokens_file="/nowhere/list"), ManualClock()
        )
    keys = TokenKeyReloader(Settings(auth_token_secret_key="data:;base64," + "A" * 43 + "="), ManualClock())
    assert not keys.claim_due_check(), "there is no file to check"
