"""Bundles: the ranges of hashes into which Pulsar cuts a namespace, so that tools may go over it range by range.

Nothing is spread by them here: every namespace has the same four, a broker's default. A topic is in one by the
CRC-32 of its full name, as in Pulsar (`NamespaceBundleFactory`), so what is asked bundle by bundle names each topic
once, and all calls agree.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any

from api.http.paths import decode_path_part
from api.http.problems import RestException
from storage.model import TopicName

_BOUNDARIES = ("0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff")
BUNDLES: dict[str, Any] = {"boundaries": list(_BOUNDARIES), "numBundles": len(_BOUNDARIES) - 1}
"""As Pulsar's `BundlesData`."""
RANGES = tuple(f"{first}_{end}" for first, end in pairwise(_BOUNDARIES))
"""The bundles by name, in order."""
_STARTS = tuple(int(boundary, 16) for boundary in _BOUNDARIES[:-1])


def bundle_of(topic: TopicName) -> str:
    """Return the name of the bundle that a topic falls into: a range of hashes, `0x40000000_0x80000000`."""
    number = zlib.crc32(str(topic).encode())
    return RANGES[max(at for at, start in enumerate(_STARTS) if start <= number)]


def parse_bundle(bundle: str) -> str:
    """Return the decoded name of a bundle in a path. Raise RestException (412) for a name that no namespace has."""
    name = decode_path_part(bundle)
    if name not in RANGES:
        raise RestException(412, f"Invalid bundle range: {name}: a namespace has {', '.join(RANGES)}")
    return name
