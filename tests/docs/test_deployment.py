"""The files that deploy the service name paths, ports, settings and probes that exist in the code."""

from __future__ import annotations

import json
import os
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

from api.cli import healthcheck
from api.http.access import PROBES
from api.rest.topics.lookup import BINARY_PORT
from api.settings.settings import SETTINGS, Settings
from tests.servers import versitygw

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = ROOT / "deploy" / "compose.yaml"
CHART = ROOT / "deploy" / "helm" / "compactor"
KNOWN = {"COMPACTOR_CONFIG", *(item.environment_variable for item in SETTINGS.values())}


def copied() -> list[str]:
    """Return the files of which the image is built."""
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
    assert values["service"] == {"http": port, "broker": BINARY_PORT, "brokerTls": BINARY_PORT + 1}
    chart = (CHART / "templates" / "statefulset.yaml").read_text()
    assert set(re.findall(r"path: (/\w+), port", chart)) == set(PROBES)
    assert f'CMD ["python", "-m", "{healthcheck.__name__}"]' in DOCKERFILE


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


@pytest.mark.slow
def test_sparks_master_workers_and_driver_of_the_trial_share_a_secret(tmp_path: Path) -> None:
    """Costs three commands. Spark without authentication runs what anybody in the network sends."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name in ("spark-master", "spark-worker", "compactor"):
        assert services[name]["environment"]["SPARK_CONF_DIR"] == "/keys/spark", name
        assert "keys:/keys:ro" in services[name]["volumes"], name
    (script,) = services["keys"]["command"]
    script = script.replace("/keys", str(tmp_path)).replace("chown -R 10001:10001", "test -d").replace("$$", "$")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for _ in range(2):
        subprocess.run(["sh", "-ec", script], check=True, timeout=60, env={"PATH": path, "HOME": str(tmp_path)})
        lines = dict(line.split() for line in (tmp_path / "spark" / "spark-defaults.conf").read_text().splitlines())
        assert lines["spark.authenticate"] == "true"
        assert re.fullmatch(r"[0-9a-f]{64}", lines["spark.authenticate.secret"])
        assert (tmp_path / "spark" / "spark-defaults.conf").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "token").read_text().count(".") == 2


Note = Callable[[str, object], None]


def validated(note: Note, program: str, *arguments: str) -> str:
    """Run a validator, which is beside this Python or on the path. Return its report, which must be without errors.

    tests/costs.py prints the report.
    """
    command = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if command is None:
        pytest.skip(f"there is no {program} for this machine")
    done = subprocess.run([command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    passed = report.count(" passed for resource ")
    last = report.strip().splitlines()[-1:] or ["nothing to say"]
    note("validator", f"{program} {arguments[0]}: {f'{passed} resources passed' if passed else last[0].strip()}")
    return report


def test_the_image_as_hadolint_sees_it(record_property: Note) -> None:
    # DL3008: a Debian package with a pinned version is gone from the mirrors with the next security update.
    assert not validated(record_property, "hadolint", "--ignore", "DL3008", "Dockerfile")


def test_the_chart_as_helm_sees_it(record_property: Note) -> None:
    assert "0 chart(s) failed" in validated(record_property, "helm", "lint", "--strict", str(CHART))


def rendered(*values: str) -> list[dict[str, Any]]:
    """Render the chart; return its documents."""
    chosen = [argument for value in ("store.url=s3://bucket/prefix", *values) for argument in ("--set", value)]
    text = validated(lambda *_: None, "helm", "template", "name", str(CHART), *chosen)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = (document for document in documents if document["kind"] == kind)
    return document


def pod(documents: list[dict[str, Any]], kind: str = "StatefulSet") -> dict[str, Any]:
    template: dict[str, Any] = of_kind(documents, kind)["spec"]["template"]["spec"]
    return template


def environment(template: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in template["containers"][0]["env"]}


ENCRYPTED = ("tls.existingSecret=certificate", "tls.caKey=ca.crt")
COMPLETE = (
    *ENCRYPTED, "ingress.enabled=true", "ingress.className=nginx", "ingress.tlsSecret=public", "replicas=3",
    "serviceMonitor.enabled=true", "prometheusRule.enabled=true", "spark.master=spark://master:7077",
    "spark.existingSecret=spark", "networkPolicy.extraIngress[0].from[0].podSelector.matchLabels.app=spark",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [(), ("serviceMonitor.enabled=true", "replicas=3"), COMPLETE])
def test_what_the_chart_makes_is_kubernetes_own(chosen: tuple[str, ...], tmp_path: Path, record_property: Note) -> None:
    documents = rendered(*chosen)
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    report = validated(record_property, "kubernetes-validate", "--strict", "-k", "1.33", str(file))
    kinds = {document["kind"] for document in documents}
    assert {"StatefulSet", "Job", "Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount"} <= kinds
    assert ("Ingress" in kinds, "PrometheusRule" in kinds) == (chosen == COMPLETE,) * 2
    assert report.count(" passed for resource ") >= len(kinds - {"ServiceMonitor", "PrometheusRule"})


def test_the_chart_upgrades_the_schema_once_before_the_pods() -> None:
    """Init containers of the pods would do so during a rolling update, beside pods of the old schema."""
    documents = rendered()
    assert "initContainers" not in pod(documents)
    job = of_kind(documents, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = pod(documents, "Job")["containers"]
    assert container["args"] == ["db", "upgrade"]
    assert set(environment(pod(documents, "Job"))) == {"COMPACTOR_DATABASE"}
    selected = of_kind(documents, "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert not selected.items() <= job["spec"]["template"]["metadata"]["labels"].items(), "services would select it"


def test_the_chart_with_tls_speaks_tls_everywhere() -> None:
    documents = rendered(*COMPLETE)
    (container,) = pod(documents)["containers"]
    probes = [container[f"{name}Probe"]["httpGet"]["scheme"] for name in ("startup", "liveness", "readiness")]
    assert probes == ["HTTPS"] * 3
    settings = environment(pod(documents))
    assert settings["COMPACTOR_ADVERTISED_URL"].startswith("https://")
    assert settings["COMPACTOR_BROKER_SERVICE_TLS_ONLY"] == "true"
    assert "COMPACTOR_BROKER_SERVICE_PORT" not in settings
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for name in ("CERTIFICATE", "KEY", "CA"):
        assert settings[f"COMPACTOR_TLS_{name}"].startswith(mounts["tls"] + "/")
    assert of_kind(documents, "ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"
    assert settings["SPARK_CONF_DIR"] == mounts["spark"]


@pytest.mark.parametrize(
    ("kind", "variable"),
    [("", "TOKEN_PUBLIC_KEY"), ("secret-key", "TOKEN_SECRET_KEY"), ("jwks", "JWKS_FILE")],
)
def test_a_pod_has_the_one_key_that_checks_tokens(kind: str, variable: str) -> None:
    """The default is a public one: a pod that is taken over cannot create tokens."""
    template = pod(rendered(*([f"auth.kind={kind}", "auth.key=the.key"] if kind else ["auth.key=the.key"])))
    keys = {name for name in environment(template) if re.search("AUTH_.*(KEY|JWKS)", name)}
    assert keys == {f"COMPACTOR_AUTH_{variable}"}
    (volume,) = (volume for volume in template["volumes"] if volume["name"] == "keys")
    assert volume["secret"]["items"] == [{"key": "the.key", "path": "the.key"}]


def test_a_pod_accepts_the_previous_secret_key_while_it_is_rotated() -> None:
    """N16: to rotate the key ended all tokens."""
    template = pod(rendered("auth.kind=secret-key", "auth.key=new.key", "auth.previousKey=old.key"))
    folder = "file:///etc/compactor/keys"
    assert environment(template)["COMPACTOR_AUTH_TOKEN_SECRET_KEY"] == f"{folder}/new.key"
    assert environment(template)["COMPACTOR_AUTH_TOKEN_PREVIOUS_SECRET_KEY"] == f"{folder}/old.key"
    (volume,) = (volume for volume in template["volumes"] if volume["name"] == "keys")
    assert [item["path"] for item in volume["secret"]["items"]] == ["new.key", "old.key"]


def test_the_chart_sets_only_settings_that_exist() -> None:
    assert {name for name in environment(pod(rendered(*COMPLETE))) if name.startswith("COMPACTOR_")} <= KNOWN


def test_the_chart_has_the_alerts_for_its_own_job() -> None:
    documents = rendered(*COMPLETE)
    (group,) = of_kind(documents, "PrometheusRule")["spec"]["groups"]
    (alerts,) = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yml").read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [rule["alert"] for rule in alerts["rules"]]
    assert group["rules"][0]["expr"] == 'up{job="name"} == 0'


def test_pods_prefer_different_nodes() -> None:
    terms = pod(rendered())["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [term["podAffinityTerm"]["topologyKey"] for term in terms] == ["kubernetes.io/hostname"]


def test_the_chart_refuses_values_that_it_does_not_know() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for value, reason in (
        ("tls.existingSecert=x", "existingSecert"),
        ("auth.kind=none", "auth"),
        ("replicas=two", "replicas"),
    ):
        with pytest.raises(AssertionError, match=reason):
            rendered(value)


def test_the_unit_as_systemd_sees_it(tmp_path: Path, record_property: Note) -> None:
    unit = (ROOT / "deploy" / "compactor.service").read_text()
    unit_file = tmp_path / "compactor.service"
    unit_file.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit, flags=re.MULTILINE))
    assert not validated(record_property, "systemd-analyze", "verify", str(unit_file))
    # Exposure in tenths of ten; 20 is "OK".
    validated(record_property, "systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit_file))
