#!/bin/sh
# Registers the key of each site under its name, once, with start.sh running in another terminal.
# To add a site later, put its public key into keys/ and call: ./register.sh NAME
set -eu
cd "$(dirname "$0")"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_HOME="$PWD/flower"
mkdir -p "$FLWR_HOME"

cat > "$FLWR_HOME/config.toml" <<END
[superlink.federation]
address = "127.0.0.1:${SUPERLINK_PORT:-@superlink_port@}"
root-certificates = "$PWD/ca.crt"
END
for site in ${@:-@names@}; do
    answer=$(flwr supernode register "keys/$site.pub" federation --name "$site" --format json) || true
    case "$answer" in
        *'"success": true'*) echo "$site: registered" ;;
        *) echo "$site: NOT registered: $answer" >&2; exit 1 ;;
    esac
done
