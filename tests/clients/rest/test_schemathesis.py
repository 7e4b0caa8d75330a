"""Every operation of the OpenAPI document, asked what it was made for and what it was not: schemathesis in process.

No answer is a 5xx but a declared 503 or 507, none has a status or a content type that is not declared, and what is
declared to be JSON of some shape has it. Half of the requests go to a topic, a namespace and a tenant that exist.
COMPACTOR_TEST_SCHEMATHESIS_EXAMPLES sets how many requests each operation gets in each way.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings as hypothesis_settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from storage.metadata.partitions import MAX_PARTITIONS
from tests.serving import Served, serving

EXAMPLES = int(os.environ.get("COMPACTOR_TEST_SCHEMATHESIS_EXAMPLES", "2"))
THERE = {"tenant": "public", "namespace": "default", "topic": "there", "subscription": "there", "cluster": "standalone"}
MAY_FAIL = {503, 507}
MOST_PARTITIONS = 50
"""The most partitions that a request creates: 10,000, which the document allows, take half a minute of CPU."""
load_all_checks()
CONFORM = CHECKS.get_by_names(["content_type_conformance", "response_schema_conformance"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("schemathesis"), allowed_hosts=("testserver",)) as started:
        for verb, path, body in (
            ("PUT", "/admin/v2/persistent/public/default/there", None),
            ("POST", "/topics/persistent/public/default/there", '{"messages": [{"key": "k", "payload": "v"}]}'),
            ("PUT", "/admin/v2/persistent/public/default/there/subscription/there", None),
            ("PUT", "/admin/v2/persistent/public/default/parted/partitions", "2"),
        ):
            assert started.ask(verb, path, body).status_code in (200, 204)
        yield started


@pytest.fixture(scope="module")
def schema(served: Served) -> Any:
    config = schemathesis.Config.from_dict({"max-stream-events": 1})
    return schemathesis.openapi.from_asgi("/openapi.json", served.client.app, config=config)


def problems_of(operation: Any, mode: GenerationMode) -> tuple[int, list[str]]:
    """Return the number of requests of that kind, and the distinct problems of their answers."""
    problems: dict[str, str] = {}
    requests = 0

    @hypothesis_settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), existing=hypothesis.strategies.booleans())
    def ask(case: Any, existing: bool) -> None:
        if existing:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = THERE.get(name, case.path_parameters[name])
        if isinstance(case.body, int) and 0 < case.body <= MAX_PARTITIONS:
            case.body = min(case.body, MOST_PARTITIONS)
        response = case.call()
        nonlocal requests
        requests += 1
        message = f"{case.method} {case.formatted_path} {response.status_code} {response.text[:200]}"
        declared = operation.definition.raw["responses"]
        if response.status_code >= 500 and response.status_code not in MAY_FAIL:
            problems.setdefault("server error", message)
        elif str(response.status_code) not in declared:
            problems.setdefault(f"undeclared {response.status_code}", message)
        elif response.content:  # an empty 200 is a broker's way to say that nothing is set
            try:
                case.validate_response(response, checks=CONFORM)
            except (Exception, BaseExceptionGroup) as error:
                problems.setdefault(type(error).__name__, f"{message}: {str(error)[:400]}")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask()
    except (hypothesis.errors.Unsatisfiable, hypothesis.errors.FlakyStrategyDefinition):
        pass  # nothing can be asked wrongly of an operation without parameters
    where = f"{operation.method.upper()} {operation.path} ({mode.value})"
    return requests, [f"{where} {kind}: {message}" for kind, message in problems.items()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_no_operation_answers_what_it_does_not_declare(mode: GenerationMode, schema: Any) -> None:
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) > 20
    answer = [problems_of(operation, mode) for operation in operations]
    wrong = [problem for _, problems in answer for problem in problems]
    assert not wrong, "\n".join(wrong)
    assert sum(count for count, _ in answer) > 1.5 * len(operations)
