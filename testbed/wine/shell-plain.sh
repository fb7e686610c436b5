#!/bin/sh
# What sshd runs for a session: `shell -c COMMAND`, as Windows' OpenSSH does with cmd.exe.
. "${0%/*}/environment"
case "${1-}" in
-c) exec "$WINE" cmd.exe /c "$2" ;;
*) exec "$WINE" cmd.exe ;;
esac
