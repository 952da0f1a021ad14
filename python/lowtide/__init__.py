"""Memory larger than RAM: numpy arrays and buffers, paged in user space, without root.

Pages that have not been used for a while are compressed in RAM, then written to an unnamed file, and come back when they are touched.

>>> import lowtide
>>> a = lowtide.zeros((1 << 18, 16), "f8", ram="16M")  # 32 MiB in 16 MiB of RAM
>>> a += 1
>>> float(a.sum())
4194304.0
>>> region = lowtide.region_of(a)
>>> region.stats()["pages_out"] > 0
True

Where a C function passes the buffer to the kernel (tofile, os.write, socket.send), hold ``with lowtide.resident(a):`` around it; else it
fails with "Bad address", or writes less. Code that only computes needs nothing.

The memory is given back when the last view of it is gone. A forked child has no such memory: touching it there is a segmentation fault
(``multiprocessing`` with "spawn" or "forkserver" is no matter). ``faulthandler`` is to be enabled before the first region, not after, and not to be disabled.
Each array has a limit, a thread and some descriptors of its own, unless it shares those of another: ``group=lowtide.region_of(other)``.
"""

from __future__ import annotations

import ctypes
import operator
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._lowtide import Native, NativeGuard

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["Region", "Resident", "copy", "empty", "region_of", "resident", "zeros"]

DEFAULT_RAM = "512M"


class Resident:
    """A range that stays in memory while this is entered, or until ``release()``."""

    def __init__(self, guard: NativeGuard) -> None:
        self._guard = guard

    def release(self) -> None:
        """Lets the range be evicted again."""
        self._guard.release()

    def __enter__(self) -> Resident:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class Region:
    """``length`` bytes, all zero, that take no more than ``ram`` of RAM.

    ``ram`` and other sizes are bytes, or text like "512M". ``swap``: "auto" (compressed RAM, then an unnamed file), "ram" (compressed RAM
    only), "dir:DIR[,size=8G]", or "redis://HOST:PORT" or "rediss://..." (a Valkey or Redis server or cluster; LOWTIDE_REDIS_PASSWORD).
    ``codec``: "lz4" or "zstd[:LEVEL]". ``delivery``: "in-thread" (no privilege), "user-monitor", or "monitor", with which system calls wait
    for pages, and which needs a privilege. ``group``: another region, with which to share all of these.

    >>> region = lowtide.Region(1 << 20, ram="16M")
    >>> memory = memoryview(region.buffer()).cast("B")
    >>> memory[5] = 7
    >>> region.evict()
    >>> memory[5]
    7
    >>> region.close()
    Traceback (most recent call last):
    ...
    BufferError: views of the region are in use: delete them first
    >>> del memory
    >>> region.close()
    >>> region.stats()
    Traceback (most recent call last):
    ...
    ValueError: the region is closed: make another one
    """

    def __init__(
        self,
        length: int,
        ram: int | str | None = None,
        swap: str | None = None,
        *,
        codec: str | None = None,
        delivery: str | None = None,
        group: Region | None = None,
    ) -> None:
        if ram is None and group is None:
            ram = DEFAULT_RAM
        if operator.index(length) < 0:
            raise ValueError("a region can't have less than no bytes")
        self._native = Native(length, ram, swap, codec, delivery, None if group is None else group._native)
        self._length = length
        self._view: weakref.ref[Any] | None = None
        self._views = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def buffer(self) -> Any:
        """The memory as an object with the buffer protocol, for ``memoryview``, ``numpy.frombuffer``, ``pyarrow.py_buffer``. The region lives as long as
        it does."""
        with self._views:
            view = None if self._view is None else self._view()
            if view is None:
                view = type("Memory", (ctypes.c_char * self._length,), {}).from_address(self._native.address())
                view.region = self
                self._view = weakref.ref(view)
            return view

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.buffer())

    def close(self) -> None:
        """Gives the memory back now. ``BufferError``: something still uses it."""
        with self._views:
            if self._view is not None and self._view() is not None:
                raise BufferError("views of the region are in use: delete them first")
            self._native.close()

    def stats(self) -> dict[str, int]:
        """What the region, and those of its group, have now and have done."""
        return self._native.stats()

    def set_ram(self, ram: int | str) -> None:
        """Changes the RAM limit. A lower one is reached by and by."""
        self._native.set_ram(ram)

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        return start, self._length if stop is None else stop

    def prefetch(self, start: int = 0, stop: int | None = None) -> None:
        """Brings in the pages of a range of bytes that are out: a hint."""
        self._native.prefetch(*self._range(start, stop))

    def evict(self, start: int = 0, stop: int | None = None) -> None:
        """Evicts the pages of a range of bytes now."""
        self._native.evict(*self._range(start, stop))

    def drop_range(self, start: int = 0, stop: int | None = None) -> None:
        """Sets a range of bytes to zeros, and gives its memory and its room in swap back."""
        self._native.drop_range(*self._range(start, stop))

    def resident(self, start: int = 0, stop: int | None = None) -> Resident:
        """Brings a range of bytes into memory, where it stays: ``with region.resident():``. At most half of the RAM limit."""
        return Resident(self._native.resident(*self._range(start, stop)))


def zeros(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = float,
    ram: int | str | None = None,
    swap: str | None = None,
    **more: Any,
) -> NDArray[Any]:
    """A numpy array of zeros in a region of its own. ``ram``, ``swap`` and more as for ``Region``.

    >>> lowtide.zeros((2, 3), "i4", ram="16M")
    array([[0, 0, 0],
           [0, 0, 0]], dtype=int32)
    """
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("objects can't be in a region: use a dtype without them")
    sizes = (operator.index(shape),) if not isinstance(shape, tuple) else shape
    count = 1
    for size in sizes:
        if size < 0:
            raise ValueError("negative dimensions are not allowed")
        count *= size
    if count * kind.itemsize == 0:
        return np.zeros(shape, dtype)
    region = Region(count * kind.itemsize, ram, swap, **more)
    return np.frombuffer(region.buffer(), dtype=kind, count=count).reshape(sizes)


def empty(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = float,
    ram: int | str | None = None,
    swap: str | None = None,
    **more: Any,
) -> NDArray[Any]:
    """As ``zeros``, which costs nothing here."""
    return zeros(shape, dtype, ram, swap, **more)


def copy(array: ArrayLike, ram: int | str | None = None, swap: str | None = None, **more: Any) -> NDArray[Any]:
    """A copy of an array in a region of its own.

    >>> lowtide.copy([1, 2, 3], ram="16M")
    array([1, 2, 3])
    """
    import numpy as np

    source = np.asarray(array)
    target = zeros(source.shape, source.dtype, ram, swap, **more)
    target[...] = source
    return target


def region_of(array: Any) -> Region:
    """The region in which an array, or a view of it, is. ``ValueError``: in none."""
    while array is not None:
        if isinstance(array, memoryview):
            array = array.obj
        region = getattr(array, "region", None)
        if isinstance(array, ctypes.Array) and isinstance(region, Region):
            return region
        array = getattr(array, "base", None)
    raise ValueError("the array is in no region")


def resident(array: NDArray[Any]) -> Resident:
    """Brings an array of a region into memory, where it stays: ``with lowtide.resident(a): a.tofile(f)``. At most half of the region's RAM
    limit: for larger arrays do it slice by slice.

    >>> import tempfile
    >>> a = lowtide.copy(range(1000), ram="16M")
    >>> lowtide.region_of(a).evict()
    >>> with lowtide.resident(a), tempfile.TemporaryFile() as file:
    ...     a.tofile(file)
    """
    import numpy as np

    region = region_of(array)
    low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    start = low - region._native.address()
    return region.resident(start, start + high - low)
