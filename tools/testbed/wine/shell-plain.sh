#!/bin/sh
# Runs the command of an SSH session in cmd.exe, as OpenSSH on Windows does: `shell -c COMMAND`.
. "${0%/*}/environment"
[ "${1-}" != -c ] || export SHELL_LINE="$2"
exec "$WINE" 'C:\testbed\shell.exe'
