"""The settings of a cluster before Spark starts: masters, their addresses, and the package that executors get."""

from __future__ import annotations

import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compactor.engines.cluster import check_master, is_local, local_address_for_master, max_task_failures, zip_packages
from storage.errors import Misconfigured, Unavailable


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[4]", "local[4, 2]", "local-cluster[2,1,512]", "spark://a:1,b:2", "k8s://x", "yarn"],
)
def test_masters_of_spark(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize("master", ["", "bogus", "local[0]", "local[]", "spark:/a:1", "yarn-client", "mesos://a:1"])
def test_what_is_no_master(master: str) -> None:
    with pytest.raises(Misconfigured, match="is not a Spark master: set COMPACTOR_SPARK_MASTER"):
        check_master(master)


def test_spark_connect_is_refused_and_says_what_to_use() -> None:
    with pytest.raises(Misconfigured, match=r"Spark Connect has no RDDs.*: set COMPACTOR_SPARK_MASTER to the master"):
        check_master("sc://spark.example:15002")


@pytest.mark.parametrize(
    ("master", "local", "failures"),
    [
        ("local", True, 1),
        ("local[*]", True, 1),
        ("local[2]", True, 1),
        ("local[2,3]", True, 3),
        ("local[*, 5]", True, 5),
        ("local-cluster[2,1,512]", False, 8),
        ("spark://a:1", False, 8),
        ("yarn", False, 8),
    ],
)
def test_retries_are_sparks(master: str, local: bool, failures: int) -> None:
    assert is_local(master) is local
    assert max_task_failures(master, "8") == failures
    assert max_task_failures("yarn", None) == 4, "Spark's default"


def test_the_address_that_faces_the_master() -> None:
    with socket.create_server(("127.0.0.1", 0)) as second, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        assert local_address_for_master(f"spark://127.0.0.1:{port},127.0.0.1:{second.getsockname()[1]}") == "127.0.0.1"


def test_a_master_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable, match=rf"no Spark master answers at .*127\.0\.0\.1:{port}: Connection refused"):
        local_address_for_master(f"spark://127.0.0.1:{port}")


def test_a_master_that_does_not_answer_is_given_up() -> None:
    """A full queue of connections is the silence that one machine can make by itself."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = silent.getsockname()
        waiting = []
        try:
            for _ in range(64):
                waiting.append(client := socket.socket())
                client.setblocking(False)
                client.connect_ex(address)
            with pytest.raises(Unavailable, match="no Spark master answers"):
                local_address_for_master(f"spark://127.0.0.1:{address[1]}", within_seconds=0.2)
        finally:
            for client in waiting:
                client.close()


@pytest.mark.parametrize("master", ["spark://host", "spark://a:1,", "spark://a:99999", "spark://a:b", "spark://a:1/x"])
def test_a_master_without_host_and_port(master: str) -> None:
    with pytest.raises(Misconfigured, match="does not name host:port"):
        local_address_for_master(master, within_seconds=0.1)


@pytest.mark.slow
def test_the_zip_is_all_that_a_task_needs_of_ours(tmp_path: Path) -> None:
    """Third-party packages are where they always are; ours are not (-S: no editable install), but for the zip."""
    target = zip_packages(tmp_path / "package.zip")
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"compactor", "storage"}
    assert all(name.endswith(".py") for name in names)
    script = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "import compactor.engines.spark, compactor.phase_one, compactor.phase_two\n"
        "import storage.objects.s3, storage.objects.local\n"
        "ours = [m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ('compactor', 'storage', 'api')]\n"
        "assert all(file.startswith(sys.argv[1]) for file in ours), ours\n"
        "print(len(ours) > 10)"
    )
    import numpy

    packages = str(Path(numpy.__path__[0]).parent)
    result = subprocess.run(
        [sys.executable, "-S", "-c", script, str(target), packages],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
