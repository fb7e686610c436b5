# machine.sh: gives a process and its children a machine of their own. The other scripts read it, in new
# namespaces for mounts, network, processes and the host name. Variables: DIR, the machine's folder; NAME; ADDRESS; WINE.

# The process ID outside of the namespace, read before the new /proc is mounted.
read -r pid _ </proc/self/stat
mount -t proc proc /proc
hostname "$NAME"

# Administrator comes before root, so that Wine takes the name; a user without a password may log in with a key. The home
# is a link, because a path in /etc/passwd has no colon.
ln -sfn /C:/users/Administrator "$DIR/home"
{
    echo "Administrator:x:0:0::$DIR/home:$DIR/shell"
    cat /etc/passwd
} >"$DIR/passwd"
{
    echo 'Administrator:*:1::::::'
    cat /etc/shadow
} >"$DIR/shadow"
printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$NAME" >"$DIR/hosts"
echo 'nameserver 127.0.0.1' >"$DIR/resolv.conf" # refuses at once, so that no program waits for a name server
for file in passwd shadow hosts resolv.conf; do
    mount --bind "$DIR/$file" "/etc/$file"
done

# SFTP paths are /C:/… as with Windows' own OpenSSH, and Wine finds its drive C: in them.
mkdir -p /C:
mount --bind "$DIR/prefix/drive_c" /C:
mkdir -p /C:/users/Administrator
cd /C:/users/Administrator

export WINEPREFIX="$DIR/prefix" WINEDEBUG="${WINEDEBUG:--all}" DISPLAY= HOME=/C:/users/Administrator USER=Administrator
