"""What deploys the service, against the code: the paths, ports, settings and probes that are named exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.admin.topics.lookup import BINARY_PORT
from api.http.access import PROBES
from api.settings.settings import SETTINGS, Settings
from tests.servers import versitygw

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = ROOT / "deploy" / "compose.yaml"
CHART = ROOT / "deploy" / "helm" / "compactor"
KNOWN = {"COMPACTOR_CONFIG", *(item.variable for item in SETTINGS.values())}


def copied() -> list[str]:
    """What the image is built of."""
    return [
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()
    ]


def test_the_image_has_all_packages_and_what_installs_them() -> None:
    packages = {folder.parent.name for folder in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert set(copied()) == packages | {"requirements", "pyproject.toml", "README.md"}
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [name for name in copied() if not any(fnmatch(name, pattern) for pattern in allowed)] == []


def test_ports_and_probes_are_the_services_own() -> None:
    port = Settings().port
    assert f"EXPOSE {port} {BINARY_PORT}" in DOCKERFILE
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["service"] == {"http": port, "broker": BINARY_PORT}
    chart = (CHART / "templates" / "statefulset.yaml").read_text()
    asked = re.findall(r"(?:path: |127\.0\.0\.1:8080)(/\w+)", DOCKERFILE + chart)
    assert set(asked) == set(PROBES)


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/compose.yaml", *(
    str(item.relative_to(ROOT)) for item in sorted(CHART.rglob("*")) if item.is_file()
)])  # fmt: skip
def test_settings_are_known(file: str) -> None:
    named = set(re.findall(r"\bCOMPACTOR_[A-Z0-9_]+", (ROOT / file).read_text(encoding="utf-8")))
    assert named - KNOWN == set()


def test_the_chart_sets_what_several_services_need() -> None:
    chart = "".join(item.read_text(encoding="utf-8") for item in (CHART / "templates").iterdir())
    needed = {"DATABASE", "STORE", "ADVERTISED_URL", "AUTH_TOKEN_SECRET_KEY", "AUTH_SUPERUSER_ROLES"}
    assert {f"COMPACTOR_{name}" for name in needed} <= set(re.findall(r"COMPACTOR_[A-Z_]+", chart))
    assert "enableServiceLinks: false" in chart  # Kubernetes would set COMPACTOR_PORT to a URL


def test_the_trial_fits_together() -> None:
    trial: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    services = trial["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= services.keys(), name
        named = {volume.split(":")[0] for volume in service.get("volumes", ())}
        assert named <= trial["volumes"].keys(), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    assert services["compactor"]["build"]["context"] == ".."
    assert services["s3"]["image"] == f"versity/versitygw:{versitygw.VERSION}", "the release that the tests try"


Note = Callable[[str, object], None]


def validated(note: Note, program: str, *arguments: str) -> str:
    """What a validator says, which tests/costs.py prints; it must find nothing wrong. It stands beside this Python, or
    on the path."""
    command = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if command is None:
        pytest.skip(f"there is no {program} for this machine")
    done = subprocess.run([command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    passed = said.count(" passed for resource ")
    last = said.strip().splitlines()[-1:] or ["nothing to say"]
    note("validator", f"{program} {arguments[0]}: {f'{passed} resources passed' if passed else last[0].strip()}")
    return said


def test_the_image_as_hadolint_sees_it(record_property: Note) -> None:
    # DL3008: a Debian package with a pinned version is gone from the mirrors with the next security update.
    assert not validated(record_property, "hadolint", "--ignore", "DL3008", "Dockerfile")


def test_the_chart_as_helm_sees_it(record_property: Note) -> None:
    assert "0 chart(s) failed" in validated(record_property, "helm", "lint", "--strict", str(CHART))


@pytest.mark.parametrize("chosen", [(), ("--set", "serviceMonitor.enabled=true", "--set", "replicas=3")])
def test_what_the_chart_makes_is_kubernetes_own(chosen: tuple[str, ...], tmp_path: Path, record_property: Note) -> None:
    made = tmp_path / "made.yaml"
    made.write_text(
        validated(lambda *_: None, "helm", "template", str(CHART), "--set", "store.url=s3://bucket/prefix", *chosen)
    )
    said = validated(record_property, "kubernetes-validate", "--strict", "-k", "1.33", str(made))
    kinds = {document["kind"] for document in yaml.safe_load_all(made.read_text()) if document}
    assert {"StatefulSet", "Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount"} <= kinds
    assert said.count(" passed for resource ") >= len(kinds - {"ServiceMonitor"})


def test_the_unit_as_systemd_sees_it(tmp_path: Path, record_property: Note) -> None:
    unit = (ROOT / "deploy" / "compactor.service").read_text()
    here = tmp_path / "compactor.service"
    here.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit, flags=re.MULTILINE))
    assert not validated(record_property, "systemd-analyze", "verify", str(here))
