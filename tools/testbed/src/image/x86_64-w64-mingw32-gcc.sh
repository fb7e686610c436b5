#!/bin/sh
# Links a program for Windows with file names that are the same on each machine. GNU ld orders the imports by the names of the files that they come
# from: otherwise, the place of a folder before or after /usr in the order would change the program.
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
