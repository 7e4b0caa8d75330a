"""The interfaces (REST, Pulsar's protocol, dashboard, command lines): the only place that wires the parts together."""

DISTRIBUTION = "ledger-compactor"
"""The name under which pip knows this project; its installed metadata has the version."""


def version() -> str:
    """Return the version of the distribution; `unknown` in a source tree that is not installed."""
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
