"""How a request or a reply looks as a Flower message: one array of bytes, and a header of JSON beside it.

One array, because every array is an object of its own to Flower: two hundred small ones take seconds, one takes none.
Nothing heavy is imported here: this runs in the process that a Flower node starts for every message.
"""

import hashlib
import json
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsynth.errors import FedsynthError

BODY, HEADER = "body", "header"
DOT = "__"  # a message type of Flower is "query." and an identifier, and names of tasks have dots


class EnvelopeError(FedsynthError):
    """A message that is not one of ours, or that was damaged on its way."""


def digest(body: bytes) -> str:
    """What tells a body from every other. It is the id of a request: equal bytes are the same request, asked again."""
    return hashlib.sha256(body).hexdigest()


def seal(body: bytes) -> ArrayRecord:
    """A body, ready to be put into any number of messages; Flower uploads it once."""
    return ArrayRecord({BODY: Array("uint8", (len(body),), "bytes", body)})


def pack(header: Mapping[str, object], body: ArrayRecord) -> RecordDict:
    """The content of a message."""
    return RecordDict({BODY: body, HEADER: ConfigRecord({"json": json.dumps(dict(header))})})


def unpack(content: RecordDict) -> tuple[dict[str, object], bytes]:
    """The header and the body of a message; an `EnvelopeError` for anything that `pack` did not make."""
    try:
        text, arrays = content[HEADER]["json"], content[BODY]
        body = arrays[BODY].data  # type: ignore[union-attr]
        header = json.loads(text)  # type: ignore[arg-type]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise EnvelopeError(f"the message is not one of fedsynth's ({type(error).__name__})") from None
    if not isinstance(header, dict) or not isinstance(body, bytes):
        raise EnvelopeError("the message is not one of fedsynth's (its header is no table, or its body no bytes)")
    if header.get("id") != digest(body):
        raise EnvelopeError("the message was damaged: its body is not the one that its header names")
    return header, body
