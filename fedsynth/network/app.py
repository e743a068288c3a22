"""The two Flower apps. The bundle that a run sends to the nodes names them, and holds no code of its own."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsynth.engines.envelope import EnvelopeError, envelope, fingerprint, opened, sealed
from fedsynth.engines.flower import DESCRIBE
from fedsynth.engines.site import RefusalError, failed, failed_by_class
from fedsynth.network.serve import serve
from fedsynth.network.site import open_site


class SiteApp(ClientApp):
    """Every message goes through one door, which always answers: an error that got out would carry its text along."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message of the server."""
        name, key = "", ""
        try:
            header, body = opened(message.content)
            name, key = str(header.get("site", "")), header["id"]
            site = open_site(Path(str(context.node_config.get("site", ""))))
            category, _, task = message.metadata.message_type.partition(".")
            if category != "query":
                raise RefusalError("only queries are answered here")
            reply = site.describe() if task == DESCRIBE else site.answer(task, header, body)
        except (EnvelopeError, RefusalError) as error:
            reply = failed(error)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # the node's own output, which stays at the site
            reply = failed_by_class(error)
        return Message(
            envelope({"site": name, "to": key, "id": fingerprint(reply)}, sealed(reply)),
            reply_to=message,
        )


client = SiteApp()
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server program of the run folder that the run config names."""
    serve(grid, Path(str(context.run_config["folder"])), str(context.run_config["attempt"]))
