"""A redis-server that saves in the background while it is written to: redis_saves.py DIRECTORY SAVES KEYS.

Prints the digest of the data at each save, of what the saved file holds when it is loaded by another server, and at the end. A save
is one of the moment at which it began: the loaded digest is that of before the writes."""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 500


class Server:
    def __init__(self, directory: Path, name: str, *options: str):
        # A socket's path may have 107 bytes.
        self.at = tempfile.mkdtemp(prefix="redis-saves-")
        path = f"{self.at}/socket"
        common = ["--save", "", "--appendonly", "no", "--port", "0", "--enable-debug-command", "yes", "--dir", str(directory)]
        self.process = subprocess.Popen(["redis-server", *common, "--unixsocket", path, "--dbfilename", name, *options], stdout=subprocess.DEVNULL)
        self.socket = socket.socket(socket.AF_UNIX)
        until = time.monotonic() + 60
        while True:
            try:
                self.socket.connect(path)
                break
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    sys.exit("redis-server does not listen")
                time.sleep(0.02)
        self.replies = self.socket.makefile("rb")
        # While a file is loaded, PING is refused.
        self.wait("PING", lambda reply: reply == "+PONG")

    def reply(self) -> str:
        line = self.replies.readline().decode().strip()
        if line.startswith("$"):
            return self.replies.read(int(line[1:]) + 2)[:-2].decode()
        if not line:
            sys.exit("redis-server hung up")
        return line

    def ask(self, command: str) -> str:
        self.socket.sendall(command.encode() + b"\r\n")
        return self.reply()

    def wait(self, command: str, wished) -> None:
        until = time.monotonic() + 120
        while not wished(reply := self.ask(command)):
            if time.monotonic() > until:
                sys.exit(f"{command} still says {reply}")
            time.sleep(0.02)

    def write(self, version: int, keys: range) -> None:
        for first in range(keys.start, keys.stop, BATCH):
            batch = range(first, min(first + BATCH, keys.stop))
            commands = ""
            for key in batch:
                text = f"version-{version}-of-{key}-is-{(key + version) % 17};" * (8 + key % 40)
                commands += f"HSET hash:{key // 50} field{key % 17} {text}\r\n" if key % 10 == 8 else f"SET key:{key} {text}\r\n"
            self.socket.sendall(commands.encode())
            for _ in batch:
                if (reply := self.reply()).startswith("-"):
                    sys.exit(f"a write was refused: {reply}")

    def save(self) -> None:
        self.wait("INFO persistence", lambda reply: "rdb_bgsave_in_progress:0" in reply)
        if "rdb_last_bgsave_status:ok" not in (reply := self.ask("INFO persistence")):
            sys.exit(f"BGSAVE failed: {reply}")

    def end(self) -> None:
        with contextlib.suppress(OSError, SystemExit):
            self.ask("SHUTDOWN NOSAVE")
        self.process.wait()
        shutil.rmtree(self.at)


def main() -> None:
    directory, saves, keys = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    directory.mkdir(parents=True, exist_ok=True)
    dump = directory / "dump.rdb"
    server = Server(directory, dump.name)
    server.write(0, range(keys))
    for save in range(saves):
        dump.unlink(missing_ok=True)
        before = server.ask("DEBUG DIGEST")
        server.ask("BGSAVE")
        first = save % 3 * (keys // 3)
        server.write(save + 1, range(first, first + keys // 3))
        server.save()
        # Loaded only now and then: it takes as much memory again.
        if save % 5 == 0 or save == saves - 1:
            other = Server(directory, dump.name)
            loaded = other.ask("DEBUG DIGEST")
            other.end()
            if loaded != before:
                sys.exit(f"save {save}: the file holds {loaded}, the server had {before}")
        print(save, before)
    print("OK", server.ask("DEBUG DIGEST"))
    server.end()
    dump.unlink()


main()
