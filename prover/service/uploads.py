"""Requests for proofs: a key's name and a witness, as JSON or as a form, within their limits."""

import asyncio
import base64
import contextlib
import json
import math
import reprlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from aiohttp import BodyPartReader, ClientError, web
from aiohttp.http import HttpProcessingError

from prover.errors import ProverError, reason_of
from prover.service.forms import parts
from prover.service.keys import KeyFacts
from prover.service.refusal import Refusal
from prover.service.secret import SecretFile, mapped_witness

PIECE_BYTES = 1 << 16
"""Of what is read, and of base64, at once; a multiple of 4."""
_ROOM = 1 << 14
"""Bytes of a request that are neither key nor witness: names, boundaries, white space."""
_NAME_BYTES = 200
_PATIENCE_SECONDS = 30
_SLOWEST = 1 << 20
"""Bytes a second that a client must send, beyond the first seconds."""
_NO_FIELDS = "the body is no object of exactly key and witness"
_NO_BASE64 = "witness is not a string of base64"


async def receive(request: web.Request, keys: Mapping[str, KeyFacts]) -> tuple[str, SecretFile]:
    """The key's name and the witness, complete and well formed.

    Raises
    ------
    Refusal
    """
    try:
        return await _received(request, keys)
    except OSError as error:  # of the file in memory; those of the connection are told by then
        raise Refusal(
            503, f"the witness cannot be kept: {reason_of(error)}", Retry_After="60"
        ) from None


async def _received(request: web.Request, keys: Mapping[str, KeyFacts]) -> tuple[str, SecretFile]:
    _refuse_encoding(request)
    largest = max(facts.witness_bytes for facts in keys.values())
    secret = SecretFile()
    try:
        with _told_to_client():
            async with asyncio.timeout(_PATIENCE_SECONDS + largest / _SLOWEST):
                if request.content_type == "application/json":
                    name = await _receive_json(request, keys, largest, secret)
                elif request.content_type == "multipart/form-data":
                    name = await _receive_form(request, keys, largest, secret)
                else:
                    raise Refusal(415, "send application/json or multipart/form-data")
        await asyncio.to_thread(_check, secret, name, keys[name])
    except BaseException:
        await asyncio.to_thread(secret.close)
        raise
    return name, secret


def _refuse_encoding(request: web.Request) -> None:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refusal(415, "send the body without a content encoding")


@contextlib.contextmanager
def _told_to_client() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Refusal(408, f"the body came at less than {_SLOWEST >> 20} MiB/s") from None
    except (ClientError, HttpProcessingError, ConnectionError, ValueError):
        # A form that breaks its own boundaries, a chunk that is none, a connection that is gone.
        raise Refusal(400, "the body is malformed, or was cut off") from None


async def _receive_json(
    request: web.Request, keys: Mapping[str, KeyFacts], largest: int, secret: SecretFile
) -> str:
    limit = 4 * math.ceil(largest / 3) + _ROOM
    _refuse_length(request, limit)
    body = bytearray()
    async for piece in request.content.iter_chunked(PIECE_BYTES):
        if len(body) + len(piece) > limit:
            raise _too_large(limit)
        body += piece
    fields = await asyncio.to_thread(_fields, body)
    name = _known(fields["key"], keys)
    size = keys[name].witness_bytes
    text = fields["witness"]
    if not isinstance(text, str):
        raise Refusal(422, _NO_BASE64)
    if len(text) > 4 * math.ceil(size / 3):
        raise _witness_too_large(name, size)
    if text.find("=", 0, -2) >= 0:  # which ends a piece, but not the text
        raise Refusal(422, _NO_BASE64)
    for start in range(0, len(text), PIECE_BYTES):
        try:
            piece = base64.b64decode(text[start : start + PIECE_BYTES], validate=True)
        except ValueError:
            raise Refusal(422, _NO_BASE64) from None
        secret.write(piece)
        await asyncio.sleep(0)  # others have their turn
    return name


def _fields(body: bytearray) -> dict[str, Any]:
    """The members of the body, which is emptied.

    What else JSON can say is refused before it is decoded: lists and objects take many times the
    memory of their text, and one character beyond Latin 1 makes all others four times as wide.
    """
    if body.count(b"{") > 1 or body.count(b",") > 1 or b"[" in body:
        raise Refusal(422, _NO_FIELDS)
    try:
        if body.count(b"\\u") > body.count(b"\\u00"):
            raise ValueError
        text = body.decode("ascii")
        body.clear()
        fields = json.loads(text)
    except ValueError:
        raise Refusal(400, "the body is no JSON, or goes beyond ASCII") from None
    if not isinstance(fields, dict) or set(fields) != {"key", "witness"}:
        raise Refusal(422, _NO_FIELDS)
    return fields


async def _receive_form(
    request: web.Request, keys: Mapping[str, KeyFacts], largest: int, secret: SecretFile
) -> str:
    _refuse_length(request, largest + _ROOM)
    name: str | None = None
    async for part in parts(request, _ROOM):
        if part.name == "key" and name is None:
            data = b"".join([piece async for piece in _pieces(part, _NAME_BYTES, None)])
            name = _known(data.decode("utf-8", "replace"), keys)
        elif part.name == "witness" and name is None:
            raise Refusal(422, "the part key must come before the part witness")
        elif part.name == "witness" and name is not None and not secret.size:
            async for piece in _pieces(part, keys[name].witness_bytes, name):
                secret.write(piece)
        else:
            raise Refusal(422, "the form has other parts than one key and one witness")
    if name is None or not secret.size:
        raise Refusal(422, "the form lacks the part " + ("key" if name is None else "witness"))
    return name


async def _pieces(part: BodyPartReader, limit: int, key: str | None) -> AsyncIterator[bytes]:
    """The part as it comes; refused as soon as it is longer than the limit."""
    size = 0
    while piece := await part.read_chunk(PIECE_BYTES):
        size += len(piece)
        if size > limit:
            raise _too_large(limit) if key is None else _witness_too_large(key, limit)
        yield piece


def _refuse_length(request: web.Request, limit: int) -> None:
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the body is too large: {limit} bytes are enough for every key here")


def _witness_too_large(name: str, size: int) -> Refusal:
    return Refusal(413, f"the witness is too large: one for {name} holds {size} bytes")


def _known(name: Any, keys: Mapping[str, KeyFacts]) -> str:
    # Looked up, never opened: a name that leads somewhere else is a name that is not there.
    if not isinstance(name, str) or name not in keys:
        raise Refusal(404, f"there is no usable key {reprlib.repr(name)}; GET /keys lists them")
    return name


def _check(secret: SecretFile, name: str, facts: KeyFacts) -> None:
    """Refuse now what the proof would be refused for later, but for what only a proof shows."""
    try:
        witness = mapped_witness(secret.fileno())
    except ProverError as error:
        raise Refusal(422, str(error)) from None
    if witness.curve.name != facts.curve:
        raise Refusal(
            422, f"witness: is over {witness.curve.name}, but {name} is over {facts.curve}"
        )
    if len(witness.values) != facts.signals:
        raise Refusal(
            422,
            f"witness: holds {len(witness.values)} signals, but the circuit of {name} has "
            f"{facts.signals}",
        )
