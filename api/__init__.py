"""The faces to the outside: the only place that wires the parts together."""
