#!/bin/sh
# Finds a C compiler for carpool's libraries and valgrind for counting their instructions, or installs them where that
# needs no question: on Debian, as root, and not with SYSTEM_PACKAGES=no. Without a compiler carpool works in pure
# Python; without valgrind some figures of `carpool bench interposer` and their tests are left out.
missing=
command -v cc >/dev/null 2>&1 || missing="gcc libc6-dev"
command -v valgrind >/dev/null 2>&1 || missing="$missing valgrind"
if [ -n "$missing" ] && [ "${SYSTEM_PACKAGES:-yes}" != no ] && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
	echo "not found, installing: $missing"
	apt-get update -qq && apt-get install -y -qq $missing
fi
command -v cc >/dev/null 2>&1 || echo "no C compiler found: carpool will measure CPU-device memory in pure Python, and not share GPUs of programs other than PyTorch (install gcc, then 'make native')"
command -v valgrind >/dev/null 2>&1 || echo "no valgrind found: the instructions of carpool's libraries will not be counted"
exit 0
