"""A certificate that is renewed while a service runs: new connections have it; what is no pair changes nothing."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

import pytest

from api.http.certificate_reloader import CertificateReloader
from tests.certificates import certificate

INTERVAL_MS = 1_000


def context_of(files: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    return context


def presented(context: ssl.SSLContext) -> str:
    """The certificate that a client sees, in PEM, by a handshake in memory."""
    client_context = ssl.create_default_context()
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    der = client.getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path)


def renew(files: tuple[Path, Path], folder: Path) -> str:
    """Put another certificate and its key in place; returns the certificate."""
    folder.mkdir()
    for new, old in zip(certificate(folder), files, strict=True):
        os.replace(new, old)
    return files[0].read_text()


def test_a_renewed_certificate_is_presented_to_connections_to_come(files: tuple[Path, Path], tmp_path: Path) -> None:
    first = files[0].read_text()
    contexts = [context_of(files), context_of(files)]
    reloader = CertificateReloader(str(files[0]), str(files[1]), contexts, INTERVAL_MS)
    assert not reloader.reload_if_changed()
    second = renew(files, tmp_path / "new")
    assert presented(contexts[0]) == first
    assert reloader.reload_if_changed()
    assert [presented(context) for context in contexts] == [second, second]
    assert not reloader.reload_if_changed()


def test_files_that_are_no_pair_change_nothing_and_are_reported_once(
    files: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, key = files[0].read_text(), files[1].read_bytes()
    context = context_of(files)
    reloader = CertificateReloader(str(files[0]), str(files[1]), [context], INTERVAL_MS)
    second = renew(files, tmp_path / "new")
    new_key = files[1].read_bytes()
    files[1].write_bytes(key)
    assert not any(reloader.reload_if_changed() for _ in range(3))
    assert presented(context) == first
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    files[1].write_bytes(new_key)
    assert reloader.reload_if_changed()
    assert presented(context) == second
