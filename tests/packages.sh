#!/bin/sh
# What some tests need beside a compiler, installed where that needs no question: on Debian, as root, and not with
# SYSTEM_PACKAGES=no. Without it those tests are skipped, and say so.
missing=
command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || missing="gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
command -v qemu-aarch64 >/dev/null 2>&1 || missing="$missing qemu-user"
command -v musl-gcc >/dev/null 2>&1 || missing="$missing musl-tools"
for library in libjemalloc.so.2:libjemalloc2 libtcmalloc_minimal.so.4:libtcmalloc-minimal4 libmimalloc.so.2:libmimalloc2.0; do
	ls /usr/lib/*-linux-gnu/"${library%:*}" >/dev/null 2>&1 || missing="$missing ${library#*:}"
done
for tool in bwrap:bubblewrap runc:runc podman:podman; do
	command -v "${tool%:*}" >/dev/null 2>&1 || missing="$missing ${tool#*:}"
done
if [ -n "$missing" ] && [ "${SYSTEM_PACKAGES:-yes}" != no ] && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
	echo "for the tests on ARM, with musl, with other allocators and in containers, installing: $missing"
	{ timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 \
		|| echo "they cannot be had: the tests that need them will be skipped"
fi
exit 0
