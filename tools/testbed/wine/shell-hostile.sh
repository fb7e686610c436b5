#!/bin/sh
# A login shell as bad as they come: it talks before and after the command, keeps standard input to itself and mangles
# what the command prints. It runs the command, and its exit status is the command's.
. "${0%/*}/environment"
printf '\377\376Welcome!\r\r\n\033[2J{"status":"ok"}\r\n'
exec 4<&0
cat <&4 >/dev/null 2>&1 &
reader=$!
out=$(mktemp)
status=0
[ "${1-}" != -c ] || export SHELL_LINE="$2"
"$WINE" 'C:\testbed\shell.exe' </dev/null >"$out" 2>&1 || status=$?
kill "$reader" 2>/dev/null
tr 'a-y' 'b-z' <"$out" | sed 's/$/\r\r/'
rm -f "$out"
printf '\r\nBye\000\r\n' >&2
printf '\r\nBye\000\r\n'
exit "$status"
