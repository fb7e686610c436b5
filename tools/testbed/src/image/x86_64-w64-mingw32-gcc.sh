#!/bin/sh
# Links wicd.exe with names of files that are the same on each machine. GNU ld puts the imports of a program for Windows into the order of the names of
# the files that they come from: whether a folder stands before or after /usr would decide about the bytes.
cd "$LINK_TARGET" || exit
ln -sfn "$LINK_CARGO" cargo-home
ln -sfn "$LINK_RUST" rust
for arg do
  shift
  case $arg in
  "$LINK_TARGET"/*) arg=${arg#"$LINK_TARGET"/} ;;
  "$LINK_CARGO"/*) arg=cargo-home/${arg#"$LINK_CARGO"/} ;;
  "$LINK_RUST"/*) arg=rust/${arg#"$LINK_RUST"/} ;;
  esac
  set -- "$@" "$arg"
done
exec x86_64-w64-mingw32-gcc "$@"
