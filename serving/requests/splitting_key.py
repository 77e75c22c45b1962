"""Finds the key by which an alias splits its requests, before the model is chosen.

A request is decoded for one model, but the key chooses that model. So a small decoder reads the key
first, and skips all else. Invalid requests have no key: the decoder of the chosen model refuses
them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.requests.candidates import REQUEST_ID

_FIELDS = 64
"""Decoders in the cache: one for each key of an alias."""


def split_key(body: bytes, name: str) -> bytes | None:
    """Return the request id, or the field of the context or else of the first candidate.

    None: the request has no such scalar. A number equals its text: 7 and "7" are one key.
    """
    in_request, in_rows = _decoders(name)
    try:
        if name == REQUEST_ID:
            return _key_of(in_request(body).key)
        context = in_request(body).context
        found = None if context is None else _key_of(context.key)
        if found is not None:
            return found
        rows = in_rows(body)
        return next((_key_of(each.key) for each in rows.candidates or rows.instances or ()), None)
    except UNDECODABLE:
        return None


def _key_of(value: object) -> bytes | None:
    """Return the bytes of a scalar to hash; None for all other values, and an empty text."""
    if not isinstance(value, str | int | float):
        return None
    return str(value).encode(errors="surrogatepass") or None


@lru_cache(_FIELDS)
def _decoders(name: str) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Return a decoder of the request id or context, and one of the candidates."""
    value = msgspec.defstruct("_Value", [("key", Any, None)], rename={"key": name})
    if name == REQUEST_ID:
        decode = msgspec.json.Decoder(value).decode
        return decode, decode
    context = msgspec.defstruct("_Context", [("context", value | None, None)])
    rows: Any = list[value] | None  # type: ignore[valid-type]
    candidates = msgspec.defstruct("_Rows", [("candidates", rows, None), ("instances", rows, None)])
    return msgspec.json.Decoder(context).decode, msgspec.json.Decoder(candidates).decode
