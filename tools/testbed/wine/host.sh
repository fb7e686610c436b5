#!/bin/sh
# host.sh: the first process of a Windows host. When it ends, the kernel ends all other processes of the host.
set -eu
. "$SCRIPTS/machine.sh"

echo "$pid" >"$DIR/pid.new"
mv "$DIR/pid.new" "$DIR/pid" # now the network can be connected
until ip -4 addr show dev eth0 2>/dev/null | grep -q inet; do sleep 0.02; done

mkdir -p /run/sshd
mkfifo "$DIR/console"
exec 3<>"$DIR/console" # reading it never ends

# Each turn is one run of Windows, from its start to its end.
boot=0
while :; do
    boot=$((boot + 1))
    # No process has the registry open here. sed -i makes a new file, so that the template's is not changed.
    sed -i "s/^\"BootId\"=dword:.*/\"BootId\"=dword:$(printf %08x "$boot")/" "$WINEPREFIX/system.reg"

    # Wine ends all services with the last ordinary process. This one stays until the session ends, through
    # ExitWindowsEx or `wineserver -k`.
    "$WINE" cmd.exe <&3 &
    session=$!
    "$WINE" cmd.exe /c exit # returns when the services that start by themselves have been started
    /usr/sbin/sshd -D -e -f "$DIR/sshd_config" 3<&- &
    echo "$boot" >"$DIR/boots.new"
    mv "$DIR/boots.new" "$DIR/boots"

    wait "$session" || true
    "$WINESERVER" -k || true
    "$WINESERVER" -w || true # the registry is on disk
    kill -KILL -1 || true # SSH sessions too: everything but this process
    wait || true
done
