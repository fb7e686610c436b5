#!/bin/sh
# template.sh: makes the Wine prefix that the hosts are copies of, in $DIR/prefix.
set -eu
mkdir -p "$DIR/prefix/drive_c"
. "$SCRIPTS/machine.sh"

"$WINE" wineboot.exe --init
add() { "$WINE" reg.exe add "$1" /v "$2" /t "$3" /d "$4" /f; }
nt='HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion'
add "$nt" CurrentVersion REG_SZ 10.0 # Windows keeps 6.3 here; Wine takes its version from this value
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
cc=x86_64-w64-mingw32-gcc
mkdir -p /C:/testbed "$DIR/build"
cd "$DIR/build"
"$cc" -O2 -o /C:/testbed/shell.exe "$SCRIPTS/shell.c"
"$cc" -O2 -o /C:/testbed/list-services.exe "$SCRIPTS/list-services.c" -ladvapi32
"$cc" -O2 -o shutdown.exe "$SCRIPTS/shutdown.c" -luser32
"$cc" -O2 -shared -o bcryptprimitives.dll "$SCRIPTS/bcryptprimitives.c" -ladvapi32
"$cc" -O2 -shared -o dismapi.dll "$SCRIPTS/dismapi.c" -ladvapi32
"$cc" -O2 -shared -o vmcompute.dll "$SCRIPTS/vmcompute.c" -lws2_32 -lole32

# library NAME EXPORT...: makes NAME.dll for wicd.exe, with these functions of NAME.c instead of Wine's. Wine's library gets another name, and
# is no longer marked as Wine's, because Wine loads a marked library only under its own name.
library() {
    name=$1
    shift
    LC_ALL=C sed 's/Wine builtin DLL/Wine renamed DLL/' "$system32/$name.dll" >"${name}w.dll"
    {
        echo EXPORTS
        x86_64-w64-mingw32-objdump -p "${name}w.dll" |
            awk -v ours=" $* " -v theirs="${name}w" '
                 /^\[Ordinal\/Name Pointer\] Table/ { names = 1; next }
                 names && NF == 0 { exit }
                 names && $1 ~ /^\[/ && !index(ours, " " $NF " ") { print $NF " = " theirs "." $NF }'
        printf '%s\n' "$@"
    } >"$name.def"
    "$cc" -O2 -shared -o "$name.dll" "$SCRIPTS/$name.c" "$name.def"
}
library advapi32 InitiateSystemShutdownExW
library iphlpapi InitializeIpInterfaceEntry GetIpInterfaceEntry InitializeIpForwardEntry CreateIpForwardEntry2
rm -f "$system32/advapi32.dll" "$system32/iphlpapi.dll" "$system32/shutdown.exe"
cp ./*.dll ./*.exe "$system32/"
# Wine prefers its own programs and libraries unless these keys name the native ones.
"$WINE" reg.exe add 'HKCU\Software\Wine\DllOverrides' /v shutdown.exe /d native /f
for name in advapi32 iphlpapi; do
    "$WINE" reg.exe add 'HKCU\Software\Wine\AppDefaults\wicd.exe\DllOverrides' /v "$name" /d native /f
done

"$WINESERVER" -k || true
"$WINESERVER" -w
