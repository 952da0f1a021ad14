"""The package as its users see it."""

import doctest
import gc
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import lowtide
import numpy as np
import pytest

MIB = 1 << 20


def filled(mib=64, ram="16M", **more):
    array = lowtide.empty(mib * MIB // 8, "u8", ram=ram, **more)
    array[:] = np.arange(len(array), dtype="u8")
    return array


def test_doctests():
    failed, tried = doctest.testmod(lowtide, extraglobs={"lowtide": lowtide})
    assert tried > 15 and failed == 0


def test_arithmetic_is_what_numpy_s_is():
    array, native = filled(), np.arange(64 * MIB // 8, dtype="u8")
    assert np.array_equal(array, native)
    array *= 3
    native *= 3
    array[::7] ^= 5
    native[::7] ^= 5
    assert np.array_equal(array, native) and array.sum() == native.sum()
    assert np.array_equal(np.sqrt(array[1000:5000]), np.sqrt(native[1000:5000]))
    stats = lowtide.region_of(array[5:][::2]).stats()
    assert stats["pages_out"] > 0 and stats["ram_limit"] == 16 * MIB and stats["ram_now"] <= 17 * MIB


def test_sort_and_dot():
    random = np.random.default_rng(1)
    values = random.integers(0, 1 << 40, 40 * MIB // 8, dtype="i8")
    array = lowtide.copy(values, ram="16M")
    array.sort()
    values.sort()
    assert np.array_equal(array, values)
    left, right = random.random((600, 4000)), random.random((4000, 500))
    product = lowtide.copy(left, ram="16M") @ lowtide.copy(right, ram="16M")
    assert np.allclose(product, left @ right)


def test_threads():
    array = filled()
    wrong = []

    def check(part):
        for _ in range(3):
            if not np.array_equal(array[part::4], np.arange(part, len(array), 4, dtype="u8")):
                wrong.append(part)

    threads = [threading.Thread(target=check, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_kernel_needs_a_guard():
    array = filled(8)
    region = lowtide.region_of(array)
    region.evict()
    with tempfile.TemporaryFile() as file:
        with pytest.raises(OSError):
            os.write(file.fileno(), array.data.cast("B")[:4096])
        with lowtide.resident(array[: MIB // 8]):
            assert os.write(file.fileno(), array.data.cast("B")[:MIB]) == MIB
        assert region.stats()["resident_bytes"] == 0
        file.seek(0)
        assert file.read() == np.arange(MIB // 8, dtype="u8").tobytes()


def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_lives_as_long_as_the_last_view():
    view = filled(32, ram="64M")[1000:2000]
    gc.collect()
    assert view[5] == 1005
    before = rss()
    del view
    gc.collect()
    assert rss() < before - 16 * MIB


def test_close():
    region = lowtide.Region(MIB, ram="16M")
    array = np.frombuffer(region.buffer(), "u1")
    with pytest.raises(BufferError, match="views"):
        region.close()
    del array
    gc.collect()
    guard = region.resident(0, 4096)
    with pytest.raises(BufferError, match="guard"):
        region.close()
    guard.release()
    guard.release()
    region.close()
    region.close()
    for call in (region.stats, region.evict, region.buffer, region.resident, lambda: region.set_ram("20M")):
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.parametrize(
    "arguments",
    [
        (0, "16M"),
        (-1, "16M"),
        (MIB, "1M"),
        (MIB, "lots"),
        (MIB, "40%"),
        (MIB, -5),
        (MIB, "16M", "tape"),
        (MIB, "16M", "dir:/nonexistent"),
    ],
)
def test_bad_input_is_one_line(arguments):
    with pytest.raises(ValueError) as raised:
        lowtide.Region(*arguments)
    assert str(raised.value) and "\n" not in str(raised.value)


def test_more_bad_input():
    with pytest.raises(MemoryError, match="address space"):
        lowtide.Region((1 << 63) - 1, ram="16M")
    for more in ({"codec": "lzo"}, {"codec": "zstd:99"}, {"delivery": "mail"}):
        with pytest.raises(ValueError):
            lowtide.Region(MIB, ram="16M", **more)
    region = lowtide.Region(MIB, ram="16M")
    with pytest.raises(ValueError, match="not in the region"):
        region.evict(0, MIB + 1)
    with pytest.raises(ValueError, match="group"):
        lowtide.Region(MIB, ram="16M", group=region)
    with pytest.raises(ValueError, match="objects"):
        lowtide.zeros(10, object, ram="16M")
    with pytest.raises(ValueError, match="no region"):
        lowtide.region_of(np.zeros(3))
    assert lowtide.zeros((3, 0)).shape == (3, 0)


# Lets the system call userfaultfd fail as a kernel does that has none, or a filter that forbids it.
WITHOUT_USERFAULTFD = """
import ctypes, errno, struct, lowtide
def instruction(code, k, otherwise=0):
    return struct.pack("HBBI", code, 0, otherwise, k)
filter = instruction(0x20, 0) + instruction(0x15, 323, 1) + instruction(0x06, 0x50000 | errno.{errno}) + instruction(0x06, 0x7FFF0000)
buffer = ctypes.create_string_buffer(filter)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
try:
    lowtide.zeros(9, ram="16M")
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("errno, says", [("ENOSYS", "CONFIG_USERFAULTFD"), ("EPERM", "filter")])
def test_a_kernel_without_userfaultfd(errno, says):
    code = WITHOUT_USERFAULTFD.format(errno=errno)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and says in done.stdout and done.stdout.count("\n") == 1, done


def test_a_guard_outlives_the_names_of_its_region():
    array = filled(8)
    region = lowtide.region_of(array)
    other = lowtide.Region(MIB, group=region)
    guard = region.resident(0, MIB)
    del array, region
    gc.collect()
    assert other.stats()["resident_bytes"] == MIB
    with pytest.raises(ValueError, match="too small"):
        lowtide.Region(MIB, group=other).set_ram("1M")
    guard.release()
    assert other.stats()["resident_bytes"] == 0


def test_regions_of_a_group():
    first = lowtide.Region(24 * MIB, ram="16M")
    second = lowtide.Region(24 * MIB, group=first)
    a, b = (np.frombuffer(region.buffer(), "u8") for region in (first, second))
    a[:], b[:] = 7, np.arange(len(b))
    assert (a == 7).all() and np.array_equal(b, np.arange(len(b), dtype="u8"))
    assert first.stats()["ram_limit"] == second.stats()["ram_limit"] == 16 * MIB


def test_monitors():
    for delivery in ("user-monitor", "monitor") if os.geteuid() == 0 else ("user-monitor",):
        array = filled(32, delivery=delivery)
        assert np.array_equal(array, np.arange(len(array), dtype="u8"))


def touch(array):
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os._exit(int(array[0] * 0))


def test_a_forked_child_has_no_such_array():
    array = filled(8)
    child = multiprocessing.get_context("fork").Process(target=touch, args=(array,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGSEGV
    assert array[77] == 77


def test_faulthandler_from_before_is_called_for_what_is_not_a_region_s():
    code = "import faulthandler; faulthandler.enable(); import lowtide, signal; lowtide.zeros(9, ram='16M'); signal.raise_signal(signal.SIGBUS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS and "Bus error" in done.stderr


def test_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")
    compute = pytest.importorskip("pyarrow.compute")
    array = filled()
    buffer = pyarrow.py_buffer(lowtide.region_of(array).buffer())
    arrow = pyarrow.Array.from_buffers(pyarrow.uint64(), len(array), [None, buffer])
    count = len(array)
    del array, buffer
    gc.collect()
    assert compute.sum(arrow).as_py() == count * (count - 1) // 2


def test_polars():
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    array = filled()
    buffer = pyarrow.py_buffer(lowtide.region_of(array).buffer())
    arrow = pyarrow.Array.from_buffers(pyarrow.uint64(), len(array), [None, buffer])
    frame = polars.DataFrame({"x": polars.from_arrow(arrow)})
    count = len(array)
    assert frame.select(polars.col("x").sum()).item() == count * (count - 1) // 2
    assert frame.filter(polars.col("x") % 1000 == 7).height == (count - 8) // 1000 + 1


class Server:
    """A redis-server of the test's own, on loopback."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        self.spec = f"redis://127.0.0.1:{self.port}"

    def __enter__(self):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                if self.ask("PING") == b"+PONG":
                    return self
            except OSError:
                time.sleep(0.02)
        raise AssertionError("redis-server does not answer")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, words):
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(words.encode() + b"\r\n")
            return connection.recv(1000).split(b"\r\n")[0]

    def keys(self):
        return int(self.ask("DBSIZE")[1:])


needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None and "CI" not in os.environ, reason="no redis-server here")


def noise(mib, seed):
    return np.random.default_rng(seed).integers(0, 1 << 60, mib * MIB // 8, dtype="u8")


@needs_redis
def test_pages_go_to_a_server_and_nothing_is_left_there():
    with Server() as server:
        for seed in range(2):
            array, native = lowtide.empty(64 * MIB // 8, "u8", ram="16M", swap=server.spec), noise(64, seed)
            array[:] = native
            assert np.array_equal(array, native) and server.keys() > 4000
            # A forked child has none of it, and takes nothing of it along.
            child = os.fork()
            if child == 0:
                own = lowtide.empty(32 * MIB // 8, "u8", ram="16M", swap=server.spec)
                own[:] = native[: len(own)]
                right = np.array_equal(own, native[: len(own)])
                del own, array
                gc.collect()
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert np.array_equal(array, native)
            del array
            gc.collect()
            assert server.keys() == 0


@needs_redis
def test_a_server_that_is_gone_is_an_error_or_ends_the_process():
    with Server() as server:
        script = f"""if True:
            import lowtide, numpy as np, sys
            array = lowtide.empty({64 * MIB // 8}, "u8", ram="16M", swap="{server.spec},timeout=1s")
            array[:] = np.random.default_rng(1).integers(0, 1 << 60, len(array), dtype="u8")
            print("ready", flush=True)
            sys.stdin.read()
            print(array.sum())"""
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        server.process.kill()
        server.process.wait()
        out, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGBUS and out == b"", (process.returncode, out, err)
        assert b"could not be read back" in err and server.spec.encode() in err, err
        with pytest.raises(ValueError, match=server.spec) as refused:
            lowtide.zeros(100, "u8", ram="16M", swap=server.spec)
        assert "\n" not in str(refused.value)
