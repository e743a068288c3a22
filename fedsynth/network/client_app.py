"""The Flower ClientApp: passes each message through the door to the process with the site's data, and back.

It always answers: an error that got out of it would carry its text to the server, and with it perhaps data.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsynth.engines.envelope import DOT, EnvelopeError, digest, pack, seal, unpack
from fedsynth.network.door import BrokenOffError, ClosedDoorError, knock

Door = Callable[[Path, Mapping[str, object], bytes], tuple[Mapping[str, object], bytes]]
KINDS = {ClosedDoorError: "unavailable", BrokenOffError: "crashed", EnvelopeError: "task error"}


class SiteApp(ClientApp):
    """One way in for every message; `door` leads to the site's data."""

    def __init__(self, door: Door = knock) -> None:
        super().__init__()
        self.door = door

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message of the server."""
        key: object = ""
        reply, failure = b"", {}
        try:
            header, body = unpack(message.content)
            key = header["id"]
            category, _, action = message.metadata.message_type.partition(".")
            task = action.replace(DOT, ".")
            if category != "query":
                raise EnvelopeError("only queries are answered")
            _, reply = self.door(Path(str(context.node_config["site"])), {**header, "task": task}, body)
        except tuple(KINDS) as error:
            failure = {"kind": KINDS[type(error)], "message": str(error)}
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # the node's own output, which stays at the site
            failure = {"kind": "task error", "message": f"{type(error).__name__} in its Flower node"}
        about = {"to": key, "id": digest(reply), **({"failure": failure} if failure else {})}
        return Message(pack(about, seal(reply)), reply_to=message)


app = SiteApp()
