#!/bin/sh
# Starts this site: its Flower node, which only dials out, to @host@:@port@, and the process that holds the data.
# Needs fedsynth[flower] in the active environment.
cd "$(dirname "$0")" && exec fedsynth site start site.toml "$@"
