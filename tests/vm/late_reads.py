"""A read with O_DIRECT from NFS whose answer comes when its buffer would long have been out; in a guest: tests/vm/vm 6.12 2 2G 'python3 tests/vm/late_reads.py'.

The kernel's NFS client refers to the pages of the buffer, and does not pin them. The server is here, in Python: one file, read-only, each READ answered
after LATE=20 seconds. Natively and RUNS=2 times under lowtide, what was read must be in the buffer: else status 1. Huge pages are off, which would keep the
buffer in memory. As root, in a guest: it loads modules and mounts.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import modules

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lab

LATE = float(os.environ.get("LATE", "20"))
RUNS = int(os.environ.get("RUNS", "2"))
PORT, SIZE, BYTE = 2049, 1 << 20, 0xAB
ROOT, FILE = b"root", b"file"
# Programs of the mount protocol and of NFS.
MOUNT_PROGRAM = 100005
MOUNTED = Path("/tmp/late_reads")


def words(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def longs(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}Q", *numbers)


def opaque(data: bytes) -> bytes:
    return words(len(data)) + data + bytes(-len(data) % 4)


def take(message: bytes, at: int) -> tuple[bytes, int]:
    """The opaque data at a place, and what is behind it."""
    (length,) = struct.unpack_from(">I", message, at)
    return message[at + 4 : at + 4 + length], at + 4 + length + -length % 4


def attributes(handle: bytes) -> bytes:
    is_root = handle == ROOT
    kind = (2, 0o755, 2, 0, 0) if is_root else (1, 0o644, 1, 0, 0)
    size = 4096 if is_root else SIZE
    return words(*kind) + longs(size, size) + words(0, 0) + longs(1, 1 if is_root else 2) + words(1, 0, 1, 0, 1, 0)


def answer(program: int, procedure: int, message: bytes) -> bytes:
    if program == MOUNT_PROGRAM:
        return b"" if procedure != 1 else words(0) + opaque(ROOT) + words(1, 0)
    if procedure == 0:
        return b""
    handle, at = take(message, 0)
    post = words(1) + attributes(handle)
    if procedure == 1:  # GETATTR
        return words(0) + attributes(handle)
    if procedure == 3:  # LOOKUP
        is_there = take(message, at)[0] == b"file"
        return words(0) + opaque(FILE) + words(1) + attributes(FILE) + post if is_there else words(2) + post
    if procedure == 4:  # ACCESS
        return words(0) + post + message[at : at + 4]
    if procedure == 6:  # READ
        offset, count = struct.unpack_from(">QI", message, at)
        count = max(0, min(count, SIZE - offset))
        time.sleep(LATE)
        return words(0) + post + words(count, int(offset + count >= SIZE)) + opaque(bytes([BYTE]) * count)
    if procedure == 18:  # FSSTAT
        return words(0) + post + longs(4 * SIZE, 0, 0, 9, 9, 9) + words(0)
    if procedure == 19:  # FSINFO
        return words(0) + post + words(SIZE, SIZE, 4096, SIZE, SIZE, 4096, 4096) + longs(1 << 40) + words(0, 1, 8)
    if procedure == 20:  # PATHCONF
        return words(0) + post + words(1, 255, 1, 1, 0, 1)
    return words(10004)  # NFS3ERR_NOTSUPP


def reply(connection: socket.socket, lock: threading.Lock, message: bytes) -> None:
    call, _, _, program, _, procedure = struct.unpack_from(">6I", message)
    # Two sets of credentials.
    at = take(message, take(message, 28)[1] + 4)[1]
    out = words(call, 1, 0, 0, 0, 0) + answer(program, procedure, message[at:])
    with lock:
        connection.sendall(words(1 << 31 | len(out)) + out)


def serve(connection: socket.socket) -> None:
    lock, file = threading.Lock(), connection.makefile("rb")
    while head := file.read(4):
        message = file.read(struct.unpack(">I", head)[0] & ~(1 << 31))
        threading.Thread(target=reply, args=(connection, lock, message), daemon=True).start()


def listen(server: socket.socket) -> None:
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


def main() -> int:
    lab.require_lowtide()
    program = lab.compiled("late_read")
    modules.load("nfsv3")
    threading.Thread(target=listen, args=(socket.create_server(("127.0.0.1", PORT)),), daemon=True).start()
    MOUNTED.mkdir(exist_ok=True)
    options = f"vers=3,proto=tcp,nolock,port={PORT},mountport={PORT},mountproto=tcp,mountvers=3,addr=127.0.0.1,rsize={SIZE},timeo=6000"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"127.0.0.1:/", bytes(MOUNTED), b"nfs", 0, options.encode()) != 0:
        sys.exit(f"late_reads: mount: {os.strerror(ctypes.get_errno())}")
    Path("/sys/kernel/mm/transparent_hugepage/enabled").write_text("never")
    wrong = 0
    limited = [str(lab.LOWTIDE), "run", "--ram", "16M"]
    for command in [[], *[limited] * RUNS]:
        done = subprocess.run([*command, program, MOUNTED / "file", "32", str(BYTE)])
        wrong += done.returncode != 0
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
