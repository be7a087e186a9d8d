"""Runs the `kda` program, writes and reads safetensors, and computes KDA in Python's own floats."""

import json
import math
import os
import random
import struct
import subprocess

BINARY = os.environ["KDA_BINARY"]
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "F64": 8}


def kda(*arguments, env=None):
    """The finished process, with text output."""
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, env={**os.environ, **(env or {})})


def kda_json(*arguments):
    process = kda(*arguments, "--json")
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def count(shape):
    return math.prod(shape)


def pack(dtype, values):
    if dtype == "BF16":
        return b"".join(struct.pack("<H", bf16_bits(x)) for x in values)
    return struct.pack("<%d%s" % (len(values), {"F32": "f", "F16": "e", "I32": "i", "I64": "q",
                                                "F64": "d"}[dtype]), *values)


def unpack(dtype, data):
    if dtype == "BF16":
        halves = struct.unpack("<%dH" % (len(data) // 2), data)
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in halves]
    form = {"F32": "f", "F16": "e", "I32": "i", "I64": "q"}[dtype]
    return list(struct.unpack("<%d%s" % (len(data) // SIZES[dtype], form), data))


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def round_to(dtype, values):
    return unpack(dtype, pack(dtype, values))


def raw_file(path, header, data):
    """A file with this header (JSON value or bytes), right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, flat values)}; metadata: {name: text}."""
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, shape, values) in tensors.items():
        assert count(shape) == len(values), name
        part = pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    raw_file(path, header, data)


def split(path):
    """The header of a file, its metadata, its data."""
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    return header, header.pop("__metadata__", {}), content[8 + length:]


def read(path):
    header, _, content = split(path)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = content[begin:end]
        result[name] = (entry["dtype"], entry["shape"], unpack(entry["dtype"], data))
    return result


def problem(lengths=(5, 0, 3), heads=2, group=1, dim_k=4, dim_v=3, seed=1, dtype="F32"):
    """Small packed inputs with a raw gate, A_log, dt_bias and a state."""
    rng = random.Random(seed)
    tokens, values, n = sum(lengths), heads * group, len(lengths)
    cu = [sum(lengths[:i]) for i in range(n + 1)]

    def normal(*shape):
        return dtype, shape, round_to(dtype, [rng.gauss(0, 1) for _ in range(count(shape))])

    def fp32(shape, make):
        return "F32", shape, round_to("F32", [make() for _ in range(count(shape))])

    return {"q": normal(1, tokens, heads, dim_k), "k": normal(1, tokens, heads, dim_k),
            "v": normal(1, tokens, values, dim_v), "g": normal(1, tokens, values, dim_k),
            "beta": normal(1, tokens, values),
            "A_log": fp32((values,), lambda: rng.random() - 0.5),
            "dt_bias": fp32((values, dim_k), lambda: rng.random() - 0.5),
            "initial_state": fp32((n, values, dim_k, dim_v), lambda: rng.gauss(0, 0.5)),
            "cu_seqlens": ("I32", (n + 1,), cu)}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def recurrence(tensors, gate="bounded", lower_bound=-5.0, beta_logits=True, l2norm=True):
    """o and final_state of `problem` by the definition."""
    _, (_, tokens, heads, dim_k), q = tensors["q"]
    _, (_, _, values, dim_v), v = tensors["v"]
    k, g, beta = (tensors[name][2] for name in ("k", "g", "beta"))
    a_log, bias = tensors["A_log"][2], tensors["dt_bias"][2]
    cu = tensors["cu_seqlens"][2]
    o = [0.0] * (tokens * values * dim_v)
    final = list(tensors["initial_state"][2])

    def row(flat, t, width, h):
        return flat[(t * width + h) * dim_k:(t * width + h + 1) * dim_k]

    def unit(x):
        norm = math.sqrt(sum(e * e for e in x) + 1e-6) if l2norm else 1
        return [e / norm for e in x]

    for n in range(len(cu) - 1):
        for hv in range(values):
            h, base = hv // (values // heads), (n * values + hv) * dim_k * dim_v
            s = [final[base + c * dim_v:base + (c + 1) * dim_v] for c in range(dim_k)]
            for t in range(cu[n], cu[n + 1]):
                qt, kt = unit(row(q, t, heads, h)), unit(row(k, t, heads, h))
                vt = v[(t * values + hv) * dim_v:(t * values + hv + 1) * dim_v]
                b = beta[t * values + hv]
                b = sigmoid(b) if beta_logits else b
                for c in range(dim_k):
                    x = row(g, t, values, hv)[c] + bias[hv * dim_k + c]
                    a = math.exp(a_log[hv])
                    log_decay = (lower_bound * sigmoid(a * x) if gate == "bounded"
                                 else -a * math.log1p(math.exp(x)))
                    s[c] = [e * math.exp(log_decay) for e in s[c]]
                for j in range(dim_v):
                    error = vt[j] - sum(kt[c] * s[c][j] for c in range(dim_k))
                    for c in range(dim_k):
                        s[c][j] += b * kt[c] * error
                    o[(t * values + hv) * dim_v + j] = dim_k ** -0.5 * sum(
                        qt[c] * s[c][j] for c in range(dim_k))
            for c in range(dim_k):
                final[base + c * dim_v:base + (c + 1) * dim_v] = s[c]
    return {"o": o, "final_state": final}


def relative(got, want):
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want, strict=True)))
    return error / math.sqrt(sum(b * b for b in want))
