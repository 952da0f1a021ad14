"""A server under load: starts it, stores values by eight connections at once, reads them all back in another order, twice, and
changes some of them meanwhile. Each answer is checked. Prints a checksum of what is stored in the end.

servers.py KIND COMMAND...: in the command {port} and {other} are ports that are free, {folder} is a folder of its own.
"""

import array
import base64
import gzip
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zlib
from pathlib import Path

CONNECTIONS = 8
ROUNDS = 2
START_SECONDS = 120
LINES = b"".join(b"line %04d of ########: level=info unit=store key=%016x\n" % (n, n * 0x9E3779B97F4A7C15 % 2**64) for n in range(400))


def value(size: int, number: int, change: int) -> bytes:
    return LINES[:size].replace(b"########", b"%08x" % ((number * 2654435761 + change) % 2**32))


class Http:
    """Values have names of their own, and a method for each direction."""

    CHANGES = True

    def __init__(self, port: int, folder: Path):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        answer.body = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status}")
        return answer


class Etcd(Http):
    COUNT, SIZE = 1200, 20000

    def call(self, what: str, **fields: bytes) -> dict:
        message = {name: base64.b64encode(field).decode() for name, field in fields.items()}
        return json.loads(self.ask("POST", f"/v3/kv/{what}", json.dumps(message).encode()).body)

    def put(self, number: int, data: bytes) -> None:
        self.call("put", key=b"%d" % number, value=data)

    def get(self, number: int) -> bytes:
        return base64.b64decode(self.call("range", key=b"%d" % number)["kvs"][0]["value"])


class WebDav(Http):
    COUNT, SIZE = 2500, 20000

    def put(self, number: int, data: bytes) -> None:
        self.ask("PUT", f"/{number}", data)

    def get(self, number: int) -> bytes:
        return self.ask("GET", f"/{number}").body


class Files(Http):
    """The values are files, which the server compresses."""

    COUNT, SIZE = 1000, 20000

    def __init__(self, port: int, folder: Path):
        super().__init__(port, folder)
        self.folder = folder

    def put(self, number: int, data: bytes) -> None:
        part = self.folder / f".{number}"
        part.write_bytes(data)
        part.rename(self.folder / f"{number}.txt")

    def get(self, number: int) -> bytes:
        answer = self.ask("GET", f"/{number}.txt", **{"Accept-Encoding": "gzip"})
        return gzip.decompress(answer.body) if answer.getheader("Content-Encoding") == "gzip" else answer.body


class Samples(Http):
    """Each value is a series of numbers; what is stored stays."""

    COUNT, SIZE, CHANGES = 500, 4000, False
    START_MS = 1_700_000_000_000

    def put(self, number: int, data: bytes) -> None:
        lines = (f'v{{n="{number}"}} {sample} {self.START_MS + 1000 * i}\n' for i, sample in enumerate(array.array("H", data)))
        self.ask("POST", "/api/v1/import/prometheus", "".join(lines).encode())

    def stored(self) -> None:
        self.ask("GET", "/internal/force_flush")

    def get(self, number: int) -> bytes:
        query = urllib.parse.urlencode({"match[]": f'v{{n="{number}"}}', "start": self.START_MS // 1000 - 10, "end": self.START_MS // 1000 + 100000})
        samples = {}
        for line in self.ask("GET", f"/api/v1/export?{query}").body.splitlines():
            found = json.loads(line)
            samples.update(zip(found["timestamps"], found["values"], strict=True))
        return array.array("H", (int(samples[time]) for time in sorted(samples))).tobytes()


class Redis:
    """Each value is a hash of many fields."""

    COUNT, SIZE, CHANGES = 6000, 12000, True
    FIELD = 400
    SAVES = False

    def __init__(self, port: int, folder: Path):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=300)
        self.file = self.socket.makefile("rb")

    def call(self, *words: bytes):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.answer()

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind not in (b"+", b":"):
            raise RuntimeError(line)
        return rest

    def put(self, number: int, data: bytes) -> None:
        parts = [data[at : at + self.FIELD] for at in range(0, len(data), self.FIELD)]
        self.call(b"HSET", b"%d" % number, *(word for i, part in enumerate(parts) for word in (b"%d" % i, part)))

    def get(self, number: int) -> bytes:
        words = self.call(b"HGETALL", b"%d" % number)
        fields = dict(zip(words[::2], words[1::2], strict=True))
        return b"".join(fields[b"%d" % i] for i in range(len(fields)))

    def stored(self) -> None:
        if self.SAVES:
            self.call(b"BGSAVE")


class RedisSaves(Redis):
    SAVES = True


KINDS = {"etcd": Etcd, "webdav": WebDav, "files": Files, "samples": Samples, "redis": Redis, "redis-saves": RedisSaves}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_parallel(work) -> None:
    errors = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except Exception as error:  # whatever it is, it is said and the status tells
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def load(kind, port: int, folder: Path) -> int:
    clients = [kind(port, folder) for _ in range(CONNECTIONS)]
    changes = [0] * kind.COUNT

    def fill(index: int) -> None:
        for number in range(index, kind.COUNT, CONNECTIONS):
            clients[index].put(number, value(kind.SIZE, number, 0))

    def visit(index: int) -> None:
        # In steps that go round all of those that are this connection's.
        mine = range(index, kind.COUNT, CONNECTIONS)
        for step in range(ROUNDS * len(mine)):
            number = mine[step * 7919 % len(mine)]
            if kind.CHANGES and step % 8 == 7:
                changes[number] += 1
                clients[index].put(number, value(kind.SIZE, number, changes[number]))
            elif clients[index].get(number) != value(kind.SIZE, number, changes[number]):
                raise RuntimeError(f"{number} is wrong")

    in_parallel(fill)
    if hasattr(clients[0], "stored"):
        clients[0].stored()
    in_parallel(visit)
    checksum = 0
    for number in range(kind.COUNT):
        checksum = zlib.crc32(clients[number % CONNECTIONS].get(number), checksum)
    return checksum


def main() -> None:
    kind, port, other = KINDS[sys.argv[1]], free_port(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="lowtide-server-"))
    command = [word.replace("{port}", str(port)).replace("{other}", str(other)).replace("{folder}", str(folder)) for word in sys.argv[2:]]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        for _ in range(10 * START_SECONDS):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if server.poll() is not None:
                    break
                time.sleep(0.1)
        print("OK", sys.argv[1], load(kind, port, folder))
    except Exception:
        sys.stderr.write((folder / "log").read_text(errors="replace")[-2000:])
        raise
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder)


main()
