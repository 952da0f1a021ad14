"""numpy: sorts, an FFT there and back, a product of matrices, one after the other. matrices.py NUMBERS"""

import hashlib
import sys

import numpy as np

count = int(sys.argv[1])
side = int((count // 2) ** 0.5)
found = hashlib.md5()
numbers = np.random.Generator(np.random.PCG64(1)).integers(0, 1 << 40, count)
in_order = numbers.copy()
in_order.sort()
found.update(in_order[::4096].tobytes())
mixed = numbers ^ in_order
mixed.sort(kind="stable")
found.update(mixed[::4096].tobytes())
spectrum = np.fft.rfft(numbers.astype(np.float64))
back = np.fft.irfft(spectrum, count)
# Rounded: whole numbers went in.
found.update(np.rint(back[::4096]).astype(np.int64).tobytes())
matrix = (in_order[: side * side] % 1000).reshape(side, side).astype(np.float64)
found.update((matrix @ matrix.T)[::100, ::100].tobytes())
found.update(np.argsort(mixed[: count // 2], kind="stable")[::4096].tobytes())
found.update((numbers + in_order + mixed).sum().tobytes())
print(found.hexdigest())
