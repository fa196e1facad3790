"""Sizes and data types: bytes are ``int`` everywhere, GiB appears only in text."""

from __future__ import annotations

MIB = 1024**2
GIB = 1024**3

DTYPE_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "uint8": 1,
    "int64": 8,
    "int16": 2,
    "int32": 4,
    "complex64": 8,
    "bool": 1,
}
"""Bytes of one element (torch.dtype.itemsize)."""


def parse_bytes(text: str) -> int | None:
    """Return the bytes of ``23.6GiB`` (also GB, MiB, MB; GB is 10^9); None where the text is no size."""
    body = text.strip().lower()
    for unit, size in (("gib", GIB), ("gb", 10**9), ("mib", MIB), ("mb", 10**6)):
        number = body.removesuffix(unit).rstrip()
        whole, _, fraction = number.partition(".")
        if body.endswith(unit) and len(number) < 20 and number.isascii() and (whole + (fraction or "0")).isdigit():
            return int(float(number) * size)
    return None


def gib(size: int | float, digits: int = 1) -> str:
    """Return ``size`` bytes as text in GiB, e.g. ``"23.6"``."""
    return f"{size / GIB:.{digits}f}"
