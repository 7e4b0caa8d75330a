"""The interfaces (REST, CLI): the only place that wires the parts together."""
