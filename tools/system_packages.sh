#!/usr/bin/env bash
# Makes sure that commands from Debian's packages are there: system_packages.sh COMMAND...
# Installs the missing ones when it may (root and apt-get); else says what to install by hand.
set -euo pipefail

declare -A package_of=([h2load]=nghttp2-client [make]=make [curl]=curl [wrk]=wrk [git]=git [taskset]=util-linux
    [java]=openjdk-17-jre-headless [mvn]=maven [redis-server]=redis-server
    [haproxy]=haproxy [nginx]=nginx-light [systemd-analyze]=systemd
    [prometheus]=prometheus [promtool]=prometheus [faketime]=faketime)

missing=()
for command in "$@"; do
    command -v "$command" >/dev/null || missing+=("${package_of[$command]:-$command}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}. Install these packages, for example: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# A package's own daemon is not started: what is wanted is the command.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
apt-get update -qq </dev/null
apt-get install -qq -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
