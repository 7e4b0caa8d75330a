"""No import cycle of more than two files, imports under TYPE_CHECKING and inside functions included.

A cycle has no order in which a reader can understand its files, and no file of it can be tested without all others.
"""

from __future__ import annotations

from collections.abc import Iterator

import grimp


def cycles(graph: grimp.ImportGraph) -> Iterator[frozenset[str]]:
    """Yield the sets of modules of which each imports each other, directly or through others."""
    remaining = set(graph.modules)
    while remaining:
        module = remaining.pop()
        upstream = graph.find_upstream_modules(module)
        cycle = frozenset({module}) | (upstream & graph.find_downstream_modules(module))
        remaining -= cycle
        if len(cycle) > 1:
            yield cycle


def test_a_cycle_is_recognised() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        graph.add_import(importer=importer, imported=imported)
    assert list(cycles(graph)) == [{"a", "b", "c"}]


def test_no_cycle_has_more_than_two_files() -> None:
    graph = grimp.build_graph("api", "compactor", "storage", cache_dir=None)
    assert [sorted(cycle) for cycle in cycles(graph) if len(cycle) > 2] == []
