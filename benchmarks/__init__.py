"""How fast it is, as ratios within one run on one machine; never asserted in tests (docs/benchmarks.md has a run)."""
