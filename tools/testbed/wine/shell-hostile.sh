#!/bin/sh
# A login shell that disturbs its clients: it prints text before and after the command, consumes standard input and
# garbles the command's output. Its exit status is that of the command.
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
