"""`compactor serve` with TLS, tokens of a key pair, and settings from a file of Pulsar's names."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import httpx
import pytest

from api.http.tokens import ES256, create_token, load_private_key, new_key_pair
from tests.certificates import certificate
from tests.clients.rest.test_serve_process import start


@pytest.mark.slow
def test_https_with_tokens_of_a_key_pair(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    private, public = new_key_pair(ES256)
    (tmp_path / "public.key").write_bytes(public)
    settings = tmp_path / "broker.conf"
    settings.write_text(
        f"tokenPublicKey={(tmp_path / 'public.key').as_uri()}\nsuperUserRoles=root\n"
        "brokerShutdownTimeoutMs=5000\nmanagedLedgerDefaultEnsembleSize=2\n"
    )
    process, reader = start(
        tmp_path,
        PYTHONPATH=str(Path(__file__).resolve().parents[3]),
        COMPACTOR_CONFIG=str(settings),
        COMPACTOR_TLS_CERTIFICATE=str(chain),
        COMPACTOR_TLS_KEY=str(key),
    )
    try:
        assert process.url.startswith("https://127.0.0.1:"), "".join(process.lines)
        assert "managedLedgerDefaultEnsembleSize" in process.lines[0]
        token = create_token(load_private_key("key", "data:;base64," + base64.b64encode(private).decode()), "root", {})
        trusted = ssl.create_default_context(cafile=str(chain))
        with httpx.Client(base_url=process.url, verify=trusted, timeout=60) as client:
            assert client.get("/admin/v2/tenants").status_code == 401
            assert client.get("/admin/v2/tenants", headers={"Authorization": f"Bearer {token}"}).json() == ["public"]
        with pytest.raises(httpx.HTTPError):
            httpx.get(process.url.replace("https", "http") + "/livez", timeout=60)
    finally:
        assert process.end() == 0
        reader.join()
        assert process.popen.stderr
        process.popen.stderr.close()
