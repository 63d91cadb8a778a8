#!/bin/sh
# Writes the versions of Debian's packages that apt would install here into requirements/debian.list
# again: on Debian 12, after `apt-get update`. A package is added or removed by hand.
set -eu
cd "$(dirname "$0")"
names=$(sed -n 's/^\([^#=]*\)=.*/\1/p' debian.list)
{
  sed -n '/^#/p' debian.list
  for name in $names; do
    version=$(apt-cache policy "$name" | sed -n 's/^  Candidate: //p')
    case $version in
      '' | '(none)') echo "debian.sh: apt knows no $name" >&2; exit 1 ;;
    esac
    echo "$name=$version"
  done
} > debian.list.new
mv debian.list.new debian.list
