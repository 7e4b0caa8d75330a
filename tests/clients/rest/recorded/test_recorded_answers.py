"""Every answer of the REST interface, success or refusal, is byte by byte what `recorded.json` holds.

`python -m tests.clients.rest.recorded --write` records again: for a change that a caller may see, and for no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.app import ROUTERS
from api.dashboard import DASHBOARD_ROUTERS
from tests.clients.rest.recorded.replay import RECORDED, SCENES, answers, calls_of, differences


@pytest.mark.parametrize("scene", SCENES)
def test_answers_are_as_recorded(scene: str, tmp_path: Path) -> None:
    wrong = differences(RECORDED, scene, answers(scene, tmp_path))
    assert not wrong, "\n".join(wrong)


def test_no_route_lacks_a_call() -> None:
    routes: list[Any] = [route for router in (*ROUTERS, *DASHBOARD_ROUTERS) for route in router.routes]
    uncalled = {(verb, route.path): route for route in routes for verb in route.methods}
    for scene in SCENES:
        for call in calls_of(scene):
            if call.is_action:
                continue
            verb, target, _ = call.parts
            path = target.partition("?")[0]
            match = next((route for route in routes if verb in route.methods and route.path_regex.match(path)), None)
            if match is not None:
                uncalled.pop((verb, match.path), None)
    assert sorted(uncalled) == []
