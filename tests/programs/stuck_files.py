"""A file system with one file, `x`: whoever closes it waits until this process ends. Its argument is where.

A program that is executed meanwhile holds up whoever opens its `environ` or `stat` in /proc.
"""

import ctypes
import os
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, FLUSH, INIT, OPENDIR, INTERRUPT = 1, 2, 3, 14, 25, 26, 27, 36
DIRECTORY, FILE = 0o40777, 0o100666


def attributes(inode: int, mode: int) -> bytes:
    return struct.pack("<QQQQQQIIIIIIIIII", inode, *[0] * 8, mode, 1, 0, 0, 0, 4096, 0)


def answer_to(kind: int, inode: int) -> "bytes | None":
    """None: nobody knows such a call."""
    if kind == INIT:
        return struct.pack("<IIIIHHII8I", 7, 31, 65536, 0, 12, 10, 65536, 1, *[0] * 8)
    if kind == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 1, 1, 0, 0) + attributes(2, FILE)
    if kind == GETATTR:
        return struct.pack("<QII", 1, 0, 0) + attributes(inode, DIRECTORY if inode == 1 else FILE)
    if kind in (OPEN, OPENDIR):
        return struct.pack("<QII", 7, 0, 0)
    return None


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"stuck", sys.argv[1].encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    print("ready", flush=True)
    while True:
        _, kind, call, inode = struct.unpack_from("<IIQQ", os.read(fuse, 1 << 17))
        if kind in (FLUSH, FORGET, INTERRUPT):
            continue  # a flush is never answered; the others want no answer
        said = answer_to(kind, inode)
        error, body = (0, said) if said is not None else (-38, b"")
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, call) + body)


if __name__ == "__main__":
    main()
