"""Commands of the protocol as values, and their bounds: the only place that knows protobuf."""
