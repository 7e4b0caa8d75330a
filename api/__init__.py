"""The interfaces (REST, Pulsar's protocol, dashboard, command lines): the only place that wires the parts together."""

DISTRIBUTION = "ledger-compactor"
"""The name under which pip knows this project; its installed metadata has the version."""
