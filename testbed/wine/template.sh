#!/bin/sh
# template.sh: makes the Wine prefix that the hosts are copies of, in $DIR/prefix.
set -eu
mkdir -p "$DIR/prefix/drive_c"
. "$SCRIPTS/machine.sh"

"$WINE" wineboot.exe --init
add() { "$WINE" reg.exe add "$1" /v "$2" /t "$3" /d "$4" /f; }
nt='HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion'
add "$nt" CurrentVersion REG_SZ 10.0 # Windows itself says 6.3 for ever; Wine takes its version from here
add "$nt" CurrentMajorVersionNumber REG_DWORD 10
add "$nt" CurrentMinorVersionNumber REG_DWORD 0
add "$nt" CurrentBuild REG_SZ 20348
add "$nt" CurrentBuildNumber REG_SZ 20348
add "$nt" UBR REG_DWORD 2527
add "$nt" ProductName REG_SZ 'Windows Server 2022 Datacenter'
add "$nt" InstallationType REG_SZ 'Server Core'
add 'HKLM\SYSTEM\CurrentControlSet\Control\ProductOptions' ProductType REG_SZ ServerNT
add 'HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters' BootId REG_DWORD 0
add 'HKLM\SYSTEM\HardwareConfig' LastConfig REG_SZ '{00000000-0000-0000-0000-000000000000}'

system32=/C:/windows/system32
mkdir -p /C:/testbed
cc=x86_64-w64-mingw32-gcc
"$cc" -shared -O2 -o "$DIR/bcryptprimitives.dll" "$SCRIPTS/bcryptprimitives.c" -ladvapi32
"$cc" -O2 -o "$DIR/shutdown.exe" "$SCRIPTS/shutdown.c" -luser32
"$cc" -O2 -o /C:/testbed/shell.exe "$SCRIPTS/shell.c"
"$cc" -O2 -o /C:/testbed/list-services.exe "$SCRIPTS/list-services.c" -ladvapi32
mv -f "$DIR/bcryptprimitives.dll" "$DIR/shutdown.exe" "$system32/"

# Else Wine prefers its own.
"$WINE" reg.exe add 'HKCU\Software\Wine\DllOverrides' /v shutdown.exe /d native /f

"$WINESERVER" -k || true
"$WINESERVER" -w
