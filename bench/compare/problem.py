"""Inputs from a seed, and the fp64 recurrence that outputs are checked against."""

import zlib

import numpy as np

K = V = 128
BLOCK = 1 << 20  # elements converted at a time: no second copy of a tensor of gigabytes


def aligned(shape, dtype, fill=None):
    """An array that starts on a cache line: numpy's own allocations do not."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    array = raw[begin:begin + size].view(dtype).reshape(shape)
    if fill is not None:
        array.fill(fill)
    return array


def blocks(*arrays):
    """Flat pieces of equally long arrays, in step; pieces are whole rows of K."""
    flat = [array.reshape(-1) for array in arrays]
    for begin in range(0, flat[0].size, BLOCK):
        yield tuple(x[begin:begin + BLOCK] for x in flat)


def to_bf16(x):
    """Rounded to nearest even, as uint16."""
    result = aligned(x.shape, np.uint16)
    for source, target in blocks(x, result):
        bits = source.view(np.uint32)
        target[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return result


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


class Inputs:
    """fp32 q, k, v, g [tokens, H, 128], beta [tokens, H], initial_state [sequences, H, K, V], for
    the largest problem of a run; a smaller one takes their beginning.

    gate: "log": g is activated, in natural logarithm, with channels from slow to fast as trained
    models have them (-1e-4 to -5); "bounded", "softplus": g is raw, A_log and dt_bias go with it;
    "scalar": one activated gate for all channels of a head, g [tokens, H].
    """

    def __init__(self, tokens, sequences, heads, gate, seed, progress=lambda text: None):
        rng = np.random.default_rng(seed)
        self.gate, self.heads = gate, heads
        self.arrays = {}
        for name in ("q", "k", "v"):
            progress("making " + name)
            array = aligned((tokens, heads, K), np.float32)
            rng.standard_normal(dtype=np.float32, out=array)
            if name != "v":
                for (part,) in blocks(array):
                    rows = part.reshape(-1, K)
                    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
            self.arrays[name] = array
        # The parent compares: both sides of a comparison must have made the same.
        self.digests = {"qkv": self._digest()}
        progress("making the gates")
        self.parameters = {}
        slope = (-9 + 12 * np.arange(K) / (K - 1)).astype(np.float32)
        if gate == "scalar":
            logit = rng.standard_normal((tokens, heads), dtype=np.float32) - 3
            g = aligned(logit.shape, np.float32)
            g[...] = -5 / (1 + np.exp(-logit))
        else:
            g = aligned((tokens, heads, K), np.float32)
            rng.standard_normal(dtype=np.float32, out=g)
            for (part,) in blocks(g):
                part *= 0.5
                if gate == "log":
                    rows = part.reshape(-1, K)
                    rows += slope
                    rows[...] = -5 / (1 + np.exp(-rows))
        if gate in ("bounded", "softplus"):
            # Kimi-Linear's A is drawn from 1 to 16: gates down to -50 a token.
            a = np.linspace(1, 16, heads) if gate == "softplus" else np.ones(heads)
            self.parameters["A_log"] = aligned((heads,), np.float32)
            self.parameters["A_log"][...] = np.log(a)
            self.parameters["dt_bias"] = aligned((heads, K), np.float32)
            self.parameters["dt_bias"][...] = slope
        self.arrays["g"] = g
        self.arrays["beta"] = aligned((tokens, heads), np.float32)
        self.arrays["beta"][...] = 1 / (1 + np.exp(-rng.standard_normal(
            (tokens, heads), dtype=np.float32)))
        self.state = aligned((sequences, heads, K, V), np.float32)
        rng.standard_normal(dtype=np.float32, out=self.state)
        self.state *= 0.1
        self.arrays["initial_state"] = self.state
        self.digests["all"] = self._digest()
        del self.arrays["initial_state"]

    def _digest(self):
        digest = 0
        for array in self.arrays.values():
            digest = zlib.crc32(memoryview(array).cast("B"), digest)
        return digest


class Batch:
    """Sequences of these lengths, packed: their rows are the first of the inputs, one sequence
    after the other."""

    def __init__(self, lengths):
        self.lengths = np.array(lengths)
        self.cu_seqlens = np.concatenate(([0], np.cumsum(self.lengths)))
        self.count, self.tokens, self.longest = len(lengths), sum(lengths), max(lengths)
        self.starts = self.cu_seqlens[:-1]
        self.padded_starts = np.arange(self.count) * self.longest
        self.even = min(lengths) == self.longest  # packed and padded are the same then


def of_shape(array, batch, tokens):
    """The first batch * tokens rows, as [batch, tokens, ...]."""
    return array[:batch * tokens].reshape((batch, tokens) + array.shape[1:])


def of_heads(array, starts, tokens, heads):
    """Of each pair of a first row and a head, `tokens` rows, as [pairs, tokens, ...]."""
    return np.stack([array[start:start + tokens, head] for start, head in zip(starts, heads)])


def chosen_heads(batch, heads, budget=1 << 15):
    """(sequence, head) pairs to check, spread evenly, about `budget` token-heads of them; those of
    one length together."""
    count = max(1, min(batch.count * heads, budget * batch.count // batch.tokens, 64))
    flat = np.unique(np.linspace(0, batch.count * heads - 1, count).round().astype(int))
    sequences, heads = flat // heads, flat % heads
    lengths = batch.lengths[sequences]
    for length in np.unique(lengths):
        yield sequences[lengths == length], heads[lengths == length]


def activated(g, gate, parameters, heads):
    """fp64 log decay of the chosen heads, [n, T, K] (or [n, T, 1])."""
    g = g.astype(np.float64)
    if gate == "scalar":
        return g[:, :, None]
    if gate == "log":
        return g
    a = np.exp(parameters["A_log"].astype(np.float64))[heads][:, None, None]
    x = g + parameters["dt_bias"].astype(np.float64)[heads][:, None, :]
    if gate == "bounded":
        return -5 / (1 + np.exp(-a * x))
    return -a * np.logaddexp(0, x)


def recurrence(q, k, v, g, beta, state, progress=lambda text: None):
    """The oracle, in fp64: q, k, v [n, T, 128], g [n, T, K or 1] (log decay), beta [n, T], state
    [n, K, V]. Returns o [n, T, V] and the final state."""
    q, k, v, beta, state = (x.astype(np.float64) for x in (q, k, v, beta, state))
    decay = np.exp(g)
    o = np.empty_like(v)
    tokens = q.shape[1]
    for t in range(tokens):
        if t % 512 == 0:
            progress("the recurrence in fp64, token %d of %d" % (t, tokens))
        state = state * decay[:, t, :, None]
        error = v[:, t] - np.matmul(k[:, t, None, :], state)[:, 0]
        state += (beta[:, t, None] * k[:, t])[:, :, None] * error[:, None, :]
        o[:, t] = np.matmul(q[:, t, None, :], state)[:, 0] * K**-0.5
    return o, state


def relative_error(x, expected):
    """Frobenius, relative; infinite where an element is not finite."""
    if not np.all(np.isfinite(x)):
        return float("inf")
    return float(np.linalg.norm(x - expected) / np.linalg.norm(expected))
