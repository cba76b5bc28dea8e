#!/bin/sh
# Finds a C compiler for the byte meter and the points, or installs one where that needs no question (Debian, as root).
command -v cc >/dev/null 2>&1 && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
	echo "no C compiler found: installing gcc"
	apt-get update -qq && apt-get install -y -qq gcc libc6-dev && exit 0
fi
echo "no C compiler found: carpool will measure CPU-device memory and count boundaries in pure Python (install gcc, then 'make native')"
