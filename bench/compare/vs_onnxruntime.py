#!/usr/bin/env python3
"""KDA prefill: libkda against ONNX Runtime's com.microsoft.LinearAttention.

Both get the same fp32 inputs (per-channel decay in log space, activated beta, an initial state), are
checked against a fp64 recurrence and are then timed in turn, A B A B, in one process. With
`--dtype bf16` libkda gets q, k, v rounded to bf16 and is checked against the recurrence on those;
ONNX Runtime's CPU kernel takes fp32 only. Exits with 1 when either result is off.
"""

import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, ".venv")
K = V = 128
LIMITS = {"fp32": 2e-5, "bf16": 6e-3}  # relative Frobenius error; docs/numerics.md
PEER_LIMIT = 1e-4


def enter_venv():
    """Installs the peer on first use and continues in the interpreter that has it."""
    if sys.prefix == VENV:
        return
    if subprocess.run([os.path.join(HERE, "setup")]).returncode != 0:
        sys.exit(1)
    python = os.path.join(VENV, "bin", "python")
    os.execv(python, [python, os.path.abspath(__file__)] + sys.argv[1:])


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of both (default 1)")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32",
                        help="q, k, v and o of libkda")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", metavar="LIBKDA.SO", help="default: build/libkda.so")
    parser.add_argument("--peer-only", action="store_true", help="leave libkda out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in ("tokens", "heads", "threads", "repeat"):
        if getattr(options, name) < 1:
            parser.error("--%s must be at least 1" % name)
    return options


enter_venv()

import numpy as np  # noqa: E402
import libkda  # noqa: E402


def aligned(array):
    """A copy starting on a cache line: numpy's own allocations do not."""
    size = array.nbytes
    raw = np.empty(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    copy = raw[begin:begin + size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def make_inputs(options):
    rng = np.random.default_rng(options.seed)
    t, h = options.tokens, options.heads

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    # Gates from slow to fast across the channels, as trained models have them: -1e-4 to -5.
    logit = -9 + 12 * np.arange(K) / (K - 1) + 0.5 * normal(1, t, h, K)
    inputs = {
        "q": unit(normal(1, t, h, K)),
        "k": unit(normal(1, t, h, K)),
        "v": normal(1, t, h, V),
        "g": (-5 / (1 + np.exp(-logit))).astype(np.float32),
        "beta": (1 / (1 + np.exp(-normal(1, t, h)))).astype(np.float32),
        "initial_state": 0.1 * normal(1, h, K, V),
    }
    return {name: aligned(array) for name, array in inputs.items()}


def recurrence(inputs):
    """The oracle: the recurrence in fp64, all heads at once."""
    x = {name: array.astype(np.float64) for name, array in inputs.items()}
    state = x["initial_state"][0].copy()
    o = np.empty_like(x["v"])
    for t in range(x["q"].shape[1]):
        state *= np.exp(x["g"][0, t])[:, :, None]
        error = x["v"][0, t] - np.einsum("hkv,hk->hv", state, x["k"][0, t])
        state += (x["beta"][0, t][:, None] * x["k"][0, t])[:, :, None] * error[:, None, :]
        o[0, t] = np.einsum("hkv,hk->hv", state, x["q"][0, t]) * K**-0.5
    return o, state[None]


class Peer:
    """A session of one LinearAttention node, its inputs and outputs bound beforehand."""

    def __init__(self, inputs, threads):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper
        self.version = onnxruntime.__version__
        _, t, h, _ = inputs["q"].shape
        feeds = {
            "query": inputs["q"].reshape(1, t, h * K),
            "key": inputs["k"].reshape(1, t, h * K),
            "value": inputs["v"].reshape(1, t, h * V),
            "past_state": inputs["initial_state"],
            "decay": inputs["g"].reshape(1, t, h * K),
            "beta": inputs["beta"],
        }
        self.o = aligned(np.full((1, t, h * V), np.nan, np.float32))
        self.state = aligned(np.full((1, h, K, V), np.nan, np.float32))
        results = {"output": self.o, "present_state": self.state}

        def infos(arrays):
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
                    for name, array in arrays.items()]

        node = helper.make_node("LinearAttention", list(feeds), list(results),
                                domain="com.microsoft", q_num_heads=h, kv_num_heads=h,
                                update_rule="gated_delta", scale=K**-0.5)
        model = helper.make_model(
            helper.make_graph([node], "kda", infos(feeds), infos(results)), ir_version=10,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        for name, array in results.items():
            self._binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self._alive = (feeds, onnx)

    def run(self):
        self._session.run_with_iobinding(self._binding)


def to_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def make_ours(inputs, options):
    """(plan, the inputs it really sees, a function giving its o in fp32, its final state)."""
    bf16 = options.dtype == "bf16"
    path = options.library or libkda.default_path()
    if not os.path.exists(path):
        sys.exit("%s is not there; run make build, or name it with --library" % path)
    arrays = dict(inputs)
    if bf16:
        arrays.update({name: aligned(to_bf16(inputs[name])) for name in ("q", "k", "v")})
    arrays["o"] = aligned(np.full(inputs["v"].shape, 0x7FC0 if bf16 else np.nan,
                                  np.uint16 if bf16 else np.float32))
    arrays["final_state"] = aligned(np.full(inputs["initial_state"].shape, np.nan, np.float32))
    plan = libkda.Prefill(libkda.load(path), arrays, libkda.BF16 if bf16 else libkda.F32,
                          options.threads)
    seen = dict(inputs)
    if bf16:
        seen.update({name: from_bf16(arrays[name]) for name in ("q", "k", "v")})
    return plan, seen, lambda: from_bf16(arrays["o"]) if bf16 else arrays["o"], \
        arrays["final_state"]


def relative_error(x, expected):
    """Frobenius, relative; infinite when an element is not finite."""
    if not np.all(np.isfinite(x)):
        return float("inf")
    return float(np.linalg.norm(x.reshape(expected.shape) - expected) / np.linalg.norm(expected))


def time_in_turn(runners, options):
    times = {name: [] for name in runners}
    for step in range(options.warmup + options.repeat):
        for name, run in runners.items():
            begin = time.perf_counter_ns()
            run()
            elapsed = time.perf_counter_ns() - begin
            if step >= options.warmup:
                times[name].append(elapsed / 1e6)
    return times


def pin(threads):
    """One thread is kept on one processor; more are left to the scheduler."""
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return "unknown"


def main():
    options = parse_arguments()
    pin(options.threads)
    inputs = make_inputs(options)
    peer = Peer(inputs, options.threads)
    runners = {"onnxruntime": peer.run}
    peer.run()
    o, state = recurrence(inputs)
    errors = {"onnxruntime": (relative_error(peer.o, o), relative_error(peer.state, state))}
    limits = {"onnxruntime": PEER_LIMIT, "libkda": LIMITS[options.dtype]}
    ran = {"onnxruntime": "onnxruntime %s, LinearAttention, gated_delta, fp32" % peer.version}
    if not options.peer_only:
        plan, seen, ours_o, ours_state = make_ours(inputs, options)
        plan.run()
        if options.dtype != "fp32":
            o, state = recurrence(seen)
        errors["libkda"] = (relative_error(ours_o(), o), relative_error(ours_state, state))
        ran["libkda"] = plan.description
        runners["libkda"] = plan.run
    wrong = [name for name in errors if not max(errors[name]) <= limits[name]]
    times = time_in_turn(runners, options)
    results = []
    for name, samples in times.items():
        p10, median, p90 = np.percentile(samples, [10, 50, 90])
        results.append({
            "name": name, "ran": ran[name], "median_ms": median, "p10_ms": p10, "p90_ms": p90,
            "token_heads_per_s": options.tokens * options.heads / median * 1e3,
            "error_o": errors[name][0], "error_state": errors[name][1], "limit": limits[name],
            "right": name not in wrong,
        })
    record = {
        "tokens": options.tokens, "heads": options.heads, "dim_k": K, "dim_v": V,
        "threads": options.threads, "dtype": options.dtype, "warmup": options.warmup,
        "repeat": options.repeat, "seed": options.seed, "cpu": processor(), "results": results,
    }
    if len(results) == 2:
        ratios = np.array(times["onnxruntime"]) / np.array(times["libkda"])
        record["speedup"] = results[0]["median_ms"] / results[1]["median_ms"]
        record["speedup_p10"], record["speedup_p90"] = np.percentile(ratios, [10, 90])
    if options.json:
        print(json.dumps(record, indent=2))
    else:
        print_table(record)
    if wrong:
        sys.exit("wrong result: " + ", ".join(wrong))


def print_table(record):
    print("KDA prefill, T=%(tokens)d H=%(heads)d K=V=%(dim_k)d, %(threads)d thread(s), "
          "libkda in %(dtype)s, on %(cpu)s" % record)
    print("%-12s %10s %10s %10s %15s %10s %10s" % ("", "median ms", "p10", "p90", "token-heads/s",
                                                 "error o", "error S"))
    for row in record["results"]:
        print("%(name)-12s %(median_ms)10.2f %(p10_ms)10.2f %(p90_ms)10.2f "
              "%(token_heads_per_s)15.0f %(error_o)10.1e %(error_state)10.1e" % row)
    for row in record["results"]:
        print("  %(name)s: %(ran)s" % row)
    if "speedup" in record:
        print("libkda is %(speedup).2fx as fast (pairs, p10 to p90: %(speedup_p10).2fx to "
              "%(speedup_p90).2fx)" % record)


if __name__ == "__main__":
    main()
