"""The basis of a fresh clone: locks that pin and hash everything and name no place, and a Makefile that tells its
targets.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("build", "runtime", "dev")


def read_lock(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.lock").read_text()


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """(requirement, hashes) of each logical line: pip joins lines that end in a backslash."""
    lines = read_lock(name).replace("\\\n", " ").splitlines()
    split = [line.split(" --hash=") for line in lines if line.strip()]
    return [(Requirement(parts[0].strip()), [part.strip() for part in parts[1:]]) for parts in split]


def pins(name: str) -> set[tuple[str, str, str]]:
    """(package, ==version, marker) of every pin; a package may have one for older and one for newer Pythons."""
    return {(canonicalize_name(r.name), str(r.specifier), str(r.marker or "")) for r, _ in entries(name)}


def packages(name: str) -> set[str]:
    return {package for package, _, _ in pins(name)}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place(lock: str) -> None:
    text = read_lock(lock)
    assert not re.search(r"://|\bfile:|\s@\s|^/|^\.", text, re.MULTILINE)
    options = set(re.findall(r"(?:^|\s)(--?[a-z][a-z-]*)", text))
    assert options == {"--hash"}, "a lock must not choose an index, a host or how pip installs"


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_in_a_lock_is_pinned_and_hashed(lock: str) -> None:
    assert entries(lock)
    for requirement, hashes in entries(lock):
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{requirement} is not pinned: run make lock"
        assert hashes, f"{requirement} has no hash: run make lock"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


def test_what_pyproject_asks_for_is_locked() -> None:
    project = pyproject()["project"]
    groups = pyproject()["dependency-groups"]
    runtime = package_names(project["dependencies"]) | package_names(project["optional-dependencies"]["postgres"])
    everything = runtime.union(
        *map(package_names, project["optional-dependencies"].values()), *map(package_names, groups.values())
    )
    assert package_names(groups["build"]) <= packages("build")
    assert runtime <= packages("runtime"), "run make lock"
    assert everything <= packages("dev"), "run make lock"


def test_the_pins_are_within_what_pyproject_allows() -> None:
    project = pyproject()["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    for requirement in map(Requirement, requirements):
        for locked, _ in entries("dev"):
            if canonicalize_name(locked.name) == canonicalize_name(requirement.name):
                version = str(locked.specifier).removeprefix("==")
                assert requirement.specifier.contains(version), f"{locked} does not fit {requirement}: run make lock"


def test_one_environment_can_hold_all_three_locks() -> None:
    """install.sh takes a dev environment for a runtime one as well: it has every pin, or has it on more platforms."""
    for smaller, larger in (("build", "runtime"), ("runtime", "dev")):
        pinned = pins(larger)
        missing = {pin for pin in pins(smaller) if pin not in pinned and (*pin[:2], "") not in pinned}
        assert not missing, f"{larger}.lock lacks pins of {smaller}.lock: run make lock"


def test_the_makefile_tells_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    message = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # The environments are steps of other targets, not something to type.
    for target in set(phony.split()) - {"compile", "runtime-environment", "dev-environment"}:
        assert re.search(rf"^{re.escape(target)} +\w", message, re.MULTILINE), f"make help does not tell {target}"
    assert set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE)) == set(phony.split())


def test_the_version_has_a_dated_section_of_the_changelog() -> None:
    version = pyproject()["project"]["version"]
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", sections[1])
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "compactor" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_the_workflow_runs_what_every_machine_runs() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert {step["uses"].split("@")[0] for step in job["steps"] if "uses" in step} == {
        "actions/checkout",
        "actions/setup-python",
    }


def test_the_files_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:api|compactor|storage|tests|docs|deploy)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("contract", "only"),
    [
        ("SQL only in storage/metadata", {"storage.metadata.**"}),
        ("boto3 only in storage/objects", {"storage.objects.**"}),
        ("DuckDB only in api/cli/local/query_engine.py", {"api.cli.local.query_engine"}),
        (
            "pyspark only in compactor/engines/spark.py and the Spark data source",
            {
                "compactor.engines.spark",
                "api.spark.batch_reader",
                "api.spark.batch_writer",
                "api.spark.data_source",
                "api.spark.partitions",
                "api.spark.read_columns",
                "api.spark.stream_reader",
            },
        ),
    ],
)
def test_a_new_module_is_under_the_contracts_as_well(contract: str, only: set[str]) -> None:
    """import-linter checks all three packages whole; only the place that a contract names may import."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    (contract_item,) = (item for item in contracts if item["name"] == contract)
    assert set(contract_item["source_modules"]) == {"api", "compactor", "storage"}
    assert {ignored.split(" -> ")[0] for ignored in contract_item["ignore_imports"]} == only
