#!/bin/sh
# What sshd runs for a session: `shell -c COMMAND`, as Windows' OpenSSH does with cmd.exe.
. "${0%/*}/environment"
[ "${1-}" != -c ] || export SHELL_LINE="$2"
exec "$WINE" 'C:\testbed\shell.exe'
