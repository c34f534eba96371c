#!/bin/sh
# with_private_device.sh COMMAND...: runs a test over simulated devices of its own, and removes them.
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
SOFTCUDA_DIR=$directory/softcuda "$@"
