"""Plans as bytes: versioned msgpack decoded into typed structs; nothing in it is executable."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec
import numpy as np

from dcp.arrays import IntArray
from dcp.errors import PlanFormatError
from dcp.instructions import (
    BACKWARD_ITEM,
    COPY_ITEM,
    FORWARD_ITEM,
    KEPT_ITEM,
    MESSAGE_ITEM,
    REDUCE_ITEM,
    SLOT,
)

FORMAT = "dcp-plan"
VERSION = 3

_RECORDS = {
    "forward": FORWARD_ITEM,
    "backward": BACKWARD_ITEM,
    "reduce": REDUCE_ITEM,
    "copy": COPY_ITEM,
    "message": MESSAGE_ITEM,
    "kept": KEPT_ITEM,
    "slot": SLOT,
}
_RECORD_NAMES = {dtype: name for name, dtype in _RECORDS.items()}
_INTEGERS = {"<i1", "<i2", "<i4", "<i8"}


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan file holds around the plan itself."""

    format: str
    version: int
    digest: str
    notes: bytes
    payload: bytes


def encode(value: Any) -> bytes:
    """A struct with numpy arrays as msgpack; equal values give equal bytes."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_array)


def decode(data: bytes, kind: type[Any]) -> Any:
    """The inverse of `encode`.

    Raises:
        PlanFormatError: the bytes are not a `kind`.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_array)
    except msgspec.MsgspecError as error:
        raise PlanFormatError(f"not a plan, or a damaged one: {error}; plan again") from error


def digest_of(payload: bytes) -> str:
    """SHA-256 of an encoded plan, in hex."""
    return hashlib.sha256(payload).hexdigest()


def seal(payload: bytes, notes: bytes) -> bytes:
    """A plan file's content: what the digest covers, and what it does not."""
    return encode(
        Envelope(
            format=FORMAT,
            version=VERSION,
            digest=digest_of(payload),
            notes=notes,
            payload=payload,
        )
    )


def unseal(data: bytes) -> Envelope:
    """Check the envelope of a plan file.

    Raises:
        PlanFormatError: not a plan, a newer version, or content that its digest disowns.
    """
    # Version first: a newer envelope may have other fields, and its reader deserves to know why.
    header = decode(data, dict[str, Any])
    if header.get("format") != FORMAT:
        raise PlanFormatError(f"not a plan file: its format is {header.get('format')!r}")
    if header.get("version") != VERSION:
        raise PlanFormatError(
            f"the plan has version {header.get('version')!r}, this dcp reads version {VERSION}; "
            "plan again, or install the dcp that wrote it"
        )
    envelope: Envelope = decode(data, Envelope)
    found = digest_of(envelope.payload)
    if found != envelope.digest:
        raise PlanFormatError(
            f"the plan is damaged: its content has digest {found[:16]}…, "
            f"its envelope says {envelope.digest[:16]}…; copy or plan it again"
        )
    return envelope


def _encode_array(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"cannot put a {type(value).__name__} into a plan")
    if value.dtype in _RECORD_NAMES:
        return [_RECORD_NAMES[value.dtype], list(value.shape), value.tobytes()]
    low, high = int(value.min(initial=0)), int(value.max(initial=0))
    narrow = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high), np.int8)
    if narrow.kind != "i":
        narrow = np.dtype(np.int64)
    narrow = narrow.newbyteorder("<")
    return [f"<i{narrow.itemsize}", list(value.shape), value.astype(narrow).tobytes()]


def _decode_array(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", None) is not np.ndarray:
        raise TypeError(f"no decoder for {kind}")
    code, shape, data = msgspec.convert(value, tuple[str, list[int], bytes])
    wants_records = "void" in str(kind)
    if code not in (_RECORDS if wants_records else _INTEGERS):
        raise ValueError(f"array code {code!r} is unknown here")
    dtype = _RECORDS.get(code) or np.dtype(code)
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} does not have {len(data)} bytes")
    array = np.frombuffer(data, dtype=dtype).reshape(shape)
    return array if wants_records else _as_int64(array)


def _as_int64(array: np.ndarray[Any, Any]) -> IntArray:
    wide = array.astype(np.int64)
    wide.setflags(write=False)
    return wide
