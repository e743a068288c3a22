"""The files of a federation folder, as texts; `@word@` is filled in by `deploy.py`."""

from __future__ import annotations

FLOWER_QUIETLY = """\
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_HOME="$PWD/flower"
mkdir -p "$FLWR_HOME"
"""

SERVER_START = f"""\
#!/bin/sh
# Starts the SuperLink. Needs fedsynth[flower] in the active environment. Listens on this machine only: the sites
# come in through the proxy of nginx.conf, which lets nothing but /v1/fleet/ pass.
set -eu
cd "$(dirname "$0")"
{FLOWER_QUIETLY}
exec flower-superlink --host 127.0.0.1 --port "${{SUPERLINK_PORT:-@superlink_port@}}" \\
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \\
    --enable-supernode-auth --disable-runtime-dependency-installation \\
    --database "$FLWR_HOME/superlink.db"
"""

REGISTER = f"""\
#!/bin/sh
# Registers the key of each site under its name, once, with start.sh running in another terminal.
# To add a site later, put its public key into keys/ and call: ./register.sh NAME
set -eu
cd "$(dirname "$0")"
{FLOWER_QUIETLY}
cat > "$FLWR_HOME/config.toml" <<END
[superlink.federation]
address = "127.0.0.1:${{SUPERLINK_PORT:-@superlink_port@}}"
root-certificates = "$PWD/ca.crt"
END
for site in ${{@:-@names@}}; do
    answer=$(flwr supernode register "keys/$site.pub" federation --name "$site" --format json) || true
    case "$answer" in
        *'"success": true'*) echo "$site: registered" ;;
        *) echo "$site: NOT registered: $answer" >&2; exit 1 ;;
    esac
done
"""

SITE_START = """\
#!/bin/sh
# Starts this site: its Flower node, which only dials out, to @host@:@port@, and the process that holds the data.
# Needs fedsynth[flower] in the active environment.
cd "$(dirname "$0")" && exec fedsynth site start site.toml "$@"
"""

SITE_FILE = """\
# What takes part in the federation from this site. Check it before you start: fedsynth site check site.toml
name = "@site@"

[flower]
superlink = "@host@:@port@"

[schema]                     # the same at every site: do not change it alone
shape = @shape@
classes = @classes@

[data]                       # your data: npz:FILE, images:FOLDER, csv:FILE, parquet:FILE or idx:FOLDER
name = "npz:data.npz"

[policy]                     # what this site allows, whatever the server asks
records = false              # true: records may leave as they are, or as means of a few
unprotected = true           # false: nothing leaves without a guarantee against the server too; needs epsilon
# epsilon = 8.0              # largest privacy loss of a record here, over all runs together
"""

NGINX = """\
# What may face the outside: the fleet path, and nothing else. Whoever can reach the rest of the SuperLink can start
# runs. Put this into the http block of nginx; the paths are where you keep this folder.
server {
    listen @port@ ssl;
    server_name @host@;
    ssl_certificate     /etc/fedsynth/server.crt;
    ssl_certificate_key /etc/fedsynth/server.key;
    ssl_protocols       TLSv1.2 TLSv1.3;
    client_max_body_size 2100m;

    location /v1/fleet/ {
        proxy_pass https://127.0.0.1:@superlink_port@;
        proxy_ssl_trusted_certificate /etc/fedsynth/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_server_name on;
        proxy_http_version 1.1;
        proxy_request_buffering off;
        proxy_read_timeout 120s;
    }
    location / {
        return 403;
    }
}
"""

PAGE = """\
# This federation

Sites: @listed@. They reach the server at @host@:@port@. Everybody needs `fedsynth[flower]`, of the same version.

| folder | goes to |
| --- | --- |
| `authority/` | nobody: keep `ca.key` offline; it signs new server certificates |
| `server/` | whoever runs the server |
| `sites/NAME/` | site NAME alone, over a channel you trust: `site.key` is its identity |

A site that would rather make its own key does so with `ssh-keygen -t ecdsa -b 384 -N '' -m PEM -f site.key`, and hands
only `site.key.pub` over, to be `server/keys/NAME.pub`.

## Who does what, in this order

1. **Server:** `server/start.sh`, and leave it running. It listens on the machine itself only.
2. **Server:** put `nginx.conf` into nginx, open port @port@, and nothing else, to the sites.
3. **Server:** `server/register.sh`, once. It registers the sites' public keys; a key that is not registered is refused.
4. **Each site:** name your data in `site.toml`, read its `[policy]`, then `fedsynth site check site.toml`; it sends
   nothing.
5. **Each site:** `./start.sh`, and leave it running. It dials out; nothing dials in.
6. **Server:** `fedsynth run server/experiment.toml`. It waits for the sites, shows progress and leaves a run folder.
   After a crash: `fedsynth resume runs/…`.

Every site has its own log, `state/site.log`: each request, what was sent, and the errors, whose text stays there.
"""
