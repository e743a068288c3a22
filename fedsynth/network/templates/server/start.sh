#!/bin/sh
# Starts the SuperLink. Needs fedsynth[flower] in the active environment. Listens on this machine only: the sites
# come in through the proxy of nginx.conf, which lets nothing but /v1/fleet/ pass.
set -eu
cd "$(dirname "$0")"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_HOME="$PWD/flower"
mkdir -p "$FLWR_HOME"

exec flower-superlink --host 127.0.0.1 --port "${SUPERLINK_PORT:-@superlink_port@}" \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation \
    --database "$FLWR_HOME/superlink.db"
