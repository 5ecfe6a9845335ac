"""Patterns (ECMA-262) of the known values of `format`.

In JSON Schema 2020-12, `format` is an annotation unless a schema asks for assertion. Here a known
format is always asserted, since the author of `"format": "date"` wants a date. Some patterns are
narrower than their RFC (no quoted local parts, no leap seconds). None is wider, except that
hostnames may exceed 253 characters.
"""

from __future__ import annotations

_DATE = (
    r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# Labels with hyphens as third and fourth characters are reserved (RFC 5891).
_HOST_LABEL = (
    r"[A-Za-z0-9]([A-Za-z0-9-]([A-Za-z0-9-]?[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]{1,59}[A-Za-z0-9]"
    r"|-[A-Za-z0-9][A-Za-z0-9-]{0,58}[A-Za-z0-9])?)?"
)
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_H = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"({_H}:{_H}|{_IPV4})"
_IPV6 = (
    rf"(({_H}:){{6}}{_LS32}|::({_H}:){{5}}{_LS32}|({_H})?::({_H}:){{4}}{_LS32}"
    rf"|(({_H}:){{0,1}}{_H})?::({_H}:){{3}}{_LS32}|(({_H}:){{0,2}}{_H})?::({_H}:){{2}}{_LS32}"
    rf"|(({_H}:){{0,3}}{_H})?::{_H}:{_LS32}|(({_H}:){{0,4}}{_H})?::{_LS32}"
    rf"|(({_H}:){{0,5}}{_H})?::{_H}|(({_H}:){{0,6}}{_H})?::)"
)
_ATOM = r"[A-Za-z0-9!#$%&'*+\/=?^_`{|}~-]+"
_PCHAR = r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_QUERY = r"([A-Za-z0-9._~!$&'()*+,;=:@\/?-]|%[0-9A-Fa-f]{2})*"
_TAIL = rf"(\?{_QUERY})?(#{_QUERY})?"
_USER = r"(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"
_REG_NAME = r"([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_AUTHORITY = rf"{_USER}(\[{_IPV6}\]|{_REG_NAME})(:[0-9]*)?"
_SEGMENTS = rf"(\/{_PCHAR}*)*"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_URI = (
    rf"{_SCHEME}:(\/\/{_AUTHORITY}{_SEGMENTS}|\/({_PCHAR}+{_SEGMENTS})?|{_PCHAR}+{_SEGMENTS}|)"
    rf"{_TAIL}"
)
_SEGMENT_NC = r"([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+"
_RELATIVE = (
    rf"(\/\/{_AUTHORITY}{_SEGMENTS}|\/({_PCHAR}+{_SEGMENTS})?|{_SEGMENT_NC}{_SEGMENTS}|){_TAIL}"
)
_DURATION_TIME = r"T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_POINTER = r"(\/([^~\/]|~[01])*)*"

# RFC 3339, 5321 (the common forms), 1123, 2673, 4291, 9562, 3986, 6901.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": rf"P({_DURATION_DATE}({_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_HOST_LABEL}(\.{_HOST_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": f"({_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9][0-9]*)(#|{_POINTER})",
}


def pattern_of(format: str) -> str | None:
    """Return the anchored pattern of a format, or None if it is not known."""
    found = FORMATS.get(format)
    return None if found is None else f"^({found})$"
