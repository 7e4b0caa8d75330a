"""Tags of the fields of a message in a batch (SingleMessageMetadata): a field's number, and in three low bits its kind.

A property is a message of two fields of its own. Must not know: the order of fields.
"""

from __future__ import annotations

PROPERTY, KEY, PAYLOAD_SIZE, COMPACTED_OUT = 0x0A, 0x12, 0x18, 0x20
EVENT_TIME, BASE64, SEQUENCE_ID, NULL_VALUE = 0x28, 0x30, 0x40, 0x48
PROPERTY_KEY, PROPERTY_VALUE = 0x0A, 0x12
MORE = 0x80
"""The bit of a number's byte that another one follows. Numbers below it, and such lengths, have one byte."""
